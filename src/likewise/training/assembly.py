"""Assembly of a training from a configuration; each part is made with the facts that earlier parts determine."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all of them
from torch.optim import Optimizer

from likewise.data import Batches, Episodes, LazyInputs, Parts, Samples, Texts, TokenRows
from likewise.data.episode_sampler import fitting_words
from likewise.data.reload import fingerprint, parts_of, parts_of_run, same_source
from likewise.data.split import joined
from likewise.instantiate import as_list, class_of, instantiate, instantiate_all, is_spec
from likewise.losses import Loss, Matryoshka, label_pair_similarity
from likewise.models import Encoder, FromRun, Head, reads_texts
from likewise.runs import Run
from likewise.training.data import TrainingData
from likewise.training.encoders import fill_spec, make_encoder, make_towers, normalize_spec
from likewise.training.inputs import Guide, KeyQueue, LossInput
from likewise.training.inputs.loss_input import LossSignature
from likewise.training.inputs.resolution import check_samples, describe_inputs, reads_embeddings
from likewise.training.optimization import FineTuning
from likewise.training.pretraining import Pretraining
from likewise.training.schedule import Schedule


@final
@dataclass(frozen=True)
class Assembled:
    """An assembled training, ready to run.

    Args:
        parts: The samples for training, validation and test.
        trained: The samples to train on: the training part, followed by the validation part in a refit, and by
            unlabelled samples if the loss takes no labels.
        refit: Whether to train on the validation part too.
        module: Encoder, head, loss and its inputs.
        data: Batches of the training part.
        specs: The class and the arguments of each part.
        notes: Facts about the data for the user, one sentence each.
        origin: The source of the encoder's initial weights; "" if they are random.
    """

    parts: Parts
    trained: Samples
    refit: bool
    module: Pretraining
    data: TrainingData
    specs: dict[str, Any]
    notes: tuple[str, ...] = ()
    origin: str = ""

    @property
    def metadata(self) -> dict[str, Any]:
        """The facts that a run records about the training, as plain values."""
        train, of_second = self.trained, self.trained.counterparts
        labelled = (self.parts.refitted() if self.refit else self.parts).train
        rest = {} if self.parts.unlabelled is None else {"unlabelled": len(self.parts.unlabelled)}
        second = {} if of_second is None else {"second": {"encoder": self.specs["second"], **_read_as(of_second)}}
        sizes = {"train": len(train), "validation": len(self.parts.validation), "test": len(self.parts.test)}
        return {
            "parts": {name: spec for name, spec in self.specs.items() if name != "second"},
            **_read_as(train),
            "columns": list(train.columns),
            "labels": {"kind": labelled.label_kind, "names": list(labelled.names)},
            "samples": sizes | rest | {"fingerprint": fingerprint(self.parts)},
            **second,
        }


def _read_as(samples: Samples) -> dict[str, Any]:
    return {"preprocessing": None if samples.preprocessing is None else asdict(samples.preprocessing)}


def assemble(
    chosen: Mapping[str, Any],
    seed: int,
    chunk_size: int | None = None,
    workers: int | None = None,
    temperature_rate_factor: float = 1.0,
    *,
    widths: Sequence[int] | None = None,
    fine_tuning: FineTuning | None = None,
    weights: str | None = None,
    resumed: Run | None = None,
    network: nn.Module | None = None,
    unlabelled: Literal["left-out", "own-class"] = "left-out",
) -> Assembled:
    """Make the parts of a training, in the order of their dependencies.

    Args:
        chosen: A `Spec` for each of data, subset, split, batches, encoder, head, loss, optimizer and schedule, and a
            list of them for inputs; None for an omitted part.
        seed: Seed of weights, order, views and dropout.
        chunk_size: Inputs encoded at a time; None: all of a batch.
        workers: Processes that read inputs not in memory; None: one per core, up to 8.
        temperature_rate_factor: Factor of a learned temperature's learning rate.
        widths: Numbers of first features to average the loss over, see `Matryoshka`; None: only all features.
        fine_tuning: The trained parameters of the encoder and their learning rates. None: all, at the optimizer's rate.
        weights: A file of initial weights for the encoder; see `load_weights`. None: the encoder's own.
        resumed: The run to continue; its encoder's initial weights are used, if it has them.
        network: The network to train, or its encoder, in place of the described one.
        unlabelled: How a loss that takes classes treats samples without one; other losses are trained on all.

    Raises:
        ValueError: A part refuses its arguments, the data, or earlier parts.
    """
    specs = {part: normalize_spec(spec) for part, spec in chosen.items()}
    loss_class = class_of(specs["loss"]["class_path"], Loss)
    parts, refit = parts_of(specs, partial(check_samples, loss_class))
    train = replace(parts.refitted().train if refit else parts.train, evaluated=None)  # training never sees these
    if parts.unlabelled is not None:
        train = _with_unlabelled(train, parts.unlabelled, loss_class, unlabelled)
    if loss_class.label_kinds and train.label_kind == "label sets" and not train.counts.any():
        raise ValueError(f"expected training samples with a label, got none of {len(train):,}: check the labels")
    torch.manual_seed(seed)
    before = [note for run in _earlier_runs(specs) for note in _overlap_notes(run, specs, parts)]
    encoder, origin, taken = make_encoder(specs, train, resumed, weights, network)
    if origin:
        torch.manual_seed(seed)  # the rest is the same wherever the weights were found
    specs["head"] = (
        fill_spec(specs["head"], Head, feature_dim=encoder.feature_dim) if reads_embeddings(loss_class) else None
    )
    if train.counterparts is None:
        head = None if specs["head"] is None else instantiate(specs["head"], Head)
        inputs = instantiate_all(specs.get("inputs"), LossInput)
    else:
        head, (encoder, inputs) = None, make_towers(specs, chosen, encoder, train, train.counterparts, resumed=resumed)
    loss: Any = _loss(specs, train, head.embedding_dim if head else encoder.feature_dim)
    module = Pretraining(
        encoder,
        head,
        loss if widths is None else Matryoshka(loss, widths),
        partial(class_of(specs["optimizer"]["class_path"], Optimizer), **specs["optimizer"]["init_args"]),
        inputs,
        samples=train,
        schedule=instantiate(specs["schedule"], Schedule),
        chunk_size=chunk_size,
        temperature_rate_factor=temperature_rate_factor,
        fine_tuning=fine_tuning,
    )
    specs["inputs"] = normalize_spec(describe_inputs(module.inputs, as_list(specs.get("inputs")))) or specs.get(
        "inputs"
    )
    data = _data(specs, module, train, seed, workers)
    of_data = notes(data.samples, module.inputs.all, parts.test)
    known = (*taken, *before, *_of_chunks(module, chunk_size), *_of_batches(data), *of_data)
    return Assembled(parts, train, refit, module, data, specs, known, origin)


def _with_unlabelled(train: Samples, unlabelled: Samples, loss: type[Loss], choice: str) -> Samples:
    """Return the training samples of a loss: without labels, all samples; with labels, the labelled ones, or all."""
    if not loss.label_kinds:
        return joined(train.unlabelled(), unlabelled)
    if choice == "left-out":
        return train
    counted = {"prototypes", "class_logits"} & LossSignature.by(loss).names
    if counted or "num_classes" in inspect.signature(loss).parameters or train.classes is None:
        raise ValueError(
            f"expected a loss that compares classes and has nothing for each of them, got {loss.__name__}: leave out "
            "--unlabelled, or choose SupConLoss"
        )
    new_labels = torch.arange(len(unlabelled)) + len(train.names)
    return replace(
        joined(train.unlabelled(), unlabelled),
        labels=torch.cat([train.classes, new_labels]),
        names=(*train.names, *(f"unlabelled {number}" for number in range(len(unlabelled)))),
    )


def _data(specs: dict[str, Any], module: Pretraining, train: Samples, seed: int, workers: int | None) -> TrainingData:
    batches = instantiate(specs["batches"], Batches)
    batches.suit(module.inputs.signature.loss, module.inputs.signature.names)
    module.inputs.check_batches(batches)
    data = TrainingData(prepared(module.encoder, train, module.second), batches, seed=seed, workers=workers)
    specs["batches"]["init_args"] |= batches.recorded
    data.epoch_shape()  # refuses batches that the samples can't fill before any message or file
    return data


def _of_batches(data: TrainingData) -> Iterator[str]:
    batches, samples = data.batches, data.samples
    if (held := data.epoch_shape()[1]) < batches.batch_size:
        yield (
            f"batches have {held:,} samples instead of {batches.batch_size:,} (--batch-size), as there are "
            f"{len(samples):,} training samples"
        )
    if isinstance(batches, Episodes) and batches.shape != batches.wanted:
        text = fitting_words(samples.counts, samples.names, batches.wanted, batches.shape)
        yield f"training is {text} to train on"


def _of_chunks(module: Pretraining, size: int | None) -> Iterator[str]:
    layers = (layer for tower in filter(None, (module.encoder, module.second)) for layer in tower.modules())
    if size is not None and any(isinstance(layer, _BatchNorm) for layer in layers):
        yield f"batch normalisation in the encoder normalises each chunk of {size:,} by itself"


def prepared(encoder: Encoder, samples: Samples, second: Encoder | None = None) -> Samples:
    """Return samples in an encoder's form: texts as tokens, made once for the whole training."""
    if samples.counterparts is not None and second is not None:
        negatives = samples.negatives
        pool = None if negatives is None else replace(negatives, inputs=_tokens(second, negatives.inputs))
        samples = replace(samples, counterparts=prepared(second, samples.counterparts), negatives=pool)
    return replace(samples, inputs=_tokens(encoder, samples.inputs))


def _tokens(encoder: Encoder, inputs: Tensor | LazyInputs) -> Tensor | LazyInputs:
    return encoder.tokenized(inputs) if reads_texts(encoder) and isinstance(inputs, Texts) else inputs


def _earlier_runs(specs: dict[str, Any]) -> list[str]:
    """Return the runs that provide initial encoders or guides; record the first side's."""
    input_specs = as_list(specs.get("inputs"))
    runs = [_run_of(specs["encoder"]), *(_run_of(spec["init_args"].get("encoder")) for spec in input_specs)]
    if runs[0] is not None:
        specs["from_run"] = runs[0]
    guides = (spec for spec in input_specs if class_of(spec["class_path"], LossInput) is Guide)
    runs += [str(spec["init_args"].get("run")) for spec in guides]
    return list(dict.fromkeys(run for run in runs if run is not None))


def _run_of(spec: Any) -> str | None:
    begins = is_spec(spec) and issubclass(class_of(spec["class_path"], Encoder), FromRun)
    arguments = spec.get("init_args") or {} if begins else {}
    return str(arguments.get("run")) if begins and arguments.get("trained", True) else None


def _overlap_notes(path: str, specs: Mapping[str, Any], parts: Parts) -> list[str]:
    """Return a note on validation samples that an earlier run on the same data was trained on; refuse test samples."""
    run = Run.open(path)
    facts = run.metadata
    theirs = facts.get("parts", {}).get("data")
    if not theirs or not same_source(theirs, specs["data"]) or facts["samples"]["fingerprint"] == fingerprint(parts):
        return []
    before, refit = parts_of_run(run)
    learned = [before.refitted().train if refit else before.train, before.unlabelled]
    seen, chosen_by = (
        sum(shared(part, samples) for samples in learned if samples is not None)
        for part in (parts.test, parts.validation)
    )
    if seen:
        raise ValueError(
            f"expected test samples that {run.folder} was not trained on, got {seen:,} of {len(parts.test):,} that it "
            "was: give --split and --split.seed of its config.yaml"
        )
    message = f"{run.folder} was trained on {chosen_by:,} of {len(parts.validation):,} validation samples"
    return [f"{message}: choices made on them may be too favourable to it"] if chosen_by else []


def shared(first: Samples, second: Samples) -> int:
    """Count the first samples that are also among the second, if both are from the same data.

    Ids decide, since the row numbers skip rows that were left out in reading.
    """
    if not (first.ids.plain or second.ids.plain):
        theirs = set(second.ids)
        return sum(sample_id in theirs for sample_id in first.ids)
    ours, other_rows = first.numbered().rows, second.numbered().rows
    return 0 if ours is None or other_rows is None else int(torch.isin(ours, other_rows).sum())


def _loss(specs: dict[str, Any], train: Samples, width: int) -> Loss:
    known = {"num_samples": len(train), "feature_dim": width, "num_classes": len(train.names)}
    spec = specs["loss"] = fill_spec(specs["loss"], Loss, **known)
    similarity = spec["init_args"].get("label_similarity")
    if not isinstance(similarity, str):
        return instantiate(spec, Loss)
    if train.label_kind != "label sets" or train.labels is None:
        name, has = spec["class_path"].rpartition(".")[2], train.label_kind or "no labels"
        raise ValueError(f"expected label sets as labels for {name}, got {has}: choose a loss that takes {has}")
    table = label_pair_similarity(train.labels, similarity)  # pyright: ignore[reportArgumentType] - it checks the word
    return instantiate(spec, Loss, label_similarity=table)


MAX_LISTED = 3  # labels named in a sentence


def notes(samples: Samples, inputs: Iterable[LossInput] = (), test: Samples | None = None) -> Iterator[str]:
    """Yield notes on the input columns and on unusual facts: cut texts, missing or constant labels, long queues."""
    if samples.said:
        yield samples.said
    if isinstance(samples.inputs, TokenRows) and samples.inputs.cut:
        yield (
            f"{samples.inputs.cut:,} of {len(samples):,} training texts are longer than the encoder reads and were "
            "cut: raise --encoder.length to read more of them"
        )
    for queue in (loss_input for loss_input in inputs if isinstance(loss_input, KeyQueue)):
        if queue.size > len(samples):
            yield (
                f"the queue holds {queue.size:,} keys of {len(samples):,} training samples, each about "
                f"{queue.size / len(samples):.1f} times: lower --inputs.size, so that it "
                "seldom holds older keys of a sample"
            )
    if samples.label_kind != "label sets" or samples.labels is None:
        return
    without = int((~samples.labels.any(dim=1)).sum())
    if without:
        yield (
            f"{without:,} of {len(samples):,} training samples have no label and are kept; a contrast has "
            "them as negatives of all others: --subset+ Labelled drops them"
        )
    if test is not None and not test.counts.any():
        yield f"none of {len(test):,} test samples has a label: no prediction of labels can be evaluated"
    for constant, where in ((samples.counts == 0, "at no"), (samples.counts == len(samples), "at every")):
        labels = constant.nonzero().flatten().tolist()
        if labels:
            named = [samples.names[label] for label in labels[:MAX_LISTED]] + ["..."] * (len(labels) > MAX_LISTED)
            yield (
                f"labels {where} training sample, of which nothing can be learned: {len(labels):,} of "
                f"{len(samples.names):,} ({', '.join(named)})"
            )

"""Our losses beside those of other libraries, pair by pair: equal values first, then time and memory."""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import normalize

import likewise as lw
from benchmarks.measuring.case import Batch, Case, Contender, Failed, Sampler, forget, leaves
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.prediction import in_units
from benchmarks.measuring.results import Timing, markdown, summary
from benchmarks.measuring.schedule import Meter
from likewise import pairs
from likewise.models import in_chunks

METRIC, SENTENCES = "pytorch-metric-learning", "sentence-transformers"
MODULES = {METRIC: "pytorch_metric_learning", SENTENCES: "sentence_transformers", "open_clip": "open_clip"}
SCALE, BIAS = 14.3, -10.0  # where CLIP and SigLIP start
CHUNK = 32
COMPARED = 256  # rows

Step = Callable[..., Tensor]


class Pair(NamedTuple):
    """A loss of ours and somebody else's for the same batch."""

    name: str
    library: str
    rows: int
    features: int
    ours: Callable[[Case], Step]
    theirs: Callable[[Case], Step]
    batch: Callable[[Sampler], Batch]

    @property
    def contenders(self) -> tuple[Contender, Contender]:
        """Ours and theirs."""
        module = MODULES.get(self.library, self.library)
        return (
            Contender(self.name, "likewise", "", self.ours, self.batch),
            Contender(self.name, self.library, "", self.theirs, self.batch, module=module),
        )


def _metric(name: str, **options: Any) -> Callable[[Case], Step]:
    return lambda _: getattr(import_module("pytorch_metric_learning.losses"), name)(**options)


def _distance(name: str, **options: Any) -> Any:
    return getattr(import_module("pytorch_metric_learning.distances"), name)(**options)


def _proxies(name: str, classes: int, weight: str, **options: Any) -> Callable[[Case], Step]:
    """Return how a loss that owns its vectors of classes is made; these are given to it, as to ours."""

    def make(case: Case) -> Step:
        loss = getattr(import_module("pytorch_metric_learning.losses"), name)(classes, case.features, **options)
        return lambda rows, labels, vectors: functional_call(
            loss, {weight: vectors.T if weight == "W" else vectors}, (rows, labels)
        )

    return make


def _sentences(name: str, **options: Any) -> Any:
    return getattr(import_module("sentence_transformers.sentence_transformer.losses"), name)(**options)


def _clip(name: str, *more: float) -> Callable[[Case], Step]:
    """Return how a loss of open_clip is made, which takes its scale, and its bias, with each batch."""
    numbers = [torch.tensor(number, dtype=torch.float64) for number in more]
    return lambda _: lambda *rows: getattr(import_module("open_clip.loss"), name)()(*rows, *numbers)


def _semi_hard(_: Case) -> Step:
    losses = import_module("sentence_transformers.sentence_transformer.losses")
    cosine = losses.BatchHardTripletLossDistanceFunction.cosine_distance
    loss = losses.BatchSemiHardTripletLoss(model=None, distance_metric=cosine, margin=0.1)
    return lambda rows, labels: loss.compute_loss_from_embeddings([rows], labels)


class _Given(nn.Module):
    """Stands for an encoder whose embeddings are known; its tokenizer is not used, but asked for."""

    max_seq_length = 8

    def __init__(self) -> None:
        super().__init__()
        tokenizers, transformers = import_module("tokenizers"), import_module("transformers")
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}))
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return features


def _guided(_: Case) -> Step:
    """Return GISTEmbed of sentence-transformers, for embeddings and a guide's."""

    class Guided(_Given):
        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"sentence_embedding": features["guide"]}

    loss = _sentences("GISTEmbedLoss", model=_Given(), guide=Guided(), temperature=0.05)
    return lambda *of: loss(
        [{"sentence_embedding": of[0], "guide": of[2]}, {"sentence_embedding": of[1], "guide": of[3]}], None
    )


def guided(anchors: Tensor, positives: Tensor, *guide: Tensor) -> Tensor:
    """Return GISTEmbed: three log-sum-exps in one softmax, without pairs that a guide finds closer than the own one."""
    a, p, of_a, of_p = (normalize(of) for of in (anchors, positives, *guide))
    limits, others = (of_a * of_p).sum(dim=1), pairs.NotSelf(len(a))
    between, within, beyond = (pairs.Below(x, y, limits=limits) for x, y in ((of_a, of_p), (of_a, of_a), (of_p, of_p)))
    push = pairs.concat([between | ~others, within])
    of_anchors = lw.log_sum_exp(a, (p, a), push=push, temperature=0.05)
    of_positives = lw.log_sum_exp(p, push=beyond, temperature=0.05)
    return (torch.logaddexp(of_anchors, of_positives) - (a * p).sum(dim=1) / 0.05).mean()


class _Encoder(nn.Module):
    """A small transformer that is called as those of sentence-transformers are."""

    def __init__(self) -> None:
        super().__init__()
        transformers = import_module("transformers")
        sizes = {"hidden_size": 32, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 64}
        torch.manual_seed(0)
        self.model = transformers.BertModel(transformers.BertConfig(vocab_size=100, **sizes)).eval()

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        hidden = self.model(input_ids=features["input_ids"]).last_hidden_state
        return {"sentence_embedding": hidden.mean(dim=1)}


class _Cached(nn.Module):
    """A loss of two columns of tokens, whose encoder is given a chunk at a time."""

    def __init__(self, *, theirs: bool) -> None:
        super().__init__()
        self.encoder, self.loss = _Encoder(), lw.InfoNCELoss(temperature=0.05)
        name = "CachedMultipleNegativesRankingLoss"
        self.cached = _sentences(name, model=nn.Sequential(self.encoder), mini_batch_size=CHUNK) if theirs else None

    def forward(self, *tokens: Tensor) -> Tensor:
        columns = [{"input_ids": of} for of in tokens]
        if self.cached is not None:
            return self.cached(columns, None)
        found = (in_chunks(self.encoder, of, CHUNK, self.encoder) for of in columns)
        return self.loss(*(of["sentence_embedding"] for of in found))


def _ranking(_: Case) -> Step:
    loss = _sentences("MultipleNegativesRankingLoss", model=None)
    return lambda *rows: loss.compute_loss_from_embeddings(list(rows), None)


def _with_negatives(_: Case) -> Step:
    loss = lw.InfoNCELoss(temperature=0.05)
    return lambda queries, keys, *negatives: loss(queries, keys, negatives=torch.stack(negatives, dim=1))


def _lightly(name: str, **options: float) -> Callable[[Case], Step]:
    return lambda _: getattr(import_module("lightly.loss"), name)(**options)


def _ours(name: str, **options: Any) -> Callable[[Case], Step]:
    return lambda _: getattr(lw, name)(**options)


def _siglip(_: Case) -> Step:
    return lw.SigLIPLoss(temperature=1 / SCALE, bias=BIAS, normalize=False)


def _of_classes(classes: int = 0, prototypes: int = 0) -> Callable[[Sampler], Batch]:
    """Return what samples rows and classes, 0: of four rows each, and vectors of classes if there are any."""

    def batch(sampler: Sampler) -> Batch:
        labels = sampler.integers(sampler.rows, prototypes) if prototypes else None
        if labels is None:
            labels = sampler.classes(sampler.rows, classes or sampler.rows)
        vectors = (sampler.embeddings(prototypes),) if prototypes else ()
        return sampler.embeddings(sampler.rows), labels, *vectors

    return batch


def _columns(count: int, *, unit: bool = False, guide: bool = False) -> Callable[[Sampler], Batch]:
    """Return what samples several columns of embeddings, of length 1 as open_clip's, and a guide's of the same."""

    def batch(sampler: Sampler) -> Batch:
        columns = [sampler.embeddings(sampler.rows) for _ in range(count)]
        if unit:
            columns = [normalize(of.detach()).requires_grad_() for of in columns]
        if guide:
            columns += [of.detach() + sampler.embeddings(sampler.rows, learned=False) for of in columns]
        return tuple(columns)

    return batch


def _views(sampler: Sampler) -> Batch:
    return sampler.embeddings(sampler.rows // 2), sampler.embeddings(sampler.rows // 2)


def _tokens(sampler: Sampler) -> Batch:
    return tuple(sampler.integers(8 * sampler.rows, 100).view(-1, 8) for _ in range(2))


def _contrastive(case: Case) -> Step:
    options = {"pos_margin": 1.0, "neg_margin": 0.0, "distance": _distance("CosineSimilarity")}
    return _metric("ContrastiveLoss", **options)(case)


def _lifted(case: Case) -> Step:
    return _metric("LiftedStructureLoss", distance=_distance("LpDistance", power=2))(case)


def _all_triplets(case: Case) -> Step:
    return _metric("TripletMarginLoss", margin=0.1, distance=_distance("CosineSimilarity"))(case)


def _clip_of_ours(_: Case) -> Step:
    loss, scale = lw.ClipLoss(), torch.tensor(SCALE, dtype=torch.float64)
    return lambda images, texts: loss(images, texts, scale)


def _cached(*, theirs: bool) -> Callable[[Case], Step]:
    return lambda case: _Cached(theirs=theirs).to(getattr(torch, case.dtype))


def _faces(name: str, classes: int) -> tuple[Callable[[Case], Step], Callable[[Sampler], Batch]]:
    """Return a loss of many classes, and what samples a batch for it."""
    return _proxies(name, classes, "W"), _of_classes(0, classes)


ROWS = {  # others than 4,096: theirs lists pairs of pairs, or there are many classes
    "NT-Xent of classes": 256,
    "lifted structure": 256,
    "triplets, all": 512,
    "ArcFace, 10,000 classes": 1024,
    "CosFace, 100,000 classes": 512,
}
HUNDRED, FOURS = _of_classes(100), _of_classes()


def _of_metric(
    *rows: tuple[str, Callable[[Case], Step], Callable[[Case], Step], Callable[[Sampler], Batch]],
) -> list[Pair]:
    return [Pair(name, METRIC, ROWS.get(name, 4096), 128, ours, theirs, batch) for name, ours, theirs, batch in rows]


PAIRS = (
    *_of_metric(
        ("SupCon", _ours("SupConLoss"), _metric("SupConLoss"), HUNDRED),
        ("multi-similarity", _ours("MultiSimilarityLoss"), _metric("MultiSimilarityLoss"), HUNDRED),
        ("contrastive, margins", _ours("ContrastiveMarginLoss", negative_margin=0.0), _contrastive, HUNDRED),
        ("NT-Xent of classes", _ours("SupConLoss", temperature=0.07, form="pairs"), _metric("NTXentLoss"), FOURS),
        ("lifted structure", _ours("LiftedStructureLoss"), _lifted, FOURS),
        ("triplets, all", _ours("BatchTripletLoss", mining="all"), _all_triplets, FOURS),
        ("proxy-anchor", _ours("ProxyAnchorLoss"), _proxies("ProxyAnchorLoss", 1000, "proxies"), _of_classes(0, 1000)),
        ("ArcFace, 10,000 classes", _ours("ArcFaceLoss", margin=math.radians(28.6)), *_faces("ArcFaceLoss", 10_000)),
        ("CosFace, 100,000 classes", _ours("CosFaceLoss"), *_faces("CosFaceLoss", 100_000)),
    ),
    Pair("triplets, semi-hard", SENTENCES, 4096, 128, _ours("BatchTripletLoss"), _semi_hard, FOURS),
    Pair("MNRL, three negatives", SENTENCES, 2048, 384, _with_negatives, _ranking, _columns(5)),
    Pair("MNRL, cached", SENTENCES, 4096, 32, _cached(theirs=False), _cached(theirs=True), _tokens),
    Pair("GISTEmbed", SENTENCES, 512, 384, lambda _: guided, _guided, _columns(2, guide=True)),
    Pair("CLIP", "open_clip", 8192, 512, _clip_of_ours, _clip("ClipLoss", SCALE), _columns(2, unit=True)),
    Pair("SigLIP", "open_clip", 8192, 512, _siglip, _clip("SigLipLoss", SCALE, BIAS), _columns(2, unit=True)),
    Pair("NT-Xent", "lightly", 4096, 128, _ours("NTXentLoss"), _lightly("NTXentLoss", temperature=0.5), _views),
    Pair("DCL", "lightly", 4096, 128, _ours("DCLLoss"), _lightly("DCLLoss", temperature=0.1), _views),
)
NAMES = tuple(each.name for each in PAIRS)


def outcome(contender: Contender, case: Case) -> tuple[Tensor, Tensor]:
    """Return a contender's loss, and its gradients in one vector, those of parameters too."""
    step, batch = contender.make(case), contender.batch(Sampler(case))
    parameters = list(step.parameters()) if isinstance(step, nn.Module) else []
    forget(batch)
    loss = step(*batch)
    loss.backward()
    found = [of.grad.flatten() for of in (*leaves(batch), *parameters) if of.grad is not None]
    return loss.detach(), torch.cat(found)


def differences(pair: Pair, case: Case) -> tuple[float, float]:
    """Return how far ours is from theirs in float64, with few rows: of the loss, and of the gradient, relative.

    In float32 with all rows, triplets may differ: which negative is the nearest is then decided by rounding.
    """
    case = case._replace(rows=min(case.rows, COMPARED), dtype="float64")  # pyright: ignore[reportArgumentType] - only here
    (loss, gradient), (expected, of_theirs) = (outcome(each, case) for each in pair.contenders)
    return float((loss - expected).abs() / expected.abs()), float((gradient - of_theirs).norm() / of_theirs.norm())


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure our losses beside those of other libraries: forward and backward, in turns, memory in fresh processes.

    Before a pair is timed, values and gradients are compared, in float64. The figures of a pair's second row are how
    many times ours it takes, in time with the quartiles over turns, and in memory.
    """

    sizes: tuple[int, ...] = ()
    pairs: tuple[str, ...] = option(NAMES, "Which pairs.", choices=NAMES)
    repeats: int = option(7, "Steps to time of each.", least=1)
    clock: str = option("cpu", "What to time: elapsed or processor time.", choices=("wall", "cpu"))

    def __post_init__(self) -> None:
        super().__post_init__()
        warnings.filterwarnings("ignore", module="(pytorch_metric_learning|lightly|transformers|sentence_transformers)")

    def chosen(self) -> list[Pair]:
        """Return the pairs whose library is installed."""
        named = [each for each in PAIRS if each.name in self.pairs]
        return [each for each in named if find_spec(MODULES.get(each.library, each.library)) is not None]

    def missing(self) -> dict[str, str]:
        absent = {each.library for each in PAIRS} - {each.library for each in self.chosen()}
        return {name: "pip install 'likewise[bench]'" for name in sorted(absent) if self.pairs == NAMES}

    def contenders(self) -> list[Contender]:
        return [each for pair in self.chosen() for each in pair.contenders]

    def total(self) -> int:
        return len(self.contenders())

    def results(self, tell: Callable[[str], object]) -> Iterator[Timing]:
        meter = self.meter()
        for pair in self.chosen():
            tell(f"{pair.name} beside {pair.library}")
            try:
                yield from self._measured(pair, meter)
            except Exception as error:  # noqa: BLE001 - a library's error is a line of the table, not the end of it
                why = str(error) if isinstance(error, Failed) else Failed.words(error)
                yield from (Timing(*each.key, pair.rows, self.dtype, skipped=why) for each in pair.contenders)

    def _measured(self, pair: Pair, meter: Meter) -> list[Timing]:
        """Compare the two, measure the memory of each, and time them in turns."""
        case, both = Case(pair.rows, pair.features, self.dtype, self.device), pair.contenders
        of_loss, of_gradient = differences(pair, case)
        peaks = [meter.peak(each, case) for each in both]
        steps = [meter.turns(each, case, peak.seconds) for each, peak in zip(both, peaks, strict=True)]
        turns = [[step() for step in steps] for _ in range(self.repeats)]
        ratios = summary([theirs / ours / 1e3 for ours, theirs in turns])
        ours, theirs = (peak.bytes for peak in peaks)
        figures = {
            "time": round(ratios["milliseconds"], 2),
            "quartiles": [round(of, 2) for of in ratios["quartiles"] or ()],
            "memory": round(theirs / max(1, ours), 2) if ours is not None and theirs is not None else None,
            "loss": float(f"{of_loss:.1e}"),
            "gradient": float(f"{of_gradient:.1e}"),
            "load": round(os.getloadavg()[0], 1),
        }
        taken = [summary([turn[k] for turn in turns]) for k in range(2)]
        return [
            Timing(*each.key, pair.rows, self.dtype, **of, peak_bytes=peak.bytes, figures=more)
            for each, of, peak, more in zip(both, taken, peaks, ({}, figures), strict=True)
        ]

    def summary(self, results: Sequence[Timing]) -> str:
        return table(results)


def table(results: Sequence[Timing]) -> str:
    """Return a row for each pair: times, memory, how many times ours theirs takes, and how far the values are apart."""
    rows = [
        ["loss", "beside", "rows", "ours", "theirs", "time", "ours", "theirs", "memory", "loss, gradient"],
        ["---"] * 10,
    ]
    for ours, theirs in zip(results[::2], results[1::2], strict=True):
        if theirs.skipped:
            continue
        found, sizes = theirs.figures, [in_units(each.peak_bytes or 0) for each in (ours, theirs)]
        times = [f"{each.milliseconds or 0:,.4g} ms" for each in (ours, theirs)]
        low, high = found["quartiles"] or (found["time"],) * 2
        ratio = f"{found['time']:.2f} × ({low:.2f} to {high:.2f})"
        apart = f"{found['loss']:.0e}, {found['gradient']:.0e}"
        memory = f"{found['memory']:.1f} ×" if found["memory"] else "–"
        rows.append([ours.loss, theirs.contender, f"{ours.rows:,}", *times, ratio, *sizes, memory, apart])
    return markdown(rows)

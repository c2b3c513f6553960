"""Losses with the call signatures of other libraries, for their trainers; none of the libraries is imported here."""

import inspect
from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor, nn

from likewise import distributed
from likewise.losses import ClipLoss, SigLIPLoss
from likewise.losses.matryoshka import signature_of
from likewise.memory import Queue
from likewise.models import in_chunks

__all__ = ["ForMetricLearning", "ForOpenClip", "ForSentences"]


@final
class ForMetricLearning(nn.Module):
    """A loss of classes for the trainers of pytorch-metric-learning, such as `MetricLossOnly`.

    Args:
        loss: A loss of this library that takes embeddings and labels.
        prototypes: `Prototypes`, if the loss takes them; give the parameters to an optimizer, and for several processes
            the whole module to DistributedDataParallel.
        queue: A `Queue` of earlier embeddings, for a loss that takes one, in place of `CrossBatchMemory`.

    Returns:
        A call on embeddings and labels returns the loss; with a queue the embeddings are enqueued afterwards.

    Raises:
        ValueError: If a miner's tuples or inputs unknown to the loss are given, if its prototypes are missing, or if
            the loss or its prototypes are not modules.

    Memory:
        The memory of the loss and of the queue.

    Source:
        Musgrave, Belongie, Lim, "PyTorch Metric Learning", 2020.

    Example:
        >>> import torch
        >>> from likewise import SupConLoss
        >>> loss_of = ForMetricLearning(SupConLoss(temperature=0.1), queue=Queue(4, 2))
        >>> loss_of(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])), len(loss_of.queue)
        (tensor(0.), 2)
    """

    def __init__(self, loss: nn.Module, *, prototypes: nn.Module | None = None, queue: Queue | None = None) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            got = getattr(loss, "__name__", type(loss).__name__)
            raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every public entry
                f"expected a loss that is made, such as SupConLoss(), got {got}: call the class"
            )
        if not isinstance(prototypes, nn.Module | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every public entry
                f"expected prototypes as a module, got {type(prototypes).__name__}: give a Prototypes"
            )
        also = {"prototypes": prototypes, "queue": queue}
        _check_taken(loss, [name for name, value in also.items() if value is not None])
        needed = signature_of(loss).parameters.get("prototypes")
        if prototypes is None and needed is not None and needed.default is inspect.Parameter.empty:
            raise ValueError(
                f"expected prototypes for {type(loss).__name__}, got none: prototypes=Prototypes(classes, dimension)"
            )
        self.loss, self.prototypes, self.queue = loss, prototypes, queue

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of embeddings, (N, D), and classes, (N,), against references, if given, or the batch."""
        if indices_tuple is not None:
            raise ValueError(
                "expected no pairs of a miner, got indices_tuple: leave the miner out, and give the loss its selection "
                "instead, as epsilon= of MultiSimilarityLoss or mining= of BatchTripletLoss"
            )
        labels, also = labels.to(embeddings.device), dict[str, Any]()
        if self.prototypes is not None:
            also["prototypes"] = self.prototypes()
        if ref_emb is not None:
            _check_taken(self.loss, ["references"])
            also |= {"references": ref_emb, "reference_labels": ref_labels}
        if self.queue is not None and len(self.queue):
            also |= {"queue": self.queue.keys, "queue_labels": self.queue.labels}
        loss = self.loss(embeddings, labels, **also)
        if self.queue is not None:
            self.queue.enqueue(embeddings, labels)
        return loss


def _check_taken(loss: nn.Module, names: Iterable[str]) -> None:
    takes = signature_of(loss).parameters
    more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values())
    for name in names:
        if name not in takes and not more:
            signature = f"{type(loss).__name__} takes {', '.join(takes)}"
            raise ValueError(f"expected what the loss takes, got {name}, where {signature}: leave it out")


@final
class ForOpenClip(nn.Module):
    """CLIP's loss, or SigLIP's, for the trainer of open_clip, exact on any number of processes.

    `open_clip_train.main.create_loss = ForOpenClip.create` replaces open_clip's own loss.

    Args:
        sigmoid: Whether to compute SigLIP's loss, for a model with ``logit_bias``, instead of CLIP's.
        gather_distributed: Whether to contrast with the texts of all processes.

    Returns:
        A call on a model's outputs returns the loss, or with ``output_dict=True`` a dictionary that holds it.

    Raises:
        ValueError: If the model has no logit_bias for SigLIP, or has one for CLIP, or if sigmoid is not a boolean.

    Memory:
        O(B·D + tile), where B counts all processes' samples.

    Source:
        Ilharco et al., "OpenCLIP", 2021; for the losses, see `ClipLoss` and `SigLIPLoss`.

    Example:
        >>> import torch
        >>> ForOpenClip()(torch.eye(2), torch.eye(2), torch.tensor(1.0))
        tensor(0.3133)
    """

    def __init__(self, *, sigmoid: bool = False, gather_distributed: bool = True) -> None:
        super().__init__()
        if not isinstance(sigmoid, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every public entry
                f"expected sigmoid as True or False, got {sigmoid!r}: True is for a model with logit_bias"
            )
        self.sigmoid, self.gather_distributed = sigmoid, gather_distributed

    @classmethod
    def create(cls, args: Any) -> "ForOpenClip":
        """Return the loss for the trainer's options; ``--local-loss`` and ``--gather-with-grad`` have no effect."""
        if args.distill or args.horovod or "coca" in args.model.lower():
            raise ValueError(
                f"expected CLIP or SigLIP without distillation and Horovod, got the model {args.model}, distill="
                f"{args.distill}, horovod={args.horovod}: leave open_clip's create_loss as it is"
            )
        return cls(sigmoid=args.siglip)

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        logit_bias: Tensor | None = None,
        *,
        output_dict: bool = False,
    ) -> Any:
        """Return the loss of normalised features, (B, D) each, with the scale and bias of the model."""
        if (logit_bias is None) == self.sigmoid:
            raise ValueError(
                f"expected a model {'with' if self.sigmoid else 'without'} logit_bias for sigmoid={self.sigmoid}, got "
                "another: take --siglip for SigLIP's models, and only for these"
            )
        if logit_bias is None:  # ClipLoss does not normalise by default
            loss = ClipLoss(gather_distributed=self.gather_distributed)(image_features, text_features, logit_scale)
        else:
            loss = SigLIPLoss(
                temperature=1 / logit_scale.to(torch.promote_types(logit_scale.dtype, torch.float32)),
                bias=logit_bias + 0,  # not the parameter itself, which belongs to the model
                normalize=False,
                gather_distributed=self.gather_distributed,
            )(image_features, text_features)
        return {"contrastive_loss": loss} if output_dict else loss


@final
class ForSentences(nn.Module):
    """A loss for the trainer of sentence-transformers: columns of texts in, the loss of their embeddings out.

    The columns follow the inputs of the loss: anchor and positive, and negatives for `InfoNCELoss` (any number) and
    `TripletLoss` (one); views for `NTXentLoss` and `DCLLoss`; texts and a column ``label`` for `SupConLoss` and other
    losses of classes, where several columns of texts are views.

    Args:
        model: The SentenceTransformer.
        loss: A loss of this library, or a module of your own that takes embeddings, one argument for each column or
            ``(embeddings, labels)``. With ``gather_distributed=True`` it contrasts with the texts of all processes. Its
            parameters, such as a temperature, have their gradients averaged over processes like the model's, but are
            not in the trainer's checkpoints: save and load ``loss.state_dict()`` to resume.
        chunk_size: Number of texts at a time, to hold one chunk in memory (see `likewise.models.in_chunks`); None: all.
        ids_in_labels: Whether the column ``label`` holds document numbers, an integer for each positive, or 1 + K for
            positive and negatives: `InfoNCELoss` then does not push a text away from a copy of its positive.

    Returns:
        A call on the features of each column, and labels, returns the loss.

    Raises:
        ValueError: If the columns do not match the inputs of the loss, or an argument is of the wrong kind.

    Memory:
        The embeddings, the memory of the loss, and the activations of chunk_size texts.

    Source:
        Reimers, Gurevych, "Sentence-BERT", 2019.

    Example:
        >>> class Model(nn.Module):  # as a SentenceTransformer: a dictionary in, one with the embeddings out
        ...     def forward(self, features):
        ...         return {"sentence_embedding": features["input_ids"].float()}
        >>> from likewise import InfoNCELoss, Matryoshka
        >>> loss = ForSentences(Model(), Matryoshka(InfoNCELoss(temperature=1.0), (2, 1)))
        >>> column = {"input_ids": torch.eye(2, dtype=torch.int64)}
        >>> loss([column, column], None)
        tensor(0.4082)
    """

    def __init__(
        self, model: nn.Module, loss: nn.Module, *, chunk_size: int | None = None, ids_in_labels: bool = False
    ) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module) or hasattr(loss, "encode"):  # pyright: ignore[reportUnnecessaryIsInstance]
            got = getattr(loss, "__name__", type(loss).__name__)
            raise ValueError(
                f"expected a model, and then a loss that is made, such as InfoNCELoss(), got {got} as loss"
            )
        self.model, self.loss, self.chunk_size, self.ids_in_labels = model, loss, chunk_size, ids_in_labels
        for parameter in loss.parameters():  # the trainer distributes only the model
            if parameter.requires_grad:
                parameter.register_hook(_mean_over_processes)

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch: the features of each column as the trainer makes them, and its labels."""
        self._start_anew()
        forwards = (type(vars(module).get("forward")).__module__ for module in self.model.modules())
        if self.chunk_size and any(name.startswith("sentence_transformers.") for name in forwards):
            raise ValueError(
                "expected no chunk_size in MatryoshkaLoss or AdaptiveLayerLoss, which replace the model's forward for "
                f"a while, got {self.chunk_size}: leave it out, or take likewise.Matryoshka"
            )
        texts = [in_chunks(self.model, each, self.chunk_size, self._embeddings) for each in sentence_features]
        arguments = self._arguments(texts, labels)
        return self.loss(*arguments.args, **arguments.kwargs)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the description of the loss that sentence-transformers writes into a model card."""
        return {"loss": repr(self.loss), "chunk_size": self.chunk_size}

    def _start_anew(self) -> None:
        """Clear the loss's gradients if the model's are: until version 6.2, the trainer clears only the model's."""
        trained = [parameter.grad for parameter in self.model.parameters() if parameter.requires_grad]
        if torch.is_grad_enabled() and trained and all(gradient is None for gradient in trained):
            self.loss.zero_grad()

    def _embeddings(self, features: dict[str, Any]) -> Tensor:
        return self.model(features)["sentence_embedding"]

    def _arguments(self, texts: list[Tensor], labels: Tensor | None) -> inspect.BoundArguments:
        signature, named = signature_of(self.loss), dict[str, Any]()
        takes = signature.parameters
        if self.ids_in_labels and ("ids" not in takes or labels is None):
            got = f"{type(self.loss).__name__} and {'no' if labels is None else 'a'} column"
            raise ValueError(f"expected InfoNCELoss and a column label, got {got}: leave ids_in_labels out")
        if "labels" in takes:
            texts, named = [torch.stack(texts, dim=1) if len(texts) > 1 else texts[0]], {"labels": labels}
        elif self.ids_in_labels and labels is not None:
            of_each = labels[:, None] if labels.ndim == 1 else labels
            named = {"ids": of_each[:, 0]} | ({"negative_ids": of_each[:, 1:]} if of_each.shape[1] > 1 else {})
        elif labels is not None:
            raise ValueError(
                f"expected no column of labels, as {type(self.loss).__name__} takes none, got some: remove the column, "
                "or, if it says which document each positive of InfoNCELoss is, set ids_in_labels=True"
            )
        if len(texts) > 2 and "negatives" in takes and takes["negatives"].kind is inspect.Parameter.KEYWORD_ONLY:
            texts, named["negatives"] = texts[:2], torch.stack(texts[2:], dim=1)
        try:
            return signature.bind(*texts, **named)
        except TypeError:
            columns = f"{len(texts)} column(s) of texts" + ", labels" * (labels is not None)
            raise ValueError(
                f"expected what {type(self.loss).__name__} takes, {', '.join(takes)}, got {columns}: select columns, "
                "or wrap the loss in a module of your own that has its other arguments, such as prototypes"
            ) from None


def _mean_over_processes(gradient: Tensor) -> Tensor:
    count = distributed.world_size()
    return gradient if count == 1 else distributed.total(gradient) / count

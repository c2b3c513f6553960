"""`ForSentences`: our losses with the call of those of sentence-transformers."""

import inspect
from collections.abc import Iterable
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from likewise import distributed
from likewise.losses.matryoshka import signature_of
from likewise.models import in_chunks


@final
class ForSentences(nn.Module):
    """A loss for the trainer of sentence-transformers: columns of texts in, the loss of their embeddings out.

    What the columns are is what the loss takes: anchor and positive, and negatives for `InfoNCELoss` (any number) and
    `TripletLoss` (one); views for `NTXentLoss` and `DCLLoss`; texts and a column ``label`` for `SupConLoss` and other
    losses of classes, where several columns of texts are views.

    Args:
        model: The SentenceTransformer.
        loss: A loss of this library, or a module of your own that takes embeddings, one argument for each column or
            ``(embeddings, labels)``. With ``gather_distributed=True`` it contrasts with the texts of all processes.
            What it learns, such as a temperature, is averaged over processes, as the trainer does with the model, but
            is not in the trainer's checkpoints: save and load ``loss.state_dict()`` to resume.
        chunk_size: Texts at a time, so that memory is that of one chunk (see `likewise.models.in_chunks`); None: all.
        ids_in_labels: Whether the column ``label`` says which document each positive is, an integer, or those of
            positive and negatives, 1 + K, so that `InfoNCELoss` does not push a text away from a copy of its positive.

    Returns:
        A call on the features of each column, and labels, returns the loss.

    Raises:
        ValueError: If the columns are not what the loss takes, or an argument is of another kind.

    Memory:
        The embeddings, the loss's own, and the activations of chunk_size texts.

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
        self,
        model: nn.Module,
        loss: nn.Module,
        *,
        chunk_size: int | None = None,
        ids_in_labels: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module) or hasattr(loss, "encode"):  # pyright: ignore[reportUnnecessaryIsInstance]
            got = getattr(loss, "__name__", type(loss).__name__)
            raise ValueError(
                f"expected a model, and then a loss that is made, such as InfoNCELoss(), got {got} as loss"
            )
        self.model, self.loss, self.chunk_size, self.ids_in_labels = model, loss, chunk_size, ids_in_labels
        for parameter in loss.parameters():  # the trainer distributes the model alone
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
        """Return what sentence-transformers writes about the loss into a model card."""
        return {"loss": repr(self.loss), "chunk_size": self.chunk_size}

    def _start_anew(self) -> None:
        """Clear the loss's gradients where the model's are: until version 6.2 the trainer clears the model's alone."""
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
    if (count := distributed.world_size()) == 1:
        return gradient
    total = gradient.clone()
    dist.all_reduce(total)
    return total / count

"""Features in memory, or in files read piece by piece, and search among them."""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from likewise.data import Samples, Texts
from likewise.data.arrays import labels_of, words_of
from likewise.data.columns import labels_of as labels_of_column
from likewise.data.lazy_inputs import distinct, files_of, unreadable
from likewise.evaluation.arrays import NAMES, feature_batches, is_arrays, vectors_of, width_of_table
from likewise.evaluation.encoding import features_of
from likewise.evaluation.feature_files import joined_arrays, whole_arrays
from likewise.evaluation.features import Bar, silent
from likewise.evaluation.nearest import Groups, Nearest, RowFingerprints, close_pairs, neighbours_labels, own_places
from likewise.files.detection import exists, expanded
from likewise.files.formats import first_of
from likewise.inference.inputs import check_kind, digest_of, samples_at
from likewise.inference.model import Model
from likewise.inference.outputs import FACTS, TEXT
from likewise.runs import Run, Side

PIECE = 2**15  # samples read at a time
TABLES = (".parquet", ".pq")
HALF = 0.5
QUERIES = 4096  # queries searched at a time for hard negatives
ROUNDING = 1e-6  # of a cosine in float32: for two equal samples it may be a little below 1


@final
@dataclass(frozen=True)
class Stored:
    """Features, (N, D), in pieces, and the ids of their samples; see `open_features`.

    Args:
        ids: The id of each sample, (N,).
        width: D.
        read: Yields the features in order, at most the given number at a time, in any floating-point type.
        labels: Classes (N,), or label sets (N, L), or None.
        names: Names of the classes or labels.
        samples: The inputs, where available.
        texts: The text of each sample, (N,), where available: strings, or objects that `str` turns into strings.
        folder: The folder of a file of features.
        encoder: The digest of the encoder of a file of features; "" where it is unknown.
        paired: Whether these are one of the two sides of pairs in a file of features.
    """

    ids: Sequence[str]
    width: int
    read: Callable[[], Iterator[Tensor]]
    labels: Int[Tensor, " n"] | Bool[Tensor, "n l"] | None = None
    names: tuple[str, ...] = ()
    samples: Samples | None = None
    texts: Any = None
    folder: Path | None = None
    encoder: str = ""
    paired: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], ids: Sequence[str], samples: Samples | None = None) -> "Stored":
        """Return features in memory, with the labels of their samples."""
        labels, names = (None, ()) if samples is None else (samples.labels, samples.names)
        texts = samples.inputs.strings if samples is not None and isinstance(samples.inputs, Texts) else None
        return cls(ids, features.shape[1], lambda: iter(features.split(PIECE)), labels, names, samples, texts)

    def pieces(self) -> Iterator[tuple[int, Float[Tensor, "n d"]]]:
        """Yield the first row of each piece, and its features in float32; raise a ValueError if one is not finite."""
        start = 0
        for piece in self.read():
            vectors = piece.float()
            if not bool(torch.isfinite(vectors).all()):
                name = self.ids[start + int((~torch.isfinite(vectors)).any(1).nonzero()[0])]
                raise ValueError(f"expected finite features, got NaN or infinity of {name}: embed it again")
            yield start, vectors
            start += len(piece)

    def take(self, rows: Sequence[int]) -> Float[Tensor, "m d"]:
        """Return the features of some samples."""
        wanted = torch.tensor(rows, dtype=torch.int64)
        features = torch.empty(len(rows), self.width, dtype=torch.float32)
        for start, piece in self.pieces():
            here = (wanted >= start) & (wanted < start + len(piece))
            features[here] = piece[wanted[here] - start]
        return features

    def label(self, row: int) -> str:
        """Return the label, or labels, of a sample in words."""
        return "" if self.labels is None else self.words(self.labels[row])

    def words(self, label: Tensor) -> str:
        """Return a class or a label set in words."""
        numbers = label.nonzero().flatten().tolist() if label.ndim else [int(label)]
        return " + ".join(self.names[number] for number in numbers)


def open_features(path: Path, side: Side = "first") -> Stored | None:
    """Open a file of features; return None for any other file.

    - Parquet with a column `features` of lists, and optionally `id` and `label`, as `likewise embed` writes it.
    - An .npz file with `features` (or `embeddings`, `vectors`), and optionally `ids`, `labels` and `names`; or one of
      three parts, as in a run. An .npy file of one array.
    - A folder of Parquet files, or of .npy files named like the arrays of an .npz file.

    Args:
        path: The file or folder.
        side: The side to open, for features of pairs.

    Raises:
        ValueError: The file can't be read.

    Memory:
        Ids, labels and a piece; for arrays that `read_arrays` can't map, and for three parts, the features.
    """
    tables = [path] if path.suffix.lower() in TABLES else sorted(path.glob("*.parquet"))
    try:
        if not (path.is_dir() and any(path.glob("*.npy"))) and tables:
            return _of_tables(tables)
        return _of_arrays(path, side) if is_arrays(path) else None
    except (OSError, EOFError, KeyError, ValueError) as error:
        if str(error).startswith("expected "):
            raise
        raise ValueError(f"expected features in {path}, got a file that can't be read, {error}") from error


def stored_at(source: Path | str, model: Model, bar: Bar = silent) -> Stored:
    """Return the features of a run, of a file of features, or of any other source, which is encoded now."""
    path = expanded(source)
    if (path / "run.json").is_file():
        path = Run.open(path).embeddings
        if not path.is_file():
            got = f"got {source}, which keeps no {path.name}: likewise evaluate {source} makes them"
            raise ValueError(f"expected a run with features, {got}")
    stored = open_features(path, model.side) if exists(path) else None
    if stored is None or (stored.width != model.feature_dim and model.encoder.input_shape == (stored.width,)):
        return encode_samples(samples_at(source, model), model, bar)
    if stored.width != model.feature_dim:
        got = f"got {stored.width} in {source}: embed again with this run"
        raise ValueError(f"expected features of {model.feature_dim} numbers, as this run gives, {got}")
    known = model.run is not None or not model.encodes
    if stored.encoder and known and digest_of(model) not in {"", stored.encoder}:
        got, remedy = "those of another", "embed again with this run" + f" and --side {model.side}" * model.paired
        if stored.encoder == digest_of(model.across):
            got, remedy = f"those of the {model.across.side} side", f"give the other --side, or {remedy}"
        side = f"the {model.side} side of this run" if model.paired else "this run's encoder"
        raise ValueError(f"expected features of {side}, got {got} in {source}: {remedy}")
    return stored


def encode_samples(samples: Samples, model: Model, bar: Bar = silent) -> Stored:
    """Return the features of the readable samples, with these samples; a warning names the rest."""
    check_kind(model, samples)
    prepared = replace(samples, inputs=model.rows(samples))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "an image that cannot be read")
        features = features_of(prepared, model.encoder, "test", bar)
    if lost := files_of(unreadable(prepared.inputs, torch.arange(len(prepared)))):
        named = first_of(list(lost.values()))
        warnings.warn(f"left out {len(lost)} of {len(prepared)} images that cannot be read: {named}", stacklevel=4)
    return Stored.of(features.vectors, list(features.ids), prepared.readable())


def _of_tables(files: Sequence[Path]) -> Stored | None:
    import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`
    from pyarrow import parquet  # noqa: PLC0415 - as above

    width, schema = width_of_table(files[0]), parquet.read_schema(files[0])
    if width is None:
        return None
    footers = [(parquet.read_metadata(file).metadata or {}).get(FACTS.encode(), b"{}") for file in files]
    facts = json.loads(footers[0]) if len(set(footers)) == 1 else {}
    named = [name for name in ("id", "label", TEXT) if name in schema.names]
    beside = pa.concat_tables([parquet.read_table(file, columns=named) for file in files])
    count = sum(parquet.read_metadata(file).num_rows for file in files)
    ids = beside["id"].cast(pa.string()).to_pylist() if "id" in named else list(map(str, range(count)))
    labels, names = None, ()
    if "label" in named:
        values = beside["label"]
        blank = None if pa.types.is_list(values.type) else ""
        labels, names = labels_of_column([blank if value is None else value for value in values.to_pylist()])

    def read() -> Iterator[Tensor]:
        return (torch.from_numpy(some) for file in files for some in feature_batches(file, PIECE))

    encoder = "" if str(facts.get("run", "")).endswith(".onnx") else str(facts.get("encoder", ""))
    texts = beside[TEXT] if facts and TEXT in named else None
    return Stored(ids, width, read, labels, names, texts=texts, folder=files[0].parent, encoder=encoder)


def _of_arrays(path: Path, side: Side) -> Stored | None:
    arrays = joined_arrays(whole_arrays(path), path)
    key = next((name for name in NAMES if name in arrays), None)
    if key is None or (path.suffix.lower() == ".npy" and arrays[key].ndim != 2):
        return None
    paired = "counterpart_features" in arrays
    other = "counterpart_" * (paired and side == "second")
    vectors = vectors_of(arrays[f"{other}features" if other else key], key)
    labels, names = labels_of(arrays["labels"], arrays.get("names")) if "labels" in arrays else (None, ())
    ids = arrays.get(f"{other}ids", arrays.get("ids", arrays.get("rows", np.arange(len(vectors)))))
    ids = words_of(ids, "ids")
    if paired and f"{other}items" in arrays:  # numbers within a part: each input once
        parts = np.unique(arrays.get("parts", np.zeros(len(vectors))), return_inverse=True)[1]
        once = np.sort(np.unique(np.stack([parts, arrays[f"{other}items"]]), axis=1, return_index=True)[1])
        vectors, ids, labels = vectors[once], ids[once], None if labels is None else labels[once]

    def read() -> Iterator[Tensor]:
        starts = range(0, len(vectors), PIECE)
        return (torch.from_numpy(np.asarray(vectors[start : start + PIECE], np.float32)) for start in starts)

    ids = list(distinct(ids.tolist()))
    return Stored(ids, vectors.shape[1], read, labels, names, folder=path.parent, paired=paired)


@final
@dataclass(frozen=True)
class Neighbours:
    """The neighbours of queries, nearest first.

    Args:
        ids: Their ids, k or fewer for each query.
        indices: Their rows in the gallery, (M, k); -1 where fewer were found.
        similarities: Their cosine similarities, (M, k); -inf where fewer were found.
        texts: Their texts, in the form of `ids`. None: they are not texts, or only their features are available.
    """

    ids: list[list[str]]
    indices: Int[NDArray[np.int64], "m k"]
    similarities: Float[NDArray[np.float32], "m k"]
    texts: list[list[str]] | None = None


class Doubt(NamedTuple):
    """A sample whose neighbours have other labels: its row, their agreement with it, and the label they suggest."""

    place: int
    agreement: float
    label: Tensor


def neighbours(
    queries: Stored,
    among: Stored | None,
    k: int,
    at_least: float | None = None,
    bar: Bar = silent,
    *,
    own_index: Int[Tensor, " n"] | None = None,
) -> Iterator[tuple[int, Float[Tensor, "m k"], Int[Tensor, "m k"]]]:
    """Yield, for each piece of the queries, its first row, and similarities and rows of their k nearest, or fewer.

    With `among` None, each query is compared with the others. Similarities below `at_least` don't count, and each
    query's own row in the gallery, `own_index` from `own_of`, is left out.
    """
    gallery = queries if among is None else among
    check_search(queries, gallery, k, at_least)
    own_index = torch.arange(len(queries)) if among is None else own_index
    least = -torch.inf if at_least is None else at_least - ROUNDING
    count = min(k, len(gallery) - (own_index is not None))
    for start, vectors in queries.pieces():
        mine = None if own_index is None else own_index[start : start + len(vectors)]
        nearest = Nearest(vectors, count, least=least, own_index=mine)
        for _, piece in bar(gallery.pieces(), "searching"):
            nearest.add(piece)
        yield start, nearest.similarities, nearest.indices


def own_of(queries: Stored, among: Stored, *, included: bool) -> Int[Tensor, " n"] | None:
    """Return each query's own row in `among` if `included`; else None, with a warning if half are rows of it."""
    check_search(queries, among, 1, None)
    fingerprints = (RowFingerprints.of(vectors for _, vectors in stored.pieces()) for stored in (queries, among))
    return own_places(*fingerprints, included=included)[0]


def duplicates(samples: Stored, least: float, bar: Bar = silent) -> Groups:
    """Group samples by linking all pairs with at least a similarity."""
    check_search(samples, samples, 1, least)
    groups = Groups(len(samples))
    for start, vectors in bar(samples.pieces(), "comparing"):
        for first, references in samples.pieces():
            if first < start:
                continue
            for rows, places, similarities in close_pairs(vectors, references, least - ROUNDING):
                once = rows + start < places + first
                groups.link(rows[once] + start, places[once] + first, similarities[once])
    return groups


def mistakes(samples: Stored, k: int, bar: Bar = silent) -> list[Doubt]:
    """Return the samples whose labels most of their k nearest contradict, least agreement first."""
    labels = samples.labels
    if labels is None:
        raise ValueError("expected samples with labels, got none: --mistakes compares them with those of neighbours")
    doubts: list[Doubt] = []
    for start, _, indices in neighbours(samples, None, k, bar=bar):
        agreement, suggestions = neighbours_labels(labels, slice(start, start + len(indices)), indices)
        doubtful = (agreement < HALF).nonzero().flatten().tolist()
        doubts += [Doubt(start + row, float(agreement[row]), suggestions[row]) for row in doubtful]
    return sorted(doubts, key=lambda doubt: doubt.agreement)


def hard_negatives(
    queries: Float[Tensor, "n d"],
    candidates: Float[Tensor, "u d"],
    positives: Int[Tensor, " n"],
    apart: tuple[Int[Tensor, " n"], Int[Tensor, " u"]],
    k: int,
    *,
    from_rank: int = 1,
    margin: float | None = None,
    least: float | None = None,
    bar: Bar = silent,
) -> Iterator[tuple[Float[Tensor, "m k"], Int[Tensor, "m k"]]]:
    """Yield, for one group of queries after the other, similarities and rows of hard negatives, most similar first.

    Candidates are the other side of pairs, each input once, and `positives` the row of each query's counterpart among
    them. `apart` is a number for each query, and for each candidate: equal numbers are not negatives. The most similar
    possible negative has rank 1; ranks before `from_rank` are left out. With a margin, candidates more similar than
    the counterpart minus the margin are also left out, since they may well be right, but keep their ranks. Where there
    are fewer than k, rows are -1. Memory: the k + from_rank nearest of 4,096 queries, and a tile.
    """
    units = functional.normalize(candidates)
    count = min(k + from_rank - 1, len(candidates))
    for rows in bar(torch.arange(len(queries)).split(QUERIES), "searching"):
        vectors, limit = functional.normalize(queries[rows]), torch.full((len(rows), 1), torch.inf)
        if margin is not None:
            limit = (vectors * units[positives[rows]]).sum(dim=1, keepdim=True) - margin + ROUNDING
        wrong = _Wrong(apart[0][rows].unsqueeze(1), apart[1].unsqueeze(0), limit)
        nearest = Nearest(vectors, count, least=-torch.inf if least is None else least - ROUNDING, but=wrong)
        nearest.add(units)
        places = (from_rank - 1 - wrong.nearer).clamp(min=0) + torch.arange(k)
        beyond, places = places >= count, places.clamp(max=count - 1)
        similarities = nearest.similarities.gather(1, places).masked_fill(beyond, -torch.inf)
        yield similarities, nearest.indices.gather(1, places).masked_fill(beyond, -1)


@final
class _Wrong:
    """A mask of a tile's candidates to exclude: those with the query's number, or above a limit of similarity."""

    def __init__(self, mine: Int[Tensor, "m 1"], candidates: Int[Tensor, "1 u"], limit: Float[Tensor, "m 1"]) -> None:
        self._mine, self._others, self._limit = mine, candidates, limit
        self.nearer = torch.zeros_like(mine)  # number left out by the limit only

    def __call__(self, rows: slice, columns: slice, similarities: Float[Tensor, "n c"]) -> Bool[Tensor, "n c"]:
        same, above = self._mine[rows] == self._others[:, columns], similarities > self._limit[rows]
        self.nearer[rows] += (above & ~same).sum(dim=1, keepdim=True)
        return same | above


def check_search(queries: Stored, gallery: Stored, k: int, at_least: float | None) -> None:
    """Raise a ValueError unless a search makes sense."""
    if k < 1:
        raise ValueError(f"expected k of at least 1, got {k}")
    if at_least is not None and not -1 <= at_least <= 1:
        raise ValueError(f"expected a similarity from -1 to 1, got {at_least}: 0.98 is nearly the same")
    if len(gallery) < 1 + (queries is gallery) or not len(queries):
        raise ValueError(f"expected samples to search among, got {len(gallery)}: check the file or folder")
    if queries.width != gallery.width:
        raise ValueError(f"expected queries of {gallery.width} numbers, got {queries.width}: embed both with one run")

"""Search among features by a run's encoder: nearest neighbours, near-duplicates, and doubtful labels."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from likewise.configuration.options import SearchOptions
from likewise.data import Samples, Texts, parts_of_run
from likewise.data.image_files import ImageFiles
from likewise.data.lazy_inputs import Ids
from likewise.evaluation.arrays import is_arrays
from likewise.evaluation.features import Bar
from likewise.files.detection import ARRAYS, exists, expanded, is_file_name, near, suggest
from likewise.files.formats import TABLES
from likewise.inference import Model, Stored, load
from likewise.inference import search as searches
from likewise.inference.inputs import words_of
from likewise.inference.outputs import check_apart, check_output, table_at
from likewise.inference.search import stored_at
from likewise.models import reads_texts
from likewise.report.page import Shown, write_neighbours
from likewise.runs import Run, Side
from likewise.runs.machine import device_named
from likewise.runs.run import atomic_write
from likewise.runs.scores import aligned, one_line
from likewise.workflows.mining import mine
from likewise.workflows.progress import PRINTED, Progress

MAX_PRINTED_ROWS, MAX_LETTERS = 20, 60  # printed rows, and letters of a text
MAX_PAGE_ROWS = 300  # rows on a page
MAX_IDS = 10_000  # ids searched for a suggestion
OUTPUT_SUFFIXES = (".csv", ".jsonl", ".parquet")
SET_SUFFIXES = {*ARRAYS, *TABLES, ".txt"}
BATCH = 2**16  # rows written at a time
UNCAPTIONED = {"id", "query", "group", "rank", "text"}  # columns that a page doesn't repeat below a picture


class Hit(NamedTuple):
    """A row of the results: its cells, the heading above it, and the rows of the found sample and the query."""

    cells: tuple[Any, ...]
    below: str
    other: int
    query: int | None = None


def search(
    run: Run | Path | str | SearchOptions | None = None,
    query: str | Sequence[str] = (),
    *,
    among: Path | str | None = None,
    within: Path | str | None = None,
    side: Side = "first",
    k: int = 5,
    at_least: float | None = None,
    gallery_includes_queries: bool = False,
    duplicates: float | None = None,
    mistakes: bool = False,
    negatives: bool = False,
    from_rank: int = 1,
    margin: float | None = None,
    output: Path | str | None = None,
    html: Path | str | None = None,
    force: bool = False,
    device: str = "auto",
    progress: Progress = PRINTED,
) -> Path | None:
    """Find the nearest neighbours of images, texts or vectors by cosine similarity; near-duplicates; doubtful labels.

    Args:
        run: The run with the encoder, or its folder. Or features from anywhere, in an .npz, .npy or Parquet file, a
            folder of these, or the folder of their evaluation; without `among` and `within`, these features are
            searched, by a file of others, or ids. Without a run, photos and texts are searched with published weights,
            as in `likewise embed`. Or all options as a record.
        query: The queries: files, a folder, a table, a file of features, ids of the other side, or texts; - takes the
            lines of standard input.
        among: The samples to search: a file of features, a run's folder, or any data for `likewise train`.
        within: A set in the same forms, whose samples are compared with each other.
        side: In a run of pairs, the side of the query or the set: first or second. A query finds the other side.
        k: The number of neighbours of each sample, or of hard negatives.
        at_least: The smallest similarity that counts. Default: any.
        gallery_includes_queries: Whether the queries are among the searched samples: each one's own row is left out.
        duplicates: The least similarity of two near-duplicates; lists groups.
        mistakes: Whether to list the samples whose k neighbours have other labels.
        negatives: Whether to write the run's training pairs with hard negatives, as a table for further training: the
            most similar to the first of a pair among the counterparts of pairs that share nothing with it.
        from_rank: The first rank of a hard negative; the most similar has rank 1.
        margin: How much less similar a hard negative must be than the pair's own counterpart. Default: any.
        output: A file for all results: .csv, .jsonl or .parquet. Default: none, the first results are printed.
        html: A page with the first results, and their images. Default: none.
        force: Whether to replace existing files.
        device: Where the encoder runs: auto, cpu, cuda ...
        progress: Receives messages, and the first results.

    Returns:
        The output, if there is one.

    Raises:
        ValueError: An input can't be read or found, features have another width, a file exists, or options disagree.

    Example:
        >>> import numpy as np
        >>> np.savez("all.npz", features=np.float32([[1], [2], [-1]]), ids=["a", "b", "c"])
        >>> _ = search("all.npz", ["c"], k=2, at_least=-1)
        query  rank  id  similarity
        c      1     c   1.0000
        c      2     a   -1.0000
    """
    if isinstance(run, SearchOptions):
        return search(**vars(run), progress=progress)
    written, page = (None if path is None else Path(path) for path in (output, html))
    where = None if device == "auto" else device_named(device)
    if negatives:
        beside = {"a QUERY": query, "--among": among, "--within": within, "--html": page, "--mistakes": mistakes}
        beside |= {"--side second": side != "first", "--duplicates": duplicates is not None}
        limits = {"k": k, "from_rank": from_rank, "margin": margin, "at_least": at_least}
        return mine(run or "", written, limits, progress, beside=beside, device=where, force=force)
    if from_rank != 1 or margin is not None:
        raise ValueError("expected --negatives with --from_rank or --margin, got none: add it, or leave them out")
    query = [str(word) for word in words_of(query)] if query else query
    if not isinstance(run, Run) and (among or within) and _is_query(run):
        run, query = None, [*([] if run is None else [str(run)]), *query]
    model = _model(run, among or within, query, where, progress)
    if among is None and within is None and not model.encodes:
        there = run.folder if isinstance(run, Run) else run
        among, within = (there, None) if query else (None, there)
    _check_arguments(query, among, within, (written, page), force=force, only=duplicates is not None or mistakes)
    model = model.of(side) if model.run or side == "second" else model
    gallery = stored_at(str(among or within), model.across if within is None else model, progress.bar)
    queries = _query_features(query, gallery, model, progress, among) if within is None else None
    if duplicates is not None:
        head, rows = ("group", "id", "similarity"), _groups(gallery, duplicates, progress)
    elif mistakes:
        head, rows = ("id", "label", "agreement", "neighbours"), _doubts(gallery, k, progress)
    else:
        self_rows = None if queries is None else _own_rows(queries, gallery, query, included=gallery_includes_queries)
        head = ("query", "rank", "id", "similarity")
        rows = _nearest(queries, gallery, k, at_least, progress.bar, self_rows=self_rows)
    gallery = _with_texts(gallery, among or within, model.across if within is None else model, progress)
    head, rows = _add_labels_and_texts(head, rows, gallery)
    first = list(islice(rows, MAX_PAGE_ROWS))
    count = len(first) if written is None else _write(written, head, chain(first, rows))
    _report_hits(progress, head, first, count, written, texts=reads_texts(model.encoder))
    if page is not None:
        them = (gallery, model if queries is None else model.across)
        _write_page(page, head, first, {"others": them, "queries": them if queries is None else (queries, model)})
        progress.result(f"page: {page}")
    return written


def _report_hits(
    progress: Progress, head: Sequence[str], first: Sequence[Hit], count: int, written: Path | None, *, texts: bool
) -> None:
    long = [name == "text" or (name == "query" and texts) for name in head]
    lines = aligned([head, *(list(map(_format_cell, hit.cells, long)) for hit in first[:MAX_PRINTED_ROWS])])
    progress.result("\n".join(lines) if first else "nothing was found")
    if len(first) > MAX_PRINTED_ROWS:
        more = f"{written} has all {count:,}" if written is not None else "--output FILE.csv has all"
        progress.result(f"... the first {MAX_PRINTED_ROWS} rows; {more}")
    elif written is not None:
        progress.result(f"output: {written}")


def _model(
    run: Run | Path | str | None, searched: Any, query: Sequence[str], device: torch.device | None, progress: Progress
) -> Model:
    if run is not None or not searched:
        return load(run or "", device=device)
    from likewise.workflows.embedding import published_model  # noqa: PLC0415 - a larger import, seldom needed

    return published_model(searched, query, device or device_named("auto"), progress)


def _is_query(word: Path | str | None) -> bool:
    """Tell whether the argument in a run's place is a query instead: an image, data, or a text."""
    path = expanded(word or "")
    if word is None or not exists(path):
        return word is None or " " in str(word).strip()
    return not ((path / "run.json").is_file() or path.suffix == ".onnx" or is_arrays(path))


def _check_arguments(
    query: Sequence[str], among: Any, within: Any, files: Sequence[Path | None], *, force: bool, only: bool
) -> None:
    if (among is None) == (within is None):
        raise ValueError("expected --among FILE with a QUERY, or --within FILE, got none or both: name one")
    if bool(query) == (within is not None):
        got = f"{', '.join(query)} beside --within" if query else "none"
        raise ValueError(f"expected a QUERY with --among, and none with --within, got {got}")
    if not all(map(str.strip, query)):
        raise ValueError("expected a QUERY of some letters, got an empty one: leave it out")
    if only and within is None:
        raise ValueError("expected --within with --duplicates or --mistakes, got --among: they are about one set")
    for path, endings in zip(files, (OUTPUT_SUFFIXES, (".html",)), strict=True):
        if path is not None:
            check_output(path, endings, force=force)
            for source in (among or within, *query) if endings is OUTPUT_SUFFIXES else ():
                check_apart(path, source)


def _query_features(queries: Sequence[str], gallery: Stored, model: Model, progress: Progress, among: Any) -> Stored:
    """Return the features of the queries: of a whole set, or of files, ids and texts, one by one."""
    named = gallery
    if model.paired:  # ids of its own side, known to the run
        kept = not model.encodes or (expanded(among) / "run.json").is_file()
        named = stored_at(among, model) if kept else replace(gallery, ids=())
    paths = [expanded(word) for word in queries]
    if len(queries) == 1 and exists(paths[0]) and (paths[0].is_dir() or paths[0].suffix.lower() in SET_SUFFIXES):
        return stored_at(queries[0], model, progress.bar)
    folder = next((word for word, path in zip(queries, paths, strict=True) if exists(path) and path.is_dir()), None)
    if folder is not None:
        raise ValueError(f"expected files, ids or texts, or a folder alone, got {folder} among {len(queries)}")
    places = {name: row for row, name in enumerate(named.ids)}
    texts = reads_texts(model.encoder)

    def is_new(word: str, path: Path) -> bool:
        return model.encodes and (exists(path) if not texts or is_file_name(word) else word not in places)

    new = torch.tensor(list(map(is_new, queries, paths)))
    unknown = next((at for at, word in enumerate(queries) if not new[at] and word not in places), None)
    if unknown is not None:
        word, check = queries[unknown], f": check it{near(paths[unknown])}"
        remedy = suggest(word, islice(places, MAX_IDS), check, most=2)
        ids = "" if model.paired and not places else ", or an id of the samples"
        file_type = "a file" if model.encodes else "a file of features"
        raise ValueError(f"expected {file_type}{ids}, got {word}{remedy}")
    vectors = torch.empty(len(queries), model.feature_dim, dtype=torch.float32)
    inputs: Any = [word if texts else path for word, path, flag in zip(queries, paths, new, strict=True) if flag]
    if inputs:
        vectors[new] = torch.from_numpy(model.encode(inputs))
    vectors[~new] = named.take([places[word] for word, flag in zip(queries, new, strict=True) if not flag])
    samples = Samples(model.rows(inputs), ids=Ids.of(queries)) if len(inputs) == len(queries) else None
    return Stored.of(vectors, list(Ids.of(queries)), samples)


def _own_rows(query_features: Stored, gallery: Stored, queries: Sequence[str], *, included: bool) -> Tensor | None:
    """Return the queries' own rows in the gallery, to be left out; queries named one by one may find themselves."""
    if not included and list(query_features.ids) == list(queries):
        return None
    return searches.own_of(query_features, gallery, included=included)


def _nearest(
    queries: Stored | None, gallery: Stored, k: int, at_least: float | None, bar: Bar, *, self_rows: Tensor | None
) -> Iterator[Hit]:
    asked, among = (gallery, None) if queries is None else (queries, gallery)
    pieces = searches.neighbours(asked, among, k, at_least, bar, own_index=self_rows)
    for start, similarities, places in pieces:
        for row, (alike, nearby) in enumerate(zip(similarities.tolist(), places.tolist(), strict=True), start):
            called = asked.ids[row]
            for rank, (similarity, index) in enumerate(zip(alike, nearby, strict=True), 1):
                if index >= 0:
                    yield Hit((called, rank, gallery.ids[index], similarity), called, index, row)


def _groups(gallery: Stored, least: float, progress: Progress) -> Iterator[Hit]:
    groups = searches.duplicates(gallery, least, progress.bar)
    for number, members in enumerate(groups.members(), 1):
        for index in members.tolist():
            cells = number, gallery.ids[index], float(groups.closest[index])
            yield Hit(cells, f"group {number}", index)


def _doubts(gallery: Stored, k: int, progress: Progress) -> Iterator[Hit]:
    for index, agreement, label in searches.mistakes(gallery, k, progress.bar):
        cells = gallery.ids[index], gallery.label(index), agreement, gallery.words(label)
        yield Hit(cells, "doubtful labels", index)


def _add_labels_and_texts(
    head: tuple[str, ...], rows: Iterator[Hit], gallery: Stored
) -> tuple[tuple[str, ...], Iterator[Hit]]:
    """Add columns for the labels and the texts of the found samples, where known."""
    beside: dict[str, Callable[[int], str]] = {}
    if gallery.labels is not None and "label" not in head:
        beside["label"] = gallery.label
    if gallery.texts is not None:
        beside["text"] = lambda row: str(gallery.texts[row])

    def extended(hit: Hit) -> Hit:
        return hit._replace(cells=(*hit.cells, *(describe(hit.other) for describe in beside.values())))

    return (*head, *beside), map(extended, rows)


def _write(path: Path, head: Sequence[str], rows: Iterator[Hit]) -> int:
    count = 0
    with table_at(path) as write:
        while some := [hit.cells for hit in islice(rows, BATCH)]:
            count += len(some)
            write(dict(zip(head, zip(*some, strict=True), strict=True)))
        if count == 0:
            write({name: [] for name in head})
    return count


def _write_page(
    path: Path, head: Sequence[str], hits: Sequence[Hit], sides: Mapping[str, tuple[Stored, Model]]
) -> None:
    pictures = {name: _pictures(stored, model) for name, (stored, model) in sides.items()}
    shown: list[Shown] = []

    def show(below: str, name: str, row: int, caption: str) -> None:
        texts = sides[name][0].texts
        text = "" if texts is None else str(texts[row])
        pictured = pictures[name](torch.tensor([row])) is not None
        shown.append(Shown(below, name, row, sides[name][0].ids[row], caption, text, pictured))

    for hit in hits:
        if hit.query is not None and (not shown or shown[-1].below != hit.below):
            show(hit.below, "queries", hit.query, "query")
        cells = zip(head, hit.cells, strict=True)
        fields = [f"{name} {_format_cell(cell)}" for name, cell in cells if name not in UNCAPTIONED]
        show(hit.below, "others", hit.other, ", ".join(fields))
    run = sides["others"][1].run
    name = run.name if run else "an encoder"
    introduction = f"Similarities are cosines of the features of {name}; 1 is the same direction."
    with atomic_write(path) as beside:
        write_neighbours(beside, f"Search with {name}", introduction, shown, pictures)


def _pictures(stored: Stored, model: Model) -> Callable[[Tensor], Tensor | None]:
    """Return a function from rows to images in [0, 1]: of the samples, or of files whose paths are the ids."""
    data = (model.run.options.get("data") or {}).get("init_args") or {} if model.run else {}
    path = Path(data.get("path") or "")
    roots = [root for root in (stored.folder, Path(), path.parent if path.is_file() else path) if root is not None]

    def images(rows: Tensor) -> Tensor | None:
        pixels = None
        if stored.samples is not None:
            pixels = stored.samples.inputs[rows] if len(stored.samples.input_shape) == 3 else None
        elif model.preprocessing is not None:
            names = [str(stored.ids[row]) for row in rows.tolist()]
            files = [next((file for root in roots if (file := Path(root) / name).is_file()), None) for name in names]
            there = [file for file in files if file is not None]
            whole = len(there) == len(rows)
            pixels = ImageFiles(there, model.preprocessing)[torch.arange(len(rows))] if whole else None
        return None if pixels is None else pixels if pixels.is_floating_point() else pixels.float() / 255

    return images


def _with_texts(stored: Stored, source: Any, model: Model, progress: Progress) -> Stored:
    """Return a run's features with the texts of its data, if it has texts and they can be read again."""
    folder = expanded(source)
    if not (folder / "run.json").is_file() or not reads_texts(model.encoder):
        return stored
    progress.log("reading the texts ...")
    try:
        parts = parts_of_run(Run.open(folder), stream=True)[0]
    except ValueError as error:
        warnings.warn(f"without the texts that are found: {error}", stacklevel=3)
        return stored
    texts = dict[str, str]()
    for part in (parts.train, parts.validation, parts.test):
        samples = part if model.side == "first" or part.counterparts is None else part.counterparts
        if isinstance(samples.inputs, Texts):
            texts |= zip(samples.ids, samples.inputs.strings, strict=True)
    return replace(stored, texts=[texts.get(name, "") for name in stored.ids])


def _format_cell(cell: Any, long: bool = False) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else one_line(cell, MAX_LETTERS) if long else str(cell)

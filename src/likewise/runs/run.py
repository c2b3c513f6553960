"""A run's folder: its file names, and methods that read each file and write it atomically.

A run has a provisional name until it is complete, and then gets its final name.
"""

import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self, final, get_args

from torch import Tensor, nn

from likewise.files.detection import describe_pickle, runs_near
from likewise.files.formats import PARTIAL_SUFFIX, as_text, check_text, numbered
from likewise.instantiate import instantiate, is_spec, rebuilding, replaced
from likewise.runs import score_files
from likewise.runs.score_files import ClassMean, Curves, Histograms, Scores
from likewise.runs.scores import Outcomes, Result

Stage = Literal["training", "evaluation", "finished"]
"""The next step of a run, or "finished"."""
Side = Literal["first", "second"]
"""A side of pairs."""
IDLE_FILES = {  # written before the first step; for logging tools, their folders
    *("config.yaml", "run.json", "similarity.safetensors", "scores.csv", "outcomes.npz", "best.ckpt"),
    *("tensorboard", "wandb", "csv"),
}


@final
class _File:
    """The path of a file within a run's folder, as an attribute of the run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "Run", owner: type["Run"] | None = None) -> Path:
        return run.folder / self._name


@final
@dataclass(frozen=True)
class Run:
    """A run's folder. Make one with `Run.create`, or open one with `Run.open`.

    Its files, each as soon as it exists:

        config.yaml                the chosen options; `likewise train --config` repeats them
        run.json                   the arguments of each part, facts about the data, versions
        metrics.csv                the logged values of the training, one row per step
        checkpoint.ckpt            the state to resume from, with checkpoint-before.ckpt, the previous one; in a
                                   finished run all weights after the last epoch, unless the best was kept
        best.ckpt                  all weights at the epoch with the best validation score, if it is kept
        begun.safetensors          the encoder's initial weights, if it was pretrained; removed once the run is finished
        second-begun.safetensors   the initial weights for the other side of pairs, removed too
        begun.npz                  the encoder's features with its initial weights
        encoder.safetensors        the trained encoder's weights
        second-encoder.safetensors the trained weights for the other side of pairs, if it has its own tower
        histograms.csv             counts recorded by the loss, one row per histogram and epoch
        classes.csv                means of the loss's statistics, one row per statistic, epoch and class
        similarity.safetensors     label similarity, (L, L), if the loss uses it
        batches.npz                the loss's input embeddings in a step of the first epoch and one of the last
        embeddings.npz             features of all samples, with their labels, ids and rows
        probe.safetensors          the linear probe, with its standardisation, calibration and thresholds
        classifier.safetensors     the classifier of features learned in the training itself, if any
        scores.csv                 the scores, one row each
        outcomes.npz               the contribution of each test sample to a score
        report.html                the page that shows the run
        tensorboard, wandb, ...    the files of tools that log the training, if any

    Args:
        folder: Its current path.

    Example:
        >>> run = Run.create(Path("runs"), "SupConLoss", "Digits")
        >>> run.describe({"seed": 3})
        >>> Run.open(run.folder).metadata
        {'seed': 3}
        >>> run.stage, run.finalize().folder.name.endswith("SupConLoss-Digits")
        ('training', True)
    """

    folder: Path

    configuration, report = _File("config.yaml"), _File("report.html")
    checkpoint, checkpoint_before, best = _File("checkpoint.ckpt"), _File("checkpoint-before.ckpt"), _File("best.ckpt")
    weights, second_weights = _File("encoder.safetensors"), _File("second-encoder.safetensors")
    initial_weights, second_initial_weights = _File("begun.safetensors"), _File("second-begun.safetensors")
    embeddings, initial_embeddings, batches = _File("embeddings.npz"), _File("begun.npz"), _File("batches.npz")
    probe, classifier = _File("probe.safetensors"), _File("classifier.safetensors")
    metrics_file, histograms_file = _File("metrics.csv"), _File("histograms.csv")
    class_means_file, similarity_file = _File("classes.csv"), _File("similarity.safetensors")
    scores_file, outcomes_file = _File("scores.csv"), _File("outcomes.npz")

    @classmethod
    def create(cls, root: Path, *names: str) -> Self:
        """Make `<root>/<date>-<names>.partial`; a run of the same second and names gets a number.

        Args:
            root: The folder of all runs; made if missing.
            *names: Parts of the run's name, joined by hyphens.

        Raises:
            ValueError: The root cannot be written, or its path is not valid UTF-8.
        """
        check_text(root.absolute())
        name = as_text("-".join([datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S"), *names]))
        try:
            root.mkdir(parents=True, exist_ok=True)
            for whole in numbered(root / name):
                folder = whole.with_name(whole.name + PARTIAL_SUFFIX)
                with suppress(FileExistsError):
                    folder.mkdir()
                    if not whole.exists():
                        return cls(folder)
                    folder.rmdir()
        except OSError as error:
            raise ValueError(f"expected a folder to write runs into, got {root}: {error.strerror}") from error
        raise AssertionError  # pragma: no cover - counting does not end

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open a run, complete or not, by either of its names.

        Raises:
            ValueError: There is no such folder, or it is not a run's.
        """
        path = Path(folder).absolute()
        other = path.with_name(
            path.name.removesuffix(PARTIAL_SUFFIX) if path.suffix == PARTIAL_SUFFIX else path.name + PARTIAL_SUFFIX
        )
        run_folder = path if path.is_dir() or not other.is_dir() else other
        if not (run_folder / "run.json").is_file():
            what = (
                "has no run.json" if run_folder.is_dir() else "is a file" if run_folder.exists() else "does not exist"
            )
            problem = describe_pickle(run_folder) or f"which {what}: likewise train makes one"
            problem += runs_near(Path(folder))
            inside = (run.parent for depth in range(1, 4) for run in run_folder.glob("*/" * depth + "run.json"))
            if (run := next(inside, None)) is not None:
                problem = f"which holds runs: name {run} ..."
            raise ValueError(f"expected the folder of a run, got {folder}, {problem}")
        return cls(run_folder)

    @property
    def name(self) -> str:
        """The final name of the run."""
        return self.folder.name.removesuffix(PARTIAL_SUFFIX)

    @property
    def metadata(self) -> dict[str, Any]:
        """The contents of run.json: the facts about the run."""
        try:
            return json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"expected run.json of plain JSON in {self.folder}, got {error}: restore it") from error

    @property
    def options(self) -> dict[str, Any]:
        """The initial options of the run: the contents of config.yaml; none without that file."""
        if not self.configuration.is_file():
            return {}
        import yaml  # noqa: PLC0415 - a library of the extras

        try:
            read: Any = yaml.safe_load(self.configuration.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ValueError(f"expected YAML in {self.configuration}, got {error}: restore it") from error
        return read if isinstance(read, dict) else {}

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Write the facts about the run."""
        self.write("run.json", (json.dumps(facts, indent=2) + "\n").encode())

    @property
    def stage(self) -> Stage:
        """The next step of the run, or "finished"."""
        if self.folder.suffix != PARTIAL_SUFFIX:
            return "finished"
        return "evaluation" if self.weights.is_file() else "training"

    @property
    def metrics(self) -> Curves:
        """The curves of the logged values; none if nothing was logged."""
        return score_files.read_curves(self.metrics_file)

    @property
    def scores(self) -> Scores:
        """The scores, by index or name, `run.scores["kNN", "accuracy"]`; none if nothing was measured.

        Raises:
            ValueError: The file can't be read.
        """
        return score_files.from_csv(self.scores_file.read_bytes().decode()) if self.scores_file.is_file() else Scores()

    @property
    def outcomes(self) -> tuple[Outcomes, ...]:
        """The contributions of test samples to the scores."""
        return score_files.read_outcomes(self.outcomes_file) if self.outcomes_file.is_file() else ()

    def add(self, result: Result) -> None:
        """Write the scores of an evaluation, replacing its earlier ones; for episodes, only those of the same shape."""
        replaced_keys = {score.written_with for score in (*result.scores, *result.candidates)}
        kept = [score for score in self.scores if score.written_with not in replaced_keys]
        if result.predictor is not None:
            self.write(self.probe.name, result.predictor.to_bytes())
        if result.outcomes:
            rewritten = {outcome.written_with for outcome in result.outcomes}
            kept_outcomes = [outcome for outcome in self.outcomes if outcome.written_with not in rewritten]
            with self.writing(self.outcomes_file.name) as path:
                score_files.save_outcomes(path, [*kept_outcomes, *result.outcomes])
        self.write(self.scores_file.name, score_files.as_csv([*kept, *result.scores, *result.candidates]).encode())

    @property
    def histograms(self) -> Histograms:
        """The (epoch, counts) pairs of each histogram recorded by the loss."""
        return score_files.read_histograms(self.histograms_file)

    @property
    def class_means(self) -> list[ClassMean]:
        """The class means of the loss's statistics; none if it recorded nothing."""
        return score_files.read_class_means(self.class_means_file)

    @property
    def label_similarity(self) -> Tensor | None:
        """The label similarity used by the loss, (L, L); None if it used none."""
        from safetensors.torch import load_file  # noqa: PLC0415 - of an extra

        return load_file(self.similarity_file)["similarity"] if self.similarity_file.is_file() else None

    def save_label_similarity(self, similarity: Tensor) -> None:
        """Write the label similarity."""
        self._save({"similarity": similarity}, self.similarity_file)

    def encoder(self, side: Side = "first", module: nn.Module | None = None) -> nn.Module:
        """Rebuild the trained encoder, in evaluation mode; the data is not needed.

        Args:
            side: The side of a run of pairs whose encoder is rebuilt.
            module: The network, or the part of it whose class is not found, which gets the trained weights.

        Raises:
            ValueError: The run has trained no encoder yet, its file is damaged, or its class is not found or differs.
        """
        weights = self.weights_of(side)
        spec = self.encoder_spec(side, module)
        if not weights.is_file():
            got = f"{self.folder}, which has no {weights.name}: finish it with likewise train --resume {self.folder}"
            raise ValueError(f"expected a run with a trained encoder, got {got}")
        return with_weights(instantiate(spec, nn.Module) if is_spec(spec) else spec, weights).eval()

    def initial_encoder(self, side: Side = "first") -> nn.Module | None:
        """Rebuild a side's encoder with its initial weights; None if the run does not have them."""
        weights = self.initial_weights if side == "first" else self.second_initial_weights
        there = weights.is_file()
        return with_weights(instantiate(self.encoder_spec(side), nn.Module), weights) if there else None

    def encoder_spec(self, side: Side = "first", module: nn.Module | None = None) -> Any:
        """Return the class of the encoder with its arguments, or the module; no weights are fetched from elsewhere."""
        facts = self.metadata
        if "encoder" not in facts.get("parts", {}):
            got = f"got {self.folder}, which has none: name a run that was trained"
            raise ValueError(f"expected a run with an encoder, {got}")
        spec = facts["second"]["encoder"] if self._has_second_encoder(side) else facts["parts"]["encoder"]
        new_spec = replaced(spec, module)
        if module is not None and new_spec == spec:
            got = type(module).__name__
            raise ValueError(f"expected a module of this run's encoder, {spec}, got {got}: give the one trained")
        return rebuilding(new_spec, nn.Module)

    def weights_of(self, side: Side) -> Path:
        """Return the file of the weights of a side's encoder."""
        return self.second_weights if self._has_second_encoder(side) else self.weights

    def _has_second_encoder(self, side: Side) -> bool:
        if side not in get_args(Side):
            raise ValueError(f"expected side as first or second, got {side!r}")
        second = self.metadata.get("second")
        if side == "second" and second is None:
            raise ValueError(f"expected a run of pairs for the second side, got {self.folder}: leave out the side")
        return side == "second" and (second or {}).get("encoder") is not None

    def save_encoder(self, encoder: nn.Module, side: Side = "first", *, initial: bool = False) -> None:
        """Write a side's weights: the trained ones, or the initial ones if `initial`."""
        first, second = (
            (self.initial_weights, self.second_initial_weights) if initial else (self.weights, self.second_weights)
        )
        self._save(encoder.state_dict(), first if side == "first" else second)

    def drop_initial(self) -> None:
        """Remove the initial weights of encoders, which only an unfinished run needs."""
        for weights in (self.initial_weights, self.second_initial_weights):
            weights.unlink(missing_ok=True)

    def _save(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        from safetensors.torch import save  # noqa: PLC0415 - of an extra

        self.write(path.name, save({name: tensors[name].detach().cpu().contiguous().clone() for name in tensors}))

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all."""
        with self.writing(name) as path:
            path.write_bytes(content)

    def writing(self, name: str) -> AbstractContextManager[Path]:
        """Provide a temporary path, whose file then replaces the named one: that name never has an incomplete file."""
        return atomic_write(self.folder / name)

    def adopt_checkpoint(self, beside: Path) -> None:
        """Move a newly written checkpoint into place; the last one becomes the previous one.

        At every moment one of the two is complete.
        """
        fsync(beside)
        if self.checkpoint.exists():
            self.checkpoint.replace(self.checkpoint_before)
        beside.replace(self.checkpoint)
        fsync(self.folder)

    def finalize(self) -> "Run":
        """Rename the folder to its final name."""
        if self.folder.suffix != PARTIAL_SUFFIX:
            return self
        return Run(self.folder.rename(self.folder.with_name(self.name)))


def with_weights(encoder: nn.Module, weights: Path) -> nn.Module:
    """Load the weights in a run's file into an encoder."""
    from safetensors import SafetensorError  # noqa: PLC0415 - of an extra
    from safetensors.torch import load_file  # noqa: PLC0415 - of an extra

    try:
        encoder.load_state_dict(load_file(weights))
    except (SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"expected the weights of this run's encoder in {weights}, got {reason}") from error
    return encoder


@contextmanager
def remove_if_idle(run: Run, note: str, *, new: bool = True) -> Generator[None]:
    """Remove a new run that fails before doing any work; for any other, note its path in the exception, at {}."""
    try:
        yield
    except BaseException as error:
        if new and {path.name for path in run.folder.iterdir() if path.suffix != ".new"} <= IDLE_FILES:
            shutil.rmtree(run.folder, ignore_errors=True)
        else:
            error.add_note(note.format(run.folder))
        raise


@contextmanager
def atomic_write(path: Path) -> Generator[Path]:
    """Yield a temporary path; on success it is synced to the disk and replaces `path`, else it is removed."""
    beside = path.with_name(f"{path.name}.new")
    try:
        yield beside
        fsync(beside)
        beside.replace(path)
        with suppress(OSError):  # some file systems, and Windows, cannot sync a folder
            fsync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Wait until a file's or a folder's contents are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

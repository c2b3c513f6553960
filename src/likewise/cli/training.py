"""What `likewise train` does: pretrain, evaluate the frozen encoder, write the run's folder and report; or resume."""

import json
import logging
import re
import signal
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ProgressBar

from likewise import distributed
from likewise.cli.care import cared_for
from likewise.cli.evaluating import Settings, check_applicable, encoded, evaluate, tell_lost
from likewise.cli.facts import device_of, device_words, flat, shared_options, versions, without_sources
from likewise.cli.options import arranged, options, parse, plain, trainer_options
from likewise.cli.printing import bar, say, tell
from likewise.cli.progress import RunProgress
from likewise.cli.words import given_in
from likewise.data import Episodes
from likewise.data.episode_draw import fitting, fitting_words
from likewise.evaluation import KNN, Evaluation, FewShot, OwnClassifier, Result, Retrieval
from likewise.parts import Spec
from likewise.report import Subject, write_page
from likewise.report.words import score_words
from likewise.runs import Run
from likewise.training import Assembled, Checkpoints, Collapse, Snapshots, Statistics, Terminated, Validation, assemble
from likewise.training.fitting import as_list, fit, last_whole, trainer_of
from likewise.training.loggers.drawings import Drawings
from likewise.training.loggers.hyperparameters import hyperparameters
from likewise.training.loggers.making import logging_to
from likewise.training.loggers.tool import check_tools
from likewise.training.processes import from_slurm, joined, leave, rank
from likewise.training.validation import best_epoch

IRRELEVANT = (
    ".*does not have many workers.*",  # samples are in memory, a worker would only copy them
    ".*LeafSpec.*",  # Lightning's debt to PyTorch
    ".*exists and is not empty.*",  # the run's folder is new, and holds the configuration
    ".*grad attribute of a Tensor that is not a leaf.*",  # torch's compiler looks at it, and training doesn't
    ".*MLFlow only allows.*",  # it leaves the @ of precision@1 out
)
VALIDATED_EPISODES = 600
CPU = torch.device("cpu")
ALIKE = "let all processes read the same files"
SEEDS = 2**32  # NumPy takes no more
CHOSEN = ("data", "subset", "split", "batches", "encoder", "head", "loss", "offers", "optimizer", "schedule")


def run(arguments: Sequence[str]) -> Run | None:
    """Run `likewise train` with the arguments that follow the verb.

    Returns:
        The finished run; None in all processes but the first.

    Raises:
        ValueError: An argument, a file or the data are not as expected; or training diverged.
        KeyboardInterrupt: The user ended it.
        Terminated: SIGTERM ended it.
    """
    before = _to_resume(arguments)
    words = arranged(arguments)
    if before is not None:
        words = ["--config", str(before.configuration), *_without_resume(arguments)]
    parser = options(words)
    config = parse(parser, words)
    _check(config)
    chosen = plain(parser, config)
    given = trainer_options(parser, config)
    from_slurm()
    if rank() > 0:
        warnings.simplefilter("ignore")  # the first process tells them
    with _quiet_lightning(), joined(shared_options(parser, config), config.timeout_minutes):
        lightning.seed_everything(config.seed, workers=True, verbose=False)
        try:
            with distributed.agreement(CPU, lambda: flat(ready.facts), of="data and parts", remedy=ALIKE):
                ready, settings = _assembled(config, chosen)
                if before is not None:
                    _check_same(before, ready)
            if rank() > 0:
                _follow(ready, given, config, before)
                return None
            for note in ready.notes:
                say(note)
            made = before or Run.create(config.runs, _name(chosen["loss"]), _name(chosen["data"]))
            with cared_for(made, _left, new=before is None):
                if before is None:
                    _begin(made, ready, parser, config)
                else:
                    _go_on(made, device_words(given))
                whole = _through(made, ready, given, config, settings)
        except MisconfigurationException as error:
            raise ValueError(_in_our_words(str(error))) from error
    tell(f"\nreport: {whole.report}" if config.report else f"\nrun: {whole.folder}")
    return whole


def check(arguments: Sequence[str]) -> None:
    """Put together what `likewise train` would train and evaluate, and train nothing.

    Args:
        arguments: Those that follow the verb.

    Raises:
        ValueError: An argument, a file or the data are not as expected.
    """
    words = arranged(arguments)
    parser = options(words)
    config = parse(parser, words)
    _check(config)
    with _quiet_lightning(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself will warn
        lightning.seed_everything(config.seed, workers=True, verbose=False)
        _assembled(config, plain(parser, config))


def _assembled(config: Any, chosen: Mapping[str, Any]) -> tuple[Assembled, Settings]:
    """Put together what is trained and how it is evaluated."""
    ready = assemble({part: chosen.get(part) for part in CHOSEN}, config.seed, config.chunk_size)
    settings = Settings.of(chosen)
    check_applicable(ready.parts, settings, predicts=ready.module.predicts)
    return ready, settings


def _begin(made: Run, ready: Assembled, parser: Any, config: Any) -> None:
    """Write what a run knows of itself before it is trained."""
    made.write(made.configuration.name, parser.dump(without_sources(config)).encode())
    recipe = {} if config.recipe is None else {"recipe": config.recipe}
    device = device_words(trainer_options(parser, config))
    made.describe(ready.facts | recipe | {"seed": config.seed, "device": device, "versions": versions()})
    similarity = getattr(ready.module.loss, "label_similarity", None)
    if isinstance(similarity, torch.Tensor):
        made.save_label_similarity(similarity)


def _go_on(made: Run, device: str) -> None:
    """Note where a run goes on, if that is elsewhere: it then doesn't end bit for bit as if it had stayed."""
    facts = made.facts
    if device not in (known := facts.get("device", device)).split("; then "):
        say(f"begun with {known}, and now with {device}: results differ by rounding, and by what each process draws")
        made.describe(facts | {"device": f"{known}; then {device}"})


def _follow(ready: Assembled, given: Mapping[str, Any], config: Any, before: Run | None) -> None:
    """Train as one of several processes, of which the first writes everything and evaluates."""
    if before is None or before.stage == "training":
        callbacks = [Statistics(Run(Path()), ready.trained.names)]
        checkpoints = Checkpoints(Run(Path()), config.checkpoint_minutes)
        fit(ready, trainer_of(given, callbacks, checkpoints), before, compiled=config.compile)


def _through(made: Run, ready: Assembled, given: Mapping[str, Any], config: Any, settings: Settings) -> Run:
    """Do what the run has not done yet, and write and print each result as soon as there is one."""
    encoder = ready.module.encoder
    if made.stage == "training":
        with _timed(made, "training"):
            _train(made, ready, given, config, settings)
        made.save_encoder(encoder)
    else:
        encoder.load_state_dict(made.encoder().state_dict())
        _restore_others(made, ready)
        encoder.to(device_of(given))
    with _terminable(None):
        if settings.evaluations != []:
            with _timed(made, "evaluation"):
                say("evaluating ...")
                features = settings.capped(encoded(made, encoder, ready.parts, ready.module.with_predictions))
                evaluate(made, features, ready.parts, settings.evaluations, refit=ready.refit)
        if config.report:
            say("writing the report ...")
            with made.writing(made.report.name) as page:
                write_page(page, [Subject(made, ready.parts, progress=bar)])
    return tell_lost(made, ready.data.lost).finished()


def _train(made: Run, ready: Assembled, given: Mapping[str, Any], config: Any, settings: Settings) -> None:
    every = 0 if ready.refit or settings.evaluations == [] else config.validation_epochs
    best = config.keep == "best"
    if best and ready.refit:
        raise ValueError("expected a validation part to keep the best epoch by, got a refit on it: leave out --keep")
    drawings = Drawings(hyperparameters(made), ready.trained)
    callbacks: list[lightning.Callback] = [
        Validation(
            made,
            ready.parts,
            every,
            _validating(ready, settings.evaluations),
            told=_validated,
            shown=drawings.show,
            progress=bar,
            keep_best=best,
        ),
        drawings,
        Statistics(made, ready.trained.names),
        Snapshots(made),
        Collapse(lambda told: say(f"warning: {told}")),
    ]
    theirs = given.get("callbacks") or []
    barred = any(isinstance(of, ProgressBar) for of in (theirs if isinstance(theirs, list) else [theirs]))
    if given.get("enable_progress_bar") is not False and not barred:
        callbacks.append(RunProgress())
    checkpoints = Checkpoints(made, config.checkpoint_minutes)
    with _terminable(checkpoints), logging_to(_tools(config), made) as loggers:
        logger = [*as_list(given.get("logger")), *loggers] or given.get("logger")
        options = {**given, "logger": logger, "default_root_dir": made.folder}
        trainer = trainer_of(options, callbacks, checkpoints)
        fit(ready, trainer, made, compiled=config.compile)
    leave()  # the others are done: evaluation is this process's own
    kept = best_epoch(made) if best and made.best.is_file() else None
    if best and kept is None:
        say("no epoch was validated, so the last is kept: lower --validation_epochs")
    elif kept is not None:
        score = f"{kept.metric} {score_words(kept)}"
        say(f"kept epoch {kept.epoch} of {trainer.current_epoch}, the best on validation: {score}")
        ready.module.load_state_dict(torch.load(made.best, map_location="cpu", weights_only=True))
    ready.module.encoder.to(trainer.strategy.root_device)


def _check(config: Any) -> None:
    """Raise a ValueError where a number or a tool is not as expected, before any work."""
    if not 0 <= config.seed < SEEDS:
        raise ValueError(f"expected --seed between 0 and {SEEDS - 1}, got {config.seed}: 0 is the default")
    if config.chunk_size is not None and config.chunk_size < 1:
        raise ValueError(
            f"expected --chunk_size of at least 1, got {config.chunk_size}: leave it out to encode all at once"
        )
    if config.validation_epochs < 0:
        raise ValueError(f"expected --validation_epochs of 0 or more, got {config.validation_epochs}: 0 is none")
    check_tools(_tools(config))


def _tools(config: Any) -> list[str]:
    """Name the tools that log the training."""
    return as_list(config.get("log"))


def _validating(ready: Assembled, asked: Sequence[Evaluation] | None) -> list[Evaluation] | None:
    """Return what evaluates during training: episodes, where these are evaluated after it, or trained on.

    Of several sizes it is the first. Where validation has fewer classes or samples, episodes have as many.
    """
    batches, validation = ready.data.batches, ready.parts.validation
    wanted = next((one for one in asked or () if isinstance(one, FewShot)), None)
    if asked is None and validation.label_kind == "classes" and ready.parts.new_in_validation:
        wanted = FewShot()
    elif wanted is None and isinstance(batches, Episodes):
        wanted = FewShot(batches.shape.ways, batches.shape.shots, batches.shape.queries)
    if wanted is None:
        return None
    counts, names, first = validation.counts, validation.names, wanted.shapes[0]
    shape = fitting(counts, first)
    if shape is None:
        say("validation during training is not by episodes: they need 2 classes, and more samples of each than shots")
        return None
    if shape != first:
        say(f"validation during training is {fitting_words(counts, names, first, shape)}")
    episodes = FewShot(
        shape.ways,
        shape.shots,
        shape.queries,
        VALIDATED_EPISODES,
        distance=wanted.distance,
        classifier=wanted.classifier,
        penalty=wanted.penalty,
        seed=wanted.seed,
    )
    return [episodes, OwnClassifier(), KNN(20, "similarity"), Retrieval()]


def _restore_others(made: Run, ready: Assembled) -> None:
    """Give the offers the weights that they had with the trained encoder, if these were saved."""
    if made.best.is_file():
        state: dict[str, Any] = torch.load(made.best, map_location="cpu", weights_only=True)
    elif (checkpoint := last_whole(made)) is not None:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    else:
        return
    trained = ready.module.encoder.state_dict()
    ready.module.load_state_dict(state | {f"encoder.{name}": of for name, of in trained.items()})


def _validated(found: Result) -> None:
    """Print the validation scores of an epoch."""
    scores = ", ".join(f"{score.metric} {score_words(score)}" for score in found.headline if score.metric.shown)
    say(f"validation after epoch {found.headline[0].epoch}: {found.headline[0].evaluation}, {scores}")


@contextmanager
def _timed(made: Run, doing: str) -> Generator[None]:
    """Add the seconds that something takes to what the run knows of itself."""
    start = time.monotonic()
    try:
        yield
    finally:
        facts = made.facts
        seconds = facts.get("seconds", {})
        seconds[doing] = round(seconds.get(doing, 0.0) + time.monotonic() - start, 1)
        made.describe(facts | {"seconds": seconds})


def _to_resume(arguments: Sequence[str]) -> Run | None:
    """Open the run that is to be gone on with, if one is named."""
    named = [given.value for given in given_in(arguments) if given.option == "resume"]
    if not named:
        return None
    others = [
        word for word in _without_resume(arguments) if word.startswith("--") and not word.startswith("--trainer.")
    ]
    if others:
        raise ValueError(
            f"expected with --resume no option but --trainer.*, got {others[0].partition('=')[0]}: a run goes on as it "
            "began; leave it out, or train anew with --config"
        )
    made = Run.open(named[-1])
    if made.stage == "finished":
        raise ValueError(
            f"expected a run that is not finished, got {made.folder}: train on from it with "
            f"--encoder FromRun --encoder.run {made.folder}"
        )
    return made


def _without_resume(arguments: Sequence[str]) -> list[str]:
    before = ["", *arguments[:-1]]
    pairs = zip(before, arguments, strict=True)
    return [word for last, word in pairs if last != "--resume" and not word.startswith("--resume")]


def _check_same(before: Run, ready: Assembled) -> None:
    """Raise unless data and parts are those that the run began with."""
    facts = json.loads(json.dumps(ready.facts))
    kept = before.facts
    for known in (kept, facts):
        known["parts"].pop("data", None)  # wherever it lies now, it is recognised by what it holds
    for what in ("samples", "parts"):
        if kept.get(what) != facts[what]:
            raise ValueError(
                f"expected the {'data' if what == 'samples' else 'classes and arguments'} that {before.folder} began "
                f"with, got others: restore them, or train anew with likewise train --config {before.configuration}"
            )


def _in_our_words(message: str) -> str:
    """Say what Lightning says of a training that is to end before it goes on."""
    epochs = re.search(r"current_epoch=(\d+), but you have set Trainer\(max_epochs=(\d+)\)", message)
    if epochs is None:
        return message.rstrip(".")
    return f"expected --trainer.max_epochs of at least {epochs[1]}, got {epochs[2]}: so many epochs are done"


def _left(folder: Path) -> str:
    return f"what the run had written is left in {folder}; resume it with likewise train --resume {folder}"


def _name(spec: Spec) -> str:
    return spec["class_path"].rpartition(".")[2]


@contextmanager
def _terminable(checkpoints: Checkpoints | None) -> Generator[None]:
    """Answer SIGTERM: a training ends after its next step, which is saved; anything else ends at once."""

    def end(*_: object) -> None:
        if checkpoints is None:
            raise Terminated
        checkpoints.told_to_end = True

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread, the only one that may handle signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _quiet_lightning() -> Generator[None]:
    """Keep Lightning's tips to itself, and its warnings that do not concern a run."""
    logs = [logging.getLogger(f"lightning.{room}") for room in ("pytorch", "fabric")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in IRRELEVANT:
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)

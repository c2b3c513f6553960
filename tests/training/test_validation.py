"""What is saved while training goes on: validation scores of the encoder as it is, and histograms that losses note."""

import shutil

import lightning
import pytest
import torch
from trainings import Kill, fitted

import likewise as lw
from likewise.data import Parts, Samples, Views
from likewise.diagnostics import effective_rank
from likewise.evaluation import KNN, Evaluation, Features, FewShot, Metric, Result, Retrieval, Score
from likewise.models import MLP, ProjectionHead
from likewise.runs import Run
from likewise.runs.scores import Group, validation_score
from likewise.training import Checkpoints, Pretraining, Statistics, TrainingData, Validation
from likewise.training.validation import ValidationScores, best_epoch, check_that_choose

pytestmark = pytest.mark.slow


def samples(count, seed, names=("a", "b", "c")):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    return Samples(torch.randn(count, 4, generator=generator) + 2 * labels.unsqueeze(1), labels, names)


def train(
    folder, parts, *, loss=None, epochs=4, steps=-1, every=2, resume=False, also=(), patience=None, told=None, **more
):
    """Train a small encoder, with what is saved on the way; returns run and module."""
    torch.manual_seed(0)
    run = Run.create(folder, "run") if not resume else Run.open(next(folder.iterdir()))
    run.describe({})
    loss = loss or lw.SupConLoss()
    module = Pretraining(MLP((4,), width=8), ProjectionHead(8), loss, torch.optim.AdamW, samples=parts.train)
    callbacks = [
        Validation(run, parts, every, **more),
        ValidationScores(run, every, patience, told),
        Statistics(run, parts.train.names),
        Checkpoints(run, 1e-9),
        *also,
    ]
    length = {"max_epochs": epochs, "max_steps": steps, "log_every_n_steps": 1}
    data = TrainingData(parts.train, Views(batch_size=12), seed=0)
    fitted(module, data, run.checkpoint if resume else None, callbacks=callbacks, **length)
    return run, module


def accuracies(run):
    """The validation accuracies of all samples, by epoch."""
    scores = (score for score in run.scores if score.metric.name == "accuracy" and str(score.group) == "all")
    return {score.epoch: score.value for score in scores}


def accuracy_of(encoder, parts):
    """That of an encoder, measured without a training."""
    features = [
        Features(encoder.encode(of.inputs), of.labels, of.names, part=part)
        for of, part in ((parts.train, "train"), (parts.validation, "validation"))
    ]
    return KNN(20, "similarity")(*features, features[1]).headline[0].value


@pytest.fixture(scope="module")
def parts():
    return Parts(samples(36, 0), samples(15, 1), samples(9, 2))


class Watch(lightning.Callback):
    """Keeps the validation scores that can be monitored after each epoch."""

    def __init__(self):
        self.seen = []

    def on_train_epoch_end(self, trainer, _):
        self.seen.append({name: float(of) for name, of in trainer.callback_metrics.items() if "validation" in name})


@pytest.fixture(scope="module")
def plain(parts, tmp_path_factory):
    """A training of four epochs that is validated after every second: run, module, what was monitored and announced."""
    watch, told = Watch(), []
    progress = lambda walked, doing: (told.append(doing), walked)[1]  # noqa: E731
    run, module = train(tmp_path_factory.mktemp("plain"), parts, also=[watch], progress=progress)
    return run, module, watch.seen, told


def test_scores_are_those_of_the_encoder_as_it_begins_and_at_the_end_of_the_epoch(plain, parts):
    run, module, _, told = plain
    assert {(score.part, score.epoch) for score in run.scores} == {("validation", epoch) for epoch in (0, 2, 4)}
    assert accuracies(run)[4] == accuracy_of(module.encoder, parts)
    torch.manual_seed(0)
    assert accuracies(run)[0] == accuracy_of(MLP((4,), width=8), parts)
    assert told[:3] == ["encoding, validation", "encoding, train", "kNN, validation"]


def test_scores_can_be_monitored(plain):
    run, _, seen, _ = plain
    accuracy, rank = "validation/kNN/accuracy", "validation/features/effective rank"
    assert [accuracy in of and rank in of for of in seen] == [False, True, True, True]
    expected = [value for epoch, value in accuracies(run).items() if epoch]  # before the first step nothing is
    assert [of[accuracy] for of in seen[1::2]] == pytest.approx(expected, rel=1e-6)
    assert "validation" not in run.metrics_file.read_text()


def test_the_effective_rank_is_that_of_the_validation_features(plain, parts):
    run, module, *_ = plain
    begun, first, last = (score for score in run.scores if score.metric.name == "effective rank")
    assert (begun.epoch, first.epoch, last.epoch, last.part, last.count) == (0, 2, 4, "validation", 15)
    assert last.value == effective_rank(module.encoder.encode(parts.validation.inputs))
    assert 1 < last.value < 8
    assert validation_score(run.scores) is None  # by which nothing is chosen


def test_training_goes_on_as_it_would_have_without(plain, parts, tmp_path):
    without = train(tmp_path, parts, every=0)[1].state_dict()
    assert all(torch.equal(value, without[name]) for name, value in plain[1].state_dict().items())


@pytest.mark.parametrize("steps", [7, 9])
def test_the_last_step_is_validated_at_the_end_of_an_epoch_and_within_one(steps, parts, tmp_path):
    run, module = train(tmp_path, parts, epochs=-1, steps=steps, every=2)  # three steps an epoch
    assert list(accuracies(run)) == [0, 2, 3]
    assert accuracies(run)[3] == accuracy_of(module.encoder, parts)


def test_the_last_step_is_validated_where_time_ends_within_an_epoch(parts, tmp_path):
    class Late(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step == 5

    run, _ = train(tmp_path, parts, epochs=9, every=2, also=[Late()])
    assert {score.epoch for score in run.scores} == {0, 2}


@pytest.mark.parametrize(("values", "kept"), [((0.2, 0.5, 0.3), 0), ((0.2, 0.5, 0.2), 2), ((0.5, 0.2, 0.2), 1)])
def test_the_first_of_the_lowest_epochs_is_kept_or_the_encoder_as_it_begins_if_none_is_as_good(
    values, kept, parts, tmp_path
):
    """Lower distances are better."""
    run, _ = train(tmp_path, parts, epochs=2, every=1, evaluations=[Distance(*values)], keep_best=True)
    assert best_epoch(run).epoch == kept
    state = torch.load(run.best, weights_only=True)
    torch.manual_seed(0)
    begun = MLP((4,), width=8).state_dict()
    own = {name.removeprefix("encoder."): of for name, of in state["state_dict"].items() if "encoder." in name}
    assert all(torch.equal(own[name], of) for name, of in begun.items()) == (kept == 0)
    assert state["epoch"] == kept - 1


def test_classes_of_their_own_are_validated_by_retrieval(parts, tmp_path):
    other = Parts(parts.train, samples(15, 1, ("x", "y", "z")), parts.test)
    run, _ = train(tmp_path, other)
    assert {score.evaluation for score in run.scores} == {"retrieval", "features"}


def test_episodes_are_drawn_from_all_classes_of_a_large_validation_part(parts, tmp_path, monkeypatch):
    """Of 12 classes of 10 samples 30 are encoded in all, which would be 3 classes; but an episode takes 5 of each."""
    monkeypatch.setattr("likewise.training.validation.MAX_SAMPLES", 30)
    labels = torch.arange(120) % 12
    inputs = torch.randn(120, 4) + torch.randn(12, 4)[labels]
    other = Parts(parts.train, Samples(inputs, labels, tuple("klmnopqrstuv")), parts.test)
    evaluated, plain = [], FewShot.__call__
    monkeypatch.setattr(FewShot, "__call__", lambda *given, **more: (evaluated.append(given), plain(*given, **more))[1])
    episodes = FewShot(6, 1, 4, 20, distance="cosine")
    run, _ = train(tmp_path, other, every=4, evaluations=[episodes, Retrieval()])
    features = evaluated[-1][2]
    assert features.counts.tolist() == [5] * 12
    score = next(score for score in run.scores if score.evaluation == "few-shot" and score.epoch == 4)
    assert score.value == episodes(features, features, features).scores[0].value


def test_without_labels_the_effective_rank_alone_is_validated(parts, tmp_path):
    blank = Parts(*(Samples(of.inputs) for of in (parts.train, parts.validation, parts.test)))
    run, _ = train(tmp_path, blank, loss=lw.NTXentLoss())
    assert [(score.metric.name, score.epoch) for score in run.scores] == [("effective rank", at) for at in (0, 2, 4)]


def test_too_few_samples_to_validate_on_are_no_error(parts, tmp_path):
    few = parts.validation[torch.arange(1)]
    assert train(tmp_path, Parts(parts.train, few, parts.test))[0].scores == ()


class Planned(Evaluation):
    """Gives validation scores that are planned; those of a class, at their best at once, don't choose."""

    name, metric = "planned", Metric("accuracy", selects=True)

    def __init__(self, *values):
        self.values = list(values)

    def why_not_applicable(self, _):
        return None

    def evaluate(self, *_, **__):
        value = self.values.pop(0)
        best = 0.0 if self.metric.better == "lower" else 1.0
        of_class = Score(self.name, self.metric, best, best, best, 3, part="validation", group=Group("class", "a"))
        return Result((Score(self.name, self.metric, value, value, value, 9, part="validation"), of_class))


class Distance(Planned):
    """Of one's own: lower is better."""

    def __init__(self, *values, selects=True):
        super().__init__(*values)
        self.metric = Metric("distance", "plain", "lower", selects=selects)


class Noted(lightning.Callback):
    """Keeps what RASCAL noted of every step."""

    def __init__(self):
        self.steps = []

    def on_train_batch_end(self, trainer, pl_module, *step):
        batch = step[1]
        last = {name: value.clone() for name, value in pl_module.loss.last.items()}
        self.steps.append((trainer.current_epoch + 1, last["rank_drift_histogram"], last, batch["labels"].tolist()))


def test_of_an_epoch_histograms_are_summed_and_values_of_anchors_averaged_by_class(parts, tmp_path):
    noted = Noted()
    run, _ = train(tmp_path, parts, loss=lw.RASCALLoss(36, 64), epochs=3, also=[noted])
    (rows,) = run.histograms.values()
    for (number, counts), epoch in zip(rows, (1, 2, 3), strict=True):
        assert (number, counts) == (epoch, tuple(sum(of for at, of, *_ in noted.steps if at == epoch).tolist()))
    assert sum(rows[2][1]) > 0
    expected = {}
    for epoch, _, last, labels in noted.steps:
        for view in (0, 1):
            for place, label in enumerate(labels):
                total, count = last["rank_drift_by_anchor"][:, view * len(labels) + place].tolist()
                before = expected.get((epoch, "abc"[label]), (0.0, 0))
                own = (total / count, 1) if count else (0.0, 0)
                expected[epoch, "abc"[label]] = (before[0] + own[0], before[1] + own[1])
    found = {(mean.epoch, mean.label): mean for mean in run.class_means}
    assert {of for of, (_, count) in expected.items() if count} == set(found)
    assert len(found) >= 6
    for of, mean in found.items():
        assert mean.statistic == "rank_drift"
        assert mean.count == expected[of][1]
        assert mean.mean == pytest.approx(expected[of][0] / expected[of][1])


def test_a_training_that_was_interrupted_saves_the_same(parts, tmp_path):
    """In the middle of an epoch, and at the beginning of the next but one."""
    whole, _ = train(tmp_path / "whole", parts, loss=lw.RASCALLoss(36, 64))
    for resume, batch in ((False, 4), (True, 6)):
        with pytest.raises(InterruptedError):
            train(tmp_path / "cut", parts, loss=lw.RASCALLoss(36, 64), also=[Kill(batch)], resume=resume)
    cut, _ = train(tmp_path / "cut", parts, loss=lw.RASCALLoss(36, 64), resume=True)
    assert cut.histograms == whole.histograms
    assert cut.class_means == whole.class_means
    assert cut.scores == whole.scores


def test_the_best_epoch_needs_a_metric_that_selects(parts, tmp_path):
    with pytest.raises(ValueError, match="expected a metric of planned that selects, to keep the best epoch, got none"):
        train(tmp_path, parts, evaluations=[Distance(0.5, 0.3, 0.2, selects=False)], keep_best=True)


@pytest.mark.parametrize(
    ("values", "patience", "ended", "best"),
    [
        ([0.5, 0.6, 0.6, 0.55, 0.7, 0.1], 2, 4, 2),  # an equal score is no better
        ([0.5, 0.6, 0.6, 0.55, 0.7, 0.1], 3, 6, None),
        ([0.5, 0.4, 0.6, 0.55, 0.5, 0.7], 1, 2, 1),
    ],
)
def test_training_ends_when_validation_has_not_been_better_for_so_long(values, patience, ended, best, parts, tmp_path):
    told = []
    options = {"epochs": 6, "every": 1, "evaluations": [Planned(0.9, *values)], "patience": patience}
    run, _ = train(tmp_path, parts, **options, told=lambda *of: told.append(of))
    assert max(score.epoch for score in run.scores) == ended
    assert told == ([] if best is None else [(best, ended)])


@pytest.mark.parametrize("batch", [7, 12])
def test_a_resumed_training_ends_where_it_would_have_ended(batch, parts, tmp_path):
    """Killed in the third epoch of four; and after the last step of the last one, when nothing is left to train."""
    values = [0.5, 0.6, 0.6, 0.55, 0.7, 0.1]
    planned = {"epochs": 6, "every": 1, "patience": 2}
    whole, module = train(tmp_path / "whole", parts, evaluations=[Planned(0.9, *values)], **planned)
    resumed = {"evaluations": [Planned(*values[batch // 3 :])], "resume": True}
    if batch == 12:
        train(tmp_path / "killed", parts, evaluations=[Planned(0.9, *values)], **planned)
    else:
        with pytest.raises(InterruptedError):
            train(tmp_path / "killed", parts, evaluations=[Planned(0.9, *values)], also=[Kill(batch)], **planned)
    run, again = train(tmp_path / "killed", parts, **resumed, **planned)
    assert [(score.epoch, score.value) for score in run.scores] == [(one.epoch, one.value) for one in whole.scores]
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in module.state_dict().items())


class KeepAt(lightning.Callback):
    """Keep the checkpoint that was saved before a batch."""

    def __init__(self, run, batch, path):
        self.run, self.batch, self.path = run, batch, path

    def on_train_batch_start(self, trainer, *_):
        if trainer.fit_loop.epoch_loop.total_batch_idx == self.batch:
            shutil.copy(next(self.run.glob("*/checkpoint.ckpt")), self.path)


def test_epochs_after_a_lost_checkpoint_do_not_end_the_training_that_repeats_them(parts, tmp_path):
    """Their scores are still there, and no better than the best: those count that were trained again."""
    values, planned = [0.5, 0.6, 0.55, 0.5, 0.7, 0.1], {"epochs": 6, "every": 1, "patience": 2}
    kept, told = tmp_path / "second.ckpt", []
    folder = tmp_path / "run"
    first = {"evaluations": [Planned(0.9, *values)], "also": [KeepAt(folder, 6, kept)]}
    whole, _ = train(folder, parts, **first, **planned)
    before = [(one.epoch, one.value) for one in whole.scores]
    assert max(epoch for epoch, _ in before) == 4
    shutil.copy(kept, whole.checkpoint)
    again = {"evaluations": [Planned(*values[2:])], "resume": True, "told": lambda *of: told.append(of)}
    run, _ = train(folder, parts, **again, **planned)
    assert [(one.epoch, one.value) for one in run.scores] == before
    assert told == [(2, 4)]
    assert len(again["evaluations"][0].values) == 2  # of four: two epochs were trained again


def test_what_ends_a_training_is_checked(parts, tmp_path):
    run = Run.create(tmp_path, "x")
    with pytest.raises(ValueError, match="0 or more epochs"):
        Validation(run, parts, -1)
    with pytest.raises(ValueError, match="patience of 1 validation or more, got 0"):
        ValidationScores(run, 1, 0)
    with pytest.raises(ValueError, match=r"validation scores to end the training by, got none: .*leave out --patience"):
        check_that_choose(parts, 0, "end the training by", "--patience")

"""Evaluations of vectors on a GPU, which is simulated: to the bit what they find on the CPU."""

import pytest
import torch

from likewise.evaluation import KNN, FeatureParts, Features, FewShot, LinearProbe, Retrieval
from likewise.evaluation.features import with_room
from likewise.runs import Run
from likewise.workflows import Silent
from likewise.workflows.scoring import EvaluationOptions, evaluate_features
from simulated_gpu import simulated_gpu

pytestmark = pytest.mark.slow


def clusters(count: int, seed: int, labels: int) -> Features:
    """Clusters with a long tail; some vectors twice, one zero, one number constant."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(6, 12, generator=torch.Generator().manual_seed(9))
    of = (torch.rand(count, generator=generator) ** 2 * 6).long()
    vectors = centres[of] + 0.7 * torch.randn(count, 12, generator=generator)
    vectors[count // 2 : count // 2 + 4] = vectors[0]
    vectors[count // 3], vectors[:, 3] = 0, 2.5
    if not labels:
        return Features(vectors, of, tuple("abcdef"), part="test")
    sets = torch.rand(count, labels, generator=generator) < torch.linspace(0.5, 0.02, labels)
    sets[:, 0] |= of > 2
    return Features(vectors, sets, part="test")


def parts(labels: int = 0) -> FeatureParts:
    return FeatureParts(*(clusters(count, seed, labels) for seed, count in enumerate((200, 60, 70))))


@pytest.mark.parametrize("labels", [0, 8])
@pytest.mark.parametrize(
    ("evaluation", "refit"),
    [
        (KNN(), False),
        (KNN(k=7, weights="similarity"), True),
        (LinearProbe(penalties=(1e-2, 1e-3)), True),  # the best of some labels lie beyond
        (Retrieval(at=[1, 5]), False),
        (Retrieval(gallery="train"), True),
    ],
)
def test_on_a_gpu_each_finds_what_it_finds_on_the_cpu(evaluation, refit, labels):
    given = parts(labels)
    found = evaluation(*given, refit=refit)
    with simulated_gpu() as gpu:
        there = evaluation(*given.to(gpu), refit=refit)
    assert there.scores == found.scores
    assert len(found.scores) > 1
    assert there.candidates == found.candidates
    for ours, theirs in zip(there.outcomes, found.outcomes, strict=True):
        assert torch.equal(ours.values.nan_to_num(-1), theirs.values.nan_to_num(-1))
        assert torch.equal(ours.rows, theirs.rows)
    if found.predictor is not None:  # which a run keeps, and whoever loads it may have no GPU
        assert there.predictor is not None
        assert there.predictor.to_bytes() == found.predictor.to_bytes()


@pytest.mark.parametrize("trained", [True, False])
def test_a_run_is_evaluated_on_the_gpu_as_far_as_evaluations_can(tmp_path, monkeypatch, trained):
    given, asked = parts(), [KNN(), LinearProbe(), Retrieval(), FewShot(ways=3, shots=2, episodes=50)]
    run, beside = (Run.create(tmp_path, name, "x") for name in ("cpu", "gpu"))
    options = EvaluationOptions(asked)
    evaluate_features(run, given, None, options, Silent(), refit=False, trained=True)
    monkeypatch.setattr("likewise.evaluation.features.with_room", lambda device, *_: device)
    used: list[tuple[str, str]] = []
    for one in asked:
        plain = type(one).evaluate

        def noted(self, parts, *, plain=plain, **options):
            used.append((self.name, parts.train.vectors.device.type))
            return plain(self, parts, **options)

        monkeypatch.setattr(type(one), "evaluate", noted)
    with simulated_gpu() as gpu:
        evaluate_features(beside, given, None, options, Silent(), refit=False, trained=trained, device=gpu)
    on, off = gpu.type, "cpu"
    assert dict(used) == {"kNN": on, "linear probe": on, "retrieval": on, "few-shot": off}
    assert beside.scores == run.scores
    assert (beside.probe.read_bytes(), len(run.scores) > 9) == (run.probe.read_bytes(), True)


def test_features_stay_on_the_cpu_where_a_gpu_has_no_room(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (24 * 1000 * 64, 1))
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [with_room(gpu, count, 64) for count in (999, 1000, 2000)] == [gpu, cpu, cpu]
    assert with_room(torch.device("mps"), 1, 64) == with_room(cpu, 1, 64) == cpu

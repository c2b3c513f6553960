"""RASCAL: double loops, ranks with ties, the cache, blocks, a frozen encoder, several processes."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from command_worker import workers
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_checks import passed_weights

import likewise as lw
from cases import in_pairs
from likewise.losses.rascal import doubled_ranks
from likewise.pairs import WithinClass, within_class

BACKENDS = ["dense", "tiled"]
RANKINGS = ["agreement", "current", "uniform"]
LEVELS = ["view", "sample"]
DOUBLE = torch.float64
WORKER = Path(__file__).parents[1] / "processes" / "rascal_worker.py"
LABELS = torch.tensor([5, -3, 5, 5, -3, 5, 40, -3, 5])
INDEX = torch.tensor([4, 11, 0, 9, 2, 4, 6, 8, 4])  # sample 4 three times
unit = torch.nn.functional.normalize


def warm(criterion):
    """Fill the cache with random unit features."""
    cache = criterion.cache
    cache.features.copy_(unit(torch.randn(cache.features.shape, dtype=DOUBLE), dim=1))
    cache.valid.fill_(1)
    return criterion


def pull_of(criterion, *batch):
    """Return the matrix of pull weights of a call."""
    return passed_weights(criterion, *batch)[1]["pull"].dense(DOUBLE)


def place(similarities, k):
    """Return the average rank of entry k, the most similar first."""
    values = [float(s) for s in similarities]
    return sum(s > values[k] for s in values) + (values.count(values[k]) - 1) / 2


def moved(now, before, ranking):
    """Return what is subtracted from each share: the drift, or the current rank."""
    span = max(len(now) - 1, 1)
    if ranking == "current":
        return [place(now, k) / span for k in range(len(now))]
    return [abs(place(now, k) - place(before, k)) / span for k in range(len(now))]


def weights_by_loop(z, labels, index, cache, *, ranking, rank_level):
    """Return RASCAL's weights, one anchor and positive at a time, from unit rows with their labels and indices."""
    weights = torch.zeros(len(z), len(z), dtype=DOUBLE)
    samples = sorted(set(index.tolist()))
    means = {s: unit(z[index == s].mean(dim=0), dim=0).float() for s in samples}
    cached = {(s, t): cache.features[s] @ cache.features[t] for s in samples for t in samples}
    for i in range(len(z)):
        own = int(index[i])
        positives = [p for p in range(len(z)) if p != i and labels[p] == labels[i]]
        if not positives:
            continue
        if rank_level == "view":
            groups = [[p] for p in positives]
            now = [z[i] @ z[p] for p in positives]
        else:
            groups = [[p for p in positives if index[p] == s] for s in samples]
            groups = [group for group in groups if group]
            now = [np.inf if index[g[0]] == own else means[own] @ means[int(index[g[0]])] for g in groups]
        before = [cached[own, int(index[g[0]])] for g in groups]
        if rank_level == "sample":
            before = [np.inf if index[g[0]] == own else s for g, s in zip(groups, before, strict=True)]
        shares = [1 - taken for taken in moved(now, before, ranking)]
        cold = not cache.valid[own] or not all(cache.valid[int(index[p])] for p in positives)
        if (ranking == "agreement" and cold) or sum(shares) == 0:
            shares = [len(group) for group in groups]
        for group, share in zip(groups, shares, strict=True):
            weights[i, group] = share / sum(shares) / len(group)
    return weights


@in_pairs(ranking=["agreement", "current"], rank_level=LEVELS, views=[1, 2, 3], cold=[None, 8, 4])
def test_weights_are_those_of_a_loop(ranking, rank_level, views, cold):
    """Every ranking and level, one to three views, a sample that occurs three times, and one that is not cached."""
    batch = torch.randn(9, views, 5, dtype=DOUBLE)
    options = {"ranking": ranking, "rank_level": rank_level}
    criterion = warm(lw.RASCALLoss(12, 5, temperature=0.2, **options))
    if cold is not None:
        criterion.cache.valid[cold] = False
    z = unit(torch.cat(batch.unbind(dim=1)), dim=1)
    weights = weights_by_loop(z, LABELS.repeat(views), INDEX.repeat(views), criterion.cache, **options)
    torch.testing.assert_close(pull_of(criterion.eval(), batch, LABELS, INDEX), weights, rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([-0.0, 0.0, 0.5, -1.0, torch.inf]), st.integers(0, 3)), min_size=1))
def test_ranks_are_the_mean_of_all_orders(entries):
    """Twice the average rank if entries tie, occur several times, or are not ranked."""
    similarities, counts = [s for s, _ in entries], [n for _, n in entries]
    repeated = [s for s, n in entries for _ in range(n)]
    ranks = doubled_ranks(torch.tensor([similarities] * 2), torch.tensor([counts] * 2))
    for s, n, *rank in zip(similarities, counts, *ranks.tolist(), strict=True):
        assert n == 0 or rank == [2 * place(repeated, repeated.index(s))] * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rank_level", LEVELS)
def test_uniform_is_sup_con_bit_for_bit(backend, rank_level):
    """Loss and gradient of the uniform ranking are SupCon's, and nearly so with an empty cache."""
    batch, labels = torch.randn(300, 2, 8, requires_grad=True), torch.randint(0, 20, (300,))
    options = {"temperature": 0.1, "backend": backend}
    expected = lw.SupConLoss(**options)(batch, labels)
    gradient = torch.autograd.grad(expected, batch)[0]
    uniform = warm(lw.RASCALLoss(300, 8, ranking="uniform", rank_level=rank_level, **options))
    loss = uniform(batch, labels, torch.arange(300))
    assert torch.equal(loss, expected)
    assert torch.equal(torch.autograd.grad(loss, batch)[0], gradient)
    cold = lw.RASCALLoss(300, 8, rank_level=rank_level, **options)(batch, labels, torch.arange(300))
    torch.testing.assert_close(cold, expected)
    torch.testing.assert_close(torch.autograd.grad(cold, batch)[0], gradient)


@in_pairs(dtype=[DOUBLE, torch.float32, torch.float16, torch.bfloat16], views=[1, 2], half=[False, True])
def test_a_frozen_encoder_has_no_drift(dtype, views, half):
    """With the same embeddings twice, in a different order and with duplicates, sample-level drift is exactly 0."""
    batch = torch.randn(120, views, 16).to(dtype)
    labels, index = torch.arange(120) % 4, torch.randint(0, 100, (120,))
    criterion = lw.RASCALLoss(100, 16, rank_level="sample")
    criterion = criterion.half() if half else criterion
    criterion(batch, labels, index)
    assert criterion.last["rank_drift_histogram"].sum() == 0
    order = torch.randperm(120)
    for chosen in (torch.arange(120), order):
        criterion(batch[chosen], labels[chosen], index[chosen])
        assert criterion.last["cache_hit_rate"] == 1
        assert criterion.last["rank_drift_histogram"][0] > 0
        assert criterion.last["rank_drift_histogram"][1:].sum() == 0
        assert criterion.last["rank_drift_mean"] == 0
        assert criterion.last["rank_drift_std"] == 0


def test_an_anchors_own_sample_is_first():
    """At sample level it is first even if another cached feature is more similar than its own."""
    batch = torch.randn(9, 2, 5, dtype=DOUBLE)
    criterion = warm(lw.RASCALLoss(12, 5, rank_level="sample")).eval()
    criterion.cache.features[9] = 2 * criterion.cache.features[4]
    z = unit(torch.cat(batch.unbind(dim=1)), dim=1)
    options = {"ranking": "agreement", "rank_level": "sample"}
    expected = weights_by_loop(z, LABELS.repeat(2), INDEX.repeat(2), criterion.cache, **options)
    torch.testing.assert_close(pull_of(criterion, batch, LABELS, INDEX), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rank_level", LEVELS)
@pytest.mark.parametrize("ranking", RANKINGS)
def test_large_classes_are_split(ranking, rank_level, monkeypatch):
    """Row by row or a few classes at a time, kept or recomputed: the same loss, gradient, weights and statistics."""
    batch = torch.randn(40, 2, 6, dtype=DOUBLE, requires_grad=True)
    labels, index = torch.arange(40) % 9 // 3, torch.randint(0, 30, (40,))
    options = {"ranking": ranking, "rank_level": rank_level}
    state = warm(lw.RASCALLoss(30, 6)).state_dict()
    results = []
    for block, kept in ((2**18, 2**21), (2**18, 0), (1000, 2**21), (90, 0), (1, 0)):
        monkeypatch.setattr(within_class, "BLOCK", block)
        monkeypatch.setattr(within_class, "MAX_KEPT", kept)
        criterion = lw.RASCALLoss(30, 6, backend="tiled", **options).eval()
        criterion.load_state_dict(state)
        loss = criterion(batch, labels, index)
        gradient = torch.autograd.grad(loss, batch)[0]
        results.append([loss, gradient, pull_of(criterion, batch, labels, index), *criterion.last.values()])
    for others in results[1:]:
        torch.testing.assert_close(others, results[0], rtol=1e-12, atol=1e-12)


class Distance(WithinClass):
    """|value_i − value'_r| within classes."""

    def __init__(self, labels, reference_labels, values, reference_values):
        super().__init__(labels, reference_labels)
        self.values, self.reference_values = values, reference_values

    def weights(self, block):
        anchors, references = block.members
        return (self.values[anchors][:, :, None] - self.reference_values[references][:, None]).abs()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 40), st.integers(1, 12))
def test_within_class_is_its_matrix(seed, n, r, classes):
    """Products, transposes, sums, support and tiles for any two lists of classes, some only in one of them."""
    generator = torch.Generator().manual_seed(seed)
    labels, others = (7 * torch.randint(-classes, classes, (k,), generator=generator) for k in (n, r))
    values, reference_values = (torch.randint(0, 5, (k,), generator=generator).double() for k in (n, r))
    expected = (values[:, None] - reference_values).abs() * (labels[:, None] == others)
    x, y = (torch.randn(k, 3, dtype=DOUBLE, generator=generator) for k in (r, n))
    weight = Distance(labels, others, values, reference_values)
    assert torch.equal(weight.dense(DOUBLE), expected)
    torch.testing.assert_close(weight @ x, expected @ x)
    torch.testing.assert_close(weight.T @ y, expected.T @ y)
    torch.testing.assert_close(weight.row_sum(DOUBLE), expected.sum(dim=1))
    assert torch.equal(weight.support(), expected.ne(0).any(dim=1))
    rows, columns = slice(n // 3, n // 2 + 1), slice(r // 4, r)
    assert torch.equal(weight.tile(rows, columns, DOUBLE, torch.device("cpu")), expected[rows, columns])


def test_the_loop_is_over_sizes():
    """A thousand classes of three sizes are three blocks, and the blocks hold every pair of a class once."""
    labels = torch.arange(1000).repeat_interleave(torch.arange(1000) % 3 + 1)
    weight = Distance(labels, labels, labels, labels)
    made, weights = [], weight.weights
    weight.weights = lambda block: made.append(weights(block).shape) or weights(block)
    weight.row_sum()
    assert made == [(334, 1, 1), (333, 2, 2), (333, 3, 3)]


def test_weights_without_uniform_ones_stay_outside_tiles():
    """Each tile would be collected from all blocks; beside the tiles each block is computed once."""
    labels = torch.tensor([0, 0, 1])
    weight = Distance(labels, labels, labels, labels)
    assert weight.split() == (None, weight)
    mean = weight.mean_over_row()
    assert mean.split() == (None, mean)


@in_pairs(ranking=RANKINGS, rank_level=LEVELS, shape=[(0, 2, 3), (4, 3)])
def test_without_positives_the_loss_is_zero(ranking, rank_level, shape):
    """With no rows, one row, or all classes different: loss 0, gradient 0, and no NaN in the statistics."""
    batch = torch.randn(shape, requires_grad=True)
    criterion = warm(lw.RASCALLoss(9, 3, ranking=ranking, rank_level=rank_level))
    loss = criterion(batch, torch.arange(shape[0]), torch.arange(shape[0]))
    loss.backward()
    assert loss == 0
    assert batch.grad.abs().sum() == 0
    assert criterion.last["active_anchors"] == 0
    assert all(torch.isfinite(value).all() for value in criterion.last.values())


@pytest.mark.parametrize("rank_level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_and_zero_embeddings_are_finite(rank_level, dtype):
    """A collapsed encoder, and rows of zeros, give a finite loss, gradient and cache, twice."""
    for value in (0, 1):
        batch = torch.full((6, 2, 4), value, dtype=dtype, requires_grad=True)
        criterion = lw.RASCALLoss(6, 4, rank_level=rank_level)
        for _ in range(2):
            loss = criterion(batch, torch.arange(6) % 2, torch.arange(6))
            loss.backward()
            assert torch.isfinite(loss)
            assert torch.isfinite(batch.grad).all()
            assert torch.isfinite(criterion.cache.features).all()


@pytest.mark.parametrize("ranking", RANKINGS)
def test_the_cache_is_written_after_it_was_read(ranking):
    """Training writes the normalised mean of a sample's views, once, after the weights; evaluation writes nothing."""
    batch = 3 * torch.randn(9, 2, 5, dtype=DOUBLE)
    criterion = lw.RASCALLoss(12, 5, ranking=ranking, normalize=False, temperature=5.0).eval()
    criterion(batch, LABELS, INDEX)
    assert not criterion.cache.valid.any()
    assert criterion.cache.step == 0
    criterion.train()(batch, LABELS, INDEX)
    assert criterion.last["cache_hit_rate"] == 0
    assert criterion.cache.step == 1
    z = unit(batch, dim=2)
    for s in range(12):
        expected = z[s == INDEX].flatten(0, 1)
        assert criterion.cache.valid[s] == bool(len(expected))
        if len(expected):
            torch.testing.assert_close(criterion.cache.features[s], unit(expected.mean(dim=0), dim=0).float())
    criterion(batch[:2], LABELS[:2], torch.tensor([4, 1]))
    assert criterion.last["cache_hit_rate"] == 0.5


def test_a_checkpoint_continues_the_run():
    """The cache is in the state: a loss that loads it gives the next step's loss, bit for bit."""
    batches = [(torch.randn(9, 2, 5), LABELS, INDEX) for _ in range(3)]
    criterion, other = lw.RASCALLoss(12, 5), lw.RASCALLoss(12, 5)
    for batch in batches[:2]:
        criterion(*batch)
    other.load_state_dict(criterion.state_dict())
    assert torch.equal(other(*batches[2]), criterion(*batches[2]))


def test_a_checkpoint_can_leave_the_cache_out():
    """The loss is the same, and one that loads its state begins with an empty cache."""
    batches = [(torch.randn(9, 2, 5), LABELS, INDEX) for _ in range(2)]
    criterion, without, other = lw.RASCALLoss(12, 5), *(lw.RASCALLoss(12, 5, persistent_cache=False) for _ in range(2))
    assert all(torch.equal(without(*batch), criterion(*batch)) for batch in batches)
    assert not [name for name in without.state_dict() if name.startswith("cache")]
    other.load_state_dict(without.state_dict())
    assert not other.cache.valid.any()


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("rank_level", LEVELS)
def test_statistics_are_those_of_the_pairs(ranking, rank_level):
    """With every ranking, drifts cover the ranked positives of cached classes, and entropy the anchors' weights."""
    batch, views = torch.randn(9, 2, 5, dtype=DOUBLE), 2
    criterion = warm(lw.RASCALLoss(12, 5, ranking=ranking, rank_level=rank_level)).eval()
    criterion.cache.valid[2] = False  # of class −3, which is cold then
    weights = pull_of(criterion, batch, LABELS, INDEX)
    z, labels, index = unit(torch.cat(batch.unbind(dim=1)), dim=1), LABELS.repeat(views), INDEX.repeat(views)
    drifts, by_anchor = [], torch.zeros(2, len(z), dtype=DOUBLE)
    for i in (labels == 5).nonzero().flatten().tolist():
        inside = (labels == 5) & (torch.arange(len(z)) != i)
        if rank_level == "view":
            now, before = z[inside] @ z[i], criterion.cache.features[index[inside]] @ criterion.cache.features[index[i]]
            before = before.new_tensor([before[index[inside] == s][0] for s in index[inside]])  # ties, exactly
        else:
            others = [s for s in (0, 4, 9) if s != index[i]]
            means = {s: unit(z[index == s].mean(dim=0), dim=0) for s in (0, 4, 9)}
            now = [np.inf, *(means[int(index[i])] @ means[s] for s in others)]
            before = [np.inf, *(criterion.cache.features[index[i]] @ criterion.cache.features[s] for s in others)]
        own = moved(now, before, "agreement")
        drifts += own
        by_anchor[:, i] = torch.tensor([sum(own), len(own)])
    drifts += [0.0, 0.0]  # of class 40: each of two views is the other's one positive
    by_anchor[1, labels == 40] = 1
    last = criterion.last
    torch.testing.assert_close(last["rank_drift_by_anchor"], by_anchor)
    assert last["rank_drift_mean"].item() == pytest.approx(np.mean(drifts), rel=1e-6)
    assert last["rank_drift_std"].item() == pytest.approx(np.std(drifts), rel=1e-6)
    bins = np.histogram(np.array(drifts) + 1e-9, bins=10, range=(0, 1 + 2e-9))[0]
    assert last["rank_drift_histogram"].tolist() == bins.tolist()
    assert last["cache_hit_rate"].item() == pytest.approx(6 / 7)
    entropy = torch.special.entr(weights).sum(dim=1).mean()
    torch.testing.assert_close(last["weight_entropy"], entropy)


def test_autocast_changes_nothing(monkeypatch):
    """Under autocast ranks, forward, backward and statistics stay in float32, also where weights are recomputed."""
    monkeypatch.setattr(within_class, "MAX_KEPT", 0)
    batch, labels, index = torch.randn(300, 2, 16, requires_grad=True), torch.arange(300) % 9, torch.arange(300)
    for ranking, level in product(RANKINGS, LEVELS):
        criterion = warm(lw.RASCALLoss(300, 16, ranking=ranking, rank_level=level)).eval()
        expected = torch.autograd.grad(criterion(batch, labels, index), batch)[0]
        statistics = criterion.last
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mine = torch.autograd.grad(criterion(batch, labels, index), batch)[0]
        assert torch.equal(mine, expected)
        assert all(torch.equal(criterion.last[name], value) for name, value in statistics.items())


ROWS, CLASSES, SAMPLES = torch.ones(4, 3), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 2, 3])


def test_refused_input_does_not_change_the_cache():
    """A refused batch writes nothing."""
    criterion = lw.RASCALLoss(4, 3)
    with pytest.raises(ValueError, match="finite"):
        criterion(ROWS * torch.nan, CLASSES, SAMPLES)
    assert not criterion.cache.valid.any()


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    workers(WORKER, (0, 1, folder), folder=folder)
    return torch.load(folder / "0.pt")


@pytest.mark.process
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_are_one(world, one, tmp_path):
    """Losses, gradients, statistics and caches after two steps are those of one process, on every rank."""
    workers(WORKER, *((rank, world, tmp_path) for rank in range(world)), folder=tmp_path)
    several = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]
    assert set(one) == {f"{ranking} {level}" for ranking, level in product(RANKINGS, LEVELS)}
    for name, (losses, gradients, last, cache) in one.items():
        assert all(gradient.abs().sum() > 0 for gradient in gradients)
        for result in several:
            torch.testing.assert_close(result[name][0], losses, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(result[name][1], gradients, rtol=1e-11, atol=1e-13)
            torch.testing.assert_close(result[name][2], last, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(result[name][3], cache, rtol=1e-6, atol=1e-6)
            assert all(
                torch.equal(mine, theirs) for mine, theirs in zip(result[name][3], several[0][name][3], strict=True)
            )
    for rank, result in enumerate(several):
        told = result["refusals"]
        assert ("within 0" if rank == 1 else "rank 1") in told["index"]
        assert "on all ranks" in told["ranking"]

"""Sets of pairs chosen by similarity: against plain loops, in several tiles, and the miners that they make."""

import pytest
import torch

import likewise as lw
from likewise import pairs
from likewise.pairs import hardest

DOUBLE = torch.float64


def unit(n, d=5, seed=0):
    return torch.nn.functional.normalize(
        torch.randn(n, d, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)), dim=1
    )


@pytest.fixture(params=[1024, 4])
def _tiles(request, monkeypatch):
    """Look at all pairs in one tile, or in several."""
    monkeypatch.setattr(hardest, "STREAM", request.param)


@pytest.mark.usefixtures("_tiles")
@pytest.mark.parametrize("farthest", [False, True])
@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("separate", [False, True])
def test_hardest_is_the_sorted_similarities(k, farthest, separate):
    """The first k in order among the pairs of a set; fewer, or none, where there are not as many."""
    z, v = unit(11), unit(9, seed=1) if separate else unit(11)
    among = pairs.Equal(torch.arange(11) % 4, torch.arange(len(v)) % 5)
    found = pairs.Hardest(z, among, k, references=v if separate else None, farthest=farthest)
    dense = found.dense(DOUBLE)
    for i in range(11):
        mine = among.dense()[i].nonzero().flatten().tolist()
        order = sorted(mine, key=lambda r: float(z[i] @ v[r]), reverse=not farthest)[:k]
        assert sorted(order) == dense[i].nonzero().flatten().tolist()
        expected = [float(z[i] @ v[r]) for r in order] + [torch.inf if farthest else -torch.inf] * (k - len(order))
        torch.testing.assert_close(found.similarities[i], torch.tensor(expected, dtype=DOUBLE))
    assert found.row_sum().tolist() == dense.sum(dim=1).tolist()
    assert not found.similarities.requires_grad


@pytest.mark.parametrize(("k", "among"), [(0, pairs.NotSelf(4)), (1, pairs.NotSelf(3)), (1, pairs.NotSelf(4) * 2.0)])
def test_bad_input_is_told(k, among):
    with pytest.raises(ValueError, match="expected k ≥ 1 of a set of pairs of 4 anchors and 4 references, got"):
        pairs.Hardest(unit(4), among, k)


def test_hardest_needs_no_autocast():
    """Similarities under autocast are those without."""
    z = unit(40).float()
    expected = pairs.Hardest(z, pairs.NotSelf(40), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pairs.Hardest(z, pairs.NotSelf(40), 3).similarities, expected.similarities)


@pytest.mark.parametrize("backend", ["dense", "tiled"])
def test_batch_hard_is_the_triplet_loss_of_the_hardest_pairs(backend):
    """Pull the farthest positive, push it and the nearest negative: the soft triplet loss, gradients too."""
    z, labels = unit(40).requires_grad_(), torch.arange(40) % 6
    same = pairs.SameClass(labels)
    near, far = pairs.Hardest(z, ~same), pairs.Hardest(z, same & pairs.NotSelf(40), farthest=True)
    options = {"temperature": 0.2, "backend": backend}
    found = lw.contrast(z, pull=far, push=near | far, **options)
    p, n = (of.dense().argmax(dim=1) for of in (far, near))
    expected = lw.TripletLoss(temperature=0.2, normalize=False, reduction="none")(z, z[p], z[n])
    torch.testing.assert_close(found, expected)
    mine, theirs = (torch.autograd.grad(of.sum(), z)[0] for of in (found, expected))
    torch.testing.assert_close(mine, theirs)


def test_semi_hard_negatives_lie_between_the_positive_and_the_margin():
    """Those farther than the anchor's farthest positive, by less than a margin."""
    z, labels, margin = unit(40), torch.arange(40) % 6, 0.2
    same = pairs.SameClass(labels)
    limit = pairs.Hardest(z, same & pairs.NotSelf(40), farthest=True).similarities[:, 0]
    semi_hard = ~same & pairs.Below(z, limits=limit) & ~pairs.Below(z, limits=limit - margin)
    s, of_class = z @ z.T, labels[:, None] == labels
    for i in range(40):
        farthest = min(float(s[i, r]) for r in range(40) if r != i and of_class[i, r])
        expected = [r for r in range(40) if not of_class[i, r] and farthest - margin < float(s[i, r]) <= farthest]
        assert semi_hard.dense()[i].nonzero().flatten().tolist() == expected

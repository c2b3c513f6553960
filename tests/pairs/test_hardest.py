"""Sets of pairs chosen by similarity: against plain loops, in several tiles, and the miners that they make."""

import pytest
import torch

import likewise as lw
from cases import in_pairs
from likewise import pairs
from likewise.pairs import weight

DOUBLE = torch.float64


def unit(n, d=5, seed=0):
    return torch.nn.functional.normalize(
        torch.randn(n, d, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)), dim=1
    )


@in_pairs(k=[1, 3, 20], farthest=[False, True], separate=[False, True], tile=[1024, 4])
def test_hardest_is_the_sorted_similarities(k, farthest, separate, tile, monkeypatch):
    """The first k in order among the pairs of a set, in tiles; fewer, or none, where there are not as many."""
    monkeypatch.setattr(weight, "STREAM", tile)
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


Z, NOT_SELF = unit(4), pairs.NotSelf(4)
K, AMONG = "k to be an integer of at least 1, got ", "among to be a set .* of 4 anchors and 4 references, got "


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: pairs.Hardest(Z, NOT_SELF, 0), K + "0"),
        (lambda: pairs.Hardest(Z, NOT_SELF, 1.5), K + "1.5"),
        (lambda: pairs.Hardest(Z, pairs.NotSelf(3)), AMONG + r"NotSelf\(3, 3\)"),
        (lambda: pairs.Hardest(Z, NOT_SELF * 2.0), AMONG + r"Scaled\(4, 4\)"),
        (lambda: pairs.Hardest(Z, torch.eye(4)), AMONG + "Tensor: build a set"),
        (lambda: pairs.Hardest(Z * torch.nan, NOT_SELF), "queries to be finite"),
        (lambda: pairs.Hardest(Z, NOT_SELF, references=Z[:, :2]), "references to be .* width of the queries'"),
        (lambda: pairs.Hardest(Z.tolist(), NOT_SELF), "queries to be a tensor, got list"),
        (lambda: pairs.Below(Z, limits=0.5), "limits as a tensor, one for each of 4 anchors, got float"),
        (lambda: pairs.Below(Z, limits=Z[:2, 0]), r"limits as .*, got torch.Size\(\[2\]\)"),
        (lambda: pairs.Below(Z, limits=Z[:, 0] * torch.nan), "limits that are numbers or infinite, got NaN"),
    ],
)
def test_bad_input_is_told(make, told):
    with pytest.raises(ValueError, match=told):
        make()


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

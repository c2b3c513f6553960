"""Exact search by cosine, against plain loops; near-duplicates, and labels."""

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from likewise.evaluation import nearest as module
from likewise.evaluation.nearest import Groups, Nearest, close_pairs, largest, nearest, neighbours_labels


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setitem(module.CACHE_TILE, "cpu", 2**13)
    monkeypatch.setattr(module, "MIN_BLOCKS", 2)


def vectors(count: int, width: int, seed: int = 0) -> Tensor:
    """Clusters with a long tail, of different lengths; some vectors twice, some zero."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, width, generator=generator)
    of = (torch.rand(count, generator=generator) ** 3 * 12).long()
    found = centres[of] + 0.4 * torch.randn(count, width, generator=generator)
    found *= torch.rand(count, 1, generator=generator) * 5 + 0.01
    found[count // 2 : count // 2 + 5] = found[0]
    found[count // 3] = 0
    return found


def plain(queries: Tensor, references: Tensor, k: int, own=None, least: float = -1) -> list[list[tuple[int, float]]]:
    """The nearest by a loop in float64."""
    found = []
    for row, query in enumerate(queries.double().numpy()):
        pairs = []
        for place, reference in enumerate(references.double().numpy()):
            norms = np.linalg.norm(query) * np.linalg.norm(reference)
            cosine = float(query @ reference / norms) if norms else 0.0
            if (own is None or own[row] != place) and cosine >= least:
                pairs.append((place, cosine))
        found.append(sorted(pairs, key=lambda pair: -pair[1])[:k])
    return found


def check(found: Nearest, wanted: list[list[tuple[int, float]]], queries: Tensor, references: Tensor):
    """The similarities are those of the loop, and the places have them; no place comes twice."""
    cosines = functional.normalize(queries.double()) @ functional.normalize(references.double()).T
    for row, pairs in enumerate(wanted):
        places = found.indices[row][found.indices[row] >= 0]
        assert len(places) == len(pairs) == len(set(places.tolist()))
        similarities = found.similarities[row, : len(pairs)].double()
        assert similarities.tolist() == pytest.approx([cosine for _, cosine in pairs], rel=0, abs=2e-6)
        torch.testing.assert_close(cosines[row, places], similarities, rtol=0, atol=2e-6)
        assert bool((found.similarities[row, len(pairs) :] == -torch.inf).all())


@pytest.mark.parametrize(("k", "pieces", "own", "least"), [
    (1, 7, False, -1), (5, 1, True, -1), (300, 250, False, -1), (700, 7, True, -1), (700, 643, False, -1),
    (50, 300, False, 0.9),
])  # fmt: skip
def test_the_nearest_are_those_of_a_loop_whatever_the_pieces(k, pieces, own, least):
    """Also in a set, of whose samples none is its own neighbour, and by a threshold, which leaves fewer than k."""
    references = vectors(643, 9)
    rows = torch.arange(100, 141) if own else None
    queries = vectors(41, 9, seed=1) if rows is None else references[rows]
    found = Nearest(queries, k, own_index=rows, least=least)
    for some in references.split(pieces):
        found.add(some)
    wanted = plain(queries, references, k, own=None if rows is None else rows.tolist(), least=least)
    assert least < 0 or min(map(len, wanted)) < k
    check(found, wanted, queries, references)


def test_ascending_similarities_change_the_best_with_every_reference():
    angles = torch.linspace(3, 0, 2000)
    references = torch.stack([angles.cos(), angles.sin()], dim=1)
    found = Nearest(torch.tensor([[1.0, 0.0]]).expand(70, 2), 3)
    for some in references.split(300):
        found.add(some)
    assert found.indices.tolist() == [[1999, 1998, 1997]] * 70


def test_of_equal_similarities_the_earlier_comes_first_and_a_zero_vector_is_as_near_to_all():
    references = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(500, 1)
    found = Nearest(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), 4)
    for some in references.split(333):
        found.add(some)
    assert found.indices.tolist() == [[1, 3, 5, 7], [0, 1, 2, 3]]
    assert found.similarities.tolist() == [[1.0] * 4, [0.0] * 4]


def test_no_queries_and_no_references_are_no_neighbours():
    none = Nearest(torch.empty(0, 3), 2)
    none.add(torch.randn(5, 3))
    assert none.indices.shape == (0, 2)
    found = Nearest(torch.randn(4, 3), 2)
    found.add(torch.empty(0, 3))
    assert found.indices.tolist() == [[-1, -1]] * 4
    assert list(close_pairs(torch.empty(0, 3), torch.randn(2, 3), 0)) == []
    assert list(close_pairs(torch.randn(2, 3), torch.empty(0, 3), 0)) == []


def test_the_close_pairs_are_those_of_a_loop():
    queries, references = vectors(80, 7), vectors(500, 7, seed=2)
    found = [
        (row, place)
        for rows, places, similarities in close_pairs(queries, references, 0.8)
        for row, place, similarity in zip(rows.tolist(), places.tolist(), similarities.tolist(), strict=True)
        if similarity >= 0.8
    ]
    near = plain(queries, references, 500, least=0.8)
    wanted = {(row, place) for row, pairs in enumerate(near) for place, _ in pairs}
    assert len(found) == len(set(found))
    assert set(found) == wanted
    assert 100 < len(wanted) < 40_000


@pytest.mark.parametrize("waiting", [1, 2**20])
def test_groups_are_what_pairs_link(monkeypatch, waiting):
    monkeypatch.setattr(module, "MIN_WAITING_PAIRS", waiting)
    samples = vectors(60, 3)
    units = functional.normalize(samples.double())
    cosines = units @ units.T
    wanted = [{place} for place in range(60)]
    for one, other in combinations(range(60), 2):
        if cosines[one, other] >= 0.995:
            joined = [of for of in wanted if one in of or other in of]
            wanted = [of for of in wanted if of not in joined] + [set().union(*joined)]
    groups = Groups(60)
    for rows, others, similarities in close_pairs(samples, samples, 0.995):
        for some in (rows < others).nonzero().flatten().split(3):
            groups.link(rows[some], others[some], similarities[some])
    found = groups.members()
    assert sorted(sorted(of.tolist()) for of in found) == sorted(sorted(of) for of in wanted if len(of) > 1)
    assert [len(of) for of in found] == sorted((len(of) for of in found), reverse=True)
    for of in found:
        for place in of.tolist():
            others = [other for other in range(60) if other != place]
            assert abs(float(groups.closest[place]) - float(cosines[place, others].max())) < 2e-6


def test_neighbours_say_which_label_may_be_wrong():
    labels, near = torch.tensor([0, 1, 1, 1, 2]), torch.tensor([[1, 2, 3, 4], [2, 3, 4, 0]])
    share, said = neighbours_labels(labels, slice(0, 2), near)
    assert (share.tolist(), said.tolist()) == ([0, 0.5], [1, 1])
    sets = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    share, said = neighbours_labels(sets, slice(0, 1), torch.tensor([[1, 2, 3]]))
    assert float(share) == pytest.approx(1 / 3)
    assert said.tolist() == [[True, False, False]]


@pytest.mark.parametrize(("width", "count"), [(5, 5), (64, 1), (1003, 7), (4000, 200)])
@pytest.mark.parametrize("levels", [3, 10**6], ids=["ties", "hardly any ties"])
def test_the_largest_are_those_of_a_sort(width, count, levels):
    """Also where they stand in one block, or in the rest beyond the blocks."""
    tile = torch.randint(levels, (6, width)).float() / levels
    tile[0], tile[1] = torch.arange(width), -torch.arange(width)
    tile[2, : width // 2] = -torch.inf
    tile[3, width - count :] = 2.0
    values, columns = largest(tile, count)
    assert torch.equal(values, tile.sort(dim=1, descending=True).values[:, :count])
    assert torch.equal(tile.gather(1, columns), values)
    assert all(len(set(row)) == count for row in columns.tolist())


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    "sizes", [(700, 3, 60, 2**25), (10, 1, 7, 2**25), (10**4, 2, 10**5, 2**25), (10, 8, 16 * 11, 1)]
)
def test_neighbours_are_those_of_a_loop_in_any_tiles(monkeypatch, own, sizes):
    """The last: references prepared a tile at a time, as many are."""
    for name, size in zip(("TILE", "MIN_ROWS", "MAX_TILE", "MAX_PREPARED_NUMBERS"), sizes, strict=True):
        monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(module, "LARGE_ROWS", 16)
    references = vectors(150, 6)
    queries = references if own else vectors(40, 6, seed=1)
    units, others = functional.normalize(queries.double()), functional.normalize(references.double())
    expected = units @ others.T
    if own:
        expected.fill_diagonal_(-torch.inf)
    seen = []
    queries.requires_grad_()  # as features may
    for part, similarities, indices in nearest(queries, None if own else references, 9):
        seen += range(len(queries))[part]
        assert torch.allclose(similarities.double(), expected[part].sort(1, descending=True).values[:, :9], atol=1e-6)
        assert torch.allclose(expected[part].gather(1, indices), similarities.double(), atol=1e-6)
        assert all(len(set(row)) == 9 for row in indices.tolist())
    assert seen == list(range(len(queries)))

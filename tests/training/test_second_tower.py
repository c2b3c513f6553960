"""The other side of pairs: a step against the plain formula, what a shared tower counts for, and what is drawn."""

import copy
from itertools import combinations

import pytest
import torch

import likewise as lw
from likewise.data import LazyInputs, Negatives, Samples, Texts, TokenDropout, TokenRows, Views
from likewise.data.lazy_inputs import Unreadable
from likewise.losses import Loss
from likewise.models import MLP, BagOfTokens, NoHead, Projected, ProjectionHead
from likewise.training import KeyQueue, Pretraining, SecondTower
from likewise.training.assembly import prepared
from likewise.training.data import Loader, Position, TrainingData
from likewise.training.inputs.loss_input import concrete_subclasses
from likewise.training.inputs.resolution import check_samples

pytestmark = pytest.mark.slow

N, E, TAU = 24, 4, 0.2


def _pairs(items=None, negatives=None, labels=None):
    """Vectors of two lengths in tight clusters, as pairs."""
    torch.manual_seed(0)
    centres = torch.randn(6, 5)
    first = centres[torch.arange(N) % 6] + 0.05 * torch.randn(N, 5)
    beside = Samples(first[:, :3] * 2 + 0.01 * torch.randn(N, 3), items=items)
    return Samples(first, labels, ("a", "b") if labels is not None else (), counterparts=beside, negatives=negatives)


def _module(samples, loss, tower=None, **options):
    torch.manual_seed(1)
    first = Projected(MLP((5,), width=8), ProjectionHead(8, out_dim=E))
    tower = SecondTower(MLP((3,), width=6), ProjectionHead(6, out_dim=E)) if tower is None else tower
    module = Pretraining(first, None, loss, torch.optim.SGD, [tower], samples=samples, **options)
    module.log = lambda *_, **__: None
    module.optimizers = lambda: None
    return module.double().eval()  # without dropout and batch statistics, so that chunks are the same


def _batch(samples, size=12, **options):
    loader = Loader(samples, Views(batch_size=size, **options), seed=3)
    batch = next(iter(loader))
    batch["inputs"], batch["counterparts"] = batch["inputs"].double().unsqueeze(1), batch["counterparts"].double()
    if "negatives" in batch:
        batch["negatives"] = batch["negatives"].double()
    return batch


def _drawn(samples, rank=0, processes=1, size=12, **options):
    """The first batch that a process draws."""
    place = Position(0, 0, rank, processes)
    return next(iter(Loader(samples, Views(batch_size=size, **options), seed=7, position=lambda: place)))


def _plain(module, batch, *, symmetric):
    """InfoNCE by a loop over queries and all that each is compared with."""
    tower, unit = module.second, torch.nn.functional.normalize
    q, k = unit(module.encoder(batch["inputs"][:, 0])), unit(tower(batch["counterparts"]))
    alike = batch.get("alike", torch.arange(len(q)))
    hard = zip(batch.get("negatives", ()), batch.get("negative_alike", ()), strict=True)
    extra = [(unit(tower(vectors)), ids) for vectors, ids in hard]
    losses = []
    for queries, keys, others in [(q, k, extra), (k, q, [])] if symmetric else [(q, k, extra)]:
        for i in range(len(queries)):
            terms = [queries[i] @ keys[j] / TAU for j in range(len(keys)) if j == i or alike[j] != alike[i]]
            for vectors, ids in others:
                terms += [queries[i] @ v / TAU for v, number in zip(vectors, ids, strict=True) if number != alike[i]]
            losses.append(torch.stack(terms).logsumexp(0) - queries[i] @ keys[i] / TAU)
    return torch.stack(losses).mean()


def _negatives(pool=9, width=3):
    torch.manual_seed(4)
    places = torch.randint(pool, (N, width))
    places[::4, 1:] = -1
    places[5] = -1
    items = torch.cat([torch.arange(3), torch.arange(100, 100 + pool - 3)])  # three are counterparts of some pairs
    return Negatives(torch.randn(pool, 3), items, places)


CASES = {
    "pairs alone": {},
    "equal counterparts": {"items": torch.arange(N) // 3},
    "hard negatives": {"negatives": _negatives()},
    "both": {"items": torch.arange(N) // 3, "negatives": _negatives()},
}


@pytest.mark.parametrize(("symmetric", "chunk_size"), [(False, 5), (True, None)])
@pytest.mark.parametrize("case", CASES)
def test_a_step_and_its_gradient_are_those_of_the_plain_formula(case, symmetric, chunk_size):
    samples = _pairs(**CASES[case])
    loss = lw.InfoNCELoss(temperature=TAU, symmetric=symmetric)
    module = _module(samples, loss, chunk_size=chunk_size)
    batch = _batch(samples, **({"negatives": 2} if "negatives" in CASES[case] else {}))
    expected = _plain(module, batch, symmetric=symmetric)
    theirs = torch.autograd.grad(expected, list(module.parameters()))
    ours = module.training_step(batch, 0)
    ours.backward()
    assert float(ours.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    for parameter, gradient in zip(module.parameters(), theirs, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


def test_sup_con_draws_equal_counterparts_together_by_references():
    samples = _pairs(items=torch.arange(N) // 3)
    module = _module(samples, lw.SupConLoss(temperature=TAU))
    batch = _batch(samples)
    unit = torch.nn.functional.normalize
    q, k = unit(module.encoder(batch["inputs"][:, 0])), unit(module.second(batch["counterparts"]))
    of = samples.counterparts.items[batch["sample_index"]]
    losses = []
    for i in range(len(q)):
        similar = q[i] @ k.T / TAU
        losses.append(similar.logsumexp(0) - similar[of == of[i]].mean())
    ours, expected = module.training_step(batch, 0).detach(), torch.stack(losses).mean().detach()
    assert float(ours) == pytest.approx(float(expected), rel=1e-12)


def test_a_shared_tower_is_counted_once_and_learns_from_both_sides():
    torch.manual_seed(0)
    samples = Samples(torch.randn(N, 5), counterparts=Samples(torch.randn(N, 5)))
    module = _module(samples, lw.InfoNCELoss(temperature=TAU), SecondTower(shared=True))
    assert module.second is module.encoder
    assert len(list(module.parameters())) == len(list(module.encoder.parameters()))
    batch = _batch(samples)
    whole = module.training_step(batch, 0)
    whole.backward()
    both = [copy.deepcopy(module.encoder) for _ in range(2)]  # the gradient of a network for each side, added up
    for network in both:
        network.zero_grad()
    q, k = both[0](batch["inputs"][:, 0]), both[1](batch["counterparts"])
    lw.InfoNCELoss(temperature=TAU)(q, k).backward()
    for ours, first, second in zip(module.encoder.parameters(), *(of.parameters() for of in both), strict=True):
        torch.testing.assert_close(ours.grad, first.grad + second.grad, rtol=1e-9, atol=1e-12)


def test_a_rate_factor_is_for_the_second_tower_alone():
    module = _module(_pairs(), lw.InfoNCELoss(), SecondTower(MLP((3,), width=E), rate_factor=0.1))
    factors = {parameter: by for of in module.inputs.all for parameter, by in of.rate_factors().items()}
    assert factors == dict.fromkeys(module.second.parameters(), 0.1)


def test_a_sample_without_negatives_gets_none_that_only_another_part_has():
    places = torch.full((N, 1), -1)
    places[:4, 0], places[12:, 0] = torch.arange(4), torch.arange(4, 16)
    samples = _pairs(negatives=Negatives(torch.arange(16.0)[:, None], torch.arange(16) + N, places))
    train = samples[torch.arange(12)]
    loader = Loader(train, Views(batch_size=12, negatives=4), seed=0)
    assert {int(one) for batch in loader for one in batch["negatives"].flatten()} == set(range(4))
    none = samples[torch.arange(4, 12)]
    assert all("negatives" not in batch for batch in Loader(none, Views(batch_size=4), seed=0))


def test_negatives_that_are_texts_are_as_long_on_any_process():
    texts = Texts(" ".join(["word"] * (1 + row)) for row in range(N))
    negatives = Negatives(texts, torch.arange(N) + N, torch.arange(N)[:, None])
    beside = Samples(Texts(f"answer {row}" for row in range(N)))
    samples = Samples(torch.randn(N, 5), counterparts=beside, negatives=negatives)
    tower = BagOfTokens((), width=4, vocabulary=30)
    tower.observe(texts)
    samples = prepared(MLP((5,), width=4), samples, tower)
    whole, *halves = (_drawn(samples, *place)["negatives"] for place in ((0, 1), (0, 2), (1, 2)))
    assert torch.equal(torch.cat(halves), whole)


class PartlyRead(LazyInputs):
    """Numbers, of which some turn out to be unreadable when they are asked for, and are 0, as black images are."""

    def __init__(self, count, broken):
        self.shape, self.dtype, self.broken, self.asked = (count, 1), torch.float32, broken, set()

    def __getitem__(self, rows):
        self.asked |= set(rows.tolist())
        return torch.tensor([[0.0 if row in self.broken else row + 1.0] for row in rows.tolist()])

    def unreadable(self, rows):
        lost = self.broken & self.asked
        return [Unreadable(place, row, f"{row}.png") for place, row in enumerate(rows.tolist()) if row in lost]


def _drawn_where_some_are(broken, places, rank=0, processes=1):
    """The rows and negatives of an epoch, and what was lost."""
    negatives = Negatives(PartlyRead(40, broken), torch.arange(40) + N, places)
    place, batches = Position(0, 0, rank, processes), Views(batch_size=12, negatives=2)
    loader = Loader(_pairs(negatives=negatives), batches, seed=0, position=lambda: place)
    return [(batch["sample_index"], batch["negatives"].squeeze(-1)) for batch in loader], loader.lost


@pytest.mark.parametrize("some", [True, False])
def test_each_samples_own_hard_negatives_are_drawn_without_those_that_cannot_be_read(some):
    """None comes twice before all; those that are lost are counted, by any number of processes."""
    places = _negatives(pool=40, width=3).places
    broken = set(range(0, 40, 4)) | set(places[2].tolist()) if some else set()
    drawn, lost = _drawn_where_some_are(broken, places)
    for row, of in [pair for batch in drawn for pair in zip(*(part.tolist() for part in batch), strict=True)]:
        own = {place + 1.0 for place in places[row].tolist() if place >= 0 and place not in broken}
        assert 0.0 not in of
        assert not own or (set(of) <= own and len(set(of)) == min(2, len(own)))
    met = {-1 - place for place in broken & set(places.flatten().tolist())}
    assert lost.keys() <= met
    assert len(lost) >= len(met) / 2
    halves, of_halves = zip(*(_drawn_where_some_are(broken, places, rank, 2) for rank in range(2)), strict=True)
    for (_, whole), *parts in zip(drawn, *halves, strict=True):
        assert torch.equal(torch.cat([of for _, of in parts]), whole)
    assert of_halves[0] | of_halves[1] == lost


def test_hard_negatives_of_which_none_can_be_read_are_told():
    with pytest.raises(ValueError, match=r"expected hard negatives, got none that can be read, .*\d+\.png: repair"):
        _drawn_where_some_are(set(range(40)), _negatives(pool=40, width=3).places)


def test_a_pair_that_takes_the_place_of_a_broken_one_is_not_pushed_from_itself():
    """With many broken images a pair is twice in a batch, though all pairs differ."""
    samples = Samples(PartlyRead(8, {1, 2, 3, 4, 6}), counterparts=Samples(torch.randn(8, 3)))
    (batch,) = Loader(samples, Views(batch_size=8), seed=0)
    assert set(batch["sample_index"].tolist()) <= {0, 5, 7}
    assert torch.equal(batch["alike"], batch["sample_index"])


def test_processes_together_draw_what_one_draws():
    samples = _pairs(items=torch.arange(N) // 3, negatives=_negatives())
    whole = _drawn(samples, negatives=2)
    parts = [_drawn(samples, rank, 3, negatives=2) for rank in range(3)]
    for name in ("inputs", "counterparts", "sample_index", "alike", "negatives", "negative_alike"):
        assert torch.equal(torch.cat([part[name] for part in parts]), whole[name]), name


def test_views_of_the_other_side_are_random_and_the_same_by_any_number_of_processes():
    samples = _pairs(negatives=_negatives())
    data = TrainingData(samples, Views(batch_size=12, negatives=2), seed=2)
    raw = next(iter(data.train_dataloader()))
    ready = data.batches.on_device(raw)
    assert ready["inputs"].shape == (12, 1, 5)
    for name in ("counterparts", "negatives"):
        assert ready[name].shape == raw[name].shape
        assert not torch.equal(ready[name], raw[name])
    share = raw["share"]
    for start in (0, 4, 8):
        part = {name: value[start : start + 4] for name, value in raw.items() if isinstance(value, torch.Tensor)}
        some = data.batches.on_device({**part, "share": share._replace(first=start)})
        for name in ("inputs", "counterparts", "negatives"):
            assert torch.equal(some[name], ready[name][start : start + 4]), name


def test_views_of_two_equal_sides_and_negatives_are_drawn_each_for_itself():
    equal = torch.randn(12, 40)
    negatives = Negatives(equal, torch.arange(12), torch.arange(12)[:, None])
    samples = Samples(equal, counterparts=Samples(equal), negatives=negatives)
    data = TrainingData(samples, Views(batch_size=12), seed=2)
    ready = data.batches.on_device(next(iter(data.train_dataloader())))
    views = [ready["inputs"][:, 0], ready["counterparts"], ready["negatives"][:, 0]]
    for one, other in combinations(views, 2):
        assert not (one == other).all(dim=1).any()


def test_texts_of_both_sides_get_tokens_of_their_own_encoder():
    first, second = Texts(["a cat", "two dogs run"] * 4), Texts(["eine Katze", "zwei Hunde laufen schnell"] * 4)
    samples = Samples(first, counterparts=Samples(second))
    towers = [BagOfTokens((), width=4, vocabulary=60) for _ in range(2)]
    for tower, texts in zip(towers, (first, second), strict=True):
        tower.observe(texts)
    ready = prepared(towers[0], samples, towers[1])
    assert isinstance(ready.inputs, TokenRows)
    for tower, texts, found in zip(towers, (first, second), (ready, ready.counterparts), strict=True):
        expected = tower.tokenized(texts)
        assert torch.equal(found.inputs[torch.arange(8)], expected[torch.arange(8)])


def test_what_does_not_fit_pairs_is_refused():
    samples = _pairs()
    refused = [
        ("of one width from both sides, got 4 and 7", lambda: made(SecondTower(MLP((3,), width=7), NoHead(7)))),
        ("expected pairs for SecondTower, got samples without a counterpart", lambda: made(SecondTower())),
        ("expected no KeyQueue for pairs", lambda: made(KeyQueue(), lw.SupConLoss())),
        ("expected one network for both sides", lambda: SecondTower(MLP((3,), width=4), shared=True)),
        ("expected one network for both sides", lambda: SecondTower(shared=True, rate_factor=0.1)),
        ("expected rate_factor above 0, got 0", lambda: SecondTower(shared=True, rate_factor=0)),
        ("expected one view of each side of pairs, got 2: leave out --batches.views", lambda: data(views=2)),
        ("2 hard negatives each, got none", lambda: data(negatives=2)),
        ("TokenDropout expected token rows", lambda: data(augmentation=TokenDropout())),
        ("TokenDropout expected token rows", lambda: data(counterpart_augmentation=TokenDropout())),
    ]

    def made(loss_input, loss=None):
        return _module(samples, loss or lw.InfoNCELoss(), loss_input)

    def data(**options):
        return TrainingData(samples, Views(batch_size=4, **options))

    for told, attempt in refused:
        with pytest.raises(ValueError, match=told):
            attempt()


def test_a_loss_takes_pairs_or_names_those_that_do_and_no_users():
    class Mine(lw.SupConLoss): ...

    able = "BatchTripletLoss, ContrastiveMarginLoss, InfoNCELoss, LiftedStructureLoss, MultiSimilarityLoss, NPairsLoss"
    able += ", SigLIPLoss, SupConLoss, TripletLoss"
    kinds = list(concrete_subclasses(Loss))
    assert Mine in kinds
    for kind in (of for of in kinds if of.__module__.startswith("likewise.")):
        if kind.__name__ in able.split(", "):
            check_samples(kind, _pairs())
        else:
            told = f"^expected a loss that takes these pairs, got {kind.__name__}: choose one of {able}$"
            with pytest.raises(ValueError, match=told):
                check_samples(kind, _pairs())


def test_a_hard_negative_has_the_number_of_the_pairs_whose_counterpart_it_is():
    samples = _pairs(items=torch.arange(N) // 3, negatives=_negatives())
    others, negatives, seen = samples.counterparts.items.tolist(), samples.negatives, set()
    (batch,) = Loader(samples, Views(batch_size=N), seed=0)
    rows = batch["sample_index"].tolist()
    numbers = {others[row]: number for row, number in zip(rows, batch["alike"].tolist(), strict=True)}
    for drawn, number in zip(batch["negatives"].flatten(0, 1), batch["negative_alike"].flatten().tolist(), strict=True):
        item = int(negatives.items[(negatives.inputs == drawn).all(dim=1)])
        assert number == numbers.get(item, -1)
        seen.add(item in numbers)
    assert seen == {True, False}


def test_the_second_tower_sees_a_chunk_at_a_time():
    samples, sizes = _pairs(negatives=_negatives()), []
    module = _module(samples, lw.InfoNCELoss(temperature=TAU), chunk_size=5)
    module.second.register_forward_hook(lambda _, given, __: sizes.append(len(given[0])))
    module.training_step(_batch(samples), 0)
    assert max(sizes) == 5


@pytest.mark.parametrize("case", ["pairs alone", "equal counterparts", "hard negatives"])
def test_a_triplet_has_a_hard_negative_or_the_counterpart_of_another(case):
    samples = _pairs(**CASES[case])
    module = _module(samples, lw.TripletLoss())
    batch = _batch(samples)
    if "negatives" in batch:
        batch["negative_alike"][:2, 0] = batch["alike"][:2]  # as if they were right answers
    step = lw.training.Step(batch, module.encoder, None)
    _, given = module.inputs.arguments(step)
    keys = module.second(batch["counterparts"])
    assert torch.equal(given["positives"], keys)
    if "negatives" in batch:
        right = batch["negative_alike"][:, 0] == batch["alike"]
        hard, given = module.second(batch["negatives"][:, 0]), given["negatives"]
        assert torch.allclose(given[~right], hard[~right])
        assert not any(torch.allclose(given[row], hard[row]) for row in right.nonzero().flatten().tolist())
    else:
        from_rows = [(keys == one).all(dim=1).nonzero().flatten().tolist() for one in given["negatives"]]
        alike = batch.get("alike", torch.arange(len(keys)))
        assert all(alike[row] != alike[place] for place, rows in enumerate(from_rows) for row in rows[:1])
    passes = []
    module.second.register_forward_hook(lambda *_: passes.append(1))
    module.training_step(batch, 0).backward()
    assert len(passes) == 1 + ("negatives" in batch)

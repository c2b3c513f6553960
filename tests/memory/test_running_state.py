"""Running state: queues, prototypes, caches and momentum encoders follow their equations, and are saved whole."""

import copy
import math
import re
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from command_worker import workers
from torch import nn
from torch.nn.utils import parametrizations

from likewise.memory import FeatureCache, MomentumEncoder, Prototypes, Queue

WORKER = Path(__file__).parents[1] / "processes" / "queue_worker.py"


def check_going_on(module, fresh, step, folder):
    """Check that a fresh object with the state of another, saved to a file and loaded, takes a step as that does."""
    torch.save(module.state_dict(), folder / "state.pt")
    fresh.load_state_dict(torch.load(folder / "state.pt"))
    assert_same_state(module, fresh)
    for either in (module, fresh):
        step(either)
    assert_same_state(module, fresh)


def assert_same_state(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert value.dtype == theirs[name].dtype, name
        assert torch.equal(value, theirs[name]), name


SIZES = [
    (Queue, {"size": 3, "feature_dim": 2, "num_labels": 4}),
    (Prototypes, {"num_prototypes": 3, "feature_dim": 2}),
    (FeatureCache, {"num_samples": 3, "feature_dim": 2}),
    (lambda total_steps: MomentumEncoder(nn.Linear(2, 2), total_steps=total_steps), {"total_steps": 3}),
]


@pytest.mark.parametrize("value", [0, True, 2.5, math.nan, "a", None, torch.ones(2)])
@pytest.mark.parametrize(("build", "sizes"), SIZES)
def test_a_size_is_a_positive_integer(build, sizes, value):
    """Any other size is an error with its name and value; optional sizes may be None."""
    for name in sizes:
        if value is None and name in {"num_labels", "total_steps"}:
            build(**{**sizes, name: value})
            continue
        with pytest.raises(ValueError, match=re.escape(f"{name} to be an integer of at least 1, got {value!r}: ")):
            build(**{**sizes, name: value})


@pytest.mark.parametrize(("build", "sizes"), SIZES)
def test_a_size_is_an_integer_of_any_library(build, sizes):
    """Whatever Python accepts as an index is a size, and is stored as an int."""
    for integer in (np.int64, np.uint8, torch.tensor):
        assert repr(build(**{name: integer(value) for name, value in sizes.items()})) == repr(build(**sizes))


def test_state_is_read_and_written_in_inference_mode():
    """In inference mode, as in validation, state is read and written as usual, and keeps working afterwards."""
    batches = [(torch.randn(3, 2), torch.tensor([0, 3, 3]), torch.arange(3)) for _ in range(3)]

    def after(modes):
        encoder = nn.BatchNorm1d(2)
        state = nn.ModuleList([Queue(4, 2), FeatureCache(4, 2), MomentumEncoder(encoder, 0.5, total_steps=9)])
        queue, cache, average = state
        for mode, (features, index, ids) in zip(modes, batches, strict=True):
            with torch.inference_mode(mode):
                queue.enqueue(features, index, ids)
                cache.write(index, features)
                encoder(features)
                average.update(encoder)
                reads = (
                    queue.keys,
                    queue.labels,
                    queue.ids,
                    *cache.read(index),
                    cache.hit_rate(index),
                    average(features),
                )
        return state, reads

    (expected, reads), (state, others) = after([False, False, False]), after([False, True, False])
    assert_same_state(state, expected)
    within = after([False, False, True])[1]
    for read, other, inside in zip(reads, others, within, strict=True):
        assert torch.equal(read, other)
        assert torch.equal(read, inside)
        assert not other.is_inference()


def test_features_of_inference_are_kept_outside_of_it():
    with torch.inference_mode():
        features, index = torch.randn(3, 2), torch.tensor([0, 3, 2])
    queue, cache = Queue(4, 2), FeatureCache(4, 2)
    queue.enqueue(features, index)
    cache.write(index, features)
    assert torch.equal(queue.keys, features)
    assert torch.equal(cache.read(index)[0], features)


def test_a_queue_made_in_inference_mode_returns_what_was_loaded():
    """Facts recorded before a state is loaded are not used after it."""
    other = Queue(2, 2)
    other.enqueue(torch.full((1, 2), 7.0))
    with torch.inference_mode():
        queue = Queue(2, 2)
        queue.enqueue(torch.ones(2, 2), torch.arange(2))
        assert len(queue) == 2
        assert queue.labels.tolist() == [0, 1]
        queue.load_state_dict(other.state_dict())
        assert len(queue) == 1
        assert queue.keys.tolist() == [[7, 7]]
        with pytest.raises(ValueError, match="a label for every key in the queue"):
            _ = queue.labels


def ring(size, batches):
    """Return the contents of a ring buffer, one key at a time, by the equation: key t at place t mod S."""
    places = {}
    for t, row in enumerate(row for batch in batches for row in zip(*batch, strict=True)):
        places[t % size] = row
    return [torch.stack(column) for column in zip(*(places[place] for place in sorted(places)), strict=True)]


@pytest.mark.parametrize("size", [1, 5, 6, 64])
@pytest.mark.parametrize("num_labels", [None, 3])
def test_a_queue_holds_the_newest(size, num_labels):
    """Batches of any size, even empty or larger than the queue, leave the newest keys, labels and ids in place."""
    queue = Queue(size, 2, num_labels=num_labels)
    batches = []
    for count in (2, 3, 0, 4, 17, 1):
        labels = torch.randint(9, (count,)) if num_labels is None else torch.rand(count, num_labels) > 0.5
        batches.append((torch.randn(count, 2), labels, torch.randint(100, (count,))))
        queue.enqueue(*batches[-1])
        for held, expected in zip((queue.keys, queue.labels, queue.ids), ring(size, batches), strict=True):
            assert torch.equal(held, expected)
        assert len(queue) == min(size, sum(len(batch[0]) for batch in batches))


def test_an_empty_queue_holds_nothing():
    """Unfilled places are not returned, before the first batch and after reset; labels are then optional again."""
    queue, fresh = Queue(4, 2), Queue(4, 2)
    assert (queue.keys.shape, queue.labels.shape, queue.ids.shape, len(queue)) == ((0, 2), (0,), (0,), 0)
    queue.enqueue(torch.ones(3, 2), torch.ones(3).long(), torch.ones(3).long())
    queue.reset()
    assert_same_state(queue, fresh)
    queue.enqueue(torch.ones(3, 2))
    assert len(queue) == 3


@pytest.mark.parametrize("labels", [torch.tensor([[1, 0], [0, 1]]), torch.eye(2), torch.eye(2).bool()])
def test_label_sets_of_any_dtype_are_held_as_booleans(labels):
    """A label takes one byte, whatever the dtype of the zeros and ones."""
    queue = Queue(3, 2, num_labels=2)
    queue.enqueue(torch.ones(2, 2), labels)
    assert queue.labels.tolist() == [[True, False], [False, True]]
    assert queue.label_ring.element_size() == 1


def test_missing_ids_are_minus_one():
    """A key without an id belongs to no sample, even if it replaces one that had an id."""
    queue = Queue(2, 2)
    queue.enqueue(torch.ones(2, 2), ids=torch.tensor([7, 8]))
    queue.enqueue(torch.ones(1, 2))
    assert queue.ids.tolist() == [-1, 8]


def test_enqueueing_before_the_backward_leaves_the_gradient_alone():
    """What is read is a copy that later keys do not change, and has no gradient to the keys."""
    queue = Queue(4, 3)
    queue.enqueue(torch.randn(4, 3, requires_grad=True), torch.arange(4), torch.arange(4))
    z = torch.randn(2, 3, requires_grad=True)
    keys, labels, ids = queue.keys, queue.labels, queue.ids
    expected, similarities = keys.sum(dim=0).expand(2, 3).clone(), z @ keys.T
    queue.enqueue(torch.randn(3, 3), torch.zeros(3).long())
    similarities.sum().backward()
    assert not keys.requires_grad
    torch.testing.assert_close(z.grad, expected)
    assert labels.tolist() == ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("num_labels", [None, 3])
def test_a_queue_goes_on_where_it_was_saved(num_labels, tmp_path):
    """Saved, loaded into a fresh queue and continued, its contents are bit for bit those without the interruption."""
    queue = Queue(5, 2, num_labels=num_labels)
    for count in (3, 4):
        labels = torch.randint(9, (count,)) if num_labels is None else torch.rand(count, num_labels) > 0.5
        queue.enqueue(torch.randn(count, 2), labels, torch.arange(count))
    batch = torch.randn(4, 2), labels, torch.arange(4)
    check_going_on(queue, Queue(5, 2, num_labels=num_labels), lambda either: either.enqueue(*batch), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_queue_holds_keys_in_its_dtype(dtype):
    """A cast changes only the keys, and keys of another dtype are cast when enqueued."""
    queue = Queue(3, 2)
    keys = torch.randn(2, 2)
    queue.enqueue(keys, torch.tensor([2**40, -1]), torch.tensor([2**50, 3]))
    queue.to(dtype).enqueue(keys[:1].double(), torch.tensor([5]))
    assert torch.equal(queue.keys, torch.cat([keys, keys[:1]]).to(dtype))
    assert queue.labels.tolist() == [2**40, -1, 5]
    assert queue.ids.tolist() == [2**50, 3, -1]


def test_labels_come_with_all_batches_or_none():
    """A queue filled without labels raises when they are read, and refuses to mix both."""
    bare, labelled = Queue(4, 2), Queue(4, 2)
    bare.enqueue(torch.ones(2, 2))
    labelled.enqueue(torch.ones(2, 2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="got 0 for 2 keys: call enqueue"):
        _ = bare.labels
    with pytest.raises(ValueError, match="with none, got some where earlier batches had none"):
        bare.enqueue(torch.ones(2, 2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="with none, got none where earlier batches had labels"):
        labelled.enqueue(torch.ones(2, 2))
    assert (len(bare), len(labelled)) == (2, 2)


TWO = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("num_labels", "arguments", "message"),
    [
        (None, [[[1.0, 2.0]]], "keys for the queue to be a tensor, got list: convert with"),
        (None, [torch.ones(2, 3)], r"keys to be floating, of shape \(B, 2\), got torch.float32 of shape \(2, 3\)"),
        (None, [torch.tensor([[1.0, 0.0], [torch.nan, 0.0]])], "keys to be finite, got NaN or infinity in 1 of 2 rows"),
        (None, [TWO, torch.eye(2).long()], "build the queue with num_labels=2$"),
        (3, [TWO], r"label sets \(B, 3\), got none"),
        (None, [TWO, None, torch.ones(2)], "ids to be integers .* got torch.float32"),
        (3, [TWO, torch.eye(2).long()], r"multi-hot label sets of shape \(2, 3\), got shape \(2, 2\)"),
        (3, [TWO, torch.full((2, 3), 2)], "zeros and ones, got other values"),
        (None, [TWO.to("meta")], "keys to be on the device of the queue, cpu, got meta"),
    ],
)
def test_a_queue_refuses_what_does_not_fit(num_labels, arguments, message):
    """A batch that does not match is an error that says why, and changes nothing."""
    queue = Queue(4, 2, num_labels=num_labels)
    with pytest.raises(ValueError, match=message):
        queue.enqueue(*arguments)
    assert_same_state(queue, Queue(4, 2, num_labels=num_labels))


def test_keys_that_overflow_the_queue_are_refused():
    """Finite keys that become infinite in a half-precision queue are refused."""
    with pytest.raises(ValueError, match="keys to be finite"):
        Queue(4, 2).half().enqueue(torch.full((1, 2), 1e6))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Run the worker on two ranks, and return what each saved."""
    folder = tmp_path_factory.mktemp("queue")
    workers(WORKER, *((rank, 2, folder) for rank in range(2)), folder=folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.process
@pytest.mark.parametrize("kind", ["classes", "sets", "bare"])
def test_processes_hold_the_same_queue(two, kind):
    """Every rank holds the same as one process that enqueues the batches of all ranks one after the other."""
    worker = runpy.run_path(str(WORKER))
    one = Queue(size=6, feature_dim=2, num_labels=3 if kind == "sets" else None)
    one = one.half() if kind == "sets" else one
    for step, counts in enumerate(worker["BATCHES"]):
        for rank in range(len(counts)):
            keys, labels, sets, ids = worker["batch"](step, rank)
            one.enqueue(keys, *{"classes": (labels, ids), "sets": (sets, ids), "bare": ()}[kind])
    for result in two:
        assert list(result[kind]) == list(one.state_dict())
        assert all(torch.equal(result[kind][name], value) for name, value in one.state_dict().items())


@pytest.mark.process
def test_an_error_on_one_rank_is_an_error_on_all(two):
    """No rank waits for another, none enqueues, and the rank with the bad input gets the reason."""
    here, there = (result["refusals"] for result in two)
    assert set(here) == set(there) == {"features", "labels", "size", "nan"}
    assert all(held == 0 for told in (here, there) for _, held in told.values())
    assert all("rank 1 was refused" in here[name][0] for name in ("features", "nan"))
    assert "keys to be floating" in there["features"][0]
    assert "finite" in there["nan"][0]
    assert all("a queue on all ranks" in told[name][0] for told in (here, there) for name in ("labels", "size"))


def test_prototypes_are_a_parameter():
    """Calling the module returns the parameter itself, which is drawn anew for each object and survives saving."""
    prototypes, fresh = Prototypes(3, 4), Prototypes(3, 4)
    assert prototypes() is prototypes.weight
    assert not torch.equal(prototypes(), fresh())
    fresh.load_state_dict(prototypes.state_dict())
    assert_same_state(prototypes, fresh)


def test_a_cache_returns_what_was_written():
    """Features, whether there are any, when they were written, and the hit rate, by definition."""
    cache = FeatureCache(5, 2)
    first, second = torch.randn(2, 2, requires_grad=True), torch.randn(2, 2)
    assert cache.hit_rate(torch.arange(5)) == 0
    cache.write(torch.tensor([3, 0]), first)
    cache.write(torch.tensor([1, 3]), second)
    features, valid = cache.read(torch.tensor([3, 2, 0, 3]))
    assert torch.equal(features, torch.stack([second[1], torch.zeros(2), first[1], second[1]]))
    assert valid.tolist() == [True, False, True, True]
    assert not features.requires_grad
    assert cache.last_seen.tolist() == [0, 1, -1, 1, -1]
    assert cache.step == 2
    assert cache.hit_rate(torch.tensor([3, 2, 0, 3])) == 0.75
    assert cache.hit_rate(torch.tensor([], dtype=torch.int64)) == 0
    features.zero_()
    assert torch.equal(cache.features[3], second[1])
    cache.write(torch.tensor([], dtype=torch.int64), torch.randn(0, 2))
    assert cache.step == 3
    cache.reset()
    assert_same_state(cache, FeatureCache(5, 2))


@pytest.mark.parametrize(
    ("index_dtype", "dtype"),
    [
        (torch.uint8, torch.float16),
        (torch.uint16, torch.float32),
        (torch.uint32, torch.float16),
        (torch.int64, torch.float32),
    ],
)
def test_a_repeated_sample_is_written_once_with_the_mean(dtype, index_dtype):
    """The mean is computed in float64 and rounded once; it is the same to the last bit in any order of the batch."""
    index = torch.randint(40, (2000,), dtype=index_dtype)
    features = torch.randn(2000, 3).to(dtype)
    cache, shuffled = FeatureCache(50, 3), FeatureCache(50, 3)
    cache.write(index, features)
    order = torch.randperm(2000)
    again = index.long()[order].to(index_dtype)  # torch 2.8 has no indexing of unsigned integers
    shuffled.write(again, features[order])
    for sample in range(50):
        of_sample = features[index == sample].double()
        expected = of_sample.mean(dim=0).float() if len(of_sample) else torch.zeros(3)
        assert torch.equal(cache.features[sample], expected)
    assert torch.equal(cache.features, shuffled.features)
    assert cache.last_seen.tolist() == [0] * 40 + [-1] * 10
    few = torch.tensor([1, 0, 49], dtype=index_dtype)
    with pytest.raises(ValueError, match="within 0 … 49, got 0 … 50"):
        cache.check_index(torch.tensor([0, 50], dtype=index_dtype))
    assert torch.equal(cache.read(few)[0], cache.features[[1, 0, 49]])
    assert cache.hit_rate(few) == torch.tensor(2 / 3)


def test_a_cache_goes_on_where_it_was_saved(tmp_path):
    """Saved, loaded into a fresh cache and continued, its contents are bit for bit those without the interruption."""
    cache, loaded, features = FeatureCache(6, 2), FeatureCache(6, 2), torch.randn(2, 2)
    cache.write(torch.tensor([4, 1, 4]), torch.randn(3, 2))
    check_going_on(cache, loaded, lambda either: either.write(torch.tensor([0, 1]), features), tmp_path)
    assert loaded.step == 2


@pytest.mark.parametrize(
    "cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double, lambda module: module.to("cpu", torch.float16)]
)
def test_a_cache_keeps_its_dtype(cast):
    """A cast of the module that contains it changes no bit of a cache, and later writes work as before."""
    holder = nn.ModuleDict({"cache": FeatureCache(4, 2), "layer": nn.Linear(2, 2)})
    before = copy.deepcopy(holder["cache"])
    for cache in (holder["cache"], before):
        cache.write(torch.tensor([2, 0]), torch.full((2, 2), 1 / 3))
    cast(holder)
    assert holder["layer"].weight.dtype != torch.float32
    assert_same_state(holder["cache"], before)
    half = FeatureCache(4, 2, dtype=torch.float16)
    half.write(torch.tensor([1]), torch.full((1, 2), 1 / 3))
    assert half.float().features[1, 0] == torch.tensor(1 / 3).half()
    assert half.features.dtype == torch.float16


def test_state_follows_a_module_to_its_device():
    """All state follows its module to a device, and a cache on the meta device is allocated in its own dtype."""
    state = nn.ModuleList(
        [FeatureCache(4, 2), Queue(3, 2), Prototypes(2, 2), MomentumEncoder(nn.BatchNorm1d(2), total_steps=3)]
    )
    state.to("meta", torch.float16)
    assert {value.device.type for value in state.state_dict().values()} == {"meta"}
    assert state[0].to_empty(device="cpu").features.dtype == torch.float32


@pytest.mark.parametrize(
    ("index", "features", "message"),
    [
        (torch.tensor([0.0, 1.0]), TWO, r"sample_index to be integers of shape \(N,\), got torch.float32"),
        (torch.tensor([True, False]), TWO, r"got torch.bool .* for a mask, use .nonzero\(\)"),
        (torch.tensor([0, 4]), TWO, r"sample_index to be within 0 … 3, got 0 … 4"),
        (torch.tensor([0, 1], device="meta"), TWO, "sample_index to be on the device of the cache, cpu, got meta"),
        (torch.tensor([0, 1]), torch.ones(2, 3), r"features to be floating, of shape \(2, 2\), .* of shape \(2, 3\)"),
        (torch.tensor([0, 1]), TWO * torch.inf, "features to be finite"),
    ],
)
def test_a_cache_refuses_what_does_not_fit(index, features, message):
    """Bad input is an error that says why, in every method that takes an index, and changes nothing."""
    cache = FeatureCache(4, 2)
    with pytest.raises(ValueError, match=message):
        cache.write(index, features)
    if features is TWO:
        for door in (cache.read, cache.hit_rate, cache.check_index):
            with pytest.raises(ValueError, match=message):
                door(index)
    assert_same_state(cache, FeatureCache(4, 2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, "float32", None])
def test_a_cache_has_a_floating_dtype(dtype):
    """A cache of integers, or of something that is not a dtype, is refused when it is built."""
    with pytest.raises(ValueError, match=r"dtype to be a floating torch dtype, got .*: use torch.float32"):
        FeatureCache(2, 2, dtype=dtype)


class Tied(nn.Module):
    """The same matrix twice, into the hidden layer and out of it."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.out.weight = self.into.weight

    def forward(self, inputs):
        return self.out(self.into(inputs).relu())


class Listed(nn.Module):
    """Parameters in a list, in a dictionary, and one that is None."""

    def __init__(self):
        super().__init__()
        self.several = nn.ParameterList([torch.randn(4, 4), torch.randn(4)])
        self.named = nn.ParameterDict({"scale": torch.randn(4)})
        self.register_parameter("bias", None)

    def forward(self, inputs):
        return (inputs @ self.several[0] + self.several[1]) * self.named["scale"] + len(self.several)


def used(module):
    """Return a module whose older weight norm, or spectral norm, has left computed weights behind."""
    module(torch.randn(2, 3, 4))
    return module


ENCODERS = {
    "linear": lambda: nn.Linear(4, 4),
    "no parameters": nn.ReLU,
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(3)),
    "tied": Tied,
    "one module twice": lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2),
    "listed": Listed,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="householder"),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
    "older weight norm": lambda: used(nn.utils.weight_norm(nn.Linear(4, 4))),
    "lstm": lambda: nn.LSTM(4, 4, num_layers=2, bidirectional=True, batch_first=True),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
}


@pytest.fixture(params=list(ENCODERS))
def encoder(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the older weight norm is deprecated, and in use
        return ENCODERS[request.param]()


def moved(encoder):
    """Change the parameters of an encoder, as an optimiser does."""
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return encoder


@torch.no_grad()
def output(encoder, inputs):
    result = encoder(inputs)
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("training", [True, False])
def test_any_encoder_has_a_moving_average(encoder, training):
    """At first an exact copy, then m θ' + (1 − m) θ, it runs like the encoder with these weights, also after a cast."""
    inputs, first, before = torch.randn(2, 3, 4), copy.deepcopy(encoder.state_dict()), list(encoder.parameters())
    average = MomentumEncoder(encoder.train(training), 0.75)
    assert_same_state(average.encoder, encoder)
    assert list(average.parameters()) == []  # which an optimiser would see
    assert all(module is not encoder for module in average.modules())
    assert all(one is other for one, other in zip(before, encoder.parameters(), strict=True))
    encoder.requires_grad_(requires_grad=False)  # attention takes another path, with other rounding, where it is not
    assert torch.equal(output(average, inputs), output(encoder, inputs))
    average.update(moved(encoder))
    now, parameters = encoder.state_dict(), dict(encoder.named_parameters(remove_duplicate=False))
    for name, value in average.encoder.state_dict().items():
        expected = 0.75 * first[name] + 0.25 * now[name] if name in parameters else now[name]
        torch.testing.assert_close(value, expected)
    if parameters:
        assert not torch.equal(output(average, inputs), output(encoder, inputs))
    encoder.load_state_dict(average.encoder.state_dict())
    assert torch.equal(output(average, inputs), output(encoder, inputs))
    assert torch.equal(output(average.double(), inputs.double()), output(encoder.double(), inputs.double()))
    result = average(inputs.double().requires_grad_())
    assert not (result[0] if isinstance(result, tuple) else result).requires_grad


def test_an_average_goes_on_where_it_was_saved(encoder, tmp_path):
    """Saved, loaded into a fresh average and continued, it is bit for bit the same as without the interruption."""
    average = MomentumEncoder(encoder, 0.5, total_steps=10)
    average.update(moved(encoder))
    loaded = MomentumEncoder(moved(encoder), 0.5, total_steps=10)
    moved(encoder)
    check_going_on(average, loaded, lambda either: either.update(encoder), tmp_path)
    assert loaded.step == 2
    assert loaded.momentum == average.momentum
    inputs = torch.randn(2, 3, 4)
    assert torch.equal(output(average.eval(), inputs), output(loaded.eval(), inputs))


def test_tied_parameters_stay_tied():
    """A tensor with two names is averaged once, and is still one tensor after a cast and a copy."""
    encoder = Tied()
    average = MomentumEncoder(encoder, 0.5)
    before = encoder.into.weight.detach().clone()
    average.update(moved(encoder))
    torch.testing.assert_close(average.encoder.out.weight, (before + encoder.into.weight) / 2)
    for cast in (average, copy.deepcopy(average), average.half(), average.double()):
        assert cast.encoder.into.weight is cast.encoder.out.weight


def test_an_average_is_exact_at_its_ends_and_at_rest():
    """At m = 0 it is the encoder, at m = 1 the initial one, and the average of a constant encoder is constant."""
    encoder = nn.Linear(50, 50)
    last, first, resting = (MomentumEncoder(encoder, m) for m in (0, 1, 0.999))
    start = copy.deepcopy(encoder)
    for _ in range(3):
        resting.update(start)
    assert_same_state(resting.encoder, start)
    moved(encoder)
    for average in (last, first):
        average.update(encoder)
    assert_same_state(last.encoder, encoder)
    assert_same_state(first.encoder, start)


@pytest.mark.parametrize("policy", ["copy", "average", "own"])
def test_buffers_follow_their_policy(policy):
    """Running statistics are the encoder's, or averaged, or of the average's own calls; integers are never averaged."""
    encoder = nn.BatchNorm1d(2)
    average = MomentumEncoder(encoder, 0.75, buffers=policy)
    theirs, mine = 5 + torch.randn(8, 2), torch.randn(8, 2)
    encoder(theirs), encoder(theirs), average(mine)
    statistics = {
        "copy": encoder.running_mean,
        "average": 0.75 * 0.1 * mine.mean(dim=0) + 0.25 * encoder.running_mean,
        "own": 0.1 * mine.mean(dim=0),
    }
    average.update(encoder)
    torch.testing.assert_close(average.encoder.running_mean, statistics[policy])
    assert average.encoder.num_batches_tracked == (1 if policy == "own" else 2)
    assert average.encoder.num_batches_tracked.dtype == torch.int64


def test_infinite_buffers_do_not_become_nan():
    """A mask of −∞ stays unchanged if buffers are averaged, and becomes the encoder's if they are copied."""
    encoder = nn.Linear(2, 2)
    encoder.register_buffer("mask", torch.tensor([0, -torch.inf]))
    averaged, copied = MomentumEncoder(encoder, buffers="average"), MomentumEncoder(encoder)
    averaged.update(encoder)
    assert averaged.encoder.mask.tolist() == [0, -math.inf]
    encoder.mask.copy_(encoder.mask.flip(0))
    copied.update(encoder)
    assert copied.encoder.mask.tolist() == [-math.inf, 0]


def test_the_momentum_rises_to_one():
    """With total_steps it is BYOL's cosine, at every step and beyond the last; without, it is constant."""
    encoder = nn.Linear(2, 2, dtype=torch.float64)
    average, constant = MomentumEncoder(encoder, 0.9, total_steps=4), MomentumEncoder(encoder, 0.9)
    half = math.sqrt(0.5)
    for momentum in (0.9, 1 - 0.1 * (1 + half) / 2, 0.95, 1 - 0.1 * (1 - half) / 2, 1.0, 1.0):
        assert average.momentum == pytest.approx(momentum, abs=1e-15)
        before = average.encoder.weight.clone()
        moved(encoder)
        for either in (average, constant):
            either.update(encoder)
        expected = momentum * before + (1 - momentum) * encoder.weight.detach()
        torch.testing.assert_close(average.encoder.weight, expected, rtol=1e-14, atol=1e-15)
    assert constant.momentum == 0.9
    assert average.step == constant.step == 6


def test_an_average_in_float32_of_a_bfloat16_encoder_moves():
    """Small steps that bfloat16 would round away accumulate in the wider dtype, as in float64."""
    encoder = nn.Linear(4, 4).bfloat16()
    narrow, wide, exact = (MomentumEncoder(encoder, 0.999) for _ in range(3))
    wide, exact = wide.float(), exact.double()
    for _ in range(20):
        moved(encoder)
        for average in (narrow, wide, exact):
            average.update(encoder)
    assert narrow.encoder.weight.dtype == torch.bfloat16
    torch.testing.assert_close(wide.encoder.weight.double(), exact.encoder.weight, rtol=1e-5, atol=1e-7)
    narrow.encoder.weight.fill_(1)
    nn.init.zeros_(encoder.weight)
    narrow.update(encoder)
    assert (narrow.encoder.weight == 1).all()


def test_an_average_in_bfloat16_of_a_float32_encoder_is_rounded_once():
    """The step is computed in float32, whatever the dtype of the average."""
    encoder = nn.Linear(50, 50)
    average = MomentumEncoder(encoder, 0.5).bfloat16()
    before = average.encoder.weight.double()
    average.update(moved(encoder))
    assert torch.equal(average.encoder.weight, ((before + encoder.weight.detach().double()) / 2).float().bfloat16())


class Wrapper(nn.Module):
    """An encoder under another name, like DistributedDataParallel."""

    def __init__(self, encoder):
        super().__init__()
        self.module = encoder


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            lambda: Wrapper(nn.Linear(2, 2)),
            r"'bias' of shape none where the average has .*the .module of a wrapper around it",
        ),
        (lambda: nn.Linear(3, 2), r"got 'weight' of shape \(2, 3\) where the average has \(2, 2\)"),
        (lambda: None, "encoder to be a module, got NoneType"),
    ],
)
def test_an_average_refuses_another_encoder(other, message):
    """Parameters with other names or shapes are an error that names one, and nothing changes."""
    encoder = nn.Linear(2, 2)
    average = MomentumEncoder(encoder)
    with pytest.raises(ValueError, match=message):
        average.update(other())
    assert_same_state(average.encoder, encoder)
    assert average.step == 0


def test_buffers_are_compared_where_they_are_followed():
    """An encoder with other buffers is refused, except under the policy that ignores them."""
    encoder, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False)
    with pytest.raises(ValueError, match="got 'num_batches_tracked' of shape none"):
        MomentumEncoder(encoder).update(other)
    with pytest.raises(ValueError, match=r"got 'num_batches_tracked' of shape \(\) where the average has none"):
        MomentumEncoder(other).update(encoder)
    MomentumEncoder(encoder, buffers="own").update(other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[
            ({"momentum": value}, f"momentum to be a number from 0 to 1, got {value!r}: 0.999 is usual")
            for value in (1.5, math.nan, True, "a")
        ],
        ({"buffers": "mean"}, "buffers to be one of copy, average, own, got 'mean'"),
        ({"encoder": nn.LazyLinear(2)}, "run a batch through it first"),
        ({"encoder": nn.Linear}, "encoder to be a module, got type: pass an instance"),
    ],
)
def test_an_average_refuses_bad_options(options, message):
    """Invalid options are an error when the average is built."""
    with pytest.raises(ValueError, match=message):
        MomentumEncoder(**{"encoder": nn.Linear(2, 2), **options})

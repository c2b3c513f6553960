"""Episodes: how they are drawn, mixed and turned, the networks they train, and what a loss is given of them."""

import json
import math
from collections import Counter
from itertools import permutations

import pytest
import torch
from torch import nn
from torch.nn import functional

import likewise as lw
from likewise.data import (
    Batch,
    ByClass,
    Draw,
    Episodes,
    EpisodeSampler,
    EpisodeShape,
    LocalBatch,
    Samples,
    owned_by_partner,
)
from likewise.data.augmentation import RandomAffine, RandomShift
from likewise.data.by_class import SPLITS, rotated
from likewise.data.episode_sampler import distinct, draw_mix, patched
from likewise.models import Conv4, ResNet12, Wrapped
from likewise.models.networks import DropBlock
from likewise.training import InputContext, Step
from likewise.training.data import Loader, Position
from likewise.training.inputs import EpisodeMaps, LossInputs

SHAPE = EpisodeShape(episodes=3, ways=4, shots=2, queries=3)


def images_of(classes=7, each=9, side=28, channels=1):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (classes * each, channels, side, side), generator=generator).to(torch.uint8)
    labels = torch.arange(classes * each) % classes
    return Samples(images, labels, tuple("abcdefghijklmnop"[:classes]))


def batch_of(batches, samples, *, first=0, held=None, seed=5):
    rows = batches.order(samples, seed=1, epoch=0)[0]
    own = rows[first : first + (held or len(rows))]
    batch = Batch(inputs=samples.inputs[own], sample_index=own, share=LocalBatch(seed, len(rows), first))
    batch["labels"] = samples.labels[own]
    return batch


# --- drawing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [4, 12], ids=["shuffled", "drawn again"])
def test_every_ordered_choice_is_equally_likely(count):
    """Pearson's χ² of all ordered triples; 99.9 % of its values are below its mean plus 3.3 deviations."""
    times = 60 * math.perm(count, 3)
    rows = distinct(torch.full((times,), count), 3, torch.Generator().manual_seed(3))
    found = Counter(map(tuple, rows.tolist()))
    assert set(found) == set(permutations(range(count), 3))
    cells = math.perm(count, 3)
    statistic = sum((of - 60) ** 2 / 60 for of in found.values())
    assert abs(statistic - (cells - 1)) < 3.3 * math.sqrt(2 * (cells - 1))


def test_rows_with_few_and_with_many_to_draw_from_are_distinct_and_within():
    counts = torch.tensor([5, 5, 600, 25, 24, 7])
    rows = distinct(counts, 5, torch.Generator().manual_seed(0))
    assert all(len(set(row)) == 5 for row in rows.tolist())
    assert bool(((rows >= 0) & (rows < counts[:, None])).all())
    assert sorted(rows[0].tolist()) == [0, 1, 2, 3, 4]


def test_an_episode_has_different_classes_and_samples_and_depends_on_seed_and_epoch_alone():
    samples, batches = images_of(), Episodes(4, 2, 3, 3, steps=5)
    one = batches.order(samples, seed=2, epoch=1)
    assert one.shape == (5, 60)
    for episode in one.view(-1, 4, 5):
        labels = samples.labels[episode]
        assert (labels == labels[:, :1]).all()
        assert (len(labels[:, 0].unique()), len(episode.unique())) == (4, 20)  # no query is a support
    assert torch.equal(one, batches.order(samples, seed=2, epoch=1))
    assert not any(torch.equal(one, batches.order(samples, seed=seed, epoch=of)) for seed, of in ((2, 2), (3, 1)))
    assert len(one.view(-1, 20).unique(dim=0)) == 15
    assert Episodes(4, 2, 3, 3).order(samples, seed=2, epoch=1).shape == (1, 60)


def test_a_training_that_goes_on_in_the_middle_of_an_epoch_has_the_same_episodes():
    samples, batches = images_of(), Episodes(4, 2, 3, 3, steps=5)
    whole = [batch["sample_index"] for batch in Loader(samples, batches, seed=4)]
    rest = Loader(samples, batches, seed=4, position=lambda: Position(epoch=0, batch=3))
    assert all(torch.equal(batch["sample_index"], rows) for batch, rows in zip(rest, whole[3:], strict=True))


def test_classes_without_samples_are_no_classes_of_episodes():
    labels = torch.tensor([0, 0, 2, 2, 5, 5])
    rows = EpisodeSampler(labels, list("abcdef"), EpisodeShape(50, 2, 1, 1))(torch.Generator().manual_seed(0))
    assert set(labels[rows].flatten().tolist()) == {0, 2, 5}


@pytest.mark.parametrize(
    ("given", "fits"), [({}, (3, 1, 5)), ({"ways": 2, "shots": 2}, (2, 2, 4)), ({"queries": 3}, (3, 1, 3))]
)
def test_episodes_without_a_size_fit_the_training_part(given, fits):
    samples, batches = images_of(classes=3, each=6), Episodes(**given)
    batches.fit(samples)
    assert batches.shape[1:] == fits
    assert batches.batch_size == 4 * batches.together == batches.order(samples, seed=0, epoch=0).shape[1]
    assert {name: batches.recorded[name] for name in ("ways", "queries")} == {"ways": fits[0], "queries": fits[2]}
    many = Episodes(**given)
    many.fit(images_of(classes=9, each=20))
    assert many.shape == many.wanted


def test_what_gives_no_episodes_is_refused_with_the_remedy():
    for make, told in (
        (lambda: Episodes(8, 1, 3).order(images_of(), seed=0, epoch=0), "at least 8 classes, .* got 7"),
        (lambda: Episodes(3, 4, 6).order(images_of(), seed=0, epoch=0), "got 9 of 'a': lower batches.queries or batch"),
        (lambda: Episodes(1), "expected ways of at least 2, got 1"),
        (lambda: Episodes(ways=2.5), "expected ways of at least 2, a whole number, got 2.5"),
        (lambda: Episodes(steps=0), "expected steps of at least 1"),
        (lambda: Episodes().order(Samples(torch.zeros(9, 2)), seed=0, epoch=0), "one class each, got no labels"),
        (lambda: rotated(Samples(torch.zeros(4, 1, 2, 3), torch.zeros(4).long(), ("a",))), "square images"),
    ):
        with pytest.raises(ValueError, match=told):
            make()


# --- mixing ----------------------------------------------------------------------------------------------------------


def test_a_box_of_each_query_comes_from_its_partner_pixel_by_pixel():
    queries = torch.rand(3, 4, 2, 9, 7)
    mix = draw_mix(Draw(3, rows=3), 4, 9, 7)
    found = patched(queries, mix)
    for e in range(3):
        top, bottom, left, right = mix.boxes[e].tolist()
        for q in range(4):
            for y in range(9):
                for x in range(7):
                    of = int(mix.partners[e, q]) if top <= y < bottom and left <= x < right else q
                    assert torch.equal(found[e, q, :, y, x], queries[e, of, :, y, x])


def test_boxes_have_the_sides_of_the_paper_and_cover_31_percent():
    """Side ⌊S √(1 − λ)⌋, half of it by integer division on either side of a centre, cut off at the edges."""
    episodes = 20_000
    mix = draw_mix(Draw(0, rows=episodes), 2, 28, 28)
    numbers = Draw(0, rows=episodes).uniform(3)
    for e in range(200):
        share, y, x = numbers[e].tolist()
        half = int(28 * math.sqrt(1 - share)) // 2
        centre = int(28 * y), int(28 * x)
        edges = [min(max(at + by, 0), 28) for at in centre for by in (-half, half)]
        assert mix.boxes[e].tolist() == edges
    top, bottom, left, right = draw_mix(Draw(0, rows=episodes), 2, 84, 84).boxes.T
    assert float(((bottom - top) * (right - left)).float().mean() / 84**2) == pytest.approx(0.31, abs=0.005)


def test_halves_of_a_batch_on_two_processes_are_the_whole_batch():
    samples = images_of()
    batches = Episodes(4, 2, 3, 4, mix=True, augmentation=RandomAffine())
    whole = batches.on_device(batch_of(batches, samples))
    halves = [batches.on_device(batch_of(batches, samples, first=first, held=40)) for first in (0, 40)]
    assert torch.equal(whole["inputs"], torch.cat([half["inputs"] for half in halves]))
    assert torch.equal(whole["mix"].boxes, torch.cat([half["mix"].boxes for half in halves]))
    assert [half["episodes"].episodes for half in halves] == [2, 2]
    with pytest.raises(ValueError, match="whole episodes of 20 samples on every process, got 30"):
        batches.on_device(batch_of(batches, samples, held=30))


def test_every_step_draws_boxes_and_changes_of_its_own():
    samples = images_of()
    batches = Episodes(4, 2, 3, 4, mix=True, augmentation=RandomAffine())
    first, other = (batches.on_device(batch_of(batches, samples, seed=seed)) for seed in (5, 6))
    assert not torch.equal(first["mix"].boxes, other["mix"].boxes)
    assert not torch.equal(first["mix"].partners, other["mix"].partners)
    supports = (batch["inputs"].view(4, 4, 5, 28, 28)[:, :, :2].float() for batch in (first, other))
    assert float(torch.stack(list(supports)).diff(dim=0).abs().mean()) > 0.02  # nothing is mixed into them


def test_changes_are_fitted_to_the_training_part():
    class Fitted(RandomAffine):
        def fit(self, inputs):
            self.seen = inputs

    changes, samples = Fitted(), images_of()
    Episodes(4, 2, 3, 4, augmentation=changes).fit(samples)
    rows = {tuple(image.flatten().tolist()) for image in samples.inputs}
    assert {tuple(image.flatten().tolist()) for image in changes.seen} <= rows
    assert len(changes.seen)


def test_only_queries_are_mixed_and_only_within_their_episode():
    samples = images_of()
    plain, mixing = (Episodes(*SHAPE[1:], 3, mix=mix) for mix in (False, True))
    before, after = (of.on_device(batch_of(of, samples)) for of in (plain, mixing))
    assert "mix" not in before
    step = [Step(batch, nn.Identity(), None) for batch in (before, after)]
    supports, queries = zip(*(of.by_episode(of.inputs[:, 0]) for of in step), strict=True)
    assert torch.equal(*supports)
    assert torch.equal(queries[1].flatten(1, 2), patched(queries[0].flatten(1, 2), after["mix"]))


# --- rotations and shifts --------------------------------------------------------------------------------------------


def test_quarter_turns_are_classes_of_their_own_in_the_same_part():
    samples = images_of(classes=10, each=3, side=6)
    plain, turned = (ByClass(5, 2, 3, rotations=rotations)(samples) for rotations in (False, True))
    for part in ("train", "validation", "test"):
        one, four = getattr(plain, part), getattr(turned, part)
        assert len(four) == 4 * len(one)
        assert len(four.names) == len(set(four.names)) == 4 * len(one.names)
        assert len(four.rows.unique()) == len(four)
        for row in range(len(four)):
            turn, of = divmod(row, len(one))
            assert torch.equal(four.inputs[row], one.inputs[of].rot90(turn, (1, 2)))
            name = one.names[one.labels[of]]
            assert four.names[four.labels[row]] == (f"{name}, turned {90 * turn}°" if turn else name)


def test_a_shift_is_a_crop_of_the_padded_image_and_some_are_flipped():
    images = torch.rand(200, 3, 5, 6)
    found = RandomShift(padding=2)(images, Draw(0, rows=200))
    padded = nn.functional.pad(images, [2] * 4)
    kinds = Counter()
    for image, whole in zip(found, padded, strict=True):
        crops = {
            (top, left, flip): crop.flip(2) if flip else crop
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
            for crop in [whole[:, top : top + 5, left : left + 6]]
        }
        (place,) = [place for place, crop in crops.items() if torch.equal(crop, image)]
        kinds[place] += 1
    assert {top for top, _, _ in kinds} == {left for _, left, _ in kinds} == set(range(5))
    assert 70 < sum(count for (_, _, flip), count in kinds.items() if flip) < 130
    assert torch.equal(RandomShift(padding=0, flip=0)(images, Draw(0, rows=200)), images)


@pytest.mark.parametrize("file", ["cifar-fs", "mini-imagenet", "omniglot-alphabets"])
def test_splits_of_the_field_are_known_by_name(file):
    sizes = (25, 5, 20) if file.startswith("omniglot") else (64, 16, 20)
    parts = json.loads((SPLITS / f"{file}.json").read_text())
    assert tuple(map(len, parts.values())) == sizes
    everything = [name.replace("*", "character01") for names in parts.values() for name in names]
    assert len(set(everything)) == sum(sizes)
    samples = Samples(torch.zeros(2 * len(everything), 1), torch.arange(2 * len(everything)) // 2, tuple(everything))
    found = ByClass(file=file)(samples)
    assert tuple(len(of.names) for of in (found.train, found.validation, found.test)) == sizes


# --- networks --------------------------------------------------------------------------------------------------------


def test_conv4_is_four_convolutions_with_the_activation_before_the_pool():
    torch.manual_seed(0)
    encoder, images = Conv4((3, 32, 32), width=5).train(), torch.rand(4, 3, 32, 32)
    maps = encoder.standardized(images)
    for block in encoder.blocks:
        maps = nn.functional.max_pool2d(block[1](block[0](maps)).relu(), 2)
    torch.testing.assert_close(encoder.maps(images), maps)
    assert torch.equal(Conv4((3, 32, 32), width=5, features="flat").pool(maps), maps.flatten(1))
    assert Conv4((3, 32, 32), width=5, features="flat").feature_dim == 20


def test_networks_that_cannot_be_are_refused():
    for make, told in (
        (lambda: Conv4((1, 8, 8)), "at least 16 pixels for 4 pools, got 8: lower pools"),
        (lambda: Conv4((1, 28, 28), pools=5), "pools from 0 to 4"),
        (lambda: Conv4((30,)), "Conv4 expected images"),
        (lambda: ResNet12((1, 28, 28), widths=()), "widths of at least one stage"),
        (lambda: DropBlock(rate=1.0), "a rate from 0 to below 1"),
        (lambda: DropBlock(block=0), "block and ramp of at least 1"),
    ):
        with pytest.raises(ValueError, match=told):
            make()


def test_dropped_blocks_are_squares_as_many_as_the_schedule_says():
    torch.manual_seed(0)
    drop, ones = DropBlock(rate=0.2, block=3, ramp=10).train(), torch.ones(64, 32, 12, 12)
    shares = []
    for _ in range(12):
        gone = drop(ones) == 0
        shares.append(float(gone.float().mean()))
        for place in gone.nonzero()[:50].tolist():
            n, c, y, x = place
            windows = [
                gone[n, c, top : top + 3, left : left + 3]
                for top in range(max(0, y - 2), min(y, 9) + 1)
                for left in range(max(0, x - 2), min(x, 9) + 1)
            ]
            assert any(bool(window.all()) for window in windows)
    assert shares[:10] == sorted(shares[:10])
    assert shares[:2] == pytest.approx([0.02, 0.04], abs=0.003)  # a tenth of it in the first step, a tenth more each
    assert shares[9] == pytest.approx(0.2, abs=0.03)  # blocks overlap now and then
    assert shares[11] == pytest.approx(shares[9], abs=0.01)
    drop.eval()
    assert torch.equal(drop(ones), ones)
    assert int(drop.state_dict()["step"]) == 12  # evaluation doesn't count


def test_resnet12_is_four_stages_of_three_convolutions_beside_a_projection():
    """Written again with functions: two dozen lines that share nothing with the network but its weights."""
    torch.manual_seed(0)
    encoder = ResNet12((3, 21, 21), widths=(2, 3, 4, 5)).double().eval()
    for name, buffer in encoder.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand_like(buffer) + (0.5 if name.endswith("var") else 0))
    weights = encoder.state_dict()
    images = torch.rand(4, 3, 21, 21, dtype=torch.float64)

    def normed(maps, name):
        buffers = ("running_mean", "running_var", "weight", "bias")
        mean, var, weight, bias = (weights[f"{name}.{of}"].view(-1, 1, 1) for of in buffers)
        return (maps - mean) / (var + 1e-5).sqrt() * weight + bias

    maps = (images - weights["mean"]) / weights["std"]
    for stage in range(4):
        inside = maps
        for place in (0, 3, 6):
            inside = functional.conv2d(inside, weights[f"stages.{stage}.body.{place}.weight"], padding=1)
            inside = normed(inside, f"stages.{stage}.body.{place + 1}")
            inside = torch.where(inside > 0, inside, 0.1 * inside) if place < 6 else inside
        beside = functional.conv2d(maps, weights[f"stages.{stage}.shortcut.0.weight"])
        maps = inside + normed(beside, f"stages.{stage}.shortcut.1")
        maps = torch.where(maps > 0, maps, 0.1 * maps)
        if stage < 3:
            maps = functional.max_pool2d(functional.pad(maps, (0, maps.shape[3] % 2) * 2, value=-math.inf), 2)
    assert maps.shape == (4, 5, 3, 3)
    torch.testing.assert_close(encoder.maps(images), maps)
    torch.testing.assert_close(encoder(images), maps.mean(dim=(2, 3)))


def test_resnet12_drops_single_cells_in_its_first_stages_and_blocks_in_its_last_two():
    torch.manual_seed(0)
    encoder = ResNet12((3, 32, 32), widths=(16, 32, 32, 64), dropout=0.3, block=2, ramp=7)
    drops = [stage.end[-1] for stage in encoder.stages]
    assert [type(drop) for drop in drops] == [nn.Dropout, nn.Dropout, DropBlock, DropBlock]
    assert [drop.p for drop in drops[:2]] == [0.3, 0.3]
    assert [(drop.rate, drop.block, drop.ramp) for drop in drops[2:]] == [(0.3, 2, 7)] * 2
    last = encoder.stages[3].body[6].weight  # kaiming: variance 2 / (1 + slope²) / (outputs of a weight)
    assert float(last.detach().var()) == pytest.approx(2 / 1.01 / (64 * 9), rel=0.05)


def test_a_block_is_no_larger_than_the_map_and_the_mean_stays():
    torch.manual_seed(0)
    dropped = DropBlock(rate=0.5, block=5, ramp=1).train()(torch.ones(2000, 4, 2, 3))
    assert float(dropped.mean()) == pytest.approx(1.0, abs=1e-5)
    assert bool((dropped == 0).any())


# --- what a loss is given --------------------------------------------------------------------------------------------


def step_of(loss, encoder, *, shots=2, mix=False, given=None):
    samples = images_of()
    batches = Episodes(4, shots, 3, 3, mix=mix)
    inputs = LossInputs(loss, InputContext(encoder, None, "classes", 7), given)
    return Step(batches.on_device(batch_of(batches, samples)), encoder, None), inputs, samples


def test_prototypical_networks_are_given_queries_and_the_means_of_their_supports():
    torch.manual_seed(0)
    encoder = Conv4((1, 28, 28), width=6).eval()
    step, inputs, samples = step_of(lw.PrototypicalLoss(), encoder)
    _, given = inputs.arguments(step)
    rows = step.batch["sample_index"].view(3, 4, 5)
    for e in range(3):
        for n in range(4):
            features = encoder(samples.inputs[rows[e, n]])
            torch.testing.assert_close(given["class_means"][e, n], (features[0] + features[1]) / 2)
            for q in range(3):
                torch.testing.assert_close(given["query_features"][e, 3 * n + q], features[2 + q])
                assert given["query_labels"][e, 3 * n + q] == n
    assert not list(inputs.parameters())


def test_each_step_masks_a_cell_of_its_own_and_none_if_asked():
    torch.manual_seed(0)
    encoder = Conv4((1, 28, 28), width=6, pools=3).eval()
    step, inputs, _ = step_of(lw.InfoPatchLoss(), encoder)
    masked = []
    for seed in [*range(60), 0]:
        step.batch["share"] = step.batch["share"]._replace(seed=seed)
        _, given = inputs.arguments(step)
        masked.append((given["support_maps"] == 0).all(dim=2)[0, 0].flatten().nonzero().item())
    assert set(masked) == set(range(9))
    assert masked[0] == masked[-1]
    step, inputs, _ = step_of(lw.InfoPatchLoss(), encoder, given=[EpisodeMaps(mask=False)])
    _, given = inputs.arguments(step)
    maps = encoder.maps(step.inputs[:, 0]).view(3, 4, 5, 6, 3, 3)
    torch.testing.assert_close(given["support_maps"], (maps[:, :, 0] + maps[:, :, 1]) / 2)
    one_cell = Conv4((1, 28, 28), width=6)  # a single cell leaves nothing to mask, and is enough for the rest
    step_of(lw.InfoPatchLoss(), one_cell, given=[EpisodeMaps(mask=False)])


@pytest.mark.parametrize(
    ("make", "cells", "grid", "mix"),
    [
        (lambda: Conv4((1, 28, 28), width=6, pools=3), (3, 3), (8, 0), False),
        (lambda: Conv4((1, 28, 28), width=6, pools=3), (3, 3), (8, 0), True),
        (lambda: Wrapped((1, 28, 28), nn.Conv2d(1, 6, 3, 4, 1), stride=4, cell_start=-1.5), (7, 7), (4, -1.5), True),
    ],
    ids=["pooled", "pooled and mixed", "strided and mixed"],
)
def test_infopatch_is_given_masked_means_of_support_maps_and_the_class_that_every_cell_shows(make, cells, grid, mix):
    torch.manual_seed(0)
    encoder = make().eval()
    step, inputs, samples = step_of(lw.InfoPatchLoss(), encoder, mix=mix)
    _, given = inputs.arguments(step)
    assert {name: tuple(of.shape) for name, of in given.items()} == {
        "query_maps": (3, 12, 6, *cells),
        "support_maps": (3, 4, 6, *cells),
        "cell_labels": (3, 12, *cells),
        "map_logits": (60, *cells, 7),
        "map_labels": (60, *cells),
    }
    maps = encoder.maps(step.inputs[:, 0]).view(3, 4, 5, 6, *cells)
    means = (maps[:, :, 0] + maps[:, :, 1]) / 2
    masked = (given["support_maps"] == 0).all(dim=2)  # a cell of the whole batch
    assert len(masked.flatten(0, 1).unique(dim=0)) == 1
    assert masked[0, 0].sum() == 1
    torch.testing.assert_close(given["support_maps"], means * ~masked[:, :, None])
    torch.testing.assert_close(given["query_maps"], maps[:, :, 2:].flatten(1, 2))
    labels = step.batch["labels"].view(3, 4, 5)
    owned = torch.zeros(3, *cells, dtype=torch.bool)
    if mix:
        owned = owned_by_partner(step.batch["mix"], cells, grid[0], (28, 28), start=grid[1])
    partners = step.batch["mix"].partners if mix else torch.arange(12).expand(3, 12)
    shown = given["map_labels"].view(3, 4, 5, *cells)
    logits = inputs.by_class["EpisodeMaps"].linear(maps.movedim(3, -1))
    torch.testing.assert_close(given["map_logits"].view(3, 4, 5, *cells, 7), logits)
    for e in range(3):
        for q in range(12):
            for i in range(cells[0]):
                for j in range(cells[1]):
                    of = int(partners[e, q]) if owned[e, i, j] else q
                    assert given["cell_labels"][e, q, i, j] == of // 3
                    assert shown[e, q // 3, 2 + q % 3, i, j] == labels[e, of // 3, 2 + of % 3]
    assert torch.equal(shown[:, :, :2], labels[:, :, :2, None, None].expand(3, 4, 2, *cells))
    assert bool(owned.any()) == mix
    assert samples.labels is not None


def test_the_classifier_of_cells_has_the_rate_that_it_is_given_and_without_a_global_loss_there_is_none():
    encoder, one = Conv4((1, 28, 28), width=6, pools=3), EpisodeMaps(rate_factor=3.0)
    LossInputs(lw.InfoPatchLoss(), InputContext(encoder, None, "classes", 7), [one])
    assert {id(weight) for weight in one.rate_factors()} == {id(one.linear.weight), id(one.linear.bias)}
    assert set(one.rate_factors().values()) == {3.0}
    step, inputs, _ = step_of(lw.InfoPatchLoss(global_weight=0), encoder)
    assert set(inputs.arguments(step)[1]) == {"query_maps", "support_maps", "cell_labels"}
    assert not list(inputs.parameters())


def test_infopatch_is_the_sum_of_both_parts_by_their_weights():
    torch.manual_seed(0)
    encoder = Conv4((1, 28, 28), width=6, pools=3)
    step, inputs, _ = step_of(lw.InfoPatchLoss(), encoder, mix=True)
    given = inputs.arguments(step)[1]
    maps, means = given["query_maps"], given["support_maps"].mean(dim=(3, 4))
    unit = nn.functional.normalize
    local, count = torch.zeros(()), 0
    for e in range(3):
        for q in range(12):
            for i in range(3):
                for j in range(3):
                    s = 7 * unit(means[e], dim=1) @ unit(maps[e, q, :, i, j], dim=0)
                    local = local - s.log_softmax(dim=0)[given["cell_labels"][e, q, i, j]]
                    count += 1
    cells = list(zip(given["map_logits"].flatten(0, 2), given["map_labels"].flatten(), strict=True))
    everywhere = torch.stack([-row.log_softmax(dim=0)[label] for row, label in cells]).mean()
    loss = lw.InfoPatchLoss()
    torch.testing.assert_close(loss(**given), everywhere + 0.5 * local / count)
    right = [row.tolist().index(max(row.tolist())) == int(label) for row, label in cells]
    assert 0 < sum(right) < len(right)
    expected = {"local_loss": local / count, "global_loss": everywhere}
    expected["global_accuracy"] = torch.tensor(sum(right) / len(right))
    torch.testing.assert_close(loss.last, {name: value.detach() for name, value in expected.items()})
    weighted = lw.InfoPatchLoss(local_weight=2, global_weight=0.25)
    torch.testing.assert_close(weighted(**given), everywhere / 4 + 2 * local / count)


MAPS, CELLS, LOGITS = torch.ones(1, 2, 4, 3, 3), torch.zeros(1, 2, 3, 3).long(), torch.ones(2, 3, 3, 5)
POINTS = torch.ones(1, 2, 3)


def patched_loss(**more):
    return lw.InfoPatchLoss()(MAPS, MAPS, CELLS, **more)


def test_losses_of_episodes_refuse_what_is_no_episode():
    for make, told in (
        (lambda: lw.InfoPatchLoss(local_weight=0, global_weight=0), "a local_weight or global_weight above 0"),
        (lambda: lw.InfoPatchLoss(local_weight=-1), "local_weight to be a number within 0"),
        (patched_loss, "expected map_logits for the global loss, got none"),
        (lambda: patched_loss(map_logits=LOGITS, map_labels=CELLS[0, 0]), r"map_logits \(M, H, W, C\)"),
        (lambda: patched_loss(map_logits=LOGITS, map_labels=CELLS[0] + 5), "within the 5 classes"),
        (lambda: patched_loss(map_logits=LOGITS / 0, map_labels=CELLS[0]), "expected map_logits to be finite"),
        (lambda: lw.PrototypicalLoss()(MAPS, MAPS, CELLS), r"features of episodes, \(E, Q or K, D\)"),
        (lambda: lw.PrototypicalLoss()(POINTS, POINTS.expand(2, 2, 3), CELLS), "the query_features' 1 episodes"),
        (lambda: lw.PrototypicalLoss()(POINTS, POINTS, torch.zeros(2).long()), r"each query, shape \(1, 2\)"),
        (lambda: lw.PrototypicalLoss()(POINTS, POINTS, torch.tensor([[0, 2]])), "to be within the 2 classes"),
    ):
        with pytest.raises(ValueError, match=told):
            make()


@pytest.mark.parametrize("normalize", [False, True])
def test_the_prototypical_loss_is_a_double_loop_over_queries_and_classes(normalize):
    torch.manual_seed(0)
    queries, means = torch.randn(2, 5, 4, dtype=torch.float64), 3 + torch.randn(2, 3, 4, dtype=torch.float64)
    labels = torch.randint(3, (2, 5))
    losses, right = [], []
    for e in range(2):
        for q, label in zip(queries[e], labels[e], strict=True):
            pair = [(q / q.norm(), m / m.norm()) if normalize else (q, m) for m in means[e]]
            distances = [sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for one, other in pair]
            total = sum(torch.exp(-d / 0.7) for d in distances)
            losses.append(distances[label] / 0.7 + total.log())
            right.append(distances.index(min(distances)) == int(label))
    loss = lw.PrototypicalLoss(temperature=0.7, normalize=normalize, reduction="none")
    torch.testing.assert_close(loss(queries, means, labels), torch.stack(losses))
    assert 0 < sum(right) < len(right)
    assert float(loss.last["accuracy"]) == pytest.approx(sum(right) / len(right))


def test_a_label_outside_the_episode_leaves_its_query_out_where_values_are_not_checked(monkeypatch):
    """As on a GPU, where looking would wait for it."""
    torch.manual_seed(0)
    queries, means, labels = torch.randn(2, 6, 8), torch.randn(2, 4, 8), torch.randint(4, (2, 6))
    alone = lw.PrototypicalLoss(reduction="none")(queries, means, labels).view(2, 6)
    monkeypatch.setattr(lw.PrototypicalLoss, "check", lambda *_: None)
    labels[0, 1], labels[1, 5] = -1, 4
    known = (labels >= 0) & (labels < 4)
    torch.testing.assert_close(lw.PrototypicalLoss()(queries, means, labels), alone[known].mean())


def test_logits_of_half_precision_are_compared_in_float32():
    """Of bfloat16 logits, that of the widened ones, to more digits than bfloat16 has."""
    torch.manual_seed(0)
    logits, labels = (20 * torch.randn(2, 3, 3, 5)).bfloat16(), torch.randint(5, (2, 3, 3))
    rows = logits.double().flatten(0, 2)
    expected = torch.stack([-row.log_softmax(0)[label] for row, label in zip(rows, labels.flatten(), strict=True)])
    loss = lw.InfoPatchLoss(local_weight=0)(MAPS, MAPS, CELLS, map_logits=logits, map_labels=labels)
    assert float(loss) == pytest.approx(float(expected.mean()), rel=1e-6)


def test_the_prototypical_loss_keeps_its_digits_far_from_the_origin():
    """Two classes a thousandth apart at a distance of 100, in float32: as a difference of squares it would be noise."""
    means = torch.tensor([[[100.0, 0.0], [100.001, 0.0]]])
    loss = lw.PrototypicalLoss(temperature=1e-6)(means, means, torch.tensor([[0, 1]]))
    exact = means.double()
    apart = float((exact[0, 0] - exact[0, 1]).square().sum() / 1e-6)
    assert float(loss) == pytest.approx(math.log1p(math.exp(-apart)), rel=1e-4)

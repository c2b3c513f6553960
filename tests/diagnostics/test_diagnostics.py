"""The geometry of an embedding, and the gradient of SupCon split into pull and push, against definitions and loops."""

import itertools
import math
import re
from dataclasses import replace

import pytest
import torch

from likewise.diagnostics import (
    Snapshot,
    alignment,
    anchor_gradients,
    collapsed,
    hardest_shares,
    save_snapshots,
    similarity_histogram,
    strength_by_negatives,
    strength_by_similarity,
    two_dimensional_map,
    uniformity,
    unit_rows,
)
from likewise.report import RunView
from likewise.report.sections import GradientsSection, NegativesSection, geometry
from likewise.runs import Run

pytestmark = pytest.mark.slow

TAU = 0.2
FORMS = ["out", "in"]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clusters(count):
    """Classes whose rows differ in the fifth decimal."""
    centres = normal(3, 5, seed=1)
    return centres[torch.arange(count) % 3] + 1e-5 * normal(count, 5)


CASES = {
    "one view": (normal(9, 5), torch.arange(9) % 3),
    "several views": (normal(6, 3, 4), torch.arange(6) % 2),
    "views only": (normal(5, 2, 4), None),
    "label sets": (normal(6, 2, 4), torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 1]])),
    "without a positive": (normal(6, 4), torch.tensor([0, 1, 0, 2, 1, 3])),
    "tight clusters": (clusters(9), torch.arange(9) % 3),
    "ties": (normal(4, 5).repeat(3, 1), torch.arange(12) % 4 // 2),
    "long and short": (normal(8, 5) * 10 ** normal(8, 1, seed=2), torch.arange(8) % 2),
}


def rows_of(embeddings, labels):
    """Return unit rows, and for every pair whether it is a positive, in plain loops."""
    views = [embeddings] if embeddings.ndim == 2 else list(embeddings.unbind(dim=1))
    rows = [row / row.norm() for view in views for row in view]
    samples = [sample for view in views for sample in range(len(view))]

    def shares(i, j):
        if labels is None:
            return samples[i] == samples[j]
        one, other = labels[samples[i]], labels[samples[j]]
        return bool((one * other).sum() > 0) if labels.ndim == 2 else bool(one == other)

    count = len(rows)
    return torch.stack(rows), [[i != j and shares(i, j) for j in range(count)] for i in range(count)]


def plain_loss(z, rows, positive, i, form):
    """Return the loss of an anchor z, the references being constants, as the paper has it."""
    logits = {j: (z @ row) / TAU for j, row in enumerate(rows.detach()) if j != i}
    denominator = torch.stack(list(logits.values())).logsumexp(0)
    terms = [logits[j] - denominator for j in logits if positive[i][j]]
    if form == "out":
        return -sum(terms) / len(terms)
    return -(torch.stack(terms).logsumexp(0) - math.log(len(terms)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_pull_and_push_add_up_to_the_gradient_of_the_anchors_own_loss(case, form):
    embeddings, labels = CASES[case]
    rows, positive = rows_of(embeddings, labels)
    found = anchor_gradients(embeddings, labels, temperature=TAU, form=form)
    assert torch.equal(found.anchors, torch.arange(len(rows)))
    for i, row in enumerate(rows):
        assert found.active[i] == any(positive[i])
        if not any(positive[i]):
            nothing = (found.gradient, found.strengths, found.probabilities, found.positives, found.negatives)
            assert not any(values[i].any() for values in nothing)
            continue
        z = row.clone().requires_grad_()
        plain_loss(z, rows, positive, i, form).backward()
        torch.testing.assert_close(found.gradient[i], z.grad, rtol=1e-10, atol=1e-12)
        assert found.positives[i].tolist() == positive[i]
        assert found.negatives[i].tolist() == [j != i and not of for j, of in enumerate(positive[i])]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ["one view", "several views", "tight clusters", "ties"])
def test_strength_is_the_length_of_what_reaches_the_unnormalised_embedding(case, form):
    """One reference at a time, through the projection that normalising applies to its part of the gradient."""
    embeddings, labels = CASES[case]
    rows, positive = rows_of(embeddings, labels)
    found = anchor_gradients(embeddings, labels, temperature=TAU, form=form)
    for i, z in enumerate(rows):
        exps = [0.0 if j == i else math.exp(float(z @ row) / TAU) for j, row in enumerate(rows)]
        among = sum(of for of, is_positive in zip(exps, positive[i], strict=True) if is_positive)
        for j, row in enumerate(rows):
            share = 1 / sum(positive[i]) if form == "out" else exps[j] / among
            coefficient = exps[j] / sum(exps) - (share if positive[i][j] else 0)
            assert float(found.coefficients[i, j]) == pytest.approx(coefficient, abs=1e-14)
            part = coefficient / TAU * (row - (row @ z) * z)
            assert float(found.strengths[i, j]) == pytest.approx(float(part.norm()), abs=1e-7)  # sqrt of rounding


def test_some_anchors_are_rows_of_all():
    embeddings, labels = CASES["several views"]
    every, some = (anchor_gradients(embeddings, labels, temperature=TAU, anchors=of) for of in (None, [7, 0, 12]))
    for name, value in vars(some).items():
        torch.testing.assert_close(value, getattr(every, name)[[7, 0, 12]])


def test_a_zero_embedding_receives_and_exerts_nothing():
    embeddings = normal(5, 3)
    embeddings[[1, 2]] = 0
    found = anchor_gradients(embeddings, torch.tensor([0, 0, 1, 1, 0]))
    assert not found.strengths[1:3].any()
    assert not found.strengths[:, 1:3].any()
    assert torch.isfinite(found.gradient).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrower_embeddings_are_widened_first(dtype):
    embeddings = normal(6, 4).to(dtype)
    labels = torch.arange(6) % 2
    found = anchor_gradients(embeddings, labels)
    assert torch.equal(found.gradient, anchor_gradients(embeddings.double(), labels).gradient)


def test_strengths_are_averaged_by_cosine():
    embeddings, labels = CASES["several views"]
    found = anchor_gradients(embeddings, labels, temperature=TAU)
    edges, positive, negative = strength_by_similarity(found, bins=6)
    for pairs, means in ((found.positives, positive), (found.negatives, negative)):
        for place, mean in enumerate(means.tolist()):
            inside = [
                float(found.strengths[i, j])
                for i, j in pairs.nonzero().tolist()
                if edges[place] <= found.similarities[i, j] < edges[place + 1]
            ]
            assert mean == pytest.approx(sum(inside) / len(inside) if inside else math.nan, nan_ok=True)


def test_shares_without_pairs_are_nan():
    found = anchor_gradients(normal(3, 2), torch.arange(3))
    assert strength_by_negatives(normal(3, 2), torch.arange(3)).counts == ()
    assert all(math.isnan(of) for of in hardest_shares(found))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"embeddings": torch.zeros(3)}, "expected embeddings to be rows of at least one feature"),
        ({"embeddings": ["a"]}, "expected embeddings as a tensor or an array of numbers, got list: "),
        ({"embeddings": torch.full((3, 2), math.nan)}, "expected embeddings to be finite"),
        ({"labels": None}, r"expected labels or several views, .* got only embeddings of shape \(3, 2\): "),
        ({"labels": torch.zeros(4).long()}, "one entry for each of 3 samples, got 4"),
        ({"labels": torch.zeros(3, 1).long()}, r"expected labels to be classes, .* got shape \(3, 1\)"),
        ({"temperature": 0}, "expected temperature to be a positive"),
        ({"form": "mean"}, "expected form to be one of out, in, got 'mean'"),
        ({"anchors": [3]}, "expected anchors to be rows, .* from 0 to 2"),
        ({"anchors": torch.ones(3).bool()}, "mask.nonzero"),
    ],
)
def test_bad_input_is_told_with_the_remedy(given, message):
    with pytest.raises(ValueError, match=message):
        anchor_gradients(**{"embeddings": torch.zeros(3, 2), "labels": torch.zeros(3).long()} | given)


def run_with(folder, kind="SupConLoss", parts=None, **given):
    run = Run.create(folder, "run")
    loss = {"class_path": f"likewise.losses.{kind}", "init_args": given}
    run.describe({"parts": {"loss": loss} | (parts or {})})
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(20) % 4
    wide = torch.randn(20, 2, 8, generator=generator)
    near = torch.nn.functional.one_hot(labels, 8).unsqueeze(1) + 0.2 * wide
    batches = {
        name: Snapshot(rows, torch.arange(20), labels, epoch, step, 20, 0.1)
        for name, rows, epoch, step in (("first", wide, 1, 4), ("last", near, 3, 14))
    }
    save_snapshots(run.batches, batches)
    return run, batches


def cells_of(page):
    """The cells of each row of a section's table, by the first."""
    rows = [re.findall(r"<td(?: [^>]*)?>([^<]*)", row) for row in re.findall("<tr>(.*?)</tr>", page.body)[1:]]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize(("kind", "given"), [("SupConLoss", {}), ("SupConLoss", {"form": "in"}), ("NTXentLoss", {})])
def test_sections_tell_what_the_hardest_supply_and_what_more_negatives_do(kind, given, tmp_path):
    run, batches = run_with(tmp_path, kind, **given)
    page, of_negatives = (section().content([RunView(run)]) for section in (GradientsSection, NegativesSection))
    assert (page.body.count('id="pull-and-push"'), of_negatives.body.count('id="negatives"')) == (1, 1)
    options = {"temperature": 0.1, "form": given.get("form", "out")}
    for batch in batches.values():
        labels = batch.labels if kind == "SupConLoss" else None
        found = anchor_gradients(batch.embeddings, labels, **options)
        shares = hardest_shares(found)
        repelling = float((found.coefficients[found.positives] > 0).double().mean())
        percents = [f"{100 * share:.0f} %" for share in (*shares, repelling)]
        assert cells_of(page)[f"Epoch {batch.epoch}"] == [*percents, "40 of 40", "20 of 20"]
    counts, *strengths = strength_by_negatives(batch.embeddings, labels, **options)  # of the last batch
    assert cells_of(of_negatives)["Epoch 3"] == [str(counts[-1]), *(f"{float(of[-1]):.2g}" for of in strengths)]


def test_a_section_compares_the_first_run_of_each_setting(tmp_path):
    runs = [run_with(tmp_path / str(number))[0] for number in range(7)]
    views = [RunView(run, setting=f"setting {max(0, number - 1)}") for number, run in enumerate(runs)]
    page = GradientsSection().content(views)
    settings = [f"setting {number}, epoch {epoch}" for number in range(geometry.MAX_SETTINGS) for epoch in (1, 3)]
    assert list(cells_of(page)) == settings
    assert "Shown are 4 of 6 settings." in page.sentence


def test_a_section_says_which_rows_it_is_about(tmp_path, monkeypatch):
    monkeypatch.setattr(geometry, "MAX_ANCHORS", 16)
    run, batches = run_with(tmp_path)
    save_snapshots(run.batches, {"first": replace(batches["first"], samples=50)})
    assert cells_of(GradientsSection().content([RunView(run)]))["Epoch 1"][3:] == ["14 of 40", "20 of 50"]


def test_collapsed_embeddings_have_a_section_that_says_so(tmp_path):
    run, batches = run_with(tmp_path)
    save_snapshots(run.batches, {"first": replace(batches["first"], embeddings=torch.ones(20, 2, 8))})
    assert cells_of(GradientsSection().content([RunView(run)]))["Epoch 1"][:2] == ["none", "none"]
    assert NegativesSection().content([RunView(run)]) is None


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("RASCALLoss", {}),
        ("SupConLoss", {"normalize": False}),
        ("SupConLoss", {"parts": {"inputs": [{"class_path": "likewise.training.inputs.Momentum"}]}}),
    ],
)
def test_losses_with_other_weights_or_references_have_no_section(kind, options, tmp_path):
    run, _ = run_with(tmp_path, kind, **options)
    assert GradientsSection().content([RunView(run)]) is None
    assert NegativesSection().content([RunView(run)]) is None
    without, _ = run_with(tmp_path / "without")
    without.batches.unlink()
    assert GradientsSection().content([RunView(without)]) is None


def test_a_damaged_file_is_told(tmp_path):
    run, _ = run_with(tmp_path)
    run.write(run.batches.name, b"PK")
    with pytest.raises(ValueError, match=r"expected the snapshots of a training in .*batches.npz, got a file"):
        GradientsSection().content([RunView(run)])


def plain_strengths(rows, positive, form, counts, fraction):
    """Return the four sums of each count, by the definition in plain loops; all negatives of an anchor are alike."""
    active = [i for i in range(len(rows)) if any(positive[i])]
    found = []
    for count in counts:
        pulls, pushes = [], []
        for i in active:
            mates = [j for j in range(len(rows)) if positive[i][j]]
            others = [j for j in range(len(rows)) if j != i and not positive[i][j]][:count]
            cosine = {j: float(rows[i] @ rows[j]) for j in (*mates, *others)}
            weight = {j: math.exp(cosine[j] / TAU) for j in cosine}
            total, among = sum(weight.values()), sum(weight[j] for j in mates)
            for j, near in cosine.items():
                across = math.sqrt(max(0.0, 1 - near**2)) / TAU
                asked = 1 / len(mates) if form == "out" else weight[j] / among
                if j in mates:
                    pulls.append((near, (asked - weight[j] / total) * across))
                else:
                    pushes.append((near, weight[j] / total * across))
        first = [max(1, round(fraction * len(pairs))) for pairs in (pulls, pushes)]
        pulls, pushes = sorted(pulls), sorted(pushes)
        ends = pulls[: first[0]], pulls[-first[0] :], pushes[-first[1] :], pushes[: first[1]]
        found.append([sum(strength for _, strength in end) / len(active) for end in ends])
    return torch.tensor(found, dtype=torch.float64).T


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "fraction"), [("one view", 1 / 3), ("several views", 1 / 3), ("views only", 0.4)])
def test_strengths_with_all_negatives_are_those_of_a_loop(name, fraction, form):
    """With all of them the order doesn't matter; the fractions cut no pair from its mirror image, which is as close."""
    embeddings, labels = CASES[name]
    rows, positive = rows_of(embeddings, labels)
    (count,) = {len(rows) - 1 - sum(row) for row in positive if any(row)}
    found = strength_by_negatives(embeddings, labels, temperature=TAU, form=form, counts=[count], fraction=fraction)
    assert torch.allclose(torch.stack(found[1:]), plain_strengths(rows, positive, form, [count], fraction), atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_strengths_with_few_negatives_are_those_of_a_loop(form):
    """Of tight clusters whose negatives are all alike it doesn't matter which are taken."""
    labels = torch.arange(30) % 3
    rows = torch.eye(4, dtype=torch.float64)[labels] + 0.4 * torch.eye(4, dtype=torch.float64)[3]
    counts = [1, 2, 5, 20]
    found = strength_by_negatives(rows, labels, temperature=TAU, form=form, counts=counts, fraction=0.5)
    expected = plain_strengths(*rows_of(rows, labels), form, counts, 0.5)
    assert found.counts == tuple(counts)
    assert torch.allclose(torch.stack(found[1:])[2:], expected[2:], atol=1e-12)
    assert torch.allclose(torch.stack(found[1:])[:2], expected[:2], atol=1e-6)  # at cosine 1 only rounding is left


def test_more_negatives_make_hard_positives_stronger_up_to_their_limit():
    """With one positive at a right angle the pull is (1 - P)/τ; every negative makes P smaller."""
    rows = torch.eye(40, dtype=torch.float64)
    labels = torch.tensor([0, 0, *range(1, 39)])
    found = strength_by_negatives(rows, labels, temperature=TAU, anchors=[0])
    assert found.counts == (2, 4, 8, 16, 32, 38)
    assert found.hard_positives.tolist() == pytest.approx([(1 - 1 / (1 + count)) / TAU for count in found.counts])


def test_the_same_seed_takes_the_same_negatives_and_another_others():
    embeddings, labels = normal(60, 8), torch.arange(60) % 6
    one, again, other = (strength_by_negatives(embeddings, labels, counts=[2], seed=seed) for seed in (0, 0, 1))
    assert one.hard_negatives.equal(again.hard_negatives)
    assert not one.hard_negatives.equal(other.hard_negatives)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"counts": [0, 2]}, r"expected counts of negatives from 1 to 6, as all anchors have, got \(0, 2\)"),
        ({"counts": [7]}, r"got \(7,\): ask for fewer"),
        ({"fraction": 0.0}, "expected fraction above 0 and at most 1"),
    ],
)
def test_bad_numbers_of_negatives_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        strength_by_negatives(normal(9, 5), torch.arange(9) % 3, **options)


@pytest.fixture
def embedding(monkeypatch):
    """Features with their classes, and tiles smaller than both."""
    monkeypatch.setattr(unit_rows, "TILE", 4)
    return 3 * normal(11, 4).float(), torch.arange(11) % 3


def _pairs(features):
    units = torch.nn.functional.normalize(features.double())
    for i, j in itertools.permutations(range(len(units)), 2):
        yield i, j, float((units[i] - units[j]).square().sum())


def test_alignment_is_the_mean_squared_distance_within_classes(embedding):
    features, labels = embedding
    distances = [distance for i, j, distance in _pairs(features) if labels[i] == labels[j]]
    assert alignment(features, labels) == pytest.approx(sum(distances) / len(distances), rel=1e-10)


def test_uniformity_is_the_logarithm_of_the_mean_potential(embedding):
    features, _ = embedding
    potentials = [math.exp(-2 * distance) for _, _, distance in _pairs(features)]
    assert uniformity(features) == pytest.approx(math.log(sum(potentials) / len(potentials)), rel=1e-10)


def test_geometry_without_a_pair_is_nan():
    assert math.isnan(alignment(torch.eye(2), torch.tensor([0, 1])))
    assert math.isnan(uniformity(torch.eye(2)[:1]))


def test_a_zero_feature_counts_as_a_point_at_the_origin():
    features = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    assert alignment(features, torch.tensor([0, 0])) == pytest.approx(1.0)
    assert uniformity(features) == pytest.approx(-2.0)


def test_histogram_counts_every_pair_once_by_its_kind(embedding):
    features, labels = embedding
    edges, positive, negative = similarity_histogram(features, labels, bins=7)
    counts = torch.zeros(2, 7)
    for i, j, distance in _pairs(features):
        place = int(torch.bucketize(torch.tensor(1 - distance / 2).double(), edges, right=True)) - 1
        counts[int(labels[i] == labels[j]), min(place, 6)] += 1
    assert torch.allclose(torch.stack([negative, positive]).float(), counts / counts.sum(1, keepdim=True))


@pytest.mark.parametrize("method", ["tsne", "pca"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (2, 2), (5, 1), (9, 4)])
def test_a_map_has_two_finite_coordinates_and_repeats_itself(method, shape):
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    places = two_dimensional_map(features, method)
    assert places.shape == (shape[0], 2)
    assert torch.isfinite(places).all()
    assert torch.equal(places, two_dimensional_map(features, method))


def test_pca_keeps_distances_in_the_plane():
    angles = torch.linspace(0, 3, 9)
    circle = torch.stack([angles.cos(), torch.zeros(9), angles.sin()], dim=1)
    places = two_dimensional_map(circle, "pca")
    assert torch.allclose(torch.cdist(places, places), torch.cdist(circle, circle).double(), atol=1e-5)


def test_collapsed_features_lie_on_one_point():
    """On equal features t-SNE, started from PCA, divides by their spread, 0, and the process dies."""
    one = torch.rand(1, 16, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(1000, 16, generator=torch.Generator().manual_seed(1))
    for features in (one.repeat(1000, 1), 0 * noise, one + 1e-7 * noise, one * noise[:, :1].abs()):
        for method in ("tsne", "pca"):
            assert torch.equal(two_dimensional_map(features, method), torch.zeros(1000, 2).double())
        assert collapsed(features)
    assert not collapsed(one)


@pytest.mark.parametrize("distinct", [2, 5])
def test_duplicates_lie_on_one_point_and_others_do_not(distinct):
    rows = torch.randperm(80, generator=torch.Generator().manual_seed(0)) % distinct
    features = torch.randn(distinct, 8, generator=torch.Generator().manual_seed(1))[rows]
    places = two_dimensional_map(features)
    assert torch.isfinite(places).all()
    together = (places.unsqueeze(1) == places).all(dim=2)
    assert torch.equal(together, rows.unsqueeze(1) == rows)
    assert not collapsed(features)

"""What each loss is given in a step, and what is refused; the arithmetic of momentum, queue and keys, step by step."""

import copy
import math

import pytest
import torch
from torch import nn

import likewise as lw
import plain_formulas
from likewise.configuration import read
from likewise.data import Episodes, Views
from likewise.losses import Loss
from likewise.models import MLP, ProjectionHead
from likewise.training import InputContext, KeyQueue, LabelPrototypes, LossInput, Momentum, Predictor, Step
from likewise.training.inputs import Classifier, LossInputs, LossSignature
from likewise.training.inputs.resolution import reads_embeddings, resolve

B, V, F, E, C = 12, 2, 5, 4, 3
CLASSES = torch.arange(B) % C
SETS = torch.stack([CLASSES == 0, CLASSES != 1, torch.arange(B) % 2 == 0], dim=1)
ELSEWHERE = {"ClipLoss"}  # which is for loops that have a scale
EPISODES = {"InfoPatchLoss", "PatchLoss", "PrototypicalLoss"}  # whose arguments are tested with episodes
ARGUMENTS = {"RASCALLoss": {"num_samples": B, "feature_dim": E}, "NWSLoss": {"label_similarity": torch.eye(C)}}


def _networks():
    torch.manual_seed(0)
    return MLP((F,), width=8), ProjectionHead(8, out_dim=E)


def _batch(kind="classes", views=V, rows=B):
    torch.manual_seed(1)
    batch = {"inputs": torch.randn(rows, views, F), "sample_index": torch.arange(rows)}
    labels = {"classes": CLASSES, "label sets": SETS}.get(kind)
    return batch if labels is None else {**batch, "labels": labels[:rows]}


def _inputs(loss, kind="classes", given=None):
    encoder, head = _networks()
    return LossInputs(loss, InputContext(encoder, head, kind, C if kind else 0), given), encoder, head


def _arguments(loss, kind="classes", given=None, views=V):
    """The arguments of a loss in a first step, and the step."""
    made, encoder, head = _inputs(loss, kind, given)
    slow = made.momentum.slow if made.momentum else None
    step = Step(_batch(kind, views), encoder, head, slow=slow, keyed=made.signature.keyed)
    views_, named = made.arguments(step)
    return views_, named, step, made


LOSSES = sorted(name for name in lw.__all__ if name.endswith("Loss") and name not in ELSEWHERE)
CASES = [
    (name, kind)
    for name in LOSSES
    if name not in EPISODES
    for kind in (sorted(getattr(lw, name).label_kinds) or ["classes", None])
]
TAKEN = {
    ("NTXentLoss", "classes"): "",
    ("DCLLoss", None): "",
    ("HardNegativeLoss", None): "",
    ("InfoNCELoss", None): "queries keys",
    ("SigLIPLoss", None): "queries keys",
    **dict.fromkeys(
        [
            (f"{name}Loss", "classes")
            for name in ("ContrastiveMargin", "BatchTriplet", "SupCon", "KCL", "MultiSimilarity", "LiftedStructure")
        ],
        "embeddings labels",
    ),
    **dict.fromkeys(
        [(f"{name}Loss", "classes") for name in ("BCL", "ArcFace", "CosFace", "ProxyAnchor", "ProxyNCA")],
        "embeddings labels prototypes",
    ),
    ("NPairsLoss", "classes"): "anchors positives",
    ("TripletLoss", "classes"): "anchors positives negatives",
    ("SupConLoss", "label sets"): "embeddings labels",
    ("RASCALLoss", "classes"): "embeddings labels sample_index",
    ("PaCoLoss", "classes"): "embeddings labels class_logits",
    ("MulSupConLoss", "label sets"): "queries labels",
    ("MSCLoss", "label sets"): "queries labels prototypes queue queue_labels",
    ("NWSLoss", "label sets"): "queries labels prototypes keys key_labels queue queue_labels",
    ("BYOLLoss", None): "predictions targets",
    ("CrossEntropyLoss", "classes"): "class_logits labels",
    ("BCELoss", "label sets"): "class_logits labels",
    ("AsymmetricLoss", "label sets"): "class_logits labels",
}
SHAPES = {
    **dict.fromkeys(("embeddings", "predictions", "targets"), (B, V, E)),
    **dict.fromkeys(("keys", "anchors", "positives", "negatives"), (B, E)),
    "sample_index": (B,),
    "prototypes": (C, E),
    "class_logits": (B, V, C),
    "key_labels": (B, C),
    "queue": (0, E),
    "queue_labels": (0, C),
}


def test_every_loss_is_offered_all_that_it_needs_in_these_shapes_and_has_a_gradient():
    """A new loss with arguments that no input supplies fails here."""
    assert {name for name, _ in TAKEN} == set(LOSSES) - EPISODES
    for name, kind in CASES:
        loss = getattr(lw, name)(**ARGUMENTS.get(name, {}))
        views, named, step, made = _arguments(loss, kind, [KeyQueue()] if name == "MSCLoss" else None)
        value = loss(*views, **named)
        value.backward()
        assert value.isfinite(), name
        networks = (made, step.encoder, step.head) if reads_embeddings(type(loss)) else (made, step.encoder)
        assert all(of.grad is not None for network in networks for of in network.parameters()), name
        if (name, kind) in TAKEN:
            labels, several = (B,) if kind == "classes" else (B, C), name in {"MulSupConLoss", "MSCLoss"}
            shapes = SHAPES | {"labels": labels, "queries": (B, V, E) if several else (B, E)}
            expected = {of: shapes[of] for of in TAKEN[name, kind].split()}
            assert {argument: tuple(value.shape) for argument, value in named.items()} == expected, name
            assert [tuple(of.shape) for of in views] == ([] if named else [(B, V, E)]), name


def test_supcon_has_references_with_momentum_only_and_a_queue_with_its_labels():
    _, plain, *_ = _arguments(lw.SupConLoss())
    _, queued, *_ = _arguments(lw.SupConLoss(), given=[KeyQueue()])
    _, moved, *_ = _arguments(lw.SupConLoss(), given=[Momentum()])
    assert plain.keys() == {"embeddings", "labels"}
    assert queued.keys() == {"embeddings", "labels", "queue", "queue_labels"}
    assert queued["embeddings"].shape == (B, V, E)
    assert moved.keys() == {"embeddings", "labels", "references", "reference_labels"}
    assert moved["embeddings"].shape == (B, 1, E)
    assert torch.equal(moved["reference_labels"], CLASSES)


def test_with_a_momentum_encoder_one_view_is_query_and_key():
    _, named, step, _ = _arguments(lw.NWSLoss(torch.eye(C)), "label sets", views=1)
    assert named["queries"].shape == named["keys"].shape == (B, E)
    assert step.features.shape == (B, 1, 8)


def test_a_loss_of_pairs_refuses_any_number_of_views_but_two():
    for views in (1, 3):
        with pytest.raises(ValueError, match=rf"two views for InfoNCELoss.*got {views}: set batches.views to 2"):
            _arguments(lw.InfoNCELoss(), views=views)


def test_negatives_are_another_sample_where_there_is_no_other_class():
    for labels in (SETS, torch.zeros(B, dtype=torch.int64), None):
        step = Step(_batch(None) | ({} if labels is None else {"labels": labels}), *_networks())
        assert all((step.others(1) != torch.arange(B)).all() for _ in range(20))


def test_negatives_are_sampled_uniformly_from_other_classes():
    labels = torch.tensor([0, 0, 0, 1, 2])
    batch = {"inputs": torch.zeros(5, 2, F), "sample_index": torch.arange(5), "labels": labels}
    step, counts = Step(batch, *_networks()), torch.zeros(5, 5)
    for _ in range(3000):
        counts[torch.arange(5), step.others(1)] += 1 / 3000
    allowed = (labels[:, None] != labels).float()
    assert not counts[allowed == 0].any()
    assert (counts - allowed / allowed.sum(1, keepdim=True)).abs().max() < 0.04


class Weather(Loss):
    """A loss with an argument that only Rain supplies."""

    def forward(self, embeddings, weather):
        return embeddings.mean() * weather


class Rain(LossInput):
    """Supplies it."""

    def weather(self, step):
        return step.embeddings.new_ones(())


def test_a_users_input_supplies_the_argument_named_by_its_method():
    views, named, *_ = _arguments(Weather(), given=[Rain()])
    assert named["weather"] == 1
    assert not views


class Names(Loss):
    """A loss with an argument that no class supplies."""

    def forward(self, embeddings, phase_of_the_moon):
        return embeddings.mean() * phase_of_the_moon


REFUSED = [
    (Weather(), "classes", None, "Weather needs, got none for weather: add Rain"),
    (Names(), "classes", None, "Names, which needs phase_of_the_moon: .* write a LossInput with a method"),
    (lw.ClipLoss(), None, None, "image_features .*: take InfoNCELoss or NTXentLoss .*call ClipLoss in your own loop"),
    (lw.PatchLoss(), "classes", None, "expected an encoder with feature maps, got MLP"),
    (lw.SupConLoss(), None, None, "classes or label sets as labels for SupConLoss, got no labels: --loss simclr"),
    (lw.MSCLoss(), "classes", None, "label sets as labels for MSCLoss, got classes: choose one of .*SupConLoss"),
    (lw.KCLLoss(), "label sets", None, "classes as labels for KCLLoss, got label sets: choose one of .*MulSupConLoss"),
    (lw.KCLLoss(), "classes", [KeyQueue()], "KCLLoss takes, got KeyQueue, which supplies queue and queue_labels"),
    (lw.MSCLoss(), "label sets", [Momentum()], "MSCLoss takes, got Momentum"),
    (lw.InfoNCELoss(), None, [KeyQueue(), KeyQueue()], "one input for queue, got KeyQueue and KeyQueue: leave one"),
]


def test_inputs_and_labels_that_do_not_fit_are_refused_before_training():
    for loss, kind, given, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            _inputs(loss, kind, given)


def test_a_momentum_encoder_supplies_the_keys_of_a_queue():
    _, named, step, _ = _arguments(lw.MSCLoss(), "label sets", [Momentum(), KeyQueue()])
    assert "keys" not in named
    assert step.encoded == 1


def test_required_inputs_are_made_and_recommended_ones_unless_others_are_given():
    recommended = {"Momentum", "KeyQueue"}
    assert recommended < set(_inputs(lw.NWSLoss(torch.eye(C)), "label sets")[0].by_class)
    bare = _inputs(lw.NWSLoss(torch.eye(C)), "label sets", [])[0]
    assert set(bare.by_class) == {"LabelPrototypes", "BatchInputs", "ViewPairs"}
    assert set(_inputs(lw.BYOLLoss(), None, [])[0].by_class) == {"Predictor", "Momentum", "BatchInputs", "ViewPairs"}


def test_a_given_input_takes_precedence_over_the_default_one():
    mine = LabelPrototypes(rate_factor=10.0)
    made = _inputs(lw.ProxyNCALoss(), "classes", [mine])[0]
    assert made.by_class["LabelPrototypes"] is mine
    assert made.by_class["LabelPrototypes"].rate_factors() == {mine.rows.weight: 10.0}


def test_a_loss_of_only_logits_reads_no_embeddings():
    assert not reads_embeddings(lw.CrossEntropyLoss)
    assert reads_embeddings(lw.PaCoLoss)


def test_the_methods_of_module_and_input_are_not_arguments():
    assert LossInput.names() == frozenset()
    assert Momentum.names() == {"keys", "references", "key_labels", "reference_labels", "targets"}


def _stepped(made, loss, batch, encoder, head, optimizer):
    """Take a step as a training does; return the step and the loss."""
    step = Step(batch, encoder, head, slow=made.momentum.slow, keyed=made.signature.keyed)
    views, named = made.arguments(step)
    value = loss(*views, **named)
    for one in made.all:
        one.after_loss(step)
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    for one in made.all:
        one.after_update(nn.Sequential(encoder, head))
    return step, value.item()


def _plainly_stepped(made, expected, optimizer, average, plain, momentum):
    """Take the same step without the library, and check the average after it."""
    optimizer.zero_grad()
    expected.backward()
    optimizer.step()
    mine = dict(made.momentum.slow.encoder.named_buffers())
    with torch.no_grad():
        for (name, slow), fast in zip(average.named_parameters(), plain.parameters(), strict=True):
            slow.mul_(momentum).add_(fast, alpha=1 - momentum)
            assert torch.allclose(mine[name], slow, atol=1e-6)


def test_momentum_queue_and_keys_are_those_of_a_plain_loop_after_each_of_three_steps():
    """Keys by the average before the step; the loss; keys are queued; the optimizer; then the average is updated."""
    momentum, size = 0.8, 30
    loss = lw.InfoNCELoss(temperature=0.2)
    made, encoder, head = _inputs(loss, None, [Momentum(momentum), KeyQueue(size)])
    network = nn.Sequential(encoder, head)
    plain, average = copy.deepcopy(network), copy.deepcopy(network)
    queue = torch.zeros(0, E)
    optimizer, other = (torch.optim.SGD(of.parameters(), lr=0.5) for of in (network, plain))
    for number in range(3):
        torch.manual_seed(10 + number)
        inputs = torch.randn(B, V, F)
        batch = {"inputs": inputs, "sample_index": torch.arange(B)}
        step, value = _stepped(made, loss, batch, encoder, head, optimizer)
        assert step.features.shape == (B, 1, 8)  # the encoder does not see the key's view

        with torch.no_grad():
            keys = average(inputs[:, 1])
        unit = nn.functional.normalize
        queries = unit(plain(inputs[:, 0]))
        own = (queries * unit(keys)).sum(1, keepdim=True) / 0.2
        logits = torch.cat([own, queries @ unit(queue).T / 0.2], dim=1)
        expected = (torch.logsumexp(logits, dim=1) - own[:, 0]).mean()
        queue = torch.cat([queue, keys])[-size:]
        _plainly_stepped(made, expected, other, average, plain, momentum)
        assert value == pytest.approx(expected.item(), abs=1e-5)
        held = made.by_class["KeyQueue"].queue(step)
        assert torch.allclose(held.sort(dim=0).values, queue.sort(dim=0).values, atol=1e-5)


def test_keys_queue_and_prototypes_of_nws_are_those_of_a_plain_loop_after_each_of_three_steps():
    """Keys by the average before the step, of the last view; the queue has them with their labels; prototypes learn."""
    momentum, size = 0.8, 30
    similarity = torch.tensor([[1.0, 0.3, 0.7], [0.3, 1.0, 0.0], [0.7, 0.0, 1.0]])
    loss = lw.NWSLoss(similarity)
    made, encoder, head = _inputs(loss, "label sets", [Momentum(momentum), KeyQueue(size)])
    network = nn.Sequential(encoder, head)
    plain, average = copy.deepcopy(network), copy.deepcopy(network)
    prototypes = nn.Parameter(made.by_class["LabelPrototypes"].prototypes(None).detach().clone())
    queue, queue_labels = torch.zeros(0, E), torch.zeros(0, C, dtype=torch.bool)
    optimizer = torch.optim.SGD([*network.parameters(), *made.by_class["LabelPrototypes"].parameters()], lr=0.05)
    other = torch.optim.SGD([*plain.parameters(), prototypes], lr=0.05)
    for number in range(3):
        torch.manual_seed(30 + number)
        inputs, labels = torch.randn(B, V, F), torch.rand(B, C) < 0.4
        batch = {"inputs": inputs, "sample_index": torch.arange(B), "labels": labels}
        step, value = _stepped(made, loss, batch, encoder, head, optimizer)

        with torch.no_grad():
            keys = average(inputs[:, 1])
        given = {"queries": plain(inputs[:, 0]), "labels": labels, "keys": keys, "key_labels": labels}
        given |= {"queue": queue, "queue_labels": queue_labels, "prototypes": prototypes}
        given |= {"label_similarity": similarity.double()}
        expected = plain_formulas.nws(given, plain_formulas.Space(torch.tensor(0.1)))
        queue, queue_labels = torch.cat([queue, keys])[-size:], torch.cat([queue_labels, labels])[-size:]
        _plainly_stepped(made, expected, other, average, plain, momentum)
        assert value == pytest.approx(expected.item(), abs=1e-4)
        assert torch.allclose(made.by_class["LabelPrototypes"].prototypes(step), prototypes, atol=1e-5)
        held = made.by_class["KeyQueue"].queue(step)
        place = torch.cdist(held, queue).argmin(dim=1)  # its order is the ring's
        assert torch.allclose(held, queue[place], atol=1e-4)
        assert sorted(place.tolist()) == list(range(len(queue)))
        assert torch.equal(made.by_class["KeyQueue"].queue_labels(step), queue_labels[place])


def test_byols_targets_and_predictions_are_those_of_a_plain_loop_after_each_of_three_steps():
    """Targets by the average before the step, of the other view; then the optimizer; then the average, rising to 1."""
    steps, loss = 3, lw.BYOLLoss()
    made, encoder, head = _inputs(loss, None, [Momentum(0.5, rising=True), Predictor(hidden_dim=6)])
    made.momentum.start(steps)
    predictor = made.by_class["Predictor"].network
    network = nn.ModuleList([encoder, head, predictor])
    plain = copy.deepcopy(network)
    average = copy.deepcopy(nn.Sequential(plain[0], plain[1]))
    optimizer, other = (torch.optim.SGD(of.parameters(), lr=0.5) for of in (network, plain))
    for number in range(steps):
        torch.manual_seed(20 + number)
        inputs = torch.randn(B, V, F)
        batch = {"inputs": inputs, "sample_index": torch.arange(B)}
        _, value = _stepped(made, loss, batch, encoder, head, optimizer)

        predictions = plain[2](plain[1](plain[0](inputs.flatten(0, 1)))).unflatten(0, (B, V))
        with torch.no_grad():
            targets = average(torch.cat([inputs[:, 0], inputs[:, 1]])).unflatten(0, (V, B))
        unit = nn.functional.normalize
        expected = sum(
            (2 - 2 * (unit(predictions[:, view], dim=1) * unit(targets[1 - view], dim=1)).sum(1)).mean()
            for view in range(V)
        )
        momentum = 1 - (1 - 0.5) * (math.cos(math.pi * number / steps) + 1) / 2  # Grill et al., 2020, section 3.2
        _plainly_stepped(made, expected, other, average, nn.Sequential(plain[0], plain[1]), momentum)
        assert value == pytest.approx(expected.item(), abs=1e-5)


def test_resolving_finds_a_supplier_for_each_argument_and_builds_nothing():
    inputs, suppliers = resolve(LossSignature.by(lw.BYOLLoss), [], None)
    names = {name: type(one).__name__ for name, one in suppliers.items()}
    assert names == {"predictions": "Predictor", "targets": "Momentum"}
    assert not any(list(one.parameters()) for one in inputs)


def test_labels_are_supplied_only_where_the_data_has_some():
    signature = LossSignature("Mine", frozenset({"queries"}), frozenset({"queue", "queue_labels"}))
    for kind, supplied in (("classes", {"queue", "queue_labels"}), (None, {"queue"})):
        _, suppliers = resolve(signature, [KeyQueue()], kind)
        assert suppliers.keys() == {"queries"} | supplied


def test_losses_that_are_named_in_place_of_one_without_an_input_take_the_datas_labels():
    for given, kind, able in (
        (KeyQueue, "label sets", "SupConLoss or MSCLoss or MulSupConLoss"),
        (KeyQueue, None, "InfoNCELoss"),
        (Classifier, None, "another loss"),
    ):
        with pytest.raises(ValueError, match=rf"\(--inputs \[\]\), or choose {able}$"):
            resolve(LossSignature.by(lw.NTXentLoss), [given()], kind)


def test_losses_and_inputs_say_which_batches_they_need():
    needed = {"PrototypicalLoss": "Episodes", "InfoPatchLoss": "Episodes", "SupConLoss": "Views"}
    for loss, batches in needed.items():
        assert read(["--loss", loss]).batches["class_path"] == f"likewise.data.{batches}"
    made, *_ = _inputs(lw.PrototypicalLoss())
    made.check_batches(Episodes(ways=2))
    with pytest.raises(ValueError, match="expected Episodes as batches for PrototypicalLoss, got Views: choose Ep"):
        made.check_batches(Views())

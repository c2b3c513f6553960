"""What each loss is given in a step, and what is refused; the arithmetic of momentum, queue and keys, step by step."""

import copy
import math
import re

import pytest
import torch
from torch import nn

import likewise as lw
from likewise.configuration import read
from likewise.data import Episodes, Samples, Views
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
SHAPES = {
    ("NTXentLoss", "classes"): {"": (B, V, E)},
    ("DCLLoss", None): {"": (B, V, E)},
    ("HardNegativeLoss", None): {"": (B, V, E)},
    ("InfoNCELoss", None): {"queries": (B, E), "keys": (B, E)},
    ("SigLIPLoss", None): {"queries": (B, E), "keys": (B, E)},
    ("ContrastiveMarginLoss", "classes"): {"embeddings": (B, V, E), "labels": (B,)},
    ("BatchTripletLoss", "classes"): {"embeddings": (B, V, E), "labels": (B,)},
    ("NPairsLoss", "classes"): {"anchors": (B, E), "positives": (B, E)},
    ("TripletLoss", "classes"): {"anchors": (B, E), "positives": (B, E), "negatives": (B, E)},
    ("SupConLoss", "classes"): {"embeddings": (B, V, E), "labels": (B,)},
    ("SupConLoss", "label sets"): {"embeddings": (B, V, E), "labels": (B, C)},
    ("RASCALLoss", "classes"): {"embeddings": (B, V, E), "labels": (B,), "sample_index": (B,)},
    ("KCLLoss", "classes"): {"embeddings": (B, V, E), "labels": (B,)},
    ("BCLLoss", "classes"): {"embeddings": (B, V, E), "labels": (B,), "prototypes": (C, E)},
    ("MultiSimilarityLoss", "classes"): {"embeddings": (B, V, E), "labels": (B,)},
    ("LiftedStructureLoss", "classes"): {"embeddings": (B, V, E), "labels": (B,)},
    **{
        (f"{name}Loss", "classes"): {"embeddings": (B, V, E), "labels": (B,), "prototypes": (C, E)}
        for name in ("ArcFace", "CosFace", "ProxyAnchor")
    },
    ("ProxyNCALoss", "classes"): {"embeddings": (B, V, E), "labels": (B,), "prototypes": (C, E)},
    ("PaCoLoss", "classes"): {"embeddings": (B, V, E), "labels": (B,), "class_logits": (B, V, C)},
    ("MulSupConLoss", "label sets"): {"queries": (B, V, E), "labels": (B, C)},
    ("MSCLoss", "label sets"): {
        "queries": (B, V, E),
        "labels": (B, C),
        "prototypes": (C, E),
        "queue": (0, E),
        "queue_labels": (0, C),
    },
    ("NWSLoss", "label sets"): {
        "queries": (B, E),
        "labels": (B, C),
        "prototypes": (C, E),
        "keys": (B, E),
        "key_labels": (B, C),
        "queue": (0, E),
        "queue_labels": (0, C),
    },
    ("BYOLLoss", None): {"predictions": (B, V, E), "targets": (B, V, E)},
    ("CrossEntropyLoss", "classes"): {"class_logits": (B, V, C), "labels": (B,)},
    ("BCELoss", "label sets"): {"class_logits": (B, V, C), "labels": (B, C)},
    ("AsymmetricLoss", "label sets"): {"class_logits": (B, V, C), "labels": (B, C)},
}


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_loss_is_offered_all_that_it_needs_and_has_a_gradient(name, kind):
    """A new loss with arguments that no input supplies fails here."""
    loss = getattr(lw, name)(**ARGUMENTS.get(name, {}))
    made, encoder, head = _inputs(loss, kind)
    slow = made.momentum.slow if made.momentum else None
    views, named = made.arguments(Step(_batch(kind), encoder, head, slow=slow, keyed=made.signature.keyed))
    value = loss(*views, **named)
    value.backward()
    assert value.isfinite()
    networks = (made, encoder, head) if reads_embeddings(type(loss)) else (made, encoder)
    assert all(of.grad is not None for network in networks for of in network.parameters())


def test_every_loss_is_in_the_table_of_arguments():
    assert {name for name, _ in SHAPES} == set(LOSSES) - EPISODES


@pytest.mark.parametrize(("name", "kind"), SHAPES)
def test_a_loss_gets_these_names_in_these_shapes_and_no_other(name, kind):
    loss = getattr(lw, name)(**ARGUMENTS.get(name, {}))
    given = [KeyQueue()] if name == "MSCLoss" else None
    views, named, *_ = _arguments(loss, kind, given)
    told = {"": tuple(views[0].shape)} if views else {}
    assert told | {name: tuple(value.shape) for name, value in named.items()} == SHAPES[name, kind]


def test_moco_has_keys_without_gradient_a_queue_that_fills_and_queries_of_the_first_view():
    loss = lw.InfoNCELoss()
    _, named, step, made = _arguments(loss, None, [Momentum(), KeyQueue(size=20)])
    assert {name: tuple(value.shape) for name, value in named.items()} == {
        "queries": (B, E),
        "keys": (B, E),
        "queue": (0, E),
    }
    assert named["queries"].requires_grad
    assert not named["keys"].requires_grad
    assert step.features.shape == (B, 1, 8)  # the encoder does not see the key's view
    for one in made.all:
        one.after_loss(step)
    assert torch.equal(made.by_class["KeyQueue"].queue(step), named["keys"])


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


@pytest.mark.parametrize("views", [1, 3])
def test_a_loss_of_pairs_refuses_any_number_of_views_but_two(views):
    with pytest.raises(ValueError, match=rf"two views for InfoNCELoss.*got {views}: set batches.views to 2"):
        _arguments(lw.InfoNCELoss(), views=views)


def test_negatives_are_of_another_class_and_follow_the_seed():
    torch.manual_seed(0)
    labels = torch.randint(0, 4, (200,))
    batch = {"inputs": torch.randn(200, 2, F), "sample_index": torch.arange(200), "labels": labels}
    encoder, head = _networks()
    others = Step(batch, encoder, head).others(1)
    assert (labels[others] != labels).all()
    assert len(others.unique()) > 100


@pytest.mark.parametrize("kind", ["label sets", None])
def test_negatives_are_another_sample_without_classes(kind):
    step = Step(_batch(kind), *_networks())
    for _ in range(20):
        assert (step.others(1) != torch.arange(B)).all()


def test_negatives_of_a_batch_of_one_class_are_another_sample():
    batch = {**_batch(), "labels": torch.zeros(B, dtype=torch.int64)}
    assert (Step(batch, *_networks()).others(1) != torch.arange(B)).all()


def test_negatives_are_sampled_uniformly_from_other_classes():
    labels = torch.tensor([0, 0, 0, 1, 2])
    batch = {"inputs": torch.zeros(5, 2, F), "sample_index": torch.arange(5), "labels": labels}
    step, counts = Step(batch, *_networks()), torch.zeros(5, 5)
    for _ in range(3000):
        counts[torch.arange(5), step.others(1)] += 1 / 3000
    allowed = (labels[:, None] != labels).float()
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


def test_an_argument_without_an_input_is_refused_with_the_inputs_that_have_it():
    with pytest.raises(ValueError, match="Weather needs, got none for weather: add Rain"):
        _inputs(Weather())


class Names(Loss):
    """A loss with an argument that no class supplies."""

    def forward(self, embeddings, phase_of_the_moon):
        return embeddings.mean() * phase_of_the_moon


REFUSED = [
    (Names(), "classes", None, "Names, which needs phase_of_the_moon: .* write a LossInput with that method"),
    (
        lw.ClipLoss(),
        None,
        None,
        "image_features .*: take InfoNCELoss or NTXentLoss for views, .*call ClipLoss in your own loop",
    ),
    (lw.PatchLoss(), "classes", None, "expected an encoder with feature maps, got MLP"),
    (
        lw.SupConLoss(),
        None,
        None,
        "classes or label sets as labels for SupConLoss, got no labels: --loss simclr trains without",
    ),
    (lw.MSCLoss(), "classes", None, "label sets as labels for MSCLoss, got classes: choose one of .*SupConLoss"),
    (lw.KCLLoss(), "label sets", None, "classes as labels for KCLLoss, got label sets: choose one of .*MulSupConLoss"),
    (lw.KCLLoss(), "classes", [KeyQueue()], "KCLLoss takes, got KeyQueue, which supplies queue and queue_labels"),
    (lw.KCLLoss(), "classes", [Momentum()], "KCLLoss takes, got Momentum"),
    (lw.MSCLoss(), "label sets", [Momentum()], "MSCLoss takes, got Momentum"),
    (lw.NTXentLoss(), None, [Predictor()], "NTXentLoss takes, got Predictor"),
    (
        lw.InfoNCELoss(),
        None,
        [KeyQueue(), KeyQueue()],
        "one input for queue, got KeyQueue and KeyQueue: leave one out",
    ),
    (Weather(), "classes", [Rain(), Rain()], "one input for weather, got Rain and Rain"),
]


@pytest.mark.parametrize(("loss", "kind", "given", "words"), REFUSED)
def test_inputs_and_labels_that_do_not_fit_are_refused_before_training(loss, kind, given, words):
    with pytest.raises(ValueError, match=words):
        _inputs(loss, kind, given)


def test_a_momentum_encoder_supplies_the_keys_of_a_queue():
    _, named, step, made = _arguments(lw.MSCLoss(), "label sets", [Momentum(), KeyQueue()])
    assert named["queries"].shape == (B, E)
    assert "keys" not in named
    assert step.encoded == 1
    assert made.momentum is not None


def test_recommended_inputs_are_made_unless_others_are_given():
    assert {type(of).__name__ for of in _inputs(lw.NWSLoss(torch.eye(C)), "label sets")[0].all} >= {
        "Momentum",
        "KeyQueue",
    }
    bare = _inputs(lw.NWSLoss(torch.eye(C)), "label sets", [])[0]
    assert {type(of).__name__ for of in bare.all} == {"LabelPrototypes", "BatchInputs", "ViewPairs"}


def test_byol_gets_its_required_inputs_even_if_none_is_given():
    made = _inputs(lw.BYOLLoss(), None, [])[0]
    assert {type(of).__name__ for of in made.all} == {"Predictor", "Momentum", "BatchInputs", "ViewPairs"}


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
    assert KeyQueue.names() == {"queue", "queue_labels"}


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
        step = Step(
            {"inputs": inputs, "sample_index": torch.arange(B)}, encoder, head, slow=made.momentum.slow, keyed=True
        )
        views, named = made.arguments(step)
        value = loss(*views, **named)
        for one in made.all:
            one.after_loss(step)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        for one in made.all:
            one.after_update(network)

        with torch.no_grad():
            keys = average(inputs[:, 1])
        unit = nn.functional.normalize
        queries = unit(plain(inputs[:, 0]))
        own = (queries * unit(keys)).sum(1, keepdim=True) / 0.2
        logits = torch.cat([own, queries @ unit(queue).T / 0.2], dim=1)
        expected = (torch.logsumexp(logits, dim=1) - own[:, 0]).mean()
        queue = torch.cat([queue, keys])[-size:]
        other.zero_grad()
        expected.backward()
        other.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), plain.parameters(), strict=True):
                slow.mul_(momentum).add_(fast, alpha=1 - momentum)
        assert value.item() == pytest.approx(expected.item(), abs=1e-5)
        mine = dict(made.momentum.slow.encoder.named_buffers())
        for name, tensor in average.named_parameters():
            assert torch.allclose(mine[name], tensor, atol=1e-6)
        assert torch.allclose(
            made.by_class["KeyQueue"].queue(step).sort(dim=0).values, queue.sort(dim=0).values, atol=1e-5
        )


def plain_nws(queries, labels, references, reference_labels, prototypes, similarity, own_keys, tau=0.1, beta=0.1):
    """The loss of NWS by its docstring, pair by pair: the first references are the queries' own keys."""
    unit = nn.functional.normalize
    q, v, p = unit(queries), unit(references), unit(prototypes)
    losses = []
    for i, y in enumerate(labels.tolist()):
        mine = [c for c, has in enumerate(y) if has]
        if not mine:
            continue
        rows = [[c for c, has in enumerate(row) if has] for row in reference_labels.tolist()]
        shares = {(r, c): 1 / len({*mine, *row}) for r, row in enumerate(rows) for c in row if c in mine}
        totals = {c: sum(of for (_, label), of in shares.items() if label == c) for c in mine}
        totals = {c: of + 1 - (1 / len(mine) if own_keys else 0) for c, of in totals.items()}
        pull = 0
        weight = 0
        for (r, c), share in shares.items():
            pull = pull + share / totals[c] * (q[i] @ v[r]) / tau
            weight += share / totals[c]
        for c in mine:
            pull = pull + (q[i] @ p[c]) / tau / totals[c]
            weight += 1 / totals[c]
        push = [((q[i] @ p[c]) / tau).exp() for c in range(len(y)) if c not in mine]
        for r, row in enumerate(rows):
            if not set(mine) & set(row):
                alike = sum(similarity[a][b] for a in mine for b in row) / max(1, len(mine) * len(row))
                push.append(beta * (1 - alike) * ((q[i] @ v[r]) / tau).exp())
        if push:
            losses.append((weight * sum(push).log() - pull) / len(mine))
    return sum(losses) / len(losses)


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
        step = Step(batch, encoder, head, slow=made.momentum.slow, keyed=made.signature.keyed)
        views, named = made.arguments(step)
        value = loss(*views, **named)
        for one in made.all:
            one.after_loss(step)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        for one in made.all:
            one.after_update(network)

        with torch.no_grad():
            keys = average(inputs[:, 1])
        references, of = torch.cat([keys, queue]), torch.cat([labels, queue_labels])
        queries = plain(inputs[:, 0])
        expected = plain_nws(queries, labels, references, of, prototypes, similarity.tolist(), own_keys=True)
        queue, queue_labels = torch.cat([queue, keys])[-size:], torch.cat([queue_labels, labels])[-size:]
        other.zero_grad()
        expected.backward()
        other.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), plain.parameters(), strict=True):
                slow.mul_(momentum).add_(fast, alpha=1 - momentum)
        assert value.item() == pytest.approx(expected.item(), abs=1e-4)
        mine = dict(made.momentum.slow.encoder.named_buffers())
        for name, tensor in average.named_parameters():
            assert torch.allclose(mine[name], tensor, atol=1e-5)
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
        step = Step(batch, encoder, head, slow=made.momentum.slow, keyed=made.signature.keyed)
        views, named = made.arguments(step)
        value = loss(*views, **named)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        for one in made.all:
            one.after_update(nn.Sequential(encoder, head))

        rows = torch.cat([inputs[:, 0], inputs[:, 1]])
        predictions = plain[2](plain[1](plain[0](torch.stack([inputs[:, 0], inputs[:, 1]], 1).flatten(0, 1))))
        predictions = predictions.unflatten(0, (B, V))
        with torch.no_grad():
            targets = average(rows).unflatten(0, (V, B))
        unit = nn.functional.normalize
        expected = sum(
            (2 - 2 * (unit(predictions[:, view], dim=1) * unit(targets[1 - view], dim=1)).sum(1)).mean()
            for view in range(V)
        )
        other.zero_grad()
        expected.backward()
        other.step()
        momentum = 1 - (1 - 0.5) * (math.cos(math.pi * number / steps) + 1) / 2  # Grill et al., 2020, section 3.2
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), nn.Sequential(plain[0], plain[1]).parameters(), strict=True):
                slow.mul_(momentum).add_(fast, alpha=1 - momentum)
        assert value.item() == pytest.approx(expected.item(), abs=1e-5)
        mine = dict(made.momentum.slow.encoder.named_buffers())
        for name, tensor in average.named_parameters():
            assert torch.allclose(mine[name], tensor, atol=1e-6)


def test_samples_give_the_number_of_labels():
    samples = Samples(torch.zeros(B, F), CLASSES, ("a", "b", "c"))
    assert samples.label_kind == "classes"
    assert samples.counts.tolist() == [4, 4, 4]


def test_resolving_finds_a_supplier_for_each_argument_and_builds_nothing():
    found = resolve(LossSignature.by(lw.BYOLLoss), [], None)
    assert {name: type(one).__name__ for name, one in found.suppliers.items()} == {
        "predictions": "Predictor",
        "targets": "Momentum",
    }
    assert not any(list(one.parameters()) for one in found.inputs)


@pytest.mark.parametrize(("kind", "supplied"), [("classes", {"queue", "queue_labels"}), (None, {"queue"})])
def test_labels_are_supplied_only_where_the_data_has_some(kind, supplied):
    signature = LossSignature("Mine", frozenset({"queries"}), frozenset({"queue", "queue_labels"}))
    found = resolve(signature, [KeyQueue()], kind).suppliers
    assert found.keys() == {"queries"} | supplied


FITTING = [
    (KeyQueue, "classes", "(--inputs []), or choose SupConLoss or BCLLoss or BatchTripletLoss"),
    (KeyQueue, "label sets", "(--inputs []), or choose SupConLoss or MSCLoss or MulSupConLoss"),
    (KeyQueue, None, "(--inputs []), or choose InfoNCELoss"),
    (Momentum, "classes", "(--inputs []), or choose SupConLoss or BatchTripletLoss or ContrastiveMarginLoss"),
    (Classifier, "label sets", "(--inputs []), or choose AsymmetricLoss or BCELoss"),
    (Classifier, None, "(--inputs []), or choose another loss"),
]


@pytest.mark.parametrize(("given", "kind", "remedy"), FITTING)
def test_losses_that_are_named_in_place_of_one_without_an_input_take_the_datas_labels(given, kind, remedy):
    with pytest.raises(ValueError, match=f"{re.escape(remedy)}$"):
        resolve(LossSignature.by(lw.NTXentLoss), [given()], kind)


def test_losses_and_inputs_say_which_batches_they_need():
    needed = {"PrototypicalLoss": "Episodes", "InfoPatchLoss": "Episodes", "SupConLoss": "Views"}
    for loss, batches in needed.items():
        assert read(["--loss", loss]).batches["class_path"] == f"likewise.data.{batches}"
    made, *_ = _inputs(lw.PrototypicalLoss())
    made.check_batches(Episodes(ways=2))
    with pytest.raises(ValueError, match="expected Episodes as batches for PrototypicalLoss, got Views: choose Ep"):
        made.check_batches(Views())

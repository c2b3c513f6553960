"""InfoNCE with hard negatives, ids and four directions, and CLIP's: loops, the original libraries, edges, errors."""

import pytest
import torch
from operator_checks import check_same
from torch import nn
from torch.nn.functional import normalize

import likewise as lw
from cases import in_pairs

DOUBLE = torch.float64
B, D = 6, 4
IDS = torch.tensor([3, 1, 3, 7, 1, 9])  # two pairs of queries with one document each


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, dtype=DOUBLE, generator=generator).requires_grad_()


def rows_of(queries, keys, negatives=None, queue=(), ids=None, negative_ids=None, queue_ids=None, tau=0.2):
    """Return each query's loss, one candidate at a time: own key, other keys, negatives of all queries, the queue."""
    losses = []
    for i, q in enumerate(normalize(queries, dim=1)):
        candidates = []
        if negatives is not None or not len(queue):
            candidates += [k for u, k in enumerate(keys) if u == i or ids is None or ids[u] != ids[i]]
        else:
            candidates.append(keys[i])
        for u, several in enumerate(() if negatives is None else negatives.view(B, -1, D)):
            of_them = None if negative_ids is None else negative_ids.view(B, -1)[u]
            candidates += [n for k, n in enumerate(several) if of_them is None or of_them[k] != ids[i]]
        candidates += [k for u, k in enumerate(queue) if queue_ids is None or queue_ids[u] != ids[i]]
        logits = torch.stack([q @ normalize(v, dim=0) for v in candidates]) / tau
        losses.append(logits.logsumexp(0) - q @ normalize(keys[i], dim=0) / tau)
    return torch.stack(losses)


GIVEN = {
    "keys": {},
    "a queue": {"queue": draw(5, D)},
    "a negative": {"negatives": draw(B, D, seed=2)},
    "three negatives": {"negatives": draw(B, 3, D)},
    "ids, negatives": {"ids": IDS, "negatives": draw(B, 2, D)},
    "all ids": {"ids": IDS, "negatives": draw(B, 2, D), "negative_ids": torch.arange(12).view(B, 2)},
    "negatives, queue": {"negatives": draw(B, D, seed=2), "queue": draw(5, D)},
    "queue, ids": {"queue": draw(5, D), "ids": IDS, "queue_ids": torch.tensor([3, 3, 7, 0, 2])},
    "everything": {
        "negatives": draw(B, D, seed=2),
        "queue": draw(5, D),
        "ids": IDS,
        "negative_ids": IDS.flip(0),
        "queue_ids": torch.tensor([3, 3, 7, 0, 2]),
    },
}


@pytest.mark.parametrize(
    ("case", "backend"), [(case, ("dense", "tiled")[number % 2]) for number, case in enumerate(GIVEN)]
)
def test_a_query_finds_its_key_among_all_candidates(case, backend):
    """Loss, rows and gradients are the loop's: what has the id of a query's own key does not push it."""
    queries, keys, given = draw(B, D), draw(B, D, seed=1), GIVEN[case]
    inputs = [queries, keys, *(of for of in given.values() if of.requires_grad)]
    expected = rows_of(queries, keys, **given)
    loss = lw.InfoNCELoss(temperature=0.2, backend=backend)
    check_same(loss(queries, keys, **given), expected.mean(), inputs)
    loss.reduction = "none"
    torch.testing.assert_close(loss(queries, keys, **given), expected)


FORMS = {
    False: {},
    True: {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"},
    "joint": {"directions": ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")},
}


@in_pairs(count=[0, 1, 5], symmetric=FORMS, dtype=[torch.float32, DOUBLE])
def test_the_same_as_sentence_transformers(symmetric, count, dtype):
    """Value and gradient of MultipleNegativesRankingLoss, in its three forms."""
    near = 1e-13 if dtype == DOUBLE else 2e-6
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses", reason="not installed")
    theirs = losses.MultipleNegativesRankingLoss(nn.Identity(), **FORMS[symmetric])
    rows = [draw(32, 16, seed=k).detach().to(dtype).requires_grad_() for k in range(2 + count)]
    given = {"negatives": torch.stack(rows[2:], dim=1)} if count else {}
    expected = theirs.compute_loss_from_embeddings(rows, None)
    loss = lw.InfoNCELoss(temperature=0.05, symmetric=symmetric)(*rows[:2], **given)
    torch.testing.assert_close(loss, expected, rtol=near, atol=0)
    for mine, other in zip(*(torch.autograd.grad(of, rows) for of in (loss, expected)), strict=True):
        assert (mine - other).norm() <= near * other.norm()


@pytest.mark.parametrize("as_dict", [False, True])
def test_clip_is_open_clips(as_dict):
    """Value and gradients, also of what the scale is the exponential of, with its call."""
    theirs = pytest.importorskip("open_clip.loss", reason="not installed").ClipLoss()
    images, texts = (normalize(draw(32, 16, seed=k), dim=1).detach().requires_grad_() for k in range(2))
    logarithm = torch.tensor(2.66, dtype=DOUBLE, requires_grad=True)
    called = {"image_features": images, "text_features": texts, "output_dict": as_dict}
    mine, expected = (loss(**called, logit_scale=logarithm.exp()) for loss in (lw.ClipLoss(), theirs))
    if as_dict:
        assert mine.keys() == expected.keys()
        mine, expected = mine["contrastive_loss"], expected["contrastive_loss"]
    check_same(mine, expected, (images, texts, logarithm))


@pytest.mark.parametrize(("shape", "dtype"), [((), DOUBLE), ((1,), torch.bfloat16)])
def test_clip_is_the_symmetric_form_with_a_scale(shape, dtype):
    """Features are used as they are; a scale in half precision is divided in float32."""
    images, texts, scale = draw(B, D), draw(B, D, seed=1), torch.full(shape, 3.015625, dtype=dtype, requires_grad=True)
    twin = lw.InfoNCELoss(temperature=1 / 3.015625, symmetric=True, normalize=False)
    near = {"rtol": 1e-7 if dtype == torch.bfloat16 else 1e-12, "atol": 0}
    loss = lw.ClipLoss()(images, texts, scale)
    torch.testing.assert_close(loss, twin(images, texts), **near)
    loss.backward()
    assert scale.grad.shape == shape


Q = torch.eye(4, 3)
BAD = {
    "width": ({"negatives": torch.ones(4, 2)}, r"\(4, 3\) or \(4, K, 3\).*got shape \(4, 2\)"),
    "count": ({"negatives": torch.ones(8, 3)}, r"got shape \(8, 3\): give each its own"),
    "K = 0": ({"negatives": torch.ones(4, 0, 3)}, r"got shape \(4, 0, 3\).*or leave them out"),
    "negative_ids alone": ({"negatives": Q, "negative_ids": IDS[:4]}, "expected ids with negative_ids, got none"),
    "no negatives": ({"ids": IDS[:4], "negative_ids": IDS[:4]}, "expected negatives with negative_ids, got none"),
    "no queue": ({"ids": IDS[:4], "queue_ids": IDS[:4]}, "expected queue with queue_ids, got none"),
    "ids of unused keys": ({"ids": IDS[:4], "queue": Q}, "expected queue_ids with ids, got none"),
    "few ids": ({"ids": IDS[:3]}, r"ids to be integers, one for each of the keys, shape \(4,\).*got.*\(3,\): number"),
    "no integers": ({"ids": torch.ones(4)}, "ids to be integers.*got torch.float32"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_go_together_is_told_with_the_remedy(case):
    given, message = BAD[case]
    with pytest.raises(ValueError, match=message) as told:
        lw.InfoNCELoss()(Q, Q, **given)
    assert "\n" not in str(told.value)


def test_other_mistakes_are_told():
    with pytest.raises(ValueError, match="symmetric to be one of True, False, joint, got 'both'"):
        lw.InfoNCELoss(symmetric="both")
    with pytest.raises(ValueError, match=r"no queue for a symmetric InfoNCELoss.*set symmetric=False"):
        lw.InfoNCELoss(symmetric="joint")(Q, Q, queue=Q)
    for scale, told in (
        (torch.tensor(-1.0), "logit_scale to be a positive number"),
        (3.0, "logit_scale to be a tensor"),
    ):
        with pytest.raises(ValueError, match=told):
            lw.ClipLoss()(Q, Q, scale)


AXES = torch.eye(3, dtype=DOUBLE)


@pytest.mark.parametrize("make", [lw.InfoNCELoss, lw.SigLIPLoss])
def test_a_guide_leaves_out_what_is_more_similar_than_the_own_key(make):
    """As likely a key of the query as its own: it pushes at a margin of 0, and not at one above; the own key stays."""
    queries, keys = draw(3, D), draw(3, D, seed=1)
    guide_queries = AXES[[0, 1, 2]] * 7
    guide_keys = torch.stack([AXES[0] + AXES[1], AXES[0] + AXES[1], AXES[1]]).to(torch.float16)
    # similarities to (1, 1, 0), (1, 1, 0), (0, 1, 0): query 1 finds its own key less similar than key 2
    guided = {"guide_queries": guide_queries, "guide_keys": guide_keys}
    for margin, left_out in ((0.0, {(1, 2)}), (0.01, {(0, 1), (1, 0), (1, 2)} | {(2, 0), (2, 1), (2, 2)})):
        loss = make(reduction="none", guide_margin=margin)(queries, keys, **guided)
        for i in range(3):
            kept = [u for u in range(3) if u == i or (i, u) not in left_out]
            alone = make(reduction="none")(queries[i].expand(len(kept), -1), keys[kept])
            torch.testing.assert_close(loss[i], alone[kept.index(i)])


def test_guides_are_constants():
    """A guide that trains gets no gradient."""
    guide = draw(B, 3).requires_grad_()
    lw.InfoNCELoss()(draw(B, D), draw(B, D, seed=1), guide_queries=guide, guide_keys=guide).backward()
    assert guide.grad is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"guide_queries": Q}, "keys with guide_keys, got guide_queries and keys without guide_keys: pass the guide's"),
        ({"guide_keys": Q}, "expected guide_queries and guide_keys together"),
        (
            {"guide_queries": Q, "guide_keys": Q, "guide_negatives": Q},
            "negatives with guide_negatives, got .* without negatives",
        ),
        ({"guide_queries": Q, "guide_keys": Q[:, :2]}, r"guide's width, one for each of the keys, shape \(4, 3\), got"),
        ({"guide_queries": Q[:3], "guide_keys": Q}, r"each of the queries, shape \(4, 3\), got shape \(3, 3\): encode"),
        ({"guide_queries": Q * torch.nan, "guide_keys": Q}, "guide_queries to be finite"),
    ],
)
@pytest.mark.parametrize("make", [lw.InfoNCELoss, lw.SigLIPLoss])
def test_a_guide_that_does_not_fit_is_told(make, given, told):
    with pytest.raises(ValueError, match=told) as error:
        make()(Q, Q, **given)
    assert "\n" not in str(error.value)


def test_equal_documents_of_siglip_neither_pull_nor_push():
    """Two queries of one document see its key once each, whatever the other key is."""
    q = torch.eye(2)
    loss = lw.SigLIPLoss(temperature=0.1, bias=-5.0)
    alone = loss(q[:1], q[:1])
    torch.testing.assert_close(loss(q[[0, 0]], q[[0, 0]], ids=torch.tensor([5, 5])), alone)
    assert loss(q[[0, 0]], q[[0, 0]]) > alone + 4
    for given, told in BAD.values():
        if not any("queue" in of for of in given):
            with pytest.raises(ValueError, match=told):
                loss(Q, Q, **given)

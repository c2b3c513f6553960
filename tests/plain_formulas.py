"""Every loss as its paper writes it: all pairs at once, in ordinary torch, in any dtype, differentiated by autograd.

Nothing here is of the library: masks and weights are built from labels alone, in float64, and similarities are one
product of normalised rows over τ. So a formula in float64 is an oracle for a loss, and in float32 what rounding costs
whoever writes the loss down. What a loss draws, ranks or weighs by its embeddings, and holds constant under
differentiation, is given to a formula with its batch, the same in every precision.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

Batch = dict[str, Tensor]


class Space:
    """Similarities at a temperature; each matrix of them is kept, so that its gradient can be asked for."""

    def __init__(self, temperature: Tensor, *, normalize: bool = True) -> None:
        self.temperature, self.normalize = temperature, normalize
        self.made: list[Tensor] = []

    def unit(self, rows: Tensor) -> Tensor:
        return functional.normalize(rows, dim=1) if self.normalize else rows

    def __call__(self, rows: Tensor, *others: Tensor) -> Tensor:
        """Return s of rows by others, (N, R), of others one after another; without others of the rows themselves."""
        z = self.unit(rows)
        v = torch.cat([self.unit(section) for section in others]) if others else z
        self.made.append(z @ v.T / self.temperature)
        return self.made[-1]

    def side_by_side(self, rows: Tensor, *others: Tensor) -> Tensor:
        """Return s of each row and the row of each of the others that stands beside it, (N, others)."""
        z = self.unit(rows)
        self.made.append(torch.stack([(z * self.unit(v)).sum(dim=1) for v in others], dim=1) / self.temperature)
        return self.made[-1]


Formula = Callable[[Batch, Space], Tensor]


def log_sum_exp(logits: Tensor) -> Tensor:
    """Return log Σ e^x of each row, from differences to its highest, as published code mostly has it.

    ``torch.logsumexp`` has the same value, but differentiates it as e^{x − log Σ e^x}: where that logarithm is 20, its
    last bit is 2e-6 of the softmax.
    """
    highest = logits.detach().amax(dim=1, keepdim=True)
    return (logits - highest).exp().sum(dim=1).log() + highest.squeeze(1)


def mean(losses: Tensor, count: Tensor | float | None = None) -> Tensor:
    """Return the sum of the active anchors' losses over their number."""
    return losses.sum() / max(float(len(losses) if count is None else count), 1)


def contrast(
    s: Tensor, pull: Tensor, push: Tensor, *, coefficient: Tensor | float | None = None, count: Tensor | None = None
) -> Tensor:
    """Return the mean over active anchors of c log Σ push e^s − Σ pull s; c is the row sum of pull unless it is given.

    An anchor is active where something pulls it and something pushes it.
    """
    active = (pull != 0).any(dim=1) & (push > 0).any(dim=1)
    s, pull, push = s[active], pull[active].to(s.dtype), push[active].to(s.dtype)
    logits = (s + push.where(push > 0, 1).log()).masked_fill(push == 0, -torch.inf)
    c = pull.sum(dim=1) if coefficient is None else coefficient
    return mean(c * log_sum_exp(logits) - (pull * s).sum(dim=1), count)


def average(pairs: Tensor) -> Tensor:
    """Return a set of pairs with rows divided by their counts, zeros where there is none."""
    return pairs.double() / pairs.sum(dim=1, keepdim=True).clamp(min=1)


def flat(views: Tensor) -> Tensor:
    """Return (B, V, …) with all first views first, (V·B, …); what has no views as it is."""
    return views if views.ndim == 2 else views.transpose(0, 1).flatten(0, 1)


def repeated(values: Tensor, rows: Tensor) -> Tensor:
    """Return what is of samples for each of their rows."""
    return torch.cat([values] * (len(rows) // len(values)))


def others_of(rows: Tensor) -> Tensor:
    """Return every pair but a row with itself."""
    return ~torch.eye(len(rows), dtype=torch.bool)


def same_sample(embeddings: Tensor) -> Tensor:
    sample = torch.arange(len(embeddings)).repeat(embeddings.shape[1])
    return sample[:, None] == sample


def alike(one: Tensor, other: Tensor) -> Tensor:
    """Return which pairs have one class, or share a label."""
    return one[:, None] == other if one.ndim == 1 else one.double() @ other.double().T > 0


def nt_xent(batch: Batch, space: Space) -> Tensor:
    rows = flat(batch["embeddings"])
    push = others_of(rows)
    return contrast(space(rows), average(same_sample(batch["embeddings"]) & push), push)


def info_nce(batch: Batch, space: Space) -> Tensor:
    s = space(batch["queries"], batch["keys"])
    return functional.cross_entropy(s, torch.arange(len(s)))


def info_nce_symmetric(batch: Batch, space: Space) -> Tensor:
    s, own = space(batch["queries"], batch["keys"]), torch.arange(len(batch["keys"]))
    return (functional.cross_entropy(s, own) + functional.cross_entropy(s.T, own)) / 2


def info_nce_queue(batch: Batch, space: Space) -> Tensor:
    positive = space.side_by_side(batch["queries"], batch["keys"])
    logits = torch.cat([positive, space(batch["queries"], batch["queue"])], dim=1)
    return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))


def apart(
    batch: Batch, to: str, guide: str, ids: Tensor | None, *, anchors: str = "queries", margin: float = 0.1
) -> Tensor:
    """Return which of others, "keys" or "negatives", have neither a query's id nor more of the guide's similarity.

    The guide compares ``anchors`` with the rows ``guide``, and its limit is that of a query and its own key.
    """
    queries, count = torch.arange(len(batch["keys"])), batch[to].flatten(0, -2).shape[0]
    found = torch.ones(len(queries), count, dtype=torch.bool)
    if ids is not None and "ids" in batch:
        found &= batch["ids"][:, None] != ids.flatten()
    if "guide_keys" in batch:
        units = {of: functional.normalize(batch[f"guide_{of}"].flatten(0, -2), dim=1) for of in {anchors, guide}}
        q, k = (functional.normalize(batch[f"guide_{of}"], dim=1) for of in ("queries", "keys"))
        found &= units[anchors] @ units[guide].T <= (q * k).sum(dim=1, keepdim=True) - margin
    return found


def info_nce_among(batch: Batch, space: Space, form: str = "one way") -> Tensor:
    """Return InfoNCE with hard negatives, ids and a guide; "joint" has four directions in one softmax."""
    queries, keys, negatives = batch["queries"], batch["keys"], batch["negatives"].flatten(0, -2)
    b, each, own = len(keys), len(negatives) // len(keys), torch.eye(len(keys), dtype=torch.bool)
    ids, of_negatives = batch.get("ids"), batch.get("negative_ids")
    near = own | apart(batch, "keys", "keys", ids)
    away = apart(batch, "negatives", "negatives", of_negatives)
    back = own | apart(batch, "keys", "queries", ids, anchors="keys")
    if form == "joint":
        of_others = torch.arange(b)[:, None] != torch.arange(b).repeat_interleave(each)
        forth_s = space(queries, keys, negatives, queries)
        back_s = space(keys, keys, negatives, queries)
        of_queries = ~own & apart(batch, "keys", "queries", ids)
        of_keys = ~own & apart(batch, "keys", "keys", ids, anchors="keys")
        of_negatives = of_others & apart(batch, "negatives", "negatives", of_negatives, anchors="keys")
        push = torch.cat([near, away, of_queries, of_keys, of_negatives, back], dim=1)
        s = torch.cat([forth_s, back_s], dim=1)
        return mean(log_sum_exp(s.masked_fill(~push, -torch.inf)) - s.diagonal()[:b])
    sections, push = [keys, negatives], [near, away]
    if "queue" in batch:
        sections, push = [*sections, batch["queue"]], [*push, batch["ids"][:, None] != batch["queue_ids"]]
    pull = torch.cat([own, *(torch.zeros_like(of) for of in push[1:])], dim=1)
    forth = contrast(space(queries, *sections), pull, torch.cat(push, dim=1))
    return (forth + contrast(space(keys, queries), own, back)) / 2 if form == "symmetric" else forth


def clip(batch: Batch, space: Space) -> Tensor:
    s = space(batch["image_features"], batch["text_features"]) * batch["logit_scale"]
    own = torch.arange(len(s))
    return (functional.cross_entropy(s, own) + functional.cross_entropy(s.T, own)) / 2


def sections_met(batch: Batch, rows: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return what rows meet: the batch or references, and a queue; its labels; and all pairs but a row with itself."""
    sections, labels, push = [rows], [repeated(batch["labels"], rows)], others_of(rows)
    if "references" in batch:
        sections, labels = [batch["references"]], [batch["reference_labels"]]
        push = torch.ones(len(rows), len(batch["references"]), dtype=torch.bool)
    if "queue" in batch:
        sections, labels = [*sections, batch["queue"]], [*labels, batch["queue_labels"]]
        push = torch.cat([push, torch.ones(len(rows), len(batch["queue"]), dtype=torch.bool)], dim=1)
    return sections, torch.cat(labels), push


def met(batch: Batch) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
    """Return rows, the sections that they meet; which pairs are of a class, and all but a row with itself."""
    rows = flat(batch["embeddings"])
    sections, labels, push = sections_met(batch, rows)
    return rows, sections, alike(repeated(batch["labels"], rows), labels), push


def sup_con_sets(batch: Batch, space: Space) -> tuple[Tensor, Tensor, Tensor]:
    """Return similarities, positives and who is in the denominator."""
    rows, sections, same, push = met(batch)
    return space(rows, *sections), same & push, push


def sup_con_out(batch: Batch, space: Space) -> Tensor:
    s, positives, push = sup_con_sets(batch, space)
    return contrast(s, average(positives), push)


def sup_con_in(batch: Batch, space: Space) -> Tensor:
    s, positives, push = sup_con_sets(batch, space)
    active = positives.any(dim=1)
    everyone, own = (log_sum_exp(s.masked_fill(~inside, -torch.inf)[active]) for inside in (push, positives))
    return mean(everyone - own + positives.sum(dim=1)[active].to(s.dtype).log())


def sup_con_pairs(batch: Batch, space: Space) -> Tensor:
    s, positives, push = sup_con_sets(batch, space)
    negatives = push & ~positives
    active = positives.any(dim=1) & negatives.any(dim=1)
    s, positives, negatives = s[active], positives[active], negatives[active]
    far = log_sum_exp(s.masked_fill(~negatives, -torch.inf))
    return mean(((torch.logaddexp(s, far[:, None]) - s) * positives).sum(dim=1), positives.sum())


def dcl(batch: Batch, space: Space) -> Tensor:
    rows, sample = flat(batch["embeddings"]), same_sample(batch["embeddings"])
    return contrast(space(rows), average(sample & others_of(rows)), ~sample)


def omega(embeddings: Tensor, sigma: float = 0.5) -> Tensor:
    """Return what DCLW weighs each anchor's positive by, constant under differentiation."""
    one, other = (functional.normalize(view, dim=1) for view in embeddings.detach().double().unbind(dim=1))
    agreement = (one * other).sum(dim=1) / sigma
    return (2 - len(agreement) * agreement.softmax(dim=0)).repeat(2)


def dcl_weighted(batch: Batch, space: Space) -> Tensor:
    rows, sample = flat(batch["embeddings"]), same_sample(batch["embeddings"])
    pull = (sample & others_of(rows)) * batch["omega"][:, None]
    return contrast(space(rows), pull, ~sample, coefficient=1.0)


def n_pairs(batch: Batch, space: Space) -> Tensor:
    s = space(batch["anchors"], batch["positives"])
    return functional.cross_entropy(s, torch.arange(len(s)))


def triplet(batch: Batch, space: Space, margin: float = 0.2) -> Tensor:
    positive, negative = space.side_by_side(batch["anchors"], batch["positives"], batch["negatives"]).unbind(dim=1)
    x = negative - positive + margin / space.temperature
    return mean(torch.logaddexp(x, torch.zeros_like(x)))


def triplet_by_distance(batch: Batch, space: Space, margin: float = 0.2) -> Tensor:
    a, p, n = (space.unit(batch[name]) for name in ("anchors", "positives", "negatives"))
    space.made.append(-torch.stack([(a - of).norm(dim=1) for of in (p, n)], dim=1) / space.temperature)
    x = space.made[-1][:, 1] - space.made[-1][:, 0] + margin / space.temperature
    return mean(torch.logaddexp(x, torch.zeros_like(x)))


def triplets_of_batch(
    batch: Batch, space: Space, mining: str, margin: float = 2.5, *, by_distance: bool = False
) -> Tensor:
    rows, sections, same, push = met(batch)
    if by_distance:
        others = torch.cat([space.unit(of) for of in sections])
        space.made.append(-(space.unit(rows)[:, None] - others).norm(dim=2) / space.temperature)
    else:
        space(rows, *sections)
    s = space.made[-1] * space.temperature
    losses, count = [s.sum() * 0], 0
    for a, of_row in enumerate(s):
        far = of_row[~same[a]]
        near = of_row[same[a] & push[a]]
        if not len(near) or not len(far):
            continue
        if mining.startswith("all"):
            kept = far < near[:, None] if mining == "all semi-hard" else torch.ones(1, 1, dtype=torch.bool)
            found = ((far - near[:, None] + margin).clamp(min=0) * kept).flatten()
            count += int((found > 0).sum())
        elif mining == "hard":
            found = (far.max() - near.min() + margin).clamp(min=0)[None]
            count += 1
        else:
            below = [far[far < positive] for positive in near]
            chosen = [one.max() if len(one) else far.min() for one in below]
            found = (torch.stack(chosen) - near + margin).clamp(min=0)
            count += len(near)
        losses.append(found.sum())
    return mean(torch.stack(losses), count)


def siglip(batch: Batch, space: Space, bias: float = -1.0) -> Tensor:
    sections = [batch[of].flatten(0, -2) for of in ("keys", "negatives") if of in batch]
    logits = space(batch["queries"], *sections) + bias
    own = torch.eye(*logits.shape, dtype=torch.bool)
    away = [apart(batch, "keys", "keys", batch.get("ids"))]
    if "negatives" in batch:
        away.append(apart(batch, "negatives", "negatives", batch.get("negative_ids")))
    signs = own.double() - (~own & torch.cat(away, dim=1)).double()  # 0: neither pulls nor pushes
    return mean((functional.softplus(-signs * logits, threshold=60) * (signs != 0)).sum(dim=1))


def contrastive_margin(
    batch: Batch, space: Space, positive: float = 1.5, negative: float = -0.2, power: int = 1
) -> Tensor:
    rows, sections, same, push = met(batch)
    s = space(rows, *sections) * space.temperature
    terms = ((positive - s).clamp(min=0) * (same & push), (s - negative).clamp(min=0) * ~same)
    return sum((mean(of**power, (of > 0).sum()) for of in terms), torch.zeros((), dtype=s.dtype))


def mul_sup_con(batch: Batch, space: Space) -> Tensor:
    rows = flat(batch["queries"])
    sections, labels, push = sections_met(batch, rows)
    y, of_all = repeated(batch["labels"], rows).double(), labels.double()
    counts = push.double() @ of_all  # how many references each anchor meets that carry a label
    anchors = y * (counts > 0)
    pull = ((anchors / counts.clamp(min=1)) @ of_all.T) * push
    return contrast(space(rows, *sections), pull, push, count=anchors.sum())


def shares(y: Tensor, others: Tensor, met: Tensor, prototype: Tensor, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return w_ir / |y_i| of instances and of prototypes: M_irc = α y_ic y_rc / |y_i ∪ y_r| over D_ic, summed over c.

    ``met`` says which instances are in D's sum, and ``prototype`` what the prototype adds to it.
    """
    common, sizes = y @ others.T, y.sum(dim=1, keepdim=True)
    union = (sizes + others.sum(dim=1) - common).clamp(min=1)
    d = y * ((alpha * met / union) @ others) + y * prototype
    worth = torch.where(y > 0, 1 / d, 0) / sizes.clamp(min=1)
    return alpha * (worth @ others.T) / union, worth


def msc(batch: Batch, space: Space, beta: float = 0.1) -> Tensor:
    rows = flat(batch["queries"])
    sections, labels, push = sections_met(batch, rows)
    y, of_all, push = repeated(batch["labels"], rows).double(), labels.double(), push.double()
    instances, prototypes = shares(y, of_all, push, torch.ones(1, 1))
    pull = torch.cat([instances * push, prototypes], dim=1)
    push = torch.cat([beta * push, torch.ones_like(prototypes)], dim=1)
    return contrast(space(rows, *sections, batch["prototypes"]), pull, push)


def alikeness(y: Tensor, others: Tensor, similarity: Tensor, *, most: bool) -> Tensor:
    """Return the mean of S over the pairs of labels of two sets, or the most of it."""
    if most:
        best = torch.where(y.bool()[:, :, None], similarity, 0).amax(dim=1)
        return torch.where(others.bool(), best[:, None], 0).amax(dim=2)
    return y @ similarity @ others.T / (y.sum(dim=1)[:, None] * others.sum(dim=1)).clamp(min=1)


def nws(
    batch: Batch,
    space: Space,
    *,
    most: bool = False,
    corrected: bool = True,
    with_positives: bool = False,
    alpha: float = 1.0,
    beta: float = 0.1,
) -> Tensor:
    rows = flat(batch["queries"])
    y, names = repeated(batch["labels"], rows).double(), [name for name in ("keys", "queue") if name in batch]
    of_all = torch.cat([batch["queue_labels" if name == "queue" else "key_labels"] for name in names]).double()
    own = alpha / y.sum(dim=1, keepdim=True).clamp(min=1) if corrected and "keys" in batch else torch.zeros(1, 1)
    pull = torch.cat(shares(y, of_all, torch.ones(len(y), len(of_all)).double(), 1 - own, alpha), dim=1)
    shared = y @ of_all.T > 0
    push = beta * (1 - alikeness(y, of_all, batch["label_similarity"], most=most)) * ~shared
    push = torch.cat(
        [push + shared if with_positives else push, torch.ones_like(y) if with_positives else 1 - y], dim=1
    )
    return contrast(space(rows, *(batch[name] for name in names), batch["prototypes"]), pull, push)


def ranks(similarities: Tensor, ranked: Tensor) -> Tensor:
    """Return the average rank of each among those of its row that are ranked, the most similar first, from 0."""
    one, other = similarities[:, :, None], similarities[:, None]
    above, ties = ((pairs & ranked[:, None]).sum(dim=2).double() for pairs in (one < other, one == other))
    return above + (ties - 1) / 2


def rank_agreement(batch: Batch, *, ranking: str = "agreement", of_samples: bool = False) -> Tensor:
    """Return W of RASCAL, (N, N), class by class, of a cache that holds every sample."""
    rows = functional.normalize(flat(batch["embeddings"].detach().double()), dim=1)
    classes, index = repeated(batch["labels"], rows), repeated(batch["sample_index"], rows)
    samples, sample = torch.unique(index, return_inverse=True)
    total = torch.zeros(len(samples), rows.shape[1], dtype=rows.dtype).index_add_(0, sample, rows)
    views = functional.normalize(total, dim=1)
    cached = batch["cache"].double()[samples]
    now, now_of_samples, before = rows @ rows.T, views @ views.T, cached @ cached.T
    weights = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for c in classes.unique():
        members = (classes == c).nonzero().squeeze(1)
        others, own = others_of(members), sample[members]
        if of_samples:  # the own one first, if another of its views is there
            every, place = torch.unique(own, return_inverse=True)
            beside = others.double() @ functional.one_hot(place).double()  # how many views of each
            ranked, first = beside > 0, own[:, None] == every
            one, other = (s[own][:, every].masked_fill(first, torch.inf) for s in (now_of_samples, before))
        else:
            ranked, one, other = others, now[members][:, members], before[own][:, own]
        one, other = ranks(one, ranked), ranks(other, ranked)
        moved = {"agreement": (one - other).abs(), "current": one}[ranking]
        w = (1 - moved / (ranked.sum(dim=1, keepdim=True) - 1).clamp(min=1)) * ranked
        w = torch.where(w.sum(dim=1, keepdim=True) == 0, ranked.double(), w)
        w = w / w.sum(dim=1, keepdim=True)
        weights[members[:, None], members] = (w / beside.clamp(min=1))[:, place] * others if of_samples else w
    return weights


def rascal(batch: Batch, space: Space) -> Tensor:
    rows = flat(batch["embeddings"])
    return contrast(space(rows), batch["rank_weights"], others_of(rows))


def patch(batch: Batch, space: Space) -> Tensor:
    means = batch["support_maps"].mean(dim=(-2, -1))
    losses = []
    for maps, centres, labels in zip(batch["query_maps"], means, batch["cell_labels"], strict=True):
        cells = maps.movedim(1, -1).flatten(0, 2)
        losses.append(functional.cross_entropy(space(cells, centres), labels.flatten(), reduction="none"))
    return mean(torch.cat(losses))


def prototypical(batch: Batch, space: Space) -> Tensor:
    losses = []
    for queries, means, labels in zip(
        *(batch[of] for of in ("query_features", "class_means", "query_labels")), strict=True
    ):
        away = space.unit(queries)[:, None] - space.unit(means)
        space.made.append(-away.square().sum(dim=2) / space.temperature)
        own = space.made[-1].gather(1, labels[:, None])
        others = log_sum_exp((space.made[-1] - own).scatter(1, labels[:, None], -torch.inf))
        losses.append(torch.logaddexp(others, torch.zeros_like(others)))
    return mean(torch.cat(losses))


def bcl(batch: Batch, space: Space) -> Tensor:
    rows, prototypes = flat(batch["embeddings"]), batch["prototypes"]
    classes = repeated(batch["labels"], rows)
    sections, of_queue = [rows, prototypes], batch.get("queue_labels", classes[:0])
    sections += [batch["queue"]] if "queue" in batch else []
    everyone = torch.cat([classes, torch.arange(len(prototypes)), of_queue])
    others = torch.ones(len(rows), len(prototypes) + len(of_queue), dtype=torch.bool)
    seen = torch.cat([others_of(rows), others], dim=1)
    members = seen.double() @ functional.one_hot(everyone).double()  # of each class, without the anchor
    push = seen / members[:, everyone].clamp(min=1)
    return contrast(space(rows, *sections), average((classes[:, None] == everyone) & seen), push)


def kcl(batch: Batch, space: Space) -> Tensor:
    rows = flat(batch["embeddings"])
    positives = same_sample(batch["embeddings"]) & others_of(rows)
    for drawn in batch["drawn"]:  # one row for each anchor, or none: as many as there are
        positives |= drawn[:, None] == torch.arange(len(rows))
    return contrast(space(rows), average(positives), others_of(rows))


def proxy_nca(batch: Batch, space: Space) -> Tensor:
    rows = flat(batch["embeddings"])
    return functional.cross_entropy(space(rows, batch["prototypes"]), repeated(batch["labels"], rows))


def paco(batch: Batch, space: Space, alpha: float = 0.05) -> Tensor:
    rows, logits = flat(batch["embeddings"]), flat(batch["class_logits"])
    classes = repeated(batch["labels"], rows)
    s, positives, push = sup_con_sets(batch, space)
    everything = torch.cat([s.masked_fill(~push, -torch.inf), logits], dim=1)
    own = logits.gather(1, classes[:, None]).squeeze(1)
    pulled = (own + alpha * (s * positives).sum(dim=1)) / (1 + alpha * positives.sum(dim=1).to(s.dtype))
    return mean(log_sum_exp(everything) - pulled)


def hard_negative(batch: Batch, space: Space, beta: float = 1.0, prior: float = 0.1) -> Tensor:
    rows, sample = flat(batch["embeddings"]), same_sample(batch["embeddings"])
    s = space(rows)
    highest = s.detach().amax(dim=1, keepdim=True)  # of which G/e^s is independent, and without which e^2s overflows
    e, bound = (s - highest).exp(), (-1 / space.temperature - highest.squeeze(1)).exp()
    positive = (e * (sample & others_of(rows))).sum(dim=1)
    near, weights = ((e**power * ~sample).sum(dim=1) for power in (beta + 1, beta))
    g = (~sample).sum(dim=1) * torch.maximum((near / weights - prior * positive) / (1 - prior), bound)
    return mean(-(positive / (positive + g)).log())


def one_more(exponents: Tensor, pairs: Tensor) -> Tensor:
    """Return log(1 + Σ e^x) over the pairs of each row."""
    rows = torch.cat([exponents.masked_fill(~pairs, -torch.inf), torch.zeros_like(exponents[:, :1])], dim=1)
    return log_sum_exp(rows)


def multi_similarity(
    batch: Batch,
    space: Space,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    threshold: float = 0.5,
    epsilon: float | None = None,
) -> Tensor:
    rows, sections, same, push = met(batch)
    s, positives, negatives = space(rows, *sections), same & push, ~same
    if epsilon is not None:  # which pairs are kept is constant, and so the same in every precision
        exact, others = (space.unit(of.detach().double()) for of in (rows, torch.cat(sections)))
        exact = exact @ others.T
        nearest = exact.masked_fill(~negatives, -torch.inf).amax(dim=1, keepdim=True)
        farthest = exact.masked_fill(~positives, torch.inf).amin(dim=1, keepdim=True)
        positives, negatives = positives & (exact < nearest + epsilon), negatives & (exact > farthest - epsilon)
    near, far = one_more(-alpha * (s - threshold), positives), one_more(beta * (s - threshold), negatives)
    return mean(near / alpha + far / beta)


def lifted_structure(batch: Batch, space: Space, margin: float = 0.5) -> Tensor:
    rows, sections, same, push = met(batch)
    s, positives = space(rows, *sections), same & push
    far = log_sum_exp(s.masked_fill(same, -torch.inf))
    of_others = [] if "references" in batch else [far]
    names = [name for name in ("reference_labels", "queue_labels") if name in batch]
    _, everyone, _ = sections_met(batch, rows)
    for name, section in zip(names, sections[-len(names) :] if names else [], strict=True):
        own = space(section, *sections).masked_fill(alike(batch[name], everyone), -torch.inf)
        of_others.append(log_sum_exp(own))
    j = torch.logaddexp(far[:, None], torch.cat(of_others)) - s + margin / space.temperature
    return mean((torch.relu(j).square() * positives).sum(dim=1) / 2, positives.sum())


def margin_softmax(batch: Batch, space: Space, target: Callable[[Tensor], Tensor]) -> Tensor:
    rows, prototypes = flat(batch["embeddings"]), batch["prototypes"]
    classes = repeated(batch["labels"], rows)
    own = target(space.side_by_side(rows, prototypes[classes]) * space.temperature) / space.temperature
    return functional.cross_entropy(space(rows, prototypes).scatter(1, classes[:, None], own), classes)


def arc_face(batch: Batch, space: Space, margin: float = 0.5) -> Tensor:
    def target(cosine: Tensor) -> Tensor:
        sine = (1 - cosine.square()).sqrt()
        moved = cosine * math.cos(margin) - sine * math.sin(margin)
        return moved.where(cosine > -math.cos(margin), cosine - margin * math.sin(margin))

    return margin_softmax(batch, space, target)


def cos_face(batch: Batch, space: Space, margin: float = 0.35) -> Tensor:
    return margin_softmax(batch, space, lambda cosine: cosine - margin)


def proxy_anchor(batch: Batch, space: Space, margin: float = 0.1) -> Tensor:
    rows, prototypes = flat(batch["embeddings"]), batch["prototypes"]
    classes, sections = repeated(batch["labels"], rows), [rows]
    if "queue" in batch:
        classes, sections = torch.cat([classes, batch["queue_labels"]]), [rows, batch["queue"]]
    own = alike(torch.arange(len(prototypes)), classes)
    s, shift = space(prototypes, *sections), margin / space.temperature
    near, far = one_more(shift - s, own), one_more(shift + s, ~own)
    return mean(near, own.any(dim=1).sum()) + mean(far)


def of_widths(formula: Formula, *widths: int) -> Formula:
    """Return the mean of a formula over the first so many features of all rows."""

    def cut(value: Tensor, width: int) -> Tensor:
        return value[..., :width] if value.is_floating_point() else value

    def mean_of_all(batch: Batch, space: Space) -> Tensor:
        each = [formula({name: cut(of, width) for name, of in batch.items()}, space) for width in widths]
        return torch.stack(each).mean()

    return mean_of_all


FORMULAS: dict[str, Formula] = {
    "NTXent": nt_xent,
    "NTXent, widths": of_widths(nt_xent, 5, 2),
    "NTXent, three views": nt_xent,
    "InfoNCE": info_nce,
    "InfoNCE, symmetric": info_nce_symmetric,
    "InfoNCE, queue": info_nce_queue,
    "InfoNCE, negatives": info_nce_among,
    "InfoNCE, ids": info_nce_among,
    "InfoNCE, symmetric, negatives": partial(info_nce_among, form="symmetric"),
    "InfoNCE, joint": partial(info_nce_among, form="joint"),
    "InfoNCE, guided, False": info_nce_among,
    "InfoNCE, guided, True": partial(info_nce_among, form="symmetric"),
    "InfoNCE, guided, joint": partial(info_nce_among, form="joint"),
    "InfoNCE, widths": of_widths(info_nce_among, 6, 3),
    "Clip": clip,
    "SupCon out": sup_con_out,
    "SupCon in": sup_con_in,
    "SupCon, one view": sup_con_out,
    "SupCon, label sets": sup_con_out,
    "SupCon, queue": sup_con_out,
    "SupCon in, keys and queue": sup_con_in,
    "SupCon pairs": sup_con_pairs,
    "SupCon pairs, keys and queue": sup_con_pairs,
    "DCL": dcl,
    "DCL, weighted": dcl_weighted,
    "NPairs": n_pairs,
    "Triplet": triplet,
    "BatchTriplet, all": partial(triplets_of_batch, mining="all"),
    "BatchTriplet, semi-hard": partial(triplets_of_batch, mining="semi-hard"),
    "BatchTriplet, hard": partial(triplets_of_batch, mining="hard"),
    "BatchTriplet, all, queue": partial(triplets_of_batch, mining="all"),
    "BatchTriplet, semi-hard, queue": partial(triplets_of_batch, mining="semi-hard"),
    "BatchTriplet, hard, queue": partial(triplets_of_batch, mining="hard"),
    "BatchTriplet, by distance": partial(triplets_of_batch, mining="all semi-hard", by_distance=True),
    "Triplet, by distance": triplet_by_distance,
    "SigLIP": siglip,
    "SigLIP, ids": siglip,
    "SigLIP, guided": siglip,
    "ContrastiveMargin": contrastive_margin,
    "ContrastiveMargin, squared": partial(contrastive_margin, positive=1.0, power=2),
    "ContrastiveMargin, queue": contrastive_margin,
    "ContrastiveMargin, keys and queue": partial(contrastive_margin, positive=1.0, power=2),
    "MulSupCon": mul_sup_con,
    "MulSupCon, references": mul_sup_con,
    "MulSupCon, queue": mul_sup_con,
    "MSC": msc,
    "MSC, views, queue": msc,
    "NWS mean": nws,
    "NWS max": partial(nws, most=True),
    "NWS, normalized": partial(nws, corrected=False),
    "NWS, queue": partial(nws, with_positives=True),
    "RASCAL": rascal,
    "RASCAL, sample": rascal,
    "RASCAL, current": rascal,
    "RASCAL, uniform": sup_con_out,
    "Patch": patch,
    "Prototypical": prototypical,
    "BCL": bcl,
    "BCL, queue": bcl,
    "KCL": kcl,
    "ProxyNCA": proxy_nca,
    "PaCo": paco,
    "PaCo, queue": paco,
    "HardNegative": hard_negative,
    "MultiSimilarity": multi_similarity,
    "MultiSimilarity, mined": partial(multi_similarity, epsilon=0.1),
    "MultiSimilarity, queue": multi_similarity,
    "MultiSimilarity, mined, keys and queue": partial(multi_similarity, epsilon=0.1),
    "LiftedStructure": lifted_structure,
    "LiftedStructure, queue": lifted_structure,
    "LiftedStructure, keys and queue": lifted_structure,
    "ArcFace": arc_face,
    "CosFace": cos_face,
    "ProxyAnchor": proxy_anchor,
    "ProxyAnchor, queue": proxy_anchor,
}
"""The formula of every row of the table of losses."""

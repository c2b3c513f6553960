"""What share of an anchor's pull and push prototypes have in NWS, by the labels alone: a reckoning, no training.

    python benchmarks/prototype_shares.py LABELS.npz [--batch 128] [--seed 0]

LABELS.npz has `labels` (N, L), and `test` (N,). Anchors are a batch of training samples; keys are their own, and the
queue holds other training samples. Weights of pull depend on labels alone, and are MSC's, too. Shares of push are those
at the start of a training, where all cosines are about equal: neither embeddings nor the temperature matter.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import likewise as lw

QUEUES = (0, 128, 512, 4096)
ALPHAS, BETAS = (1.0, 0.1, 0.01), (1.0, 0.1, 0.01)
Sets = NDArray[np.bool_]
Numbers = NDArray[np.float64]


def pulled(anchors: Sets, keys: Sets, queue: Sets, alpha: float) -> float:
    """Return the prototypes' share of the pull, averaged over anchors: 1/D over all weights."""
    shares: list[float] = []
    for row, own in enumerate(anchors):
        total = np.zeros(len(own))
        for references, mine in ((keys, row), (queue, -1)):
            for place, theirs in enumerate(references):
                if (both := own & theirs).any() and place != mine:
                    total += alpha * both / (own | theirs).sum()
        with_key = alpha * own / own.sum() if len(keys) else np.zeros(len(own))  # its own key has the same labels
        divisor = total + with_key + own * (1 - (alpha / own.sum() if len(keys) else 0))
        prototypes = (1 / divisor[own]).sum()
        instances = ((total + with_key)[own] / divisor[own]).sum()
        shares.append(prototypes / (prototypes + instances))
    return float(np.mean(shares))


def pushed(anchors: Sets, references: Sets, similarity: Numbers, beta: float) -> float:
    """Return the prototypes' share of NWS's push, averaged over anchors, all cosines being equal."""
    shares: list[float] = []
    for own in anchors:
        apart = references[~(references & own).any(axis=1)]
        means = np.array([similarity[np.ix_(own, theirs)].mean() if theirs.any() else 0.0 for theirs in apart])
        prototypes = float((~own).sum())
        shares.append(prototypes / (prototypes + beta * float((1 - means).sum())))
    return float(np.mean(shares))


def main() -> None:
    """Print a table: a row for each queue, with keys and without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with np.load(asked.labels) as arrays:
        train = arrays["labels"][~arrays["test"]].astype(bool)
    train = train[train.any(axis=1)]
    similarity = lw.label_pair_similarity(train, "npmi").double().numpy()
    chance = np.random.default_rng(asked.seed)
    anchors = train[chance.integers(len(train), size=asked.batch)]
    others = train[chance.integers(len(train), size=max(QUEUES))]
    of_pull = " | ".join(f"α = {alpha:g}" for alpha in ALPHAS)
    of_push = " | ".join(f"β = {beta:g}" for beta in BETAS)
    print(f"| keys | queue | pull, {of_pull} | push, {of_push} |")
    print("|---|" + "---|" * (1 + len(ALPHAS) + len(BETAS)))
    for keys in (anchors, anchors[:0]):
        for size in QUEUES:
            queue = others[:size]
            pull = [pulled(anchors, keys, queue, alpha) for alpha in ALPHAS]
            push = [pushed(anchors, np.concatenate([keys, queue]), similarity, beta) for beta in BETAS]
            cells = " | ".join(f"{100 * share:.1f}" for share in (*pull, *push))
            print(f"| {'yes' if len(keys) else 'no'} | {size:,} | {cells} |")


if __name__ == "__main__":
    main()

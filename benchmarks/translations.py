"""Two towers on sentence pairs, with our InfoNCE and with sentence-transformers' loss, in one plain loop, in turns.

    python benchmarks/translations.py FIRST SECOND [--batch 512 4096] [--seeds 3] [--epochs 8] [--threads 2]

FIRST and SECOND are files of sentences, line by line; the last thousand are held out. Both have the same tokens,
networks, batches and steps, and a fixed temperature of 0.05. Told are recall@1 of the held-out pairs in both
directions, processor seconds of the steps, and the largest memory of a single loss with its gradient.
"""

import argparse
import gzip
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from likewise import InfoNCELoss
from likewise.data import Texts
from likewise.models import BagOfTokens, Projected, ProjectionHead

TAU = 0.05
HELD_OUT = 1000
LossOf = Callable[[Tensor, Tensor], Tensor]


def lines_of(path: Path) -> list[str]:
    """Read the lines of a file."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [str(line).rstrip("\n") for line in file]


def losses() -> dict[str, LossOf]:
    """Return both losses."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss  # noqa: PLC0415

    theirs = MultipleNegativesRankingLoss(
        nn.Identity(),  # pyright: ignore[reportArgumentType] - embeddings are given
        scale=1 / TAU,
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )
    return {
        "likewise": InfoNCELoss(temperature=TAU, symmetric=True),
        "sentence-transformers": lambda q, k: theirs.compute_loss_from_embeddings([q, k], torch.empty(0)),
    }


def memory_of(loss: LossOf, batch: int) -> float:
    """Return the most MiB that a loss of ready embeddings and its gradient take beside the embeddings."""
    q, k = (torch.randn(batch, 256, requires_grad=True) for _ in range(2))
    loss(q, k).backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss(q, k).backward()
    held = most = 0
    for event in seen.profiler.kineto_results.events():  # pyright: ignore[reportOptionalMemberAccess]
        if event.name() == "[memory]":
            held += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            most = max(most, held)
    return most / 2**20


def trained(sides: list[list[str]], loss: LossOf, batch: int, epochs: int, seed: int) -> tuple[float, float, float]:
    """Train two bags of tokens; return recall@1 in both directions, and the processor seconds of the steps."""
    torch.manual_seed(seed)
    learned = [Texts(side[:-HELD_OUT]) for side in sides]
    towers = [Projected(BagOfTokens((), dropout=0.0), ProjectionHead(256, out_dim=256)) for _ in sides]
    for tower, texts in zip(towers, learned, strict=True):
        tower.observe(texts)
    tokens = [tower.tokenized(texts) for tower, texts in zip(towers, learned, strict=True)]
    both = nn.ModuleList(towers)
    optimizer = torch.optim.AdamW(both.parameters(), lr=0.004)
    steps = epochs * (len(learned[0]) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.004, total_steps=steps)
    started = time.process_time()
    for _ in range(epochs):
        order = torch.randperm(len(learned[0]))
        for rows in order[: len(order) // batch * batch].split(batch):
            q, k = (tower(of[rows]) for tower, of in zip(towers, tokens, strict=True))
            optimizer.zero_grad()
            loss(q, k).backward()
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - started
    held = [
        nn.functional.normalize(tower.encode(Texts(side[-HELD_OUT:])))
        for tower, side in zip(towers, sides, strict=True)
    ]
    right = torch.arange(HELD_OUT)
    alike = held[0] @ held[1].T
    there, back = (float((of.argmax(dim=1) == right).float().mean()) for of in (alike, alike.T))
    return there, back, seconds


def main() -> None:
    """Measure, and print a line for each loss and batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs=2, type=Path)
    parser.add_argument("--batch", nargs="+", type=int, default=[512, 4096])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    sides = [lines_of(path) for path in asked.files]
    for batch in asked.batch:
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in losses()}
        for seed in range(asked.seeds):
            for name, loss in losses().items():  # in turns
                found[name].append(trained(sides, loss, batch, asked.epochs, seed))
        for name, loss in losses().items():
            there, back, seconds = (statistics.mean(of) for of in zip(*found[name], strict=True))
            memory = memory_of(loss, batch)
            print(f"{batch:>5} {name:<22} {there:.1%} {back:.1%} {seconds:6.1f} s {memory:8.1f} MiB", flush=True)


if __name__ == "__main__":
    main()

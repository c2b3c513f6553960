"""A new loss in five lines: the pair weights of your own problem.

    pip install '.[train]'
    python pair_weights.py

Four in ten labels are an expert's; the others are guesses, and most of them are wrong. Each label has a trust, 1 or
0.1. In `trusted_sup_con` a positive attracts in proportion to its trust, and an anchor counts in proportion to its own;
with a trust of 1 for all it is SupCon.

Memory grows with the number of samples, not with its square: the weights are written as classes and one factor for
each row and column, so no matrix of all pairs is made. Weights that cannot be written like this, such as similarities
by another model, come as a matrix, `pairs.Explicit(matrix)`, as in `with_a_matrix`; then memory grows with the square.
Forward and backward with 8,192 samples take 39 MiB here, and 712 MiB with a matrix.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import likewise as lw
from likewise import pairs

EPOCHS, BATCH = 8, 200


def trusted_sup_con(z: Tensor, labels: Tensor, trust: Tensor, temperature: float = 0.1) -> Tensor:
    """Return SupCon's loss with trusted labels: z is (N, D), labels and trust are (N,)."""
    others = pairs.NotSelf(len(z))
    positives = pairs.SameClass(labels) & others
    pull = positives.scale(references=trust).mean_over_row().scale(anchors=trust)
    z = functional.normalize(z, dim=1)
    return lw.contrast(z, pull=pull, push=others, temperature=temperature, reduction="mean")


def with_a_matrix(z: Tensor, labels: Tensor, trust: Tensor, temperature: float = 0.1) -> Tensor:
    """Return the same loss, from a matrix of weights (N, N)."""
    weights = (labels[:, None] == labels) * trust
    weights.fill_diagonal_(0)
    weights *= trust[:, None] / weights.sum(dim=1, keepdim=True).clamp(min=1e-12)
    z = functional.normalize(z, dim=1)
    push = pairs.NotSelf(len(z))
    return lw.contrast(z, pull=pairs.Explicit(weights), push=push, temperature=temperature, reduction="mean")


def r_precision(vectors: Tensor, labels: Tensor) -> float:
    """Return how many of the R nearest samples have the same label, where R samples have it; the mean over samples."""
    units = functional.normalize(vectors)
    nearest = (units @ units.T).fill_diagonal_(-2).argsort(dim=1, descending=True)
    same = labels[nearest] == labels[:, None]
    counts = same[:, :-1].sum(dim=1)  # the last is the sample itself
    within = torch.arange(len(labels)) < counts[:, None]
    return float(((same & within).sum(dim=1) / counts).mean())


def trained(images: Tensor, labels: Tensor, trust: Tensor) -> nn.Module:
    """Return an encoder of images."""
    torch.manual_seed(0)
    encoder = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
    )
    head = nn.Linear(128, 64)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=2e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images)).split(BATCH):
            loss = trusted_sup_con(head(encoder(images[rows])), labels[rows], trust[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return encoder.eval()


def main() -> None:
    """Train with equal trust and with the right one, and compare."""
    torch.manual_seed(0)
    pixels, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels))
    images, labels = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8)[order] / 16, torch.from_numpy(classes)[order]
    train, test = images[:1200], images[1200:]
    by_expert = torch.rand(len(train)) < 0.4
    right = by_expert | (torch.rand(len(train)) < 0.2)
    given = torch.where(right, labels[:1200], torch.randint(10, (len(train),)))
    trust = torch.where(by_expert, 1.0, 0.1)

    z = torch.randn(len(train), 64)
    difference = trusted_sup_con(z, given, trust) - with_a_matrix(z, given, trust)
    print(f"difference to the same loss from a matrix: {abs(difference):.1g}")
    encoders = {"equal trust": trained(train, given, torch.ones(len(train))), "trust": trained(train, given, trust)}
    print(f"R-precision of pixels: {r_precision(test.flatten(1), labels[1200:]):.3f}")
    for name, encoder in encoders.items():
        with torch.no_grad():
            print(f"R-precision with {name}: {r_precision(encoder(test), labels[1200:]):.3f}")


if __name__ == "__main__":
    main()

"""MoCo by hand: a momentum encoder, a queue of its keys, and InfoNCE.

    pip install '.[train]'
    python moco.py

Digits stand at random places of a larger image, and their classes are not used in training. At the end we count how
often the nearest other image shows the same digit.

The same from the command line, on your data: `likewise train --loss InfoNCELoss --inputs Momentum --inputs+ KeyQueue`.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import likewise as lw
from likewise.data import Draw, RandomAffine
from likewise.memory import MomentumEncoder, Queue

EPOCHS, BATCH = 5, 128


def scattered_digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits at random places of images of 12 x 12 pixels, and their classes."""
    pixels, classes = load_digits(return_X_y=True)
    digits = torch.from_numpy(pixels).float().reshape(-1, 8, 8) / 16
    images = torch.zeros(len(digits), 1, 12, 12)
    for image, digit, (top, left) in zip(images, digits, torch.randint(5, (len(digits), 2)).tolist(), strict=True):
        image[0, top : top + 8, left : left + 8] = digit
    return images, torch.from_numpy(classes)


def agreement(vectors: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose nearest other sample, by cosine similarity, has the same label."""
    units = functional.normalize(vectors)
    similarities = (units @ units.T).fill_diagonal_(-1)
    return float((labels[similarities.argmax(dim=1)] == labels).float().mean())


def main() -> None:
    """Train, and compare features with pixels."""
    torch.manual_seed(0)
    images, labels = scattered_digits()
    encoder = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()),
    )
    model = nn.Sequential(encoder, nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    # keys are computed in train mode, with the statistics of their own batch: buffers="own"
    momentum_model = MomentumEncoder(model, momentum=0.97, buffers="own")  # 0.999 for long trainings
    queue = Queue(size=1024, feature_dim=64)
    loss_of = lw.InfoNCELoss(temperature=0.1)
    augment = RandomAffine(translate=0.17)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    step = 0
    for epoch in range(EPOCHS):
        losses: list[float] = []
        for rows in torch.randperm(len(images)).split(BATCH):
            step += 1
            views = augment(images[rows].repeat(2, 1, 1, 1), Draw(seed=step, rows=2 * len(rows)))
            for_queries, for_keys = views.chunk(2)
            queries, keys = model(for_queries), momentum_model(for_keys)  # keys have no gradient
            loss = loss_of(queries, keys, queue=queue.keys)  # an empty queue is fine: the first loss is 0
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            momentum_model.update(model)
            queue.enqueue(keys)
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: mean loss {sum(losses) / len(losses):.3f}")

    encoder.eval()
    with torch.no_grad():
        features = encoder(images)
    for name, vectors in {"pixels": images.flatten(1), "features": features}.items():
        print(f"nearest image by {name} shows the same digit: {agreement(vectors, labels):.3f}")


if __name__ == "__main__":
    main()

"""SupCon in a training loop of your own: plain PyTorch, a loss and an augmentation.

    pip install '.[train]'
    python training_loop.py

A small network learns scikit-learn's digits from two views of each image and its class. Then a nearest-neighbour
classifier reads held-out digits, once from their pixels and once from the features.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

import likewise as lw
from likewise.data import RandomAffine

EPOCHS, BATCH = 3, 128


def knn_accuracy(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Return how many test samples their five nearest training samples classify, by cosine similarity."""
    knn = KNeighborsClassifier(n_neighbors=5, metric="cosine").fit(train.numpy(), train_labels.numpy())
    return float(knn.score(test.numpy(), test_labels.numpy()))


def main() -> None:
    """Train, and compare features with pixels."""
    torch.manual_seed(0)
    pixels, classes = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(classes)
    train, test = train_test_split(torch.arange(len(images)), test_size=0.25, stratify=classes, random_state=0)

    encoder = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
    )
    head = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64))
    loss_of = lw.SupConLoss(temperature=0.1)  # it normalises the embeddings
    views = RandomAffine()  # any function that changes images will do, called twice
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=2e-3)

    for epoch in range(EPOCHS):
        losses: list[float] = []
        order = train[torch.randperm(len(train))]
        for rows in order.split(BATCH):
            both = views(images[rows])  # (B, 2, 1, 8, 8): each image changed twice
            embeddings = head(encoder(both.flatten(0, 1)))
            loss = loss_of(embeddings.unflatten(0, (len(rows), 2)), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: mean loss {sum(losses) / len(losses):.3f}")

    encoder.eval()  # the head has done its work
    with torch.no_grad():
        features = encoder(images)
    for name, vectors in {"pixels": images.flatten(1), "features": features}.items():
        accuracy = knn_accuracy(vectors[train], labels[train], vectors[test], labels[test])
        print(f"kNN accuracy of {name}: {accuracy:.3f}")


if __name__ == "__main__":
    main()

"""Images whose captions are often the same text: pushed apart, left out, or attracted, in one plain loop.

    python benchmarks/equal_captions.py CIFAR100.npz [--seeds 3] [--epochs 10] [--threads 2] [--output FILE.csv]

CIFAR100.npz has images (N, 32, 32, 3), labels (N,), test (N,) and classes (100,). Images are 16 × 16. A caption names
the class, the group of five classes, or both, so that 40,000 images have 180 captions. One class of each group is held
out: no caption has its name. Told is zero-shot accuracy on the test images, of the seen classes among these, and
of the unseen ones among these, by their names alone and with that of their group, which is known.
"""

import argparse
import csv
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from likewise import InfoNCELoss, SigLIPLoss, SupConLoss
from likewise.data import Texts
from likewise.models import BagOfTokens, Projected, ProjectionHead, ResNet

GROUPS = {  # A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; the last class is held out
    "aquatic mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food containers": "bottle bowl can cup plate",
    "fruit and vegetables": "apple mushroom orange pear sweet_pepper",
    "household electrical devices": "clock keyboard lamp telephone television",
    "household furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large carnivores": "bear leopard lion tiger wolf",
    "large man-made outdoor things": "bridge castle house road skyscraper",
    "large natural outdoor scenes": "cloud forest mountain plain sea",
    "large omnivores and herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium-sized mammals": "fox porcupine possum raccoon skunk",
    "non-insect invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles": "bicycle bus motorcycle pickup_truck train",
    "other vehicles": "lawn_mower rocket streetcar tank tractor",
}
TEMPLATES = ("a photo of a {name}", "a photo of a {name}, one of the {group}", "a photo of one of the {group}")
BATCH, TAU = 512, 0.07
LossOf = Callable[[Tensor, Tensor, Tensor], Tensor]


def losses(tau: nn.Parameter) -> dict[str, LossOf]:
    """Return what is compared, by name: a loss of image embeddings, caption embeddings and numbers of the captions."""
    info_nce = InfoNCELoss(temperature=tau, symmetric=True)
    sup_con = SupConLoss(temperature=tau)
    sig_lip = SigLIPLoss(temperature=tau, bias=nn.Parameter(torch.tensor(-6.0)))

    def attracted(images: Tensor, texts: Tensor, ids: Tensor) -> Tensor:
        there = sup_con(images, ids, references=texts, reference_labels=ids)
        return (there + sup_con(texts, ids, references=images, reference_labels=ids)) / 2

    return {
        "InfoNCE, equal captions pushed": lambda images, texts, _: info_nce(images, texts),
        "InfoNCE, equal captions left out": lambda images, texts, ids: info_nce(images, texts, ids=ids),
        "SupCon, equal captions attracted": attracted,
        "SigLIP, equal captions pushed": lambda images, texts, _: sig_lip(images, texts),
        "SigLIP, equal captions left out": lambda images, texts, ids: sig_lip(images, texts, ids=ids),
    }


def smaller(images: np.ndarray) -> Tensor:
    """Return images of 16 × 16, (N, 3, 16, 16), from 0 to 1."""
    return functional.avg_pool2d(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255, 2)


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images mirrored in half of the cases and shifted by up to two pixels."""
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    padded = functional.pad(torch.where(mirrored, images.flip(3), images), (2, 2, 2, 2))
    top, left = torch.randint(5, (2, len(images), 1), generator=generator)
    rows, columns = top + torch.arange(16), left + torch.arange(16)
    return padded.gather(2, rows[:, None, :, None].expand(-1, 3, -1, 20)).gather(
        3, columns[:, None, None, :].expand(-1, 3, 16, -1)
    )


def zero_shot(towers: tuple[Projected, Projected], images: Tensor, right: Tensor, names: list[str]) -> float:
    """Return the share of images whose own name is the nearest of these names."""
    image_tower, text_tower = towers
    with torch.no_grad():
        found = torch.cat([functional.normalize(image_tower(rows)) for rows in images.split(1000)])
    classes = functional.normalize(text_tower.encode(Texts(names)))
    return float(((found @ classes.T).argmax(dim=1) == right).float().mean())


def trained(data: dict[str, Tensor], which: str, epochs: int, seed: int) -> dict[str, float]:
    """Train two towers with one loss; return zero-shot accuracies."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    groups = {name: group for group, names in GROUPS.items() for name in names.split()}
    names = sorted(groups)
    held = torch.tensor([GROUPS[groups[name]].split()[-1] == name for name in names])

    def caption(name: str, template: int) -> str:
        return TEMPLATES[template].format(name=name.replace("_", " "), group=groups[name])

    learned = ~held[data["train_labels"]]
    images, labels = data["train_images"][learned], data["train_labels"][learned]
    templates = torch.randint(len(TEMPLATES), labels.shape, generator=generator)
    captions = [caption(names[int(label)], int(one)) for label, one in zip(labels, templates, strict=True)]
    numbers = {text: place for place, text in enumerate(dict.fromkeys(captions))}
    ids = torch.tensor([numbers[text] for text in captions])
    image_tower = Projected(ResNet((3, 16, 16), depth=8), ProjectionHead(64, out_dim=64))
    text_tower = Projected(BagOfTokens((), width=64, dropout=0.0), ProjectionHead(64, out_dim=64))
    image_tower.observe(images)
    text_tower.observe(Texts(captions))
    tokens = text_tower.tokenized(Texts(captions))
    towers, tau = nn.ModuleList([image_tower, text_tower]), nn.Parameter(torch.tensor(TAU))
    loss = losses(tau)[which]
    optimizer = torch.optim.AdamW([*towers.parameters(), tau], lr=0.005, weight_decay=0.01)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.005, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        for rows in order[: len(order) // BATCH * BATCH].split(BATCH):
            optimizer.zero_grad()
            loss(image_tower(shifted(images[rows], generator)), text_tower(tokens[rows]), ids[rows]).backward()
            optimizer.step()
            schedule.step()
    towers.eval()
    both = (image_tower, text_tower)
    scores: dict[str, float] = {}
    for kind, among in (("seen", ~held), ("unseen", held)):
        places = among.cumsum(0) - 1
        rows = among[data["test_labels"]]
        for told, template in (("", 0), (" with group", 1)):
            texts = [caption(name, template) for name, one in zip(names, among, strict=True) if one]
            right = places[data["test_labels"][rows]]
            scores[kind + told] = zero_shot(both, data["test_images"][rows], right, texts)
    of_groups = torch.tensor([list(GROUPS).index(groups[name]) for name in names])
    texts = [TEMPLATES[2].format(group=group) for group in GROUPS]
    rows = ~held[data["test_labels"]]
    scores["groups"] = zero_shot(both, data["test_images"][rows], of_groups[data["test_labels"][rows]], texts)
    return scores


def main() -> None:
    """Measure in turns, print a line for each run and each mean, and save runs as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("equal_captions.csv"))
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    read = np.load(asked.file)
    expected = sorted(name for names in GROUPS.values() for name in names.split())
    if list(read["classes"]) != expected:
        raise ValueError("expected the 100 classes of CIFAR-100 in the order of the alphabet")
    parts = {"train": ~read["test"], "test": read["test"]}
    data = {f"{part}_images": smaller(read["images"][rows]) for part, rows in parts.items()}
    data |= {f"{part}_labels": torch.from_numpy(read["labels"][rows]).long() for part, rows in parts.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in losses(nn.Parameter(torch.tensor(TAU)))}
    with asked.output.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["loss", "seed", "score", "value"])
        for seed in range(asked.seeds):
            for name, runs in found.items():  # in turns
                runs.append(trained(data, name, asked.epochs, seed))
                table.writerows([name, seed, score, value] for score, value in runs[-1].items())
                file.flush()
                print(seed, name, {score: round(100 * value, 1) for score, value in runs[-1].items()}, flush=True)
    for name, runs in found.items():
        means = {score: statistics.mean(100 * run[score] for run in runs) for score in runs[0]}
        print(name, {score: round(value, 1) for score, value in means.items()}, flush=True)


if __name__ == "__main__":
    main()

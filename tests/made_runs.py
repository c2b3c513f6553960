"""Runs that nothing has trained, with the features, scores and files of those that were; and what their pages hold."""

from html.parser import HTMLParser

import torch

from likewise.data import Ids, Parts, Samples
from likewise.evaluation import FeatureParts, Features, save_features
from likewise.runs import Run

PARTS = ("train", "validation", "test")


def made_run(folder, features=None, evaluations=(), *, beside=(), name="made", files=(), **facts):
    """Write a run of these facts, files and features, with evaluations of the features and of others beside them."""
    run = Run.create(folder, name)
    run.describe(facts)
    for file, content in dict(files).items():
        run.write(file, content.encode())
    for parts in () if features is None else (features, *beside):
        for evaluation in evaluations:
            run.add(evaluation(*parts))
    if features is not None:
        save_features(run.embeddings, features)
    return run


def thrice(features):
    """The same features as every part."""
    return FeatureParts(features, features, features)


def pictured(names, counts, shape, noise, ids=None):
    """Parts of pictures, in classes one after the other, and features that know the class up to some noise."""
    generator = torch.Generator().manual_seed(0)
    samples, features = [], []
    for place, (part, count) in enumerate(zip(PARTS, counts, strict=True)):
        labels, rows = torch.arange(count) % len(names), 10 * max(counts) * place + torch.arange(count).flip(0)
        pictures = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
        called = None if ids is None else Ids.of(f"{part}/{name}" for name in ids)
        samples.append(Samples(pictures, labels, names, rows=rows, ids=called))
        vectors = torch.nn.functional.one_hot(labels, max(4, len(names))).float()
        vectors += noise * torch.randn(vectors.shape, generator=generator)
        features.append(Features(vectors, labels, names, rows, part, ids=called))
    return Parts(*samples), FeatureParts(*features)


def blobs(count, part, seed, *, classes=3, spread=2.0, width=5):
    """Overlapping classes around the same centres."""
    centres = 2 * torch.randn(classes, width, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    vectors = centres[labels] + spread * torch.randn(count, width, generator=generator)
    return Features(vectors, labels, tuple(map(str, range(classes))), part=part)


class Elements(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.ids, self.within, self.text = [], [], [], [], [], text
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        self.within.append(tag)

    def handle_endtag(self, tag):
        while self.within and self.within.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" not in self.within and "style" not in self.within:
            self.words.append(data)

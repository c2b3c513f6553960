"""Sentences in three languages in one space: all translations of a sentence as positives, or pairs of languages.

    python benchmarks/three_languages.py FOLDER [--seeds 3] [--epochs 8] [--threads 2] [--output FILE.csv]

FOLDER is Multi30k's: train.en.gz, test_2016_flickr.en.gz and so on. One bag of tokens reads all languages, with one
tokenizer. A step has 510 texts: 170 sentences in three languages (SupCon, the number of the sentence is its class), or
255 in two (symmetric InfoNCE), of all pairs of languages in turn, or only of those with English. Told is recall@1 of
the translation among 1,000, in each direction. One token in ten is masked, as in the recipe.
"""

import argparse
import csv
import gzip
import itertools
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from likewise import InfoNCELoss, SupConLoss
from likewise.data import Texts
from likewise.models import BagOfTokens, Projected, ProjectionHead

LANGUAGES = ("en", "de", "fr")
TEXTS, TAU, RATE = 510, 0.05, 0.008
PAIRS = {
    "all translations, SupCon": (),
    "all pairs, InfoNCE": (("en", "de"), ("en", "fr"), ("de", "fr")),
    "pairs with English, InfoNCE": (("en", "de"), ("en", "fr")),
}


def read(folder: Path, part: str) -> dict[str, list[str]]:
    """Read the sentences of a part, by language."""
    found: dict[str, list[str]] = {}
    for language in LANGUAGES:
        with gzip.open(folder / f"{part}.{language}.gz", "rt", encoding="utf-8") as file:
            found[language] = [str(line).rstrip("\n") for line in file]
    return found


def masked(tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Return tokens, one in ten of them masked, but for padding, 0."""
    drawn = torch.rand(tokens.shape, generator=generator) < 0.1
    return torch.where(drawn & (tokens != 0), 1, tokens)


def trained(folder: Path, which: str, epochs: int, seed: int) -> dict[str, float]:
    """Train a tower in one way; return recall@1 in each direction, and the processor seconds of the steps."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    learned, test = read(folder, "train"), read(folder, "test_2016_flickr")
    tower = Projected(BagOfTokens((), vocabulary=16_000, width=256, dropout=0.0), ProjectionHead(256, out_dim=256))
    tower.observe(Texts(itertools.chain(*learned.values())))
    tokens = {language: tower.tokenized(Texts(texts)) for language, texts in learned.items()}
    count = len(learned["en"])
    steps = epochs * (count * len(LANGUAGES) // TEXTS)
    optimizer = torch.optim.AdamW(tower.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    info_nce, sup_con = InfoNCELoss(temperature=TAU, symmetric=True), SupConLoss(temperature=TAU)
    started = time.process_time()
    for step in range(steps):
        pairs = PAIRS[which]
        languages = pairs[step % len(pairs)] if pairs else LANGUAGES
        rows = torch.randint(count, (TEXTS // len(languages),), generator=generator).unique()
        seen = [tower(masked(tokens[language][rows], generator)) for language in languages]
        loss = info_nce(*seen) if pairs else sup_con(torch.cat(seen), rows.repeat(len(seen)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    seconds = time.process_time() - started
    tower.eval()
    held = {language: functional.normalize(tower.encode(Texts(texts))) for language, texts in test.items()}
    scores = {f"{first} to {second}": recall(held[first], held[second]) for first, second in ordered()}
    return {**scores, "mean": statistics.mean(scores.values()), "seconds": seconds}


def ordered() -> list[tuple[str, str]]:
    """Return the directions."""
    return list(itertools.permutations(LANGUAGES, 2))


def recall(queries: Tensor, keys: Tensor) -> float:
    """Return the share of queries whose own key is the nearest."""
    return float(((queries @ keys.T).argmax(dim=1) == torch.arange(len(queries))).float().mean())


def main() -> None:
    """Measure in turns, print a line for each run and each mean, and save runs as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("three_languages.csv"))
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in PAIRS}
    with asked.output.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["setting", "seed", "score", "value"])
        for seed in range(asked.seeds):
            for name, runs in found.items():  # in turns
                runs.append(trained(asked.folder, name, asked.epochs, seed))
                table.writerows([name, seed, score, value] for score, value in runs[-1].items())
                file.flush()
                print(seed, name, {score: round(value, 3) for score, value in runs[-1].items()}, flush=True)
    for name, runs in found.items():
        print(name, {score: round(statistics.mean(run[score] for run in runs), 3) for score in runs[0]}, flush=True)


if __name__ == "__main__":
    main()

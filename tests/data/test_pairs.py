"""Pairs of two kinds: their items, groups and parts against plain loops; images, lists, negatives; what is refused."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from likewise.data import Pairs, Stratified

rng = np.random.default_rng(0)


def jsonl(file, rows):
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(file)


def bound(*kinds):
    """Number what shares a value of some kind, directly or through others: labels spread until none changes."""
    number, changed = list(range(len(kinds[0]))), True
    while changed:
        changed = False
        for values in kinds:
            for a in range(len(number)):
                for b in range(len(number)):
                    if values[a] == values[b] and number[b] > number[a]:
                        number[b], changed = number[a], True
    return number


def same_partition(found, expected):
    """Tell whether two numberings tell the same apart."""
    pairs = set(zip(map(int, found), expected, strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def some_pairs(count=40, firsts=25, seconds=25, seed=0):
    """Return questions and answers, of which some occur again."""
    draw = np.random.default_rng(seed)
    of = zip(draw.integers(firsts, size=count), draw.integers(seconds, size=count), strict=True)
    return [(f"why {first}?", f"since {second}.") for first, second in of]


# Tables


def test_two_columns_of_texts_are_read_with_their_items_and_groups(tmp_path):
    asked = some_pairs()
    file = jsonl(tmp_path / "asked.jsonl", [{"q": q, "other": 1, "a": a} for q, a in asked])
    samples = Pairs(file, first="q", second="a").load()
    assert list(zip(samples.inputs.strings, samples.counterparts.inputs.strings, strict=True)) == asked
    assert same_partition(samples.items, [q for q, _ in asked])
    assert same_partition(samples.counterparts.items, [a for _, a in asked])
    assert same_partition(samples.groups, bound(*zip(*asked, strict=True)))
    assert list(samples.ids) == list(samples.counterparts.ids) == [str(row) for row in range(len(asked))]
    assert samples.labels is samples.parts is samples.negatives is None


# Files


def test_files_of_lines_belong_together_row_by_row(tmp_path):
    """Of any suffix, or compressed; odd bytes, line ends and separators within a line do not shift the rows."""
    (tmp_path / "train.en").write_bytes(
        b"\xef\xbb\xbfone\r\ntwo\x85\xe2\x80\xa8still two\n\nfour \xff\nfive\rstill five\nsix"
    )
    with gzip.open(tmp_path / "train.de.gz", "wb") as file:
        file.write("eins\nzwei\ndrei\nvier\nfünf\n   \n".encode())
    with pytest.warns(UserWarning, match=r"left out 2 of 6 pairs of .*train\.en and .*, where a side .*: rows 2, 5$"):
        samples = Pairs(first=str(tmp_path / "train.en"), second=str(tmp_path / "train.de.gz")).load()
    assert samples.inputs.strings == ["one", "two\ufffd\u2028still two", "four \ufffd", "five\rstill five"]
    assert samples.counterparts.inputs.strings == ["eins", "zwei", "vier", "fünf"]
    assert list(samples.ids) == list(samples.counterparts.ids) == ["0", "1", "3", "4"]


def test_real_translations_are_split_so_that_none_is_in_two_parts(real_data):
    files = {
        name: str(real_data / "multi30k" / f"train.{tongue}.gz") for name, tongue in (("first", "en"), ("second", "de"))
    }
    samples = Pairs(**files).load()
    lines = [gzip.decompress(Path(file).read_bytes()).decode().split("\n") for file in files.values()]
    assert [samples.inputs.strings, samples.counterparts.inputs.strings] == [list(of[:-1]) for of in lines]
    assert len(samples) == 29_000
    assert len(samples.items.unique()) == len(set(lines[0][:-1]))
    parts = Stratified()(samples)
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [19575, 2175, 7250]
    assert_apart(parts)


# Parts


def assert_apart(parts):
    """Assert that no text is in two parts, on either side."""
    three = (parts.train, parts.validation, parts.test)
    for side in ([part.inputs.strings for part in three], [part.counterparts.inputs.strings for part in three]):
        assert sum(len(set(of)) for of in side) == len(set().union(*side))


@pytest.mark.parametrize("seed", range(3))
def test_groups_never_straddle_parts(tmp_path, seed):
    asked = some_pairs(200, 180, 180, seed)
    samples = Pairs(jsonl(tmp_path / "a.jsonl", [{"q": q, "a": a} for q, a in asked]), first="q", second="a").load()
    parts = Stratified(seed=seed)(samples)
    sizes = [len(part) for part in (parts.train, parts.validation, parts.test)]
    assert sum(sizes) == 200
    assert 45 <= sizes[2] <= 50
    assert 10 <= sizes[1] <= 15
    assert_apart(parts)
    whole = parts.refitted().train
    assert same_partition(whole.items, whole.inputs.strings)
    assert same_partition(whole.counterparts.items, whole.counterparts.inputs.strings)
    assert len(whole) == len(whole.groups) == sizes[0] + sizes[1]

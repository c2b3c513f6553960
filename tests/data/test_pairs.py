"""Pairs of two kinds: their items, groups and parts against plain loops; images, lists, negatives; what is refused."""

import gzip
import json
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from photos import encoded
from PIL import Image

from likewise.data import ByClass, Negatives, Pairs, Parts, Samples, Stratified, Views, fingerprint, never_apart
from likewise.evaluation import Features

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


def shown(inputs):
    """Return each input as bytes: a text's, an image's, a vector's."""
    return [row.numpy().tobytes() for row in inputs[torch.arange(len(inputs))]]


def photos(folder, count=3, side=8):
    """Write photos, and return their pixels by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = {f"{number}.png": rng.integers(0, 256, (side, side, 3), dtype=np.uint8) for number in range(count)}
    for name, own in pixels.items():
        Image.fromarray(own).save(folder / name)
    return {name: np.moveaxis(own, -1, 0).tobytes() for name, own in pixels.items()}


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


@pytest.mark.parametrize("memory", [2.0, 0.0], ids=["in memory", "when asked for"])
@pytest.mark.parametrize("listed", [True, False], ids=["lists", "rows"])
def test_an_image_with_five_captions_is_five_pairs_of_one_item(tmp_path, memory, listed):
    pixels = photos(tmp_path / "photos")
    said = {f"photos/{name}": [f"{name}, said {n} times" for n in range(5)] for name in pixels}
    rows = [{"caption": captions, "file": path} for path, captions in said.items()]
    flat = [{"caption": caption, "file": path} for path, captions in said.items() for caption in captions]
    file = jsonl(tmp_path / "captions.jsonl", rows if listed else flat)
    samples = Pairs(file, first="file", second="caption", memory=memory).load()
    assert samples.counterparts.inputs.strings == [row["caption"] for row in flat]
    assert shown(samples.inputs) == [pixels[Path(row["file"]).name] for row in flat]
    assert isinstance(samples.inputs, torch.Tensor) == (memory > 0)
    assert samples.items.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert same_partition(samples.groups, samples.items.tolist())
    assert samples.counterparts.items.unique().tolist() == list(range(15))
    assert list(samples.ids)[4:6] == ["photos/0.png (5)", "photos/1.png"]
    assert list(samples.counterparts.ids)[4:6] == (["0 (5)", "1"] if listed else ["4", "5"])
    assert samples.preprocessing.shape == (3, 8, 8)
    assert samples.found.kinds == {"RGB": 3}
    streamed = Pairs(file, first="file", second="caption", memory=memory).stream().inputs
    assert not isinstance(streamed, torch.Tensor)
    assert shown(streamed) == shown(samples.inputs)
    assert samples.counterparts.preprocessing is samples.counterparts.found is None
    if not listed:
        turned = Pairs(file, first="caption", second="file").load()
        assert list(turned.counterparts.ids)[4:6] == ["photos/0.png (5)", "photos/1.png"]
        assert shown(turned.counterparts.inputs) == shown(samples.inputs)


def test_many_captions_of_an_image_do_not_copy_it_beyond_the_memory_that_is_given(tmp_path):
    photos(tmp_path, 2, 32)
    rows = [{"file": f"{n}.png", "caption": [f"{n}: {k}" for k in range(50)]} for n in range(2)]
    file = jsonl(tmp_path / "captions.jsonl", rows)
    few, many = (Pairs(file, first="file", second="caption", memory=memory).load() for memory in (1e-5, 1.0))
    assert not isinstance(few.inputs, torch.Tensor)
    assert shown(few.inputs) == shown(many.inputs)
    assert shown(few[torch.tensor([70, 3])].inputs) == [shown(many.inputs)[row] for row in (70, 3)]


def test_images_as_bytes_are_equal_by_their_content_on_both_sides_of_one_size_each(tmp_path):
    sketches = [rng.integers(0, 256, (4, 6), dtype=np.uint8) for _ in range(3)]
    colours = [rng.integers(0, 256, (9, 9, 3), dtype=np.uint8) for _ in range(4)]
    order = [(0, [0]), (1, [1, 2]), (0, [3]), (2, [])]
    table = {"sketch": [encoded(sketches[place]) for place, _ in order]}
    table["photo"] = [[encoded(colours[one]) for one in of] for _, of in order]
    datasets.Dataset.from_dict(table).to_parquet(tmp_path / "drawn.parquet")
    with pytest.warns(UserWarning, match=r"left out 1 of 5 pairs of .*drawn\.parquet, .*: rows 3$"):
        samples = Pairs(str(tmp_path / "drawn.parquet"), first="sketch", second="photo").load()
    assert samples.items.tolist() == [0, 1, 1, 0]
    assert samples.groups.tolist() == [0, 1, 1, 0]
    assert shown(samples.inputs) == [sketches[place].tobytes() for place in (0, 1, 1, 0)]
    assert shown(samples.counterparts.inputs) == [np.moveaxis(one, -1, 0).tobytes() for one in colours]
    assert (samples.preprocessing.shape, samples.counterparts.preprocessing.shape) == ((1, 4, 6), (3, 9, 9))
    assert list(samples.ids) == ["0", "1", "1 (2)", "2"]
    with pytest.warns(UserWarning, match="left out"):
        both = Pairs(str(tmp_path / "drawn.parquet"), first="sketch", second="photo", size=5).load()
    assert (both.preprocessing.shape, both.counterparts.preprocessing.shape) == ((1, 5, 5), (3, 5, 5))


def test_images_of_a_folder_with_metadata_and_of_a_saved_set_are_pairs_too(tmp_path):
    pixels = photos(tmp_path / "photos", 4)
    rows = [{"file_name": name, "caption": f"{name}, a photo"} for name in pixels]
    jsonl(tmp_path / "photos" / "metadata.jsonl", rows)
    samples = Pairs(str(tmp_path / "photos"), first="image", second="caption").load()
    assert dict(zip(samples.counterparts.inputs.strings, shown(samples.inputs), strict=True)) == {
        f"{name}, a photo": own for name, own in pixels.items()
    }
    assert sorted(samples.ids) == sorted(pixels)
    files = [str(tmp_path / "photos" / name) for name in pixels]
    columns = {"text": ["a", "b"], "seen": [files[:2], files[2:]]}
    features = datasets.Features({"text": datasets.Value("string"), "seen": datasets.Sequence(datasets.Image())})
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(tmp_path / "saved"))
    saved = Pairs(str(tmp_path / "saved"), first="text", second="seen").load()
    assert saved.inputs.strings == ["a", "a", "b", "b"]
    assert shown(saved.counterparts.inputs) == list(pixels.values())


@pytest.mark.parametrize("streams", [False, True], ids=["load", "stream"])
def test_numbers_are_vectors_equal_by_their_values(tmp_path, streams):
    """A list is one vector, a list of lists several; pairs with a missing or infinite number are left out."""
    rows = [
        {"user": [0.0, 1.0], "event": [[1.0], [2.0]], "price": 1.5},
        {"user": [-0.0, 1.0], "event": [[3.0]], "price": 2.5},
        {"user": [2.0, 1.0], "event": [[2.0]], "price": None},
        {"user": None, "event": [[2.0]], "price": 1.5},
        {"user": [2.0, 1.0], "event": None, "price": 1.5},
    ]
    file = jsonl(tmp_path / "events.jsonl", rows)
    source = Pairs(file, first="user", second="event")
    with pytest.warns(UserWarning, match=r"left out 2 of 6 pairs .*: rows 3, 4$"):
        samples = source.stream() if streams else source.load()
    every = torch.arange(4)
    assert samples.inputs[every].tolist() == [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [2.0, 1.0]]
    assert samples.counterparts.inputs[every].flatten().tolist() == [1.0, 2.0, 3.0, 2.0]
    assert samples.items.tolist() == [0, 0, 0, 1]
    assert samples.counterparts.items.tolist() == [0, 1, 2, 1]
    assert samples.groups.tolist() == [0, 0, 0, 0]
    with pytest.warns(UserWarning, match=r"left out 2 of 5 pairs .*: rows 2, 3$"):
        single = Pairs(file, first="user", second="price").load()
    assert single.counterparts.inputs.tolist() == [[1.5], [2.5], [1.5]]
    assert single.counterparts.items.tolist() == [0, 1, 0]


def test_what_is_missing_or_unreadable_on_a_side_takes_its_pair_along(tmp_path):
    pixels = photos(tmp_path, 4)
    (tmp_path / "1.png").write_bytes(b"no image")
    rows = [
        {"file": "0.png", "caption": ["a", " ", "b"]},
        {"file": "1.png", "caption": ["c", "d"]},
        {"file": None, "caption": ["e"]},
        {"file": "2.png", "caption": []},
        {"file": "gone.png", "caption": ["f"]},
        {"file": "3.png", "caption": ["g", None]},
    ]
    file = jsonl(tmp_path / "captions.jsonl", rows)
    with pytest.warns(UserWarning, match="left out") as told:
        samples = Pairs(file, first="file", second="caption").load()
    gone = "/gone.png (which does not exist: check the path, in a table relative to its folder)"
    assert [str(one.message).replace(str(tmp_path), "") for one in told] == [
        f"left out 2 of 5 images, which cannot be read: {gone}, /1.png",
        "left out 6 of 9 pairs of /captions.jsonl, where a side is missing or cannot be read: rows 0, 1, 2, 3, 4",
    ]
    assert samples.counterparts.inputs.strings == ["a", "b", "g"]
    assert shown(samples.inputs) == [pixels[name] for name in ("0.png", "0.png", "3.png")]
    assert list(samples.ids) == ["0.png", "0.png (2)", "3.png"]


def test_images_read_on_demand_tell_their_pairs_when_they_cannot_be_decoded(tmp_path):
    photos(tmp_path, 4, 64)
    broken = (tmp_path / "2.png").read_bytes()
    (tmp_path / "2.png").write_bytes(broken[: len(broken) // 2])
    rows = [{"text": f"{n}", "file": f"{n}.png"} for n in range(4)]
    samples = Pairs(jsonl(tmp_path / "a.jsonl", rows), first="text", second="file", size=32, memory=0).load()
    with pytest.warns(UserWarning, match="black where it is indexed"):
        samples.counterparts.inputs[torch.arange(4)]
    assert samples.readable().inputs.strings == ["0", "1", "3"]


def test_negatives_are_a_pool_with_the_places_of_each_pair(tmp_path):
    rows = [
        {"q": "one", "a": ["1", "uno"], "wrong": ["2", "3", "4"]},
        {"q": "two", "a": ["2"], "wrong": []},
        {"q": "three", "a": ["3"], "wrong": None},
        {"q": "four", "a": [], "wrong": ["9"]},
        {"q": "five", "a": ["5"], "wrong": ["four", "", "1"]},
    ]
    file = jsonl(tmp_path / "asked.jsonl", rows)
    with pytest.warns(UserWarning, match="left out 1 of 6 pairs"):
        samples = Pairs(file, first="q", second="a", negatives="wrong").load()
    pool, places = samples.negatives.inputs.strings, samples.negatives.places
    assert [[pool[place] for place in of if place >= 0] for of in places.tolist()] == [
        ["2", "3", "4"], ["2", "3", "4"], [], [], ["four", "1"],
    ]  # fmt: skip
    assert samples.negatives.places.shape == (5, 3)
    texts = samples.counterparts.inputs.strings
    for text, item in zip(pool, samples.negatives.items.tolist(), strict=True):
        same = samples.counterparts.items == item
        assert same.tolist() == [one == text for one in texts]
    assert len(set(samples.negatives.items.tolist())) == len(pool)
    few = samples[torch.tensor([4, 0])].negatives.places
    assert [[pool[place] for place in of if place >= 0] for of in few] == [["four", "1"], ["2", "3", "4"]]


@pytest.mark.parametrize("given", [False, True], ids=["cut", "given parts"])
def test_hard_negatives_are_no_counterparts_of_a_later_part(tmp_path, given):
    draw = np.random.default_rng(1)
    rows = [
        {"q": f"why {n}?", "a": f"since {n}.", "wrong": [f"since {m}." for m in draw.integers(90, size=n % 4)]}
        for n in range(60)
    ]
    if given:
        for name, of in {"train": rows[:40], "validation": rows[40:48], "test": rows[48:]}.items():
            jsonl(tmp_path / f"{name}.jsonl", of)
    file = str(tmp_path) if given else jsonl(tmp_path / "asked.jsonl", rows)
    samples = Pairs(file, first="q", second="a", negatives="wrong").load()
    with pytest.warns(UserWarning, match=r"left out \d+ of \d+ hard negatives of ") as told:
        parts = Stratified()(samples)
    wrong, later, words = {row["q"]: row["wrong"] for row in rows}, set(), []
    for name, part in (("test", parts.test), ("validation", parts.validation), ("train", parts.train)):
        every = [[text for text in wrong[question] if text not in later] for question in part.inputs.strings]
        pool = part.negatives.inputs.strings
        assert [[pool[place] for place in of if place >= 0] for of in part.negatives.places] == every
        total = sum(len(wrong[question]) for question in part.inputs.strings)
        if lost := total - sum(map(len, every)):
            words.insert(0, f"left out {lost} of {total} hard negatives of {name} pairs")
        later |= set(part.counterparts.inputs.strings)
    assert [str(one.message).partition(",")[0] for one in told] == words
    whole, kept = parts.refitted().train, set()
    for question, of in zip(whole.inputs.strings, whole.negatives.places, strict=True):
        assert {pool[place] for place in of if place >= 0} <= set(wrong[question])
        kept |= {pool[place] for place in of if place >= 0}
    assert kept
    assert words


def test_one_negative_a_row_may_be_an_image(tmp_path):
    pixels = photos(tmp_path, 5)
    (tmp_path / "4.png").write_text("no image")
    rows = [{"text": f"{n}", "file": f"{n}.png", "wrong": f"{n + 2}.png"} for n in range(3)]
    with pytest.warns(UserWarning, match=r"left out 1 of 5 images, .*4\.png"):
        samples = Pairs(jsonl(tmp_path / "a.jsonl", rows), first="text", second="file", negatives="wrong").load()
    assert shown(samples.counterparts.inputs) == [pixels[f"{n}.png"] for n in range(3)]
    assert shown(samples.negatives.inputs) == [pixels[f"{n}.png"] for n in (2, 3)]
    assert samples.negatives.places.tolist() == [[0], [1], [-1]]
    assert samples.negatives.items[0] == samples.counterparts.items[2]


def test_labels_and_groups_are_columns_of_the_rows_that_are_left(tmp_path):
    rows = [
        {"q": "a", "a": ["1", "2"], "topic": "sea", "document": "x", "topics": ["sea", "air"]},
        {"q": "", "a": ["3"], "topic": "air", "document": "y", "topics": []},
        {"q": "b", "a": ["4"], "topic": "sky", "document": "y", "topics": ["sky"]},
        {"q": "a", "a": ["5"], "topic": "air", "document": "z", "topics": ["air"]},
    ]
    file = jsonl(tmp_path / "asked.jsonl", rows)
    with pytest.warns(UserWarning, match="left out 1 of 5"):
        samples = Pairs(file, first="q", second="a", label="topic", group="document").load()
    assert [samples.names[label] for label in samples.labels] == ["sea", "sea", "sky", "air"]
    assert same_partition(samples.groups, ["x", "x", "y", "z"])
    with pytest.warns(UserWarning, match="left out 1 of 5"):
        sets = Pairs(file, first="q", second="a", label="topics").load()
    assert sets.labels.int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert same_partition(sets.groups, [0, 0, 1, 0])


# Files


def test_files_of_lines_belong_together_row_by_row(tmp_path):
    """Of any suffix, or compressed; line ends and separators within a line do not shift the rows."""
    odd = b"\xef\xbb\xbfone\r\ntwo\xe2\x80\xa8still two\n\nfour \xff\nfive\rstill five\nsix"
    (tmp_path / "train.en").write_bytes(odd.replace(b"\xff", b""))
    with gzip.open(tmp_path / "train.de.gz", "wb") as file:
        file.write("eins\nzwei\ndrei\nvier\nfünf\n   \n".encode())
    with pytest.warns(UserWarning, match=r"left out 2 of 6 pairs of .*train\.en and .*, where a side .*: rows 2, 5$"):
        samples = Pairs(first=str(tmp_path / "train.en"), second=str(tmp_path / "train.de.gz")).load()
    assert samples.inputs.strings == ["one", "two\u2028still two", "four ", "five\rstill five"]
    assert samples.counterparts.inputs.strings == ["eins", "zwei", "vier", "fünf"]
    assert list(samples.ids) == list(samples.counterparts.ids) == ["0", "1", "3", "4"]
    (tmp_path / "train.en").write_bytes(odd)
    with pytest.raises(ValueError, match=r"utf-8 in .*train\.en, got the byte 0xFF in line 4: name its encoding"):
        Pairs(first=str(tmp_path / "train.en"), second=str(tmp_path / "train.de.gz")).load()


def test_real_translations_are_split_so_that_none_is_in_two_parts(real_data):
    files = {side: str(real_data / "multi30k" / f"train.{of}.gz") for side, of in (("first", "en"), ("second", "de"))}
    samples = Pairs(**files).load()
    lines = [gzip.decompress(Path(file).read_bytes()).decode().split("\n") for file in files.values()]
    assert [samples.inputs.strings, samples.counterparts.inputs.strings] == [list(of[:-1]) for of in lines]
    assert len(samples) == 29_000
    assert len(samples.items.unique()) == len(set(lines[0][:-1]))
    with pytest.warns(UserWarning, match=r"left out 2 of 29,000 train pairs of .*multi30k, which share"):
        given = Stratified()(Pairs(str(real_data / "multi30k"), first="en", second="de").load())
    assert [len(part) for part in (given.train, given.validation, given.test)] == [28998, 1014, 1000]
    held = [set(part.inputs.strings) for part in (given.validation, given.test)]
    held += [set(part.counterparts.inputs.strings) for part in (given.validation, given.test)]
    assert sum(any(text in of for of in held for text in pair) for pair in zip(*lines, strict=True)) == 2
    assert_apart(given)
    parts = Stratified()(samples)
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [19575, 2175, 7250]
    assert_apart(parts)


def test_files_of_lines_named_after_parts_and_sides_are_parts(tmp_path):
    for name, lines in {"train": "1\n2\n3\n\n4\n", "val": "5\n6\n", "test_2016": "7\n", "test_2017": "2\n9"}.items():
        (tmp_path / f"{name}.en").write_text(lines)
        with gzip.open(tmp_path / f"{name}.fr.gz", "wt") as file:
            file.write(lines.replace("4", "8").replace("7", "8"))
    (tmp_path / "README.md").write_text("Numbers.")
    with pytest.warns(UserWarning, match="left out") as told:
        samples = Pairs(str(tmp_path), first="en", second="fr").load()
    assert samples.inputs.strings == ["1", "3", "5", "6", "7", "2", "9"]
    assert samples.counterparts.inputs.strings == ["1", "3", "5", "6", "8", "2", "9"]
    assert samples.parts.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert list(samples.ids) == ["train/0", "train/2", "val/0", "val/1", "test_2016/0", "test_2017/0", "test_2017/1"]
    assert [str(one.message).partition(" of ")[0] for one in told] == ["left out 1", "left out 2"]
    (tmp_path / "val.fr.gz").unlink()
    refused(r"expected val\.fr in .*, got .*: add it", path=str(tmp_path), first="en", second="fr")


@pytest.mark.parametrize("streams", [False, True], ids=["load", "stream"])
def test_arrays_belong_together_with_lines_or_other_arrays_row_by_row(tmp_path, streams):
    vectors = np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0], [-0.0, 1.0]])
    np.save(tmp_path / "v.npy", vectors)
    np.savez(tmp_path / "i.npz", images=np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3))
    (tmp_path / "l.txt").write_text("a\nb\nc\nd\n")
    sides = [str(tmp_path / name) for name in ("v.npy", "i.npz", "l.txt")]
    source = Pairs(first=sides[0], second=sides[2])
    samples = source.stream() if streams else source.load()
    assert samples.inputs[torch.arange(4)].tolist() == vectors.tolist()
    assert samples.items.tolist() == samples.groups.tolist() == [0, 1, 0, 1]
    assert samples.counterparts.inputs.strings == ["a", "b", "c", "d"]
    drawn = Pairs(first=sides[1], second=sides[0]).load()
    assert drawn.inputs.flatten().tolist() == list(range(24))
    assert drawn.preprocessing.shape == (1, 2, 3)
    assert drawn.counterparts.items.tolist() == [0, 1, 0, 1]


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


def test_a_large_group_is_trained_on_and_every_part_has_a_group():
    for sizes in ([90, 4, 3, 2, 1], [1, 1, 98], [30, 30, 40], [5] * 20):
        groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        parts = Stratified(test=0.25, validation=0.2)(Samples(torch.zeros(100, 1), groups=groups))
        found = [set(part.groups.tolist()) for part in (parts.train, parts.validation, parts.test)]
        assert sum(map(len, found)) == len(set().union(*found)) == len(sizes)
        assert all(found)
        assert int(torch.tensor(sizes).argmax()) in found[0]
    for count in (1, 2):
        groups = torch.arange(8) % count
        with pytest.raises(ValueError, match=rf"at least 3 groups .*, got {count} of 8 .* in --data\.group"):
            Stratified()(Samples(torch.zeros(8, 1), groups=groups))


def given_parts(folder, **parts):
    folder.mkdir()
    for name, rows in parts.items():
        jsonl(folder / f"{name}.jsonl", [{"q": q, "a": a, **({"d": d[0]} if d else {})} for q, a, *d in rows])
    return str(folder)


def test_given_parts_keep_no_pair_that_is_bound_to_a_later_part(tmp_path):
    folder = given_parts(
        tmp_path / "asked",
        train=[("a", "1"), ("a", "2"), ("b", "3"), ("c", "4"), ("d", "5")],
        validation=[("e", "4"), ("f", "9"), ("g", "7")],
        test=[("h", "2"), ("i", "9")],
    )
    with pytest.warns(UserWarning, match=r"left out 3 of 5 train pairs and 1 of 3 validation pairs of .*asked, which"):
        parts = Stratified()(Pairs(folder, first="q", second="a").load())
    three = (parts.train, parts.validation, parts.test)
    assert [part.inputs.strings for part in three] == [["b", "d"], ["e", "g"], ["h", "i"]]
    assert list(parts.train.ids) == ["train/2", "train/4"]


@pytest.mark.parametrize("sizes", [[5] * 12, [40, 3, 2, 2, 1], [30, 30]])
def test_fewer_pairs_are_whole_groups_where_some_fit(sizes):
    """Of samples by their groups, and of features by what is equal on a side."""
    groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    groups = groups[torch.randperm(len(groups))]
    captions = torch.arange(len(groups)).where(torch.rand(len(groups)) < 0.8, -1 - groups)  # some share one, too
    captions = captions.unique(return_inverse=True)[1]
    blank = torch.zeros(len(groups), 1)
    samples = Samples(blank, items=groups, groups=groups, counterparts=Samples(blank, items=captions))
    features = Features(blank, None, items=groups, counterparts=Features(blank, None, items=captions))
    for some in (samples.fewer(20, 1), features.fewer(20, 1)):
        left = torch.bincount(some.items, minlength=len(sizes)).tolist()
        fits = [size for size in sizes if size <= 20]
        assert sum(left) == min(20, sum(fits) or 20)
        assert not fits or all(count in (0, size) for count, size in zip(left, sizes, strict=True))


def test_where_every_training_pair_is_bound_a_column_of_groups_is_asked_for(tmp_path):
    parts = {"train": [("a", "yes", 1), ("b", "yes", 2), ("c", "yes", 2)], "test": [("d", "yes", 3), ("e", "no", 4)]}
    folder = given_parts(tmp_path / "asked", **parts)
    with pytest.raises(ValueError, match=r"got none of 3: name a column .* in --data\.group$"):
        Pairs(folder, first="q", second="a").load()
    samples = Pairs(folder, first="q", second="a", group="d").load()
    assert samples.parts.tolist() == [0, 0, 0, 2, 2]
    # a hard negative that training pairs have too is kept
    rows = [{"q": f"is it {n}?", "a": ("yes", "no")[n % 2], "wrong": ("no", "yes")[n % 2], "d": n} for n in range(20)]
    file = jsonl(tmp_path / "one.jsonl", rows)
    parts = Stratified()(Pairs(file, first="q", second="a", negatives="wrong", group="d").load())
    assert bool((parts.train.negatives.places >= 0).all())


def test_what_is_never_apart_is_bound_by_items_labels_or_groups():
    count = 60
    first, second = torch.randint(50, (count,)), torch.randint(55, (count,))
    groups, labels = torch.randint(200, (count,)), torch.randint(300, (count,))
    names = tuple(map(str, range(300)))
    blank = torch.zeros(count, 1)
    pairs = Samples(blank, labels, names, items=first, groups=groups, counterparts=Samples(blank, items=second))
    each = [kind.tolist() for kind in (first, second, labels, groups)]
    assert same_partition(never_apart(pairs), bound(*each))
    alone = Samples(torch.zeros(count, 1), counterparts=Samples(torch.zeros(count, 1)))
    assert never_apart(alone).tolist() == list(range(count))
    sets = torch.nn.functional.one_hot(torch.randint(90, (count, 2)), 90).bool().any(1)
    sets[:5] = False
    several = Samples(torch.zeros(count, 1), sets, tuple(map(str, range(90))))
    pair_of = [[bool((a & b).any()) or i == j for j, b in enumerate(sets)] for i, a in enumerate(sets)]
    reach = torch.tensor(pair_of)
    for _ in range(count):
        reach = (reach.float() @ reach.float()) > 0
    assert same_partition(never_apart(several), reach.int().argmax(dim=1).tolist())


def test_a_fingerprint_knows_both_sides_and_the_negatives():
    def parts(swapped=False, wrong=0, items=None):
        counterparts = Samples(torch.eye(6)[[1, 0, 2, 3, 4, 5]] if swapped else torch.eye(6))
        negatives = Negatives(torch.eye(6), torch.arange(6), torch.full((6, 1), wrong))
        samples = Samples(torch.eye(6), counterparts=counterparts, negatives=negatives, items=items)
        return Parts(*(samples[torch.arange(start, start + 2)] for start in (0, 2, 4)))

    assert fingerprint(parts()) == fingerprint(parts())
    others = parts(swapped=True), parts(wrong=1), parts(items=torch.arange(6) // 2)
    assert len({fingerprint(of) for of in (parts(), *others)}) == 4


def test_images_of_either_side_are_cropped_and_nothing_else():
    """A description may name their colours, or say left and right."""
    images, batches = torch.rand(8, 3, 16, 16), Views(batch_size=4)
    batches.fit(Samples(images, counterparts=Samples(images)))
    chosen = batches.augmentation, batches.counterpart_augmentation
    assert [type(augmentation).__name__ for augmentation in chosen] == ["RandomResizedCrop"] * 2


# What is refused


def refused(words, **options):
    with pytest.raises(ValueError, match=words) as told:
        Pairs(**options).load()
    assert "\n" not in str(told.value)


def test_columns_that_do_not_fit_are_refused_in_a_line(tmp_path):
    rows = [
        {"q": f"q{n}", "a": f"a{n}", "list": ["x"], "n": n, "blank": " ", "none": None, "when": {"day": n}, "empty": []}
        for n in range(4)
    ]
    file = jsonl(tmp_path / "asked.jsonl", rows)
    q = partial(refused, path=file, first="q")
    q(r"as data\.second, got 'answer': choose from q, a, list", second="answer")
    q(r"as data\.group, got 'g': choose from", second="a", group="g")
    q(r"two columns, got 'q' as data\.first and as data\.second$", second="q")
    q(r"none with both sides among 4: check", second="blank")
    q(r"data\.second in column 'none' .*, got only empty cells", second="none")
    q(r"data\.second in column 'empty' .*, got only empty cells", second="empty")
    q(r"got something else$", second="when")
    q(r"negatives of what data\.second is, text, got numbers", second="a", negatives="n")
    q(r"data\.negatives in column 'blank' .*, got none to be read", second="a", negatives="blank")
    q(r"no size without images, got 8: leave out data\.size", second="a", size=8)
    q(r"a group, .*, got none in 4 of 4 of column 'none'", second="a", group="none")
    refused(r"one input a row in column 'list' .*, got lists: .*data\.second", path=file, first="list", second="a")
    refused(r"got .*no\.jsonl, which does not exist", path=str(tmp_path / "no.jsonl"), first="q", second="a")
    (tmp_path / "empty.csv").touch()
    refused(r"got none in .*empty\.csv: fill it", path=str(tmp_path / "empty.csv"), first="q", second="a")
    folder = given_parts(tmp_path / "parts", train=[("a", "b", "e")], test=[("c", "d")])
    refused(r"a column 'd' in the test part", path=folder, first="q", second="a", group="d")
    refused(r"a column of its own as data\.negatives, got 'b'", path="x", first="a", second="b", negatives="b")
    samples = Samples(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]), ("a", "b"), groups=torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ValueError, match="expected single samples, got pairs"):
        ByClass()(samples)


def test_files_that_do_not_fit_are_refused_in_a_line(tmp_path):
    for name, words in {"a.txt": "1\n2\n", "b.txt": "1\n2\n3\n", "t.csv": "q,a\n"}.items():
        (tmp_path / name).write_text(words)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"some words\n" * 99)[:-20])
    (tmp_path / "no.gz").write_text("plain")
    files = ("a.txt", "b.txt", "t.csv", "cut.gz", "no.gz")
    a, b, t, cut, no = (str(tmp_path / name) for name in files)
    refused(r"got 2 rows in .*a\.txt and 3 in .*b\.txt$", first=a, second=b)
    refused(r"as data\.first, got question, which does not exist; .*data\.path", first="question", second=a)
    refused(r"which is none", first=a, second=str(tmp_path))
    refused(r"two files, got .*a\.txt' as data\.first and", first=a, second=a)
    refused(r"got the table .*t\.csv: name it in data\.path", first=a, second=t)
    refused(r"lines in .*cut\.gz, got ", first=a, second=cut)
    refused(r"lines in .*no\.gz, got ", first=a, second=no)
    refused(r"a table, which has data\.group, got .*: put", first=a, second=b, group="g")


def test_negatives_may_be_in_the_training_part_alone(tmp_path):
    """As of a folder that what a run has mined was put into, beside the test part."""
    rows = [{"q": f"why {number}?", "a": f"since {number}."} for number in range(8)]
    mined = [row | {"wrong": [rows[number - 1]["a"]] * (number % 3)} for number, row in enumerate(rows)]
    jsonl(tmp_path / "train.jsonl", mined[:5])
    jsonl(tmp_path / "test.jsonl", rows[5:])
    samples = Pairs(str(tmp_path), first="q", second="a", negatives="wrong").load()
    assert samples.parts.tolist() == [0] * 5 + [2] * 3
    strings = samples.negatives.inputs.strings
    found = [[strings[place] for place in row if place >= 0] for row in samples.negatives.places.tolist()]
    assert found == [row["wrong"] for row in mined[:5]] + [[]] * 3

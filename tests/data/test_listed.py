"""Subsets by list: which samples the lines of published forms name, against a loop over all pairs; and their parts."""

import json
import re
import shlex
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from likewise.configuration import read
from likewise.data import ByClass, EvalLabels, FromList, Ids, Samples, Stratified, parts_of

CLASSES = ("ash", "elm", "oak")


def _samples(ids, classes=None, parts=None):
    labels = torch.tensor([CLASSES.index(name.split("/")[-2]) for name in ids] if classes is None else classes)
    given = None if parts is None else torch.tensor(parts)
    return Samples(torch.arange(len(ids)).float()[:, None], labels, CLASSES, given, ids=Ids.of(ids))


IDS = [f"train/{name}/{number}.jpg" for name in CLASSES for number in range(10)]


def _common_end(first, second):
    """Count the folders and files at the end that two paths share; 0 unless one path is the end of the other."""
    count = 0
    for one, other in zip(first.split("/")[::-1], second.split("/")[::-1], strict=False):
        if one != other:
            return 0
        count += 1
    return count


@pytest.mark.parametrize("prefix", ["train/", "/data/imagenet/train/", "", "./train/", "train\\"])
@pytest.mark.parametrize("form", ["{} {}", "{}\t{}", "{}   {}", "{}"])
def test_lines_name_samples_by_the_longest_end_in_common(prefix, form, tmp_path):
    """The folder has or lacks what the list's paths begin with."""
    rng = np.random.default_rng(0)
    chosen = sorted(rng.permutation(30)[:13].tolist())
    names = [prefix + IDS[place].removeprefix("train/") for place in chosen]
    lines = [form.format(name, 7 + CLASSES.index(re.split(r"[/\\]", name)[-2])) for name in rng.permutation(names)]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n\n")
    plain = [name.replace("\\", "/").removeprefix("./").lstrip("/") for name in names]
    for ids in (IDS, [name.removeprefix("train/") for name in IDS], [f"photos/{name}" for name in IDS]):
        if ids[0].startswith("photos/") and "imagenet" in prefix:  # both have what the other lacks
            with pytest.raises(ValueError, match="of whose 13 lines 13 name none"):
                FromList(tmp_path / "train.txt")(_samples(ids))
            continue
        expected = sorted(max(range(30), key=lambda at, name=name: _common_end(name, ids[at])) for name in plain)
        assert expected == chosen
        assert FromList(tmp_path / "train.txt")(_samples(ids)).tolist() == expected


def test_the_longest_end_wins_and_one_of_several_is_refused(tmp_path):
    ids = ["1.jpg", "a/1.jpg", "b/a/1.jpg", "c/a/2.jpg", "d/a/2.jpg", "e/3.jpg"]
    samples = _samples(ids, [0, 1, 2, 0, 1, 2])
    file = tmp_path / "list.txt"
    for line, place in (("x/b/a/1.jpg", 2), ("a/1.jpg", 1), ("x/a/1.jpg", 1), ("x/1.jpg", 0), ("3.jpg", 5)):
        file.write_text(line)
        assert FromList(file)(samples).tolist() == [place]
        assert max(range(6), key=lambda at, line=line: _common_end(line, ids[at])) == place
    file.write_text("a/2.jpg")
    with pytest.raises(ValueError, match=r"'a/2.jpg', with which 2 end, such as 'c/a/2.jpg' and 'd/a/2.jpg'"):
        FromList(file)(samples)


def test_other_forms_name_the_same(tmp_path):
    """Tables, rows and ids; spaces in paths, and paths that end in numbers."""
    chosen = [2, 3, 17, 29]
    names = [IDS[place] for place in chosen]
    (tmp_path / "a.csv").write_text("label,path\n" + "".join(f"7,{name}\n" for name in names))
    (tmp_path / "a.tsv").write_text("image\n" + "".join(f"{name}\n" for name in names))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"file_name": name}) + "\n" for name in names))
    (tmp_path / "rows.txt").write_text("".join(f"{place}\n" for place in chosen))
    for name in ("a.tsv", "a.jsonl", "rows.txt"):
        assert FromList(tmp_path / name)(_samples(IDS)).tolist() == chosen
    with pytest.warns(UserWarning, match=r"2 of 4 samples have the number of another class in .*a\.csv, such as 7 for"):
        assert FromList(tmp_path / "a.csv")(_samples(IDS)).tolist() == chosen
    some = _samples(IDS).numbered()[torch.arange(1, 30)]  # a row is that of the source
    assert FromList(tmp_path / "rows.txt")(some).tolist() == [place - 1 for place in chosen]
    plain = replace(some, ids=Ids.numbers(torch.arange(1, 30)))
    assert FromList(tmp_path / "rows.txt")(plain).tolist() == [place - 1 for place in chosen]
    spaced = [f"my trees/{name} {number}" for number, name in enumerate(("ash", "elm", "oak"))]
    (tmp_path / "spaced.txt").write_text("\n".join(spaced[1:]))
    assert FromList(tmp_path / "spaced.txt")(_samples(spaced, [0, 1, 2])).tolist() == [1, 2]
    (tmp_path / "classes.txt").write_text("\n".join(f"{name} 4" for name in spaced[1:2]))
    assert FromList(tmp_path / "classes.txt")(_samples(spaced, [0, 1, 2])).tolist() == [1]


@pytest.mark.filterwarnings("error")
def test_numbers_of_classes_may_be_others_where_they_are_one_to_one(tmp_path):
    lines = [f"{IDS[place]} {(2, 0, 1)[place // 10]}" for place in range(30)]
    file = tmp_path / "train.txt"
    file.write_text("\n".join(lines))
    assert len(FromList(file)(_samples(IDS))) == 30
    lines[0], lines[11] = f"{IDS[0]} 0", f"{IDS[11]} 9"
    file.write_text("\n".join(lines))
    with pytest.warns(UserWarning, match="2 of 30 samples have the number of another class in") as told:
        assert len(FromList(file)(_samples(IDS))) == 30
    assert len(told) == 1


def test_lines_without_a_sample_and_those_that_come_again_are_counted(tmp_path):
    file = tmp_path / "train.txt"
    file.write_text("\n".join([*IDS[:9], IDS[0], "/data/" + IDS[1], "none/x.jpg", "train/ash/77.jpg"]))
    with pytest.warns(UserWarning, match="name") as told:
        assert FromList(file)(_samples(IDS)).tolist() == list(range(9))
    assert [str(one.message) for one in told] == [
        f"2 of 13 lines of {file} name no sample: none/x.jpg, train/ash/77.jpg",
        f"2 of 13 lines of {file} name a sample again",
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", "x/1.jpg 0\ny/2.jpg 1\ntrain/ash/1.jpg 0", r"whose 3 lines 2 name none, such as 'x/1\.jpg', where "),
        ("a.txt", "\n \n", "which has none$"),
        ("a.csv", "where,label\nx,1\n", r"expected a column of paths \(path, file, .*, got where, label$"),
        ("rows.txt", "500\n501\n", "name none, such as '500'"),
        (None, "", r"which is no file: check subset\.file, did you mean .*train\.txt\?"),
    ],
)
def test_lists_that_name_nothing_are_refused_in_one_line(name, content, words, tmp_path):
    (tmp_path / (name or "train.txt")).write_text(content)
    with pytest.raises(ValueError, match=words) as raised:
        FromList(tmp_path / (name or "tain.txt"))(_samples(IDS))
    assert "\n" not in str(raised.value)


def test_lists_of_three_parts_decide_about_parts(tmp_path):
    """Validation may be of the source's training part, as in ImageNet-LT; without a list a part is the source's."""
    ids = [f"{part}/{name}/{number}.jpg" for part in ("train", "val") for name in CLASSES for number in range(10)]
    samples = _samples(ids, parts=[0] * 30 + [2] * 30)
    of = {"train": range(0, 30, 3), "validation": range(1, 30, 3), "test": range(31, 60, 2)}
    for name, rows in of.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{ids[row]} 0\n" for row in rows))
    file, validation, test = (tmp_path / f"{name}.txt" for name in of)

    def cut(source, *lists, **options):
        with pytest.warns(UserWarning, match="another class"):
            return Stratified()(source, FromList(*lists, **options))

    parts = cut(samples, file, validation, test)
    assert [part.rows.tolist() for part in (parts.train, parts.validation, parts.test)] == [*map(list, of.values())]
    parts = cut(samples, file, validation)
    assert (parts.validation.rows.tolist(), parts.test.rows.tolist()) == (list(of["validation"]), list(range(30, 60)))
    parts = cut(samples, file)
    assert sorted([*parts.train.rows.tolist(), *parts.validation.rows.tolist()]) == list(of["train"])
    assert parts.test.rows.tolist() == list(range(30, 60))
    flat = replace(samples, parts=None)
    assert cut(flat, file, test=test).test.rows.tolist() == list(of["test"])
    with pytest.raises(ValueError, match=r"in common, got 10 of .*train\.txt in .*train\.txt too, such as train/ash/0"):
        cut(flat, file, test=file)


def test_a_list_of_validation_needs_a_test_part(tmp_path):
    """No test is cut out of what the lists train on."""
    (tmp_path / "train.txt").write_text("\n".join(IDS[::2]))
    (tmp_path / "val.txt").write_text("\n".join(IDS[1::6]))
    for parts in (None, [0] * 25 + [1] * 5):
        with pytest.raises(ValueError, match=r"a test part beside .*val\.txt, got none .*: give subset\.test"):
            Stratified()(_samples(IDS, parts=parts), FromList(tmp_path / "train.txt", tmp_path / "val.txt"))
    (tmp_path / "test.txt").write_text("\n".join(IDS[3::6]))
    lists = (tmp_path / f"{name}.txt" for name in ("train", "val", "test"))
    parts = Stratified()(_samples(IDS), FromList(*lists))
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [15, 5, 5]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("split", [Stratified(), ByClass(train=2, validation=2, test=2)])
def test_listed_samples_of_the_test_part_are_counted_apart_from_unknown_ones(split, tmp_path):
    """The test part is cut before, by classes or not; lines of it are no unknown names."""
    ids = [f"{name}/{number}.jpg" for name in "abcdef" for number in range(20)]
    samples = Samples(torch.zeros(120, 1), torch.arange(120) // 20, tuple("abcdef"), ids=Ids.of(ids))
    whole = split(samples)
    listed = torch.arange(0, 120, 2)
    (tmp_path / "train.txt").write_text("\n".join([*(ids[row] for row in listed), "unknown.jpg"]))
    with pytest.warns(UserWarning, match=r"train\.txt") as told:
        parts = split(samples, FromList(tmp_path / "train.txt"))
    kept = torch.cat([parts.train.rows, parts.validation.rows]).sort().values
    in_test = torch.isin(listed, whole.test.rows)
    assert torch.equal(parts.test.rows, whole.test.rows)
    assert kept.tolist() == listed[~in_test].tolist()
    unknown, held_out = (str(one.message) for one in told)
    assert unknown == f"1 of 61 lines of {tmp_path / 'train.txt'} name no sample: unknown.jpg"
    assert held_out == (
        f"{int(in_test.sum())} of 60 samples in {tmp_path / 'train.txt'} are left out, as they are in the test part or "
        "another subset has"
    )


def test_a_list_that_lies_mostly_in_the_test_part_is_no_unknown_list(tmp_path):
    samples = _samples(IDS, [place % 2 for place in range(30)], [2] * 20 + [0] * 10)
    (tmp_path / "train.txt").write_text("\n".join(IDS[:24]))
    with pytest.warns(UserWarning, match="^20 of 24 samples in .* are left out, as they are in the test part"):
        parts = Stratified()(samples, FromList(tmp_path / "train.txt"))
    assert sorted([*parts.train.rows.tolist(), *parts.validation.rows.tolist()]) == [20, 21, 22, 23]
    (tmp_path / "train.txt").write_text("\n".join(IDS[:6]))  # a validation part of the source stays whole
    samples = _samples(IDS, [place % 2 for place in range(30)], [0] * 10 + [1] * 10 + [2] * 10)
    parts = Stratified()(samples, FromList(tmp_path / "train.txt"))
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [6, 10, 10]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("numbered", [True, False])
def test_samples_without_a_class_are_those_of_the_list(numbered, tmp_path):
    labels, parts = [("ash", "elm")[row % 2] if row < 60 else "" for row in range(100)], ["train"] * 50 + ["test"] * 10
    arrays = {"vectors": np.random.default_rng(0).normal(size=(100, 3)), "labels": labels}
    np.savez(tmp_path / "blank.npz", parts=parts + ["train"] * 40, **arrays)
    chosen = [*range(20), *range(60, 70)]
    number = "{row}" if numbered else "{row} {label}"
    lines = [number.format(row=row, label=row % 2 if row < 60 else -1) for row in chosen]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    specs = {
        "data": {"class_path": "likewise.data.Arrays", "init_args": {"path": str(tmp_path / "blank.npz")}},
        "split": {"class_path": "likewise.data.Stratified", "init_args": {}},
    }

    def listed(**init_args):
        return parts_of(specs | {"subset": {"class_path": "likewise.data.FromList", "init_args": init_args}})[0]

    of = listed(file=tmp_path / "train.txt")
    assert of.unlabelled.rows.tolist() == chosen[20:]
    assert sorted([*of.train.rows.tolist(), *of.validation.rows.tolist()]) == chosen[:20]
    assert of.test.rows.tolist() == list(range(50, 60))
    (tmp_path / "val.txt").write_text("\n".join(map(str, [*range(30, 40), 80])))
    with pytest.warns(UserWarning, match=r"left out 1 of 11 samples in .*val\.txt, which have no class"):
        of = listed(file=tmp_path / "train.txt", validation=tmp_path / "val.txt")
    assert of.given == ("validation", "test")
    assert of.unlabelled.rows.tolist() == chosen[20:]
    assert [part.rows.tolist() for part in (of.train, of.validation)] == [chosen[:20], list(range(30, 40))]
    (tmp_path / "train.txt").write_text("\n".join(map(str, chosen[:20])))
    assert listed(file=tmp_path / "train.txt").unlabelled is None


def test_numbers_may_be_those_of_the_second_labelling(tmp_path):
    fine = torch.arange(30) // 5  # two in each class of IDS
    second = EvalLabels.finer(fine, tuple("uvwxyz"), fine // 2, CLASSES)
    samples = replace(_samples(IDS), evaluated=second)
    for numbers in (5 - fine, fine // 2):
        (tmp_path / "list.txt").write_text("\n".join(f"{IDS[row]} {numbers[row]}" for row in range(30)))
        with warnings.catch_warnings(action="error"):
            assert len(FromList(tmp_path / "list.txt")(samples)) == 30
    wrong = torch.where(torch.arange(30) == 7, 0, 5 - fine)
    (tmp_path / "list.txt").write_text("\n".join(f"{IDS[row]} {wrong[row]}" for row in range(30)))
    with pytest.warns(UserWarning, match=r"^1 of 30 samples have the number of another class .*, such as 0 for 'v': "):
        FromList(tmp_path / "list.txt")(samples)


PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
PUBLISHED = PAGE[PAGE.index("## As published") : PAGE.index("## Samples without a class")]
COMMANDS = [
    shlex.split(of.replace("\\\n", " "))
    for of in re.findall(r"^    likewise train ((?:.*\\\n)*.*)$", PUBLISHED, re.MULTILINE)
]


def _photo(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4)).save(path)


def _imagenet(root):
    for split, count in (("train", 8), ("val", 2)):
        for name in ("n01440764", "n01443537"):
            for number in range(count):
                _photo(root / "imagenet" / split / name / f"{name}_{split}{number}.JPEG")
    listed = [f"train/{name}/{name}_train{number}.JPEG" for name in ("n01440764", "n01443537") for number in range(8)]
    lines = [f"{path} {place // 8}\n" for place, path in enumerate(listed[:11])]
    (root / "ImageNet_LT_train.txt").write_text("".join(lines))
    (root / "ImageNet_LT_val.txt").write_text("".join(f"{path}\n" for path in (listed[14], listed[15])))


def _places(root):
    for part, folder, count in (
        ("train", "data_256/a/apartment/outdoor", 5),
        ("val", "val_256", 2),
        ("test", "val_256", 2),
    ):
        paths = {f"{folder}/{part}_{label}_{number}.jpg": label for label in range(2) for number in range(count)}
        for path in paths:
            _photo(root / "places" / path)
        (root / f"Places_LT_{part}.txt").write_text("".join(f"{path} {label}\n" for path, label in paths.items()))


def _birds(root):
    paths = [f"{name}/{name[4:]}_{number}.jpg" for name in ("001.Albatross", "002.Auklet") for number in range(6)]
    for path in paths:
        _photo(root / "CUB_200_2011" / "images" / path)
    numbered = enumerate(paths, 1)
    (root / "CUB_200_2011" / "images.txt").write_text("".join(f"{number} {path}\n" for number, path in numbered))
    split = "".join(f"{number} {number % 2}\n" for number in range(1, 13))
    (root / "CUB_200_2011" / "train_test_split.txt").write_text(split)


@pytest.mark.parametrize(
    ("written", "place", "sizes"),
    [
        (_imagenet, "imagenet/", (11, 2, 4)),
        (_places, "places-lt/", (10, 4, 4)),
        (_birds, "CUB_200_2011/images", (5, 1, 6)),
    ],
)
def test_published_sets_are_read_as_the_docs_say(written, place, sizes, tmp_path, monkeypatch):
    """The commands of the page on small sets of the same form, after the lines of Python that make the lists."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PUBLISHED, re.DOTALL)
    for code in blocks:
        if (written is _birds and "CUB" in code) or (written is _places and "places" in code):
            exec(code, {})  # noqa: S102 - the page's own
    (words,) = (of for of in COMMANDS if of[0] == place)
    said = read(words)
    parts, _ = parts_of({name: getattr(said, name) for name in ("data", "subset", "split")})
    assert tuple(len(part) for part in (parts.train, parts.validation, parts.test)) == sizes
    assert len(parts.train.names) == 2

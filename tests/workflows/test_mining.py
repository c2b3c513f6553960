"""Hard negatives of a run's pairs: against plain loops with ties, and as a table that trains again."""

import warnings

import numpy as np
import pytest
import torch
from in_use import encoder_run, rows_of, write_rows
from PIL import Image
from test_sides import RULE, images, pair_run, vectors, words

import likewise as lw
from likewise.cli import main
from likewise.data import Pairs, fingerprint, parts_of
from likewise.inference.search import hard_negatives

SPLIT = {"class_path": "likewise.data.Stratified", "init_args": {}}


def mined_by_loops(queries, candidates, own, apart, k, from_rank=1, margin=None, least=None):
    """Places of hard negatives of each query, by sorting all candidates."""
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, candidates)]
    found = []
    for query, place in enumerate(own):
        alike = [float(unit[0][query] @ one) for one in unit[1]]
        ranked = sorted(range(len(alike)), key=lambda other: (-alike[other], other))
        ranked = [other for other in ranked if apart[1][other] != apart[0][query]][from_rank - 1 :]
        low, high = -np.inf if least is None else least, np.inf if margin is None else alike[place] - margin
        found.append([other for other in ranked if low - 1e-6 <= alike[other] <= high + 1e-6][:k])
    return found


LIMITS = [
    {}, {"from_rank": 4}, {"margin": 0.0}, {"margin": 0.25}, {"from_rank": 6, "margin": 0.25}, {"margin": -0.25},
    {"least": 0.5}, {"from_rank": 3, "margin": 0.0, "least": 0.0}, {"from_rank": 50}, {"margin": 2.0},
]  # fmt: skip


@pytest.mark.parametrize("k", [1, 5, 40])
def test_negatives_are_those_of_a_loop_with_ties(k, monkeypatch):
    """Cosines of vectors of four signs are multiples of a half, exactly, and most are equal to many others."""
    monkeypatch.setattr("likewise.inference.search.QUERIES", 7)
    rng = np.random.default_rng(k)
    queries, candidates = (rng.choice([-1.0, 1.0], (count, 4)) for count in (33, 30))
    own, numbers = rng.integers(30, size=33), rng.integers(9, size=30)
    apart = numbers[own], numbers
    given = [torch.from_numpy(of) for of in (queries, candidates, own, *apart)]
    for options in LIMITS:
        found = list(hard_negatives(given[0].float(), given[1].float(), given[2], (given[3], given[4]), k, **options))
        places = [[place for place in row if place >= 0] for _, some in found for row in some.tolist()]
        assert places == mined_by_loops(queries, candidates, own, apart, k, **options), options
        assert all(((some < 0) == torch.isinf(similarities)).all() for similarities, some in found)


def trained(run, data):
    """Let a run tell that its encoders were trained on data."""
    specs, facts = {"data": data, "split": SPLIT}, run.metadata
    parts, _ = parts_of(specs)
    facts["parts"] |= specs
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "an image that cannot be read")
        run.describe(facts | {"samples": {"fingerprint": fingerprint(parts)}})
    return parts.train


def source(**options):
    return {"class_path": "likewise.data.Pairs", "init_args": options}


def expected_of(run, train, k, **options):
    """What a loop finds among the training pairs, as (first, second, negatives) by the numbers of inputs."""
    model = lw.load(run)
    items = [of.items.tolist() for of in (train, train.counterparts)]
    each = list(dict.fromkeys(items[1]))
    sides = {"first": train, "second": train.counterparts}
    features = [model.encode(of, side=side).astype(np.float64) for side, of in sides.items()]
    candidates = np.stack([features[1][items[1].index(item)] for item in each])
    numbers = lw.data.never_apart(train).tolist()
    apart = numbers, [numbers[items[1].index(item)] for item in each]
    own = [each.index(item) for item in items[1]]
    return [[each[place] for place in row] for row in mined_by_loops(features[0], candidates, own, apart, k, **options)]


def test_a_table_of_texts_is_mined_and_trains_again(tmp_path, capsys):
    rng = np.random.default_rng(0)
    words_of = ["red", "blue", "green", "dark", "bright", "square", "round", "large", "small", "old"]
    rows = []
    for number in range(60):
        question, answer = rng.choice(words_of, 3), sorted(rng.choice(words_of, 2, replace=False))
        rows.append({"question": " ".join(question), "answer": " ".join(answer), "topic": f"t{number % 20}"})
    table = write_rows(tmp_path / "asked.jsonl", rows)
    data = source(path=str(table), first="question", second="answer", label="topic")
    run = pair_run(tmp_path / "runs", words(), words(width=6))
    train = trained(run, data)
    for output in (tmp_path / "mined.jsonl", tmp_path / "mined.parquet"):
        given = ["search", str(run.folder), "--negatives", "--k", "4", "--from-rank", "2", "--margin", "0.1"]
        assert main([*given, "--output", str(output)]) == 0
        found = rows_of(output)
        assert [list(row) for row in found[:1]] == [["question", "answer", "negatives", "topic"]]
        assert [row["question"] for row in found] == train.inputs.strings
        assert [row["answer"] for row in found] == train.counterparts.inputs.strings
        assert [row["topic"] for row in found] == [train.names[label] for label in train.labels.tolist()]
        text_of = dict(zip(train.counterparts.items.tolist(), train.counterparts.inputs.strings, strict=True))
        expected = expected_of(run, train, 4, from_rank=2, margin=0.1)
        assert [row["negatives"] for row in found] == [[text_of[item] for item in row] for row in expected]
        told = capsys.readouterr().out.splitlines()[-1]
        none = sum(not row for row in expected)
        assert told.startswith(f"{output}: {sum(map(len, expected)):,} hard negatives of {len(train):,} pairs")
        assert (f"; {none:,} pairs have none" in told) == (none > 0)
        again = Pairs(str(output), first="question", second="answer", negatives="negatives", label="topic").load()
        assert len(again) == len(train)
        pool, places = again.negatives.inputs.strings, again.negatives.places.flatten().tolist()
        assert [pool[place] for place in places if place >= 0] == [one for row in found for one in row["negatives"]]


def test_images_are_written_as_their_paths_and_broken_ones_left_out(tmp_path, capsys):
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(12):
        pixels = rng.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"photos/{number}.png")
    whole = (tmp_path / "photos/3.png").read_bytes()
    (tmp_path / "photos/3.png").write_bytes(whole[: len(whole) // 2])  # its header can be read
    captions = [f"caption {number // 3 if number < 6 else number}" for number in range(24)]
    rows = [{"caption": caption, "file": f"photos/{row % 12}.png"} for row, caption in enumerate(captions)]
    table = write_rows(tmp_path / "pairs.jsonl", rows)
    data = source(path=str(table), first="caption", second="file", size=[12, 16], memory=0)
    run = pair_run(tmp_path / "runs", words(), images(), rules=(None, RULE))
    train = trained(run, data)
    (tmp_path / "elsewhere").mkdir()
    for name, begin in (("mined.jsonl", "photos/"), ("elsewhere/mined.jsonl", str(tmp_path / "photos"))):
        output = tmp_path / name
        with pytest.warns(UserWarning, match=r"left out 1 of \d+ images that cannot be read: .*3\.png"):
            assert main(["search", str(run.folder), "--negatives", "--output", str(output)]) == 0
        found = rows_of(output)
        assert all(row["file"].startswith(begin) for row in found)
        told = capsys.readouterr().out
        in_train = sum("photos/3.png" in name for name in train.counterparts.ids)
        assert len(found) == len(train) - in_train
        assert f"; {in_train} pairs left out, whose images cannot be read" in told
        again = Pairs(str(output), first="caption", second="file", negatives="negatives", size=[12, 16]).load()
        assert len(again) == len(found)
        by_caption = {}
        for row in rows:
            by_caption.setdefault(row["caption"], set()).add(row["file"])
        for row in found:
            wrong = {f"photos/{path.rpartition('/')[2]}" for path in row["negatives"]}
            assert not wrong & by_caption[row["caption"]]


def test_vectors_in_two_files_are_mined(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name, width in (("first", 3), ("second", 5)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(40, width)).astype(np.float32))
    run = pair_run(tmp_path / "runs", vectors(3), vectors(5))
    data = source(first=str(tmp_path / "first.npy"), second=str(tmp_path / "second.npy"))
    train = trained(run, data)
    output = tmp_path / "mined.jsonl"
    assert main(["search", str(run.folder), "--negatives", "--k", "2", "--output", str(output)]) == 0
    again = Pairs(str(output), first="first", second="second", negatives="negatives").load()
    assert torch.equal(again.inputs, train.inputs)
    assert torch.equal(again.counterparts.inputs, train.counterparts.inputs)
    of = dict(zip(train.counterparts.items.tolist(), train.counterparts.inputs.tolist(), strict=True))
    expected = [[of[item] for item in row] for row in expected_of(run, train, 2)]
    assert [row["negatives"] for row in rows_of(output)] == expected
    capsys.readouterr()
    assert main(["search", str(run.folder), "--negatives", "--output", str(tmp_path / "mined.parquet")]) == 2
    assert "ending in .jsonl for vectors" in capsys.readouterr().err


def test_what_cannot_be_mined_is_refused_in_a_line(tmp_path, capsys):
    rows = [{"q": f"question {number}", "a": f"answer {number}"} for number in range(20)]
    table = write_rows(tmp_path / "asked.jsonl", rows)
    run = pair_run(tmp_path / "runs", words())
    trained(run, source(path=str(table), first="q", second="a"))
    plain = encoder_run(tmp_path, vectors(3)[1], {"input_shape": [3], "width": 8})
    before = table.read_bytes()
    mined = ["--negatives", "--output", str(tmp_path / "mined.jsonl")]
    for where, given, told in (
        (run, ["--negatives"], "expected --output FILE.jsonl with --negatives"),
        (run, [*mined[:2], str(tmp_path / "mined.csv")], "expected --output of .jsonl or .parquet"),
        (run, [*mined, "--among", str(table)], "got --among beside it"),
        (run, ["why?", *mined], "got a QUERY beside it"),
        (run, [*mined, "--margin", "nan"], "expected --margin from -2 to 2, got nan"),
        (run, [*mined, "--margin", "2"], "expected hard negatives of"),
        (run, ["--within", str(table), "--margin", "0.1"], "expected --negatives with --from_rank or --margin"),
        (run, [*mined[:2], str(table), "--force"], "an output beside the input"),
        (plain, mined, "expected a run of pairs with --negatives"),
    ):
        assert main(["search", str(where.folder), *given]) == 2, given
        error = capsys.readouterr().err
        assert told in error, error
        assert error.removeprefix("reading ...\n").count("\n") == 1, error
    assert table.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["asked.jsonl"]
    write_rows(table, rows[::-1])
    assert main(["search", str(run.folder), *mined]) == 2
    assert "expected the data that" in capsys.readouterr().err

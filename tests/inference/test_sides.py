"""A run of pairs in use: each side by its own tower, searched from one side to the other, against plain loops."""

import dataclasses
import gzip
import io
import json
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from in_use import encoder_run, rows_of, write_rows
from PIL import Image
from sklearn.metrics.pairwise import cosine_similarity

import likewise as lw
from likewise.cli import main
from likewise.data import Pairs, Samples, Texts
from likewise.data.reload import fingerprint, parts_of
from likewise.evaluation import FeatureParts, Features
from likewise.evaluation.feature_files import save_features
from likewise.inference import Model
from likewise.inference.inputs import of_side
from likewise.models import MLP, BagOfTokens, ConvNet, Projected, ProjectionHead, Transformer, to_onnx
from likewise.runs import Run
from likewise.workflows import Silent

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "onnx.md"
CAPTIONS = ["a red square", "a blue square", "a green one", "dark", "bright", "a red square in the dark", "nothing"]
RULE = {"channels": 3, "height": 12, "width": 16, "resize": "pad"}


def tower(kind, **arguments):
    return {"class_path": f"likewise.models.{kind.__name__}", "init_args": arguments}, kind(**arguments)


def projected(of):
    """The part and the module of an encoder with a head behind it, to 6 numbers."""
    (spec, encoder), width = of, of[1].feature_dim
    head = {"class_path": "likewise.models.ProjectionHead", "init_args": {"feature_dim": width, "out_dim": 6}}
    if isinstance(encoder, BagOfTokens | Transformer):
        encoder.observe(Texts(CAPTIONS))
    made = Projected(encoder, ProjectionHead(width, out_dim=6)).eval()
    with torch.no_grad():  # heads of small random numbers give features that are all alike
        for parameter in made.head.parameters():
            parameter.normal_()
    return {"class_path": "likewise.models.Projected", "init_args": {"encoder": spec, "head": head}}, made


def pair_run(root, first, second=None, data=None, rules=(None, None)):
    """A run of pairs whose towers are not trained; a shared one where no second is given."""
    torch.manual_seed(0)
    (spec, one), other = projected(first), None if second is None else projected(second)
    run = Run.create(root, "pairs")
    facts = {"parts": {"encoder": spec, "data": data}, "preprocessing": rules[0]}
    run.describe(facts | {"second": {"encoder": other and other[0], "preprocessing": rules[1], "columns": []}})
    run.save_encoder(one)
    if other is not None:
        run.save_encoder(other[1], "second")
    return run.finalize()


def images():
    return tower(ConvNet, input_shape=[3, 12, 16], width=4)


def words(kind=BagOfTokens, **arguments):
    return tower(kind, **{"input_shape": [], "width": 8, "vocabulary": 60} | arguments)


def vectors(width):
    return tower(MLP, input_shape=[width], width=8)


@pytest.fixture
def captioned(tmp_path):
    """Photos with captions, some of which are equal, in a table; and a run of them."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(5):
        pixels = rng.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"photos/{number}.png")
    rows = [{"file": f"photos/{number % 5}.png", "caption": CAPTIONS[number % 7]} for number in range(9)]
    table = write_rows(tmp_path / "pairs.jsonl", rows)
    arguments = {"path": str(table), "first": "file", "second": "caption"}
    data = {"class_path": "likewise.data.Pairs", "init_args": arguments}
    return pair_run(tmp_path / "runs", images(), words(), data, (RULE, None)), table


def test_each_side_is_encoded_by_its_tower(captioned):
    run, table = captioned
    model = lw.load(run.folder)
    files = sorted((table.parent / "photos").iterdir())
    second = model.of("second")
    assert model.paired
    assert (model.side, second.side, second.of("first")) == ("first", "second", model)
    np.testing.assert_allclose(model.encode(CAPTIONS, side="second"), run.encoder("second").encode(CAPTIONS), atol=1e-6)
    alone = Model(run.encoder(), model.preprocessing)
    np.testing.assert_allclose(model.encode(files, side="first"), alone.encode(files))
    assert (model.preprocessing, second.preprocessing) == (lw.data.ImagePreprocessing(**RULE), None)
    assert [repr(model), repr(second)] == ["Model(Projected: (3, 12, 16) -> 6)", "Model(Projected: texts -> 6)"]
    shared = lw.load(pair_run(table.parent, words()))
    assert shared.of("second").encoder is shared.encoder


def test_a_side_that_there_is_not_is_told_in_a_line(tmp_path):
    run = encoder_run(tmp_path, vectors(3)[1], {"input_shape": [3], "width": 8})
    for model, side, told in (
        (lw.load(run), "second", "expected a run of pairs for the second side, got"),
        (lw.load(run), "third", "expected side as first or second, got 'third'"),
        (Model(MLP((3,), width=8)), "second", "expected a run of pairs for the second side, got an encoder alone"),
    ):
        with pytest.raises(ValueError, match=told):
            model.encode([[1.0, 2.0, 3.0]], side=side)
    with pytest.raises(ValueError, match="expected a run of pairs for the second side"):
        lw.export(run, side="second", progress=Silent())
    with pytest.raises(ValueError, match="the first side with a classifier"):
        lw.export(run, side="second", classifier="probe", progress=Silent())
    with pytest.raises(ValueError, match="expected an encoder with a tokenizer, got none"):
        to_onnx(BagOfTokens((), width=4), tmp_path / "texts.onnx")
    assert not (tmp_path / "texts.onnx").exists()


def test_one_side_of_pairs_has_each_input_once():
    items = torch.tensor([4, 2, 4, 0, 2])
    answers = Samples(torch.arange(5.0).view(5, 1), items=items)
    pairs = Samples(torch.eye(5), torch.tensor([0, 1, 1, 0, 1]), ("a", "b"), counterparts=answers, groups=items)
    second = of_side(pairs, "second")
    assert second.inputs.flatten().tolist() == [0, 1, 3]
    assert second.labels.tolist() == [0, 1, 0]
    first = of_side(pairs, "first")
    assert (len(first), first.counterparts) == (5, None)


def test_embed_reads_a_side(captioned, tmp_path):
    """Of a table the side's column, and of pairs each input once."""
    run, table = captioned
    model, rows = lw.load(run), rows_of(table)
    words = ["--data", "Pairs", "--data.path", str(table), "--data.first", "file", "--data.second", "caption"]
    for side, column in (("first", "file"), ("second", "caption")):
        every = [table.parent / row[column] if side == "first" else row[column] for row in rows]
        for source, inputs in (([str(table)], every), (words, list(dict.fromkeys(every)))):
            output = tmp_path / f"{side}-{len(inputs)}.parquet"
            assert main(["embed", str(run.folder), *source, "--side", side, "--output", str(output)]) == 0
            found, expected = pq.read_table(output), model.encode(inputs, side=side)
            np.testing.assert_allclose(np.stack(found["features"].to_numpy()), expected, atol=1e-5)
            assert json.loads(found.schema.metadata[b"likewise"])["side"] == side
    write_rows(table, [row | {"label": "a"} for row in rows])
    found = pq.read_table(lw.embed(run, table, output=tmp_path / "labelled.parquet", progress=Silent()))
    assert found.column_names == ["id", "features"]  # the run has no labels


def test_shards_of_another_side_are_not_gone_on_with(tmp_path, monkeypatch):
    """Also where one tower is that of both sides, and the samples are called the same."""
    table = write_rows(tmp_path / "pairs.jsonl", [{"question": one, "answer": one[::-1]} for one in CAPTIONS])
    arguments = {"path": str(table), "first": "question", "second": "answer"}
    run = pair_run(tmp_path / "runs", words(), data={"class_path": "likewise.data.Pairs", "init_args": arguments})
    options = {"output": tmp_path / "x.npz", "shard_size": 4, "progress": Silent()}
    with monkeypatch.context() as patched:
        patched.setattr("likewise.inference.outputs.EmbeddingShards.join", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lw.embed(run, table, **options)
    with pytest.raises(ValueError, match="got another side"):
        lw.embed(run, table, side="second", **options)
    found = np.load(lw.embed(run, table, **options))
    np.testing.assert_allclose(found["features"], lw.load(run).encode(CAPTIONS), atol=1e-6)


def nearest(queries, others, k):
    """Places of the k most similar of each, by sorting; of equal ones the earlier."""
    return np.argsort(-cosine_similarity(queries, others), axis=1, stable=True)[:, :k].tolist()


def test_a_query_of_one_side_finds_samples_of_the_other(captioned, tmp_path, capsys):
    run, table = captioned
    model, files = lw.load(run), sorted((table.parent / "photos").iterdir())
    photos, captions = str(table.parent / "photos"), tmp_path / "captions.csv"
    captions.write_text("caption\n" + "\n".join(CAPTIONS) + "\n")
    seen, read = model.encode(files), model.encode(CAPTIONS, side="second")
    page, output = tmp_path / "page.html", tmp_path / "found.jsonl"
    told = ["search", str(run.folder), *CAPTIONS[:2], "--side", "second", "--among", photos, "--k", "3"]
    assert main([*told, "--output", str(output), "--html", str(page)]) == 0
    found = [row["id"] for row in rows_of(output)]
    assert found == [files[place].name for row in nearest(read[:2], seen, 3) for place in row]
    assert CAPTIONS[0] in page.read_text()
    assert page.read_text().count("data-tile") >= 3
    for among in (captions, tmp_path / "captions.parquet"):
        if among.suffix == ".parquet":
            lw.embed(run, captions, output=among, side="second", progress=Silent())
        by = model.search(files, among, k=4)
        assert by.indices.tolist() == nearest(seen, read, 4)
        assert main(["search", str(run.folder), str(files[0]), "--among", str(among), "--k", "4"]) == 0
    assert model.search(CAPTIONS, photos, side="second", k=2).indices.tolist() == nearest(read, seen, 2)
    assert model.search(CAPTIONS, seen, side="second", k=2).indices.tolist() == nearest(read, seen, 2)
    capsys.readouterr()
    among = ["--among", str(tmp_path / "captions.parquet")]
    assert main(["search", str(run.folder), CAPTIONS[0], "--side", "second", *among]) == 2
    told = "features of the first side of this run, got those of the second side in"
    assert told in capsys.readouterr().err
    assert main(["search", str(run.folder), "0.pgn", *among]) == 2
    assert capsys.readouterr().err.startswith("error: expected a file, got 0.pgn")


@pytest.mark.filterwarnings("ignore:without the texts that are found")
def test_the_features_of_the_run_are_searched_by_side(captioned, tmp_path):
    """Each input once; an id of the query's side finds among the other."""
    run, table = captioned
    data = Pairs(str(table), first="file", second="caption", size=[12, 16]).load()
    model = lw.load(run)
    given = [(side, of, model.encode(of, side=side)) for side, of in (("first", data), ("second", data.counterparts))]
    both = [Features(torch.from_numpy(rows), None, (), None, ids=of.ids, items=of.items) for _, of, rows in given]
    whole = dataclasses.replace(both[0], counterparts=both[1])
    save_features(
        run.embeddings, FeatureParts(whole[torch.arange(5)], whole[torch.arange(5, 5)], whole[torch.arange(5, 9)])
    )
    for (side, _, rows), (_, others, beside) in (given, given[::-1]):
        names, once = list(others.ids), []
        for part in (range(5), range(5, 9)):  # items are known within a part
            once += sorted({int(others.items[row]): row for row in reversed(part)}.values())
        output = tmp_path / f"{side}.jsonl"
        query = "photos/3.png" if side == "first" else "3"
        words = [query, "--side", side, "--among", str(run.folder), "--k", "4", "--output", str(output)]
        assert main(["search", str(run.folder), *words]) == 0
        expected = nearest(rows[3:4], beside[once], 4)[0]
        assert [row["id"] for row in rows_of(output)] == [names[once[place]] for place in expected]


LONG = "a red square\n" + "on a wide street " * 9
PASSAGES = [LONG, "over there", "nothing at all", "a blue one", "green", "the last of all"]


def asked(folder):
    """A run of questions and passages in a table, with its features."""
    table = write_rows(folder / "asked.jsonl", [{"q": f"what is {one[:9]}", "a": one} for one in PASSAGES])
    data = {"class_path": "likewise.data.Pairs", "init_args": {"path": str(table), "first": "q", "second": "a"}}
    run = pair_run(folder / "runs", words(), words(), data)
    facts = run.metadata
    facts["parts"]["split"] = {"class_path": "likewise.data.Stratified", "init_args": {"validation": 0.2}}
    parts = parts_of(facts["parts"])[0]
    run.describe(facts | {"samples": {"fingerprint": fingerprint(parts)}})

    def features(of):
        one, other = (
            Features(run.encoder(side).encode(side_of.inputs), None, ids=side_of.ids, items=side_of.items)
            for side, side_of in (("first", of), ("second", of.counterparts))
        )
        return dataclasses.replace(one, counterparts=other)

    save_features(run.embeddings, FeatureParts(*map(features, (parts.train, parts.validation, parts.test))))
    return run, table


def test_texts_that_are_found_are_shown_in_short_and_written_whole(tmp_path, capsys):
    """Of a table, of a file of lines, of what embed wrote, and of the run's own features; ids stay."""
    run, table = asked(tmp_path)
    lines, embedded = tmp_path / "passages.de.gz", tmp_path / "passages.parquet"
    lines.write_bytes(gzip.compress("\n\n".join(one.replace("\n", " ") for one in PASSAGES).encode()))
    lw.embed(run, table, output=embedded, side="second", progress=Silent())
    assert pq.read_table(embedded)["input"].to_pylist() == PASSAGES
    model, query = lw.load(run), "what is a red squ"
    expected = nearest(model.encode([query]), model.encode(PASSAGES, side="second"), 6)[0]
    for among in (table, lines, embedded, run.folder):
        output = tmp_path / f"{among.name}-found.jsonl"
        words = ["search", str(run.folder), query, "--among", str(among), "--k", "6", "--output", str(output)]
        assert main([*words, "--html", str(tmp_path / "page.html"), "--force"]) == 0
        printed, rows = capsys.readouterr().out, rows_of(output)
        whole = [PASSAGES[place] if among != lines else PASSAGES[place].replace("\n", " ") for place in expected]
        assert [row["text"] for row in rows] == whole
        name = (lambda place: f"{lines.name}:{2 * place + 1}") if among == lines else str  # every second is blank
        assert [row["id"] for row in rows] == list(map(name, expected))
        assert f"  {' '.join(LONG.split())[:59]}…\n" in printed
        assert "a red square on a wide street" in (tmp_path / "page.html").read_text()
    assert model.search(query, str(table), k=6).texts == [[PASSAGES[place] for place in expected]]
    assert model.search(query, str(table), k=6).ids == [list(map(str, expected))]
    table.write_text(table.read_text().replace("nothing", "something"))
    with pytest.warns(UserWarning, match="without the texts that are found: expected the data that .* other data"):
        assert main(["search", str(run.folder), query, "--among", str(run.folder)]) == 0
    assert "similarity  text" not in capsys.readouterr().out


def test_queries_are_the_lines_of_standard_input_and_a_file_that_is_none_is_no_text(tmp_path, capsys, monkeypatch):
    run, table = asked(tmp_path)
    words, queries = ["search", str(run.folder), "--among", str(table), "--k", "1"], ["what is a red", "dark"]
    assert main([*words[:2], *queries, *words[2:]]) == 0
    told = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(queries) + "\n\n"))
    assert main([*words[:2], "-", *words[2:]]) == 0
    assert capsys.readouterr().out == told
    lw.search(run, "dark", among=table, k=1, progress=Silent())  # one text, not its letters
    assert main([*words[:2], "qeustions.csv", *words[2:]]) == 2
    assert "expected a file, got qeustions.csv: check it" in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
def test_what_is_of_the_other_side_is_told_in_a_line(captioned, capsys, monkeypatch):
    run, table = captioned
    model = lw.load(run)
    monkeypatch.chdir(table.parent)
    for given, told in (
        (["dark", "photos/0.png"], "expected texts, got photos/0.png, an image of the first side: give it as"),
        (["dark", " "], "expected texts, got an empty one: leave it out"),
    ):
        with pytest.raises(ValueError, match=told):
            model.encode(given, side="second")
    with pytest.raises(ValueError, match=r'got a red circle, which does not exist: .* with side="second"'):
        model.encode(["a red circle"])
    assert model.encode(["photos", "a.png", "x" * 999], side="second").shape == (3, 6)  # which are no images
    pairs = {"captions": [["a", "b"], ["c"]]}
    pq.write_table(pa.table(pairs), "lists.parquet")
    facts = run.metadata
    facts["parts"]["data"]["init_args"]["second"] = "captions"
    run.describe(facts)
    output = ["--side", "second", "--output", "l.npz"]
    for (verb, *words), told in (
        (["embed", "lists.parquet", *output], "captions (lists): write"),
        (["embed", "photos", *output], "got images: they may be of the first"),
        (["search", "photos", "--among", "photos"], "got images: they may be of the first side, see"),
        (["search", "", "--among", "photos"], "a QUERY of some letters, got an empty one"),
    ):
        assert main([verb, str(run.folder), *words]) == 2
        assert told in capsys.readouterr().err
    assert main(["embed", str(run.folder), "photos", "--output", "l.npz"]) == 0  # no word on classes
    found = model.search("photos/0.png", CAPTIONS, k=3)
    assert found.indices.tolist() == nearest(model.encode("photos/0.png"), model.encode(CAPTIONS, side="second"), 3)


def test_within_is_one_side(captioned, tmp_path):
    run, _ = captioned
    captions, output = tmp_path / "captions.csv", tmp_path / "found.jsonl"
    captions.write_text("caption\n" + "\n".join(CAPTIONS) + "\n")
    words = ["--within", str(captions), "--side", "second", "--k", "6", "--output", str(output)]
    assert main(["search", str(run.folder), *words]) == 0
    read = lw.load(run).encode(CAPTIONS, side="second")
    places = {f"captions.csv:{place + 2}": place for place in range(7)}
    similar = cosine_similarity(read)
    for row in rows_of(output):
        assert row["query"] != row["id"]
        assert row["similarity"] == pytest.approx(similar[places[row["query"]], places[row["id"]]], abs=1e-5)


def test_each_side_is_exported_and_its_file_is_used_with_and_without_this_library(tmp_path, monkeypatch):
    run = pair_run(tmp_path, images(), words(Transformer, depth=1, heads=2, length=5), rules=(RULE, None))
    model = lw.load(run)
    for side in ("first", "second"):
        file = lw.export(run, side=side, format="onnx", progress=Silent())
        assert file.name == run.name + ("-second.onnx" if side == "second" else ".onnx")
        exported = lw.load(file)
        shape = model.of(side).encoder.input_shape
        inputs = [*CAPTIONS, "what was never read"] if shape == () else torch.rand(9, *shape)
        expected = model.encode(inputs, side=side)
        assert expected.std(axis=0).min() > 0.01
        np.testing.assert_allclose(exported.encode(inputs, side=side, batch_size=2), expected, atol=1e-4)
        assert exported.preprocessing == model.of(side).preprocessing
        with pytest.raises(ValueError, match="got an encoder alone: leave out the side"):
            exported.encode(inputs, side="first" if side == "second" else "second")
        weights = lw.export(run, tmp_path / f"{side}.safetensors", side=side, progress=Silent())
        assert weights.read_bytes() == (run.weights if side == "first" else run.second_weights).read_bytes()
    (tmp_path / "captions.csv").write_text("caption\n" + "\n".join(CAPTIONS) + "\n")
    options = {"output": tmp_path / "c.npz", "data.label": "none"}
    found = lw.embed(file, tmp_path / "captions.csv", progress=Silent(), **options)
    np.testing.assert_allclose(np.load(found)["features"], model.encode(CAPTIONS, side="second"), atol=1e-4)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    program = next(block for block in blocks if "tokenizers" in block)
    monkeypatch.chdir(tmp_path)
    file.rename("captions.onnx")  # as the page calls it
    for texts in (CAPTIONS, ["?", "dark"]):
        here = {"json": json, "np": np, "onnxruntime": onnxruntime}
        exec(re.sub(r"(?m)^texts = .*$", f"texts = {texts!r}", program), here)  # noqa: S102 - our own page
        np.testing.assert_allclose(here["features"], model.encode(texts, side="second"), atol=1e-4)

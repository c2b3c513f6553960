"""Texts: the source, rows of tokens, tokenizers, encoders, batches of similar length, and a run from the command."""

import copy
import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from likewise.cli import main
from likewise.data import Samples, SimilarLength, Stratified, Text, Texts, TokenDropout, TokenRows, Views, fingerprint
from likewise.evaluation import raw_features
from likewise.models import BagOfTokens, FromRun, PretrainedTransformer, Transformer
from likewise.models.text_encoder import word_pieces
from likewise.models.weights import load_weights
from likewise.runs import Run, load_encoder
from likewise.training.data import Loader, Position

pytestmark = pytest.mark.slow

TOPICS = {
    "weather": ["rain", "wind", "sun", "cloud", "storm", "snow", "heat", "frost"],
    "money": ["bank", "loan", "price", "market", "bond", "tax", "coin", "debt"],
    "sport": ["ball", "goal", "team", "race", "match", "score", "coach", "run"],
}


def letters(count=240, seed=0):
    """Return texts of one or two topics each, with their topics."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        topics = list(generator.choice(list(TOPICS), size=generator.integers(1, 3), replace=False))
        words = [word for topic in topics for word in generator.choice(TOPICS[topic], size=generator.integers(3, 9))]
        words += list(generator.choice(["the", "a", "of", "and"], size=5))
        generator.shuffle(words)
        yield " ".join(words), sorted(topics)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "letters.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "labels": topics}) for text, topics in letters()) + "\n")
    return path


# --- the source ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "names", "rows"),
    [
        ([["b", "a"], [], ["b"]], ("a", "b"), [[1, 1], [0, 0], [0, 1]]),
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        ([[1, 0, 1], [0, 0, 0], [0, 0, 1]], ("0", "1", "2"), [[1, 0, 1], [0, 0, 0], [0, 0, 1]]),
        ([[10, 2], [9], []], ("2", "9", "10"), [[1, 0, 1], [0, 1, 0], [0, 0, 0]]),
        ([10, 9, 10], ("9", "10"), [1, 0, 1]),
        ([10, "9", 10], ("10", "9"), [0, 1, 0]),
    ],
    ids=["lists", "strings", "zeros and ones", "lists of numbers", "numbers", "mixed"],
)
def test_lists_are_label_sets_and_others_classes_numbers_in_their_order(tmp_path, labels, names, rows):
    """Zeros and ones are no names."""
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps({"text": "a", "labels": of}) + "\n" for of in labels))
    samples = Text(path).load()
    assert samples.inputs.strings == ["a"] * 3
    assert (samples.names, samples.labels.long().tolist()) == (names, rows)
    assert Text(path, label="none").load().labels is None


@pytest.mark.parametrize(("suffix", "between"), [(".csv", ","), (".tsv", "\t")])
def test_tables_have_quoted_texts_and_labels_with_a_separator(tmp_path, suffix, between):
    path = tmp_path / f"some{suffix}"
    rows = [["body", "class"], ['"a, ""quoted""\nline"', "x; y"], ["plain", ""], ["more", "y"]]
    path.write_text("\ufeff" + "\n".join(between.join(row) for row in rows), encoding="utf-8")
    samples = Text(path, separator=";").load()
    assert samples.inputs.strings == ['a, "quoted"\nline', "plain", "more"]
    assert samples.labels.tolist() == [[True, True], [False, False], [False, True]]


def test_a_folder_has_a_file_for_each_part(tmp_path):
    for name, text in {"train": "a", "dev": "b", "test": "cut \\ud83d"}.items():  # half a surrogate pair
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "{text}", "labels": ["x"]}}\n')
    samples = Text(tmp_path).load()
    assert dict(zip(samples.inputs.strings, samples.parts.tolist(), strict=True)) == {"a": 0, "b": 1, "cut ?": 2}
    (tmp_path / "valid.csv").write_text("text,label\nx,y\n")
    with pytest.raises(ValueError, match="one file of each part"):
        Text(tmp_path).load()


def test_quotation_marks_of_a_text_take_no_other_rows_with_them(tmp_path):
    rows = [
        '"never closed',
        "plain",
        'she said "yes"',
        '"all of it"',
        '"two\nlines, ""quoted"""',
        '"a" and "b"',
        "last",
    ]
    for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
        path = tmp_path / f"quoted{suffix}"
        texts = [row.replace(",", delimiter) if row.startswith('"two') else row for row in rows]
        lines = [f"{row}{delimiter}x{n % 2}\n" for n, row in enumerate(texts)]
        path.write_text(f"text{delimiter}label\n" + "".join(lines))
        samples = Text(path).load()
        two = f'two\nlines{delimiter} "quoted"'
        expected = ['"never closed', "plain", 'she said "yes"', "all of it", two, '"a" and "b"', "last"]
        assert samples.inputs.strings == expected
        assert samples.labels.tolist() == [0, 1, 0, 1, 0, 1, 0]
    path.write_text('text\tlabel\n"open\tx\nb\n' + "".join(f"row {n}\ty\n" for n in range(500)))
    with pytest.warns(UserWarning, match="left out 1 of 502 lines .*line 3: 1 cells instead of 2"):
        assert len(Text(path).load()) == 501


def test_lines_that_cannot_be_read_are_counted_and_named_and_the_rest_is_kept(tmp_path):
    path = tmp_path / "bad.jsonl"
    lines = ['{"text": "good", "labels": ["x"]}', "{broken", "[1]", '{"text": 3, "labels": ["x"]}']
    lines += ['{"text": "no labels"}', '{"text": "odd", "labels": [[1]]}', "", '{"text": "fine", "labels": []}']
    path.write_text("\n".join(lines))
    with pytest.warns(UserWarning, match=r"left out 5 of 7 lines .*: line 2: no JSON; line 3: no object; line 4: no t"):
        samples = Text(path).load()
    assert samples.inputs.strings == ["good", "fine"]
    table = tmp_path / "bad.csv"
    table.write_text("text,label\na,x\nb\nc,y,z\nd,\ne,w\n")
    with pytest.warns(UserWarning, match=r"left out 3 of 5 lines .*line 3: 1 cells instead of 2; line 4: 3 cells.*"):
        samples = Text(table).load()
    assert samples.inputs.strings == ["a", "e"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("test.jsonl", "", r"texts in .*test\.jsonl, got none: fill it, or remove it"),
        ("test.csv", "text,label\n", r"texts in .*test\.csv, got none: fill it, or remove it"),
        ("test.jsonl", '[\n{"text": "a"},\n]', r"in 3 lines \(line 1: no JSON; line 2: .*\): write an object a line"),
        ("test.tsv", "text\tlabel\na\nb", r"in 2 lines \(line 2: 1 cells instead of 2; .*\): write a header"),
        ("test.jsonl", '{"text": "a", "labels": {"x": 1}}', r"\(line 1: labels are a dict: write a list\)"),
        ("test.jsonl", '{"words": 1, "labels": ["a"]}', r"a column of texts \(text, .*got words, labels: name it in"),
        ("test.jsonl", '{"text": "x", "topic": ["a"], "more": 1}', r"got text, topic, more: .*or set that to none$"),
        (
            "test.jsonl",
            '{"text": "x", "id": 1, "topic": ["a"]}',
            r"; of pairs give .*test\.jsonl --data\.first text --data\.second topic$",
        ),
        (
            "test.jsonl",
            '{"text": "x", "labels": ["a"]}\n{"text": "y", "labels": "a"}',
            "lists of labels in every line or in none",
        ),
        ("x.pdf", "", r"which ends in \.pdf"),
    ],
)
def test_a_file_without_texts_is_refused_with_its_first_lines(tmp_path, name, content, words):
    """Alone, or as a part beside another."""
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        Text(tmp_path / name).load()
    if "lines" in words:
        (tmp_path / "train.jsonl").write_text('{"text": "a", "labels": ["x"]}\n')
        with pytest.raises(ValueError, match=words):
            Text(tmp_path).load()


# --- rows of tokens --------------------------------------------------------------------------------------------------


def test_rows_of_tokens_are_those_of_a_loop_whatever_the_subset():
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(2, 50, (int(length),), generator=generator).tolist() for length in (3, 0, 7, 1, 12, 5)]
    rows = TokenRows.of(tokens)
    expected = [of or [1] for of in tokens]  # an empty text is one hidden token
    for subset in (torch.arange(6), torch.tensor([4, 1, 1, 3]), torch.tensor([5])):
        some = rows.take(subset)
        read = some[torch.arange(len(subset))]
        assert read.shape == (len(subset), max(len(expected[row]) for row in subset.tolist()))
        for row, got in zip(subset.tolist(), read.tolist(), strict=True):
            assert got == expected[row] + [0] * (len(got) - len(expected[row]))
        assert some.lengths.tolist() == [len(expected[row]) for row in subset.tolist()]


def test_texts_are_samples_like_others():
    strings = [f"text {number}" for number in range(40)]
    samples = Samples(Texts(strings), torch.arange(40) % 2, ("a", "b"))
    assert samples.input_shape == ()
    parts = Stratified()(samples)
    assert fingerprint(parts) == fingerprint(Stratified()(samples))
    both = parts.refitted().train
    assert both.inputs.strings == [strings[row] for row in both.rows.tolist()]
    other = Samples(Texts([*strings[:-1], "changed"]), samples.labels, samples.names)
    assert fingerprint(Stratified()(other)) != fingerprint(parts)


def test_every_process_pads_to_the_longest_of_the_whole_batch_and_hides_no_padding():
    tokens = TokenRows.of([[5] * length for length in (1, 2, 3, 4, 5, 6, 7, 8)])
    samples = Samples(tokens, torch.arange(8) % 2, ("a", "b"))
    batches = Views(views=2, batch_size=4, augmentation=TokenDropout(probability=0.5))
    alone = list(Loader(samples, batches, seed=0))
    places = [Position(rank=rank, processes=2) for rank in range(2)]
    loaders = [Loader(samples, batches, seed=0, position=lambda of=place: of) for place in places]
    for whole, *own in zip(alone, *loaders, strict=True):
        torch.testing.assert_close(torch.cat([batch["inputs"] for batch in own]), whole["inputs"])
    views = torch.cat([batches.on_device(batch)["inputs"].flatten() for batch in alone])
    assert torch.equal(
        views == 0, torch.cat([(batch["inputs"] == 0).repeat_interleave(2, 0).flatten() for batch in alone])
    )
    assert 0.2 < (views[views != 0] == 1).double().mean() < 0.8


def test_batches_of_similar_length_have_every_text_once_and_less_padding():
    lengths = torch.randint(1, 60, (1003,), generator=torch.Generator().manual_seed(0)).tolist()
    samples = Samples(TokenRows.of([[2] * length for length in lengths]))
    orders = [SimilarLength(portion=10).order(samples, 20, seed=0, epoch=epoch) for epoch in (0, 1)]
    for order in orders:
        assert order.shape == (50, 20)
        assert len(order.unique()) == 1000
    assert not torch.equal(*orders)
    torch.testing.assert_close(SimilarLength(portion=10).order(samples, 20, seed=0, epoch=1), orders[1])
    within = samples.inputs.lengths[orders[0]]
    assert (within.amax(1) - within.amin(1)).double().mean() < 10  # 60 in batches at random
    assert within.double().mean(1).diff().abs().mean() > 10  # but one batch says nothing of the next
    with pytest.raises(ValueError, match="choose Shuffled"):
        SimilarLength().order(Samples(torch.zeros(4, 2)), 2, seed=0, epoch=0)


# --- encoders --------------------------------------------------------------------------------------------------------

SMALL = {"bag": (BagOfTokens, {"width": 16, "vocabulary": 90}), "transformer": (Transformer, {"width": 16, "heads": 2})}


def made(kind, texts, **more):
    encoder_class, arguments = SMALL[kind]
    torch.manual_seed(0)
    encoder = encoder_class((), **arguments, **more)
    encoder.observe(texts)
    return encoder.eval()


@pytest.fixture
def texts():
    return Texts([*(text for text, _ in letters(60)), "", "…", "x" * 5000])


@pytest.mark.parametrize("kind", SMALL)
def test_features_do_not_depend_on_other_texts_of_the_batch(kind, texts):
    encoder = made(kind, texts)
    together = encoder.encode(texts, batch_size=7)
    assert torch.isfinite(together).all()
    for row in range(0, len(texts), 5):
        alone = encoder.encode(texts.take(torch.tensor([row])))
        torch.testing.assert_close(alone[0], together[row], rtol=1e-4, atol=1e-5)
    tokens = encoder.tokenized(texts)
    torch.testing.assert_close(encoder.encode(tokens), together, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", SMALL)
def test_the_tokenizer_is_saved_with_the_weights_and_copied_with_the_module(kind, texts, tmp_path):
    encoder = made(kind, texts)
    expected = encoder.encode(texts)
    torch.testing.assert_close(copy.deepcopy(encoder).encode(texts), expected)
    run = Run.create(tmp_path, "x")
    encoder_class, arguments = SMALL[kind]
    path = f"likewise.models.{encoder_class.__name__}"
    spec = {"class_path": path, "init_args": {"input_shape": [], **arguments, **encoder.recorded}}
    run.describe({"parts": {"encoder": spec}})
    run.save_encoder(encoder)
    torch.testing.assert_close(load_encoder(run.folder).encode(texts), expected)
    torch.testing.assert_close(FromRun((), run.folder).encode(texts), expected)


def test_a_tokenizer_has_seen_training_texts_only_and_is_the_same_every_time(texts):
    first, second = (word_pieces(texts.strings, 90).to_str() for _ in range(2))
    many = [chr(number) for number in range(0x4E00, 0x4E00 + 500)]
    assert word_pieces(["".join(many), *many[:30]], 40).get_vocab_size() == 40  # the most frequent characters alone
    assert first == second
    encoder = made("bag", texts, length=4)
    assert encoder.tokenized(Texts(["ζ rain ζ"]))[torch.tensor([0])].tolist()[0][0] == 1  # a letter it has not seen
    rows = encoder.tokenized(Texts(["x x x x x x x x", "x x", "x x x x x"]))  # longer ones are cut and counted
    assert (rows.cut, rows.lengths.tolist()) == (2, [4, 2, 4])


@pytest.mark.parametrize("kind", SMALL)
def test_a_text_encoder_refuses_what_it_cannot_encode(kind):
    encoder_class, arguments = SMALL[kind]
    with pytest.raises(ValueError, match=r"expected texts, input_shape \(\), got \(3, 8, 8\): choose ConvNet"):
        encoder_class((3, 8, 8), **arguments)
    made = encoder_class((), **arguments)
    for call, told in (
        (lambda: encoder_class((), length=0), "length of at least 1"),
        (lambda: encoder_class((), dropout=1.0), "dropout of at least 0 and below 1"),
        (lambda: made.encode(Texts(["x"])), "expected a tokenizer, got none"),
        (lambda: made.observe(torch.zeros(2, 3)), "expected training texts"),
        (lambda: made.observe(Texts(["", " "])), "expected texts with words"),
    ):
        with pytest.raises(ValueError, match=told):
            call()


def small_bert(folder):
    """Save a tiny BERT in a folder, with its tokenizer, and return both."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(word for of in TOPICS.values() for word in of)]
    named = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    special = {f"{name}_token": word for name, word in named.items()}
    numbers = {word: row for row, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=named["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, **sizes)).eval()
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder, model, fast


@pytest.fixture
def bert(tmp_path):
    """A tiny BERT in a folder, with its tokenizer."""
    return small_bert(tmp_path / "bert")


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_pretrained_model_encodes_as_the_library_that_it_comes_from(bert, pooling):
    folder, model, tokenizer = bert
    texts = Texts([text for text, _ in letters(12)])
    encoder = PretrainedTransformer((), str(folder), length=60, pooling=pooling)
    assert all(module.training for module in encoder.modules())  # with dropout, until `encode`
    encoder.observe(texts)
    found = encoder.encode(texts)
    for row, text in enumerate(texts.strings):
        tokens = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            vectors = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state[0]
        torch.testing.assert_close(found[row], vectors[0] if pooling == "first" else vectors.mean(0))
    again = PretrainedTransformer((), "elsewhere", **encoder.recorded)
    again.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(again.encode(texts), found)
    hidden = encoder.tokenized(texts)[torch.arange(3)]
    hidden[hidden > 0] = 1
    masked = tokenizer(" ".join(["[MASK]"] * int((hidden[0] > 0).sum())), return_tensors="pt")["input_ids"]
    tokens, inside = encoder._add_special(hidden)  # noqa: SLF001 - what the model is given
    assert tokens[0][inside[0]].tolist() == masked[0].tolist()


@pytest.mark.parametrize("count", [3, 16, 61])
def test_training_by_groups_of_similar_length_is_that_of_texts_one_by_one(bert, count):
    encoder = PretrainedTransformer((), name=str(bert[0])).double().train()
    encoder.observe(Texts(["a"]))
    for part in encoder.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(0, 4, (count,), generator=generator) ** 2
    lengths[0] = 9  # and ties, and empty texts
    rows = torch.randint(2, 7, (count, 9), generator=generator) * (torch.arange(9) < lengths[:, None])
    pulls = torch.randn(count, encoder.feature_dim, generator=generator, dtype=torch.float64)

    together = encoder(rows)
    (together * pulls).sum().backward()
    gradients = [weight.grad.clone() for weight in encoder.parameters() if weight.grad is not None]
    encoder.zero_grad()
    alone = torch.cat([encoder(row[None, : max(1, int(length))]) for row, length in zip(rows, lengths, strict=True)])
    (alone * pulls).sum().backward()

    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(gradients, [w.grad for w in encoder.parameters() if w.grad is not None])


def test_low_rank_adapters_are_trained_in_place_of_the_model(bert):
    """W + 2 B A by hand, the model bit for bit as it was, and the same features from what a run keeps."""
    texts = Texts([text for text, _ in letters(12)])
    encoder = PretrainedTransformer((), str(bert[0]), length=60, lora=4)
    encoder.observe(texts)
    plain = PretrainedTransformer((), str(bert[0]), length=60)
    plain.observe(texts)
    torch.testing.assert_close(encoder.encode(texts), plain.encode(texts))  # B is 0 at first
    trained = {name: of for name, of in encoder.named_parameters() if of.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    before = {name: of.clone() for name, of in encoder.state_dict().items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=0.1)
    tokens = encoder.tokenized(texts)[torch.arange(12)]
    for _ in range(3):
        optimizer.zero_grad()
        encoder(tokens).square().sum().backward()
        optimizer.step()
    state = encoder.state_dict()
    assert all(torch.equal(of, before[name]) for name, of in state.items() if "lora_" not in name)
    for name, layer in plain.model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            low, high = (state[f"model.base_model.model.{name}.lora_{of}.default.weight"] for of in "AB")
            layer.weight.data += 2 * high @ low
    torch.testing.assert_close(plain.encode(texts), encoder.encode(texts))
    again = PretrainedTransformer((), "elsewhere", lora=4, **encoder.recorded)
    again.load_state_dict(state)
    torch.testing.assert_close(again.encode(texts), encoder.encode(texts))
    with pytest.raises(ValueError, match="lora of rank 1 or more, got 0"):
        PretrainedTransformer((), str(bert[0]), lora=0)


def test_weights_of_a_file_reach_the_layers_beside_adapters(bert, tmp_path):
    """Those of others, and what a run with adapters keeps, with them or without."""
    texts = Texts([text for text, _ in letters(12)])
    encoder, adapted, plain = (PretrainedTransformer((), str(bert[0]), length=60, lora=of) for of in (4, 4, None))
    for one in (encoder, adapted, plain):
        one.observe(texts)
    for parameter in plain.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    torch.save({f"bert.{name}": of for name, of in plain.model.state_dict().items()}, tmp_path / "bert.bin")
    matched = load_weights(encoder, tmp_path / "bert.bin")
    assert (matched.missing, matched.unexpected) == ((), ())
    torch.testing.assert_close(encoder.encode(texts), plain.encode(texts))
    for name, parameter in encoder.named_parameters():
        parameter.data += 0.1 * torch.randn_like(parameter) * ("lora_" in name)
    torch.save(encoder.state_dict(), tmp_path / "run.pth")
    assert load_weights(adapted, tmp_path / "run.pth").missing == ()
    torch.testing.assert_close(adapted.encode(texts), encoder.encode(texts))
    before = plain.encode(texts)
    left = load_weights(plain, tmp_path / "run.pth")
    assert left.missing == ()
    torch.testing.assert_close(plain.encode(texts), before)


def test_a_model_that_cannot_be_loaded_is_said_in_one_line(tmp_path, bert):
    with pytest.raises(ValueError, match="expected a model of transformers by name or folder"):
        PretrainedTransformer((), str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="length of at most 62"):
        PretrainedTransformer((), str(bert[0]), length=63).observe(Texts(["rain"]))


# --- raw inputs, and the command -------------------------------------------------------------------------------------


def test_raw_texts_are_tf_idf_of_the_training_texts(file):
    parts = Stratified()(Text(file).load())
    raw = raw_features(parts)
    torch.testing.assert_close(raw.train.vectors.norm(dim=1), torch.ones(len(parts.train)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(raw.test.counts, parts.test.counts)


def test_texts_are_trained_evaluated_and_shown_from_the_command(file, tmp_path, capsys):
    arguments = "train --data Text --encoder Transformer --encoder.width 32 --encoder.depth 1 --encoder.vocabulary 200"
    arguments += " --loss NWSLoss --batches.batch_size 32 --batches.sampler SimilarLength --trainer.max_epochs 3"
    arguments += " --trainer.enable_progress_bar false --validation_epochs 3 --keep best --encoder.length 12"
    main([*arguments.split(), "--data.path", str(file), "--runs", str(tmp_path)])
    told = "".join(capsys.readouterr())
    assert "training texts are longer than the encoder reads and were cut: raise --encoder.length" in told
    assert "linear probe, mAP: " in told
    (run,) = (Run.open(path) for path in tmp_path.iterdir() if path.is_dir())
    page = run.report.read_text()
    assert all(f"<h2>{name}</h2>" in page for name in ("Nearest texts", "Similarity of labels", "Labels"))
    assert run.scores["retrieval", "Jaccard@10"].value > 0.4
    encoder = load_encoder(run.folder)
    assert encoder.encode(["rain and wind"]).shape == (1, 32)
    assert torch.equal(encoder.encode(["rain and wind"]), encoder.encode(Texts(["rain and wind"])))
    again = "train --data Text --encoder FromRun --loss BCELoss --trainer.max_epochs 1 --evaluations []"
    main([*again.split(), "--encoder.run", str(run.folder), "--data.path", str(file), "--runs", str(tmp_path)])

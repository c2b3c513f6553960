"""The options of the command's verbs: a record each, which workflows receive, and whose docstring is the help.

A part is described by its class and arguments, and its annotation names the class that it must inherit from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from likewise.instantiate import Spec

Source = Annotated[Spec, "likewise.data.samples.Source"]
Subset = Annotated[Spec, "likewise.data.subset.Subset"]
Split = Annotated[Spec, "likewise.data.split.Split"]
Batches = Annotated[Spec, "likewise.data.batches.Batches"]
Encoder = Annotated[Spec, "likewise.models.encoder.Encoder"]
Head = Annotated[Spec, "likewise.models.heads.Head"]
Loss = Annotated[Spec, "likewise.losses.base.Loss"]
LossInput = Annotated[Spec, "likewise.training.inputs.loss_input.LossInput"]
Optimizer = Annotated[Spec, "torch.optim.optimizer.Optimizer"]
Schedule = Annotated[Spec, "likewise.training.schedule.Schedule"]
Evaluation = Annotated[Spec, "likewise.evaluation.evaluation.Evaluation"]
Section = Annotated[Spec, "likewise.report.run_view.Section"]
TRAINER = "likewise.configuration.trainer.TrainerOptions"


def _usual(class_path: str, **init_args: Any) -> Any:
    return field(default_factory=lambda: Spec(class_path=class_path, init_args=init_args.copy()))


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The options of training and evaluation.

    Args:
        runs: The folder to create the run's folder in.
        evaluations: How the frozen encoder is evaluated: --evaluations KNN --evaluations.k 5 --evaluations+ Retrieval;
            [] switches evaluation off. Default: those of KNN, LinearProbe, OwnClassifier and Retrieval that apply,
            WithinClass for a second, finer labelling, and FewShot for new classes.
        evaluation_samples: The largest number of samples of each part to encode and evaluate, of pairs in whole
            groups. Default: all; of a run that is evaluated again, those that were encoded.
        sections: The sections of the page: --sections+ my_sections.MySection adds one. Default: all.
        report: Whether to write the page; `likewise evaluate RUN --evaluations []` writes it later.
    """

    runs: Path = Path("runs")
    evaluations: Evaluation | list[Evaluation] | None = None
    evaluation_samples: int | None = None
    sections: Section | list[Section] | None = None
    report: bool = True


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(SharedOptions):
    """Evaluate a frozen encoder by k nearest neighbours, a linear probe and retrieval, as far as they apply.

        likewise evaluate runs/RUN                          a run again: its scores and report are replaced
        likewise evaluate runs/RUN/checkpoint.ckpt          the encoder of a checkpoint, as a run of its own
        likewise evaluate embeddings.npz                    features and labels from anywhere, as a run of its own
        likewise evaluate runs/RUN --evaluations Retrieval  one evaluation only

    Calibration, Clustering, OutOfDistribution (needs --evaluations.outside, other data), Robustness, Widths and
    ZeroShot run only if they are named.

    An array file has the keys features (N, D) and labels (N,), and optionally parts (N,) of train, validation, test;
    or train_features, train_labels, test_features, test_labels. Without parts, they are cut from each class in
    proportion. Pairs have counterpart_features (N, D) too, and need no labels.

    Args:
        source: A run's folder, a checkpoint in it, an .npz or .parquet file, or a folder of .npy or .parquet files.
        workers: Processes that read inputs which are not in memory. Default: one per core, up to 8; 0: none.
        device: Where the encoder runs, and on an NVIDIA GPU kNN, the probe and retrieval, too: auto, cpu, cuda ...
    """

    source: Path
    workers: int | None = None
    device: str = "auto"


@dataclass(frozen=True, kw_only=True)
class TrainOptions(SharedOptions):
    """Pretrain an encoder by contrast, evaluate it frozen, and write the run's folder and its report.

    Without an option: SupConLoss and a small ConvNet on the handwritten digits that scikit-learn ships.
    DATA is a folder of photos, a file of vectors or texts, or the name of a data set of torchvision.
    Every part is a class, chosen by name and configured by its own parameters:

        likewise train photos/ --loss simclr --encoder resnet18 --epochs 100
        likewise train --loss NTXentLoss --loss.temperature 0.5 --trainer.max_epochs 100
        likewise train --data flowers.npz --encoder MLP --encoder.width 512 --lr 0.001 --batch-size 64
        likewise train --loss moco --inputs.size 65536        InfoNCELoss, a momentum encoder and a queue
        likewise train --loss.help                            every loss, with a line on each
        likewise train --loss.help NTXentLoss                 the parameters of a class
        likewise train --config runs/RUN/config.yaml          repeat a run
        likewise train --resume runs/RUN.partial              resume an interrupted run
        likewise train --recipe simclr --print-config         every value, without training

    A second --inputs without + replaces the first; --inputs [] means none. Your own classes are given by import path,
    also from a file in the current folder: --loss my_losses.MyLoss. A configuration names code: trust it like code.

    Args:
        config: A YAML file of options; those on the command line win. Several as --config A --config B.
        recipe: A configuration that comes with likewise, METHOD-DATA or METHOD: simclr, supcon, moco, byol, rascal or
            cross-entropy, for digits, omniglot, cifar10, cifar100, cifar100-lt, image-folder and more. All other
            options win over it.
        resume: The folder of an interrupted run to resume; of other options, --report, --sections, --log, --workers,
            --checkpoint_minutes, --timeout_minutes and --trainer.* go with it.
        seed: Seed of everything random except the split.
        name: What the run's folder is called after its date. Default: the loss and the data.
        checkpoint_minutes: Minutes between checkpoints within an epoch.
        keep_checkpoints: Keep the last checkpoint of a finished run, or the best epoch's, with the weights of head,
            loss and inputs; otherwise its encoder alone stays.
        timeout_minutes: Minutes to wait for another process before all end.
        minutes: Train for as many steps as fit, with the evaluation, into this time; a few are timed before. The
            run's options have their number, so that repeating it gives the same. Default: the trainer's limit holds.
        chunk_size: Views that the encoder is given at a time, on each process, so that a batch may be larger than the
            memory for its activations; the loss is that of the whole batch. Default: all.
        widths: Numbers of first features, such as 384,128,64, of which the loss is the mean, so that embeddings can be
            cut (Matryoshka). Default: all features alone.
        temperature_rate_factor: Factor of a learned temperature's learning rate; --loss.temperature learned learns it.
        unlabelled: What a loss that takes classes does with samples without one, as --subset FewLabels leaves: none of
            it, or one class for each. Losses without labels are trained on all.
        weights: A file of weights that the encoder begins with, .safetensors or .pth, of anybody's training: they are
            matched by name and shape, whatever stands before the names, or else by order and shape, which is said.
            Default: those that the encoder comes with.
        freeze: What of the encoder is not trained: all, "all but the last block", or names of its parts, layer1,layer2;
            batch statistics are frozen with it. Default: nothing.
        unfreeze_epoch: The epoch that what is frozen is trained from. Default: never.
        encoder_rate_factor: Factor of the encoder's learning rate beside that of the head.
        layer_decay: Factor of the rate from each block of the encoder to the one before it, nearer to the input.
        workers: Processes that read and decode samples; 0: none beside the training. Default: as many as help.
        compile: Whether to compile encoder, head and momentum encoder with torch.compile. The loss runs outside, by any
            backend as it does without, and nothing is captured in a CUDA graph.
        validation_epochs: Epochs between validation scores, which the last epoch always has; 0: none at all.
        keep: Which weights a finished run keeps: of the last epoch, or of the best in validation, where
            the encoder as it began is one of them. Default: the best where validation can choose, in recipes the last.
        patience: Validations without a better score, as --keep best has it, that end the training. Default: never.
        log: Tools to look at the training in: tensorboard, wandb, mlflow, csv; several as --log [tensorboard,mlflow].
        data: Where the samples come from: a class, a folder of photos, a file, or a data set of torchvision.
        min_per_class: Samples that a class needs, or else it is left out of every part.
        subset: Fewer training samples: a long tail, a fraction, some classes; several with --subset+. Default: all.
        split: How samples are split into training, validation and test parts.
        batches: Which samples form a batch, and the views made of them.
        encoder: The network that is kept: a class; or scratch, a small one for the data; or auto, for photos and texts
            one that others trained, found in the Hugging Face cache, on the hub or in a package (likewise[pretrained]).
            Default: auto.
        head: The network between encoder and loss, dropped after training.
        loss: The loss.
        inputs: Further inputs of the loss, such as a queue: --inputs Momentum --inputs+ KeyQueue; [] is none.
        optimizer: What updates the parameters.
        schedule: How the learning rate changes during training.
        trainer: Lightning's trainer.
    """

    config: str | list[str] | None = None
    recipe: str | None = None
    resume: Path | None = None
    seed: int = 0
    name: str | None = None
    checkpoint_minutes: float = 10.0
    keep_checkpoints: bool = False
    timeout_minutes: float = 30.0
    minutes: float | None = None
    chunk_size: int | None = None
    widths: list[int] | None = None
    temperature_rate_factor: float = 1.0
    unlabelled: Literal["left-out", "own-class"] = "left-out"
    weights: str | None = None
    freeze: str | None = None
    unfreeze_epoch: int | None = None
    encoder_rate_factor: float = 1.0
    layer_decay: float = 1.0
    workers: int | None = None
    compile: bool = False
    validation_epochs: int = 5
    keep: Literal["last", "best"] | None = None
    patience: int | None = None
    log: list[str] | str | None = None
    data: Source = _usual("likewise.data.Digits")
    min_per_class: int = 1
    subset: Subset | list[Subset] | None = None
    split: Split = _usual("likewise.data.Stratified")
    batches: Batches = _usual("likewise.data.Views")
    encoder: Encoder = _usual("likewise.models.ConvNet")
    head: Head = _usual("likewise.models.ProjectionHead")
    loss: Loss = _usual("likewise.losses.SupConLoss")
    inputs: LossInput | list[LossInput] | None = None
    optimizer: Optimizer = _usual("torch.optim.AdamW", lr=2e-3)
    schedule: Schedule = _usual("likewise.training.Cosine")
    trainer: Annotated[dict[str, Any], "likewise.configuration.trainer.TrainerOptions"] = field(
        default_factory={"max_epochs": 30, "devices": 1, "log_every_n_steps": 1, "enable_model_summary": False}.copy
    )


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare runs: a table with intervals and paired differences, curves overlaid, differences by class.

        likewise compare runs/A runs/B                         compare.html, and the table as compare.csv and .md
        likewise compare runs/* --output results/all.html

    Runs that differ in the seed only are one setting; the first run's setting is what others are compared with. Scores
    are means over seeds with 95 % intervals, differences are paired by seed; with one run each, by test sample.

    Args:
        runs: The runs' folders, two or more. Default: none.
        output: The page to write.
        sections: The sections of the page: --sections+ my_sections.MySection adds one. Default: all.
    """

    runs: Sequence[Path | str] = ()
    output: Path = Path("compare.html")
    sections: Section | list[Section] | None = None


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write a run's encoder as a file for elsewhere, or as a folder for another library.

    The file is called as the run is, unless --output names it:

        likewise export runs/RUN --format onnx            RUN.onnx: any number of inputs, checked against the encoder
        likewise export runs/RUN --classifier probe       encoder and classifier as one, in RUN.onnx
        likewise export runs/RUN --output encoder.safetensors
        likewise export runs/RUN --side second --format onnx     of a run of pairs, the other encoder
        likewise export runs/RUN --format sentence-transformers  a folder that SentenceTransformer loads; so does
                                                                 transformers, or timm of a network of timm
    """

    workflow = "likewise.workflows.exports.export"
    run: Path
    output: Path | None = None
    format: Literal["safetensors", "onnx", "sentence-transformers", "transformers", "timm"] | None = None
    side: Literal["first", "second"] = "first"
    classifier: Literal["probe"] | None = None


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Predict the class or the labels of samples by what a run has learned, and say what is unlike its training data.

        likewise predict runs/RUN photos/ --output photos.csv        a row a photo
        likewise predict runs/RUN photo.jpg                          one photo, printed
        likewise predict runs/RUN "a text" "another"                 texts, printed; - takes the lines of standard input
        likewise predict runs/RUN photos/ --by knn                   by the nearest training samples
        likewise predict runs/RUN photos/ --among support/           by the nearest of these, such as new classes

    The columns are id, class and probability, or labels and their probabilities, and unlike: the share of held-out
    samples that are nearer to the training data; unlike_training is true above 0.95. Where the samples have labels,
    these stand beside, and the accuracy and the most frequent confusions are printed.
    """

    workflow = "likewise.workflows.prediction.predict"
    run: Path
    input: list[str]
    output: Path | None = None
    by: Literal["probe", "own", "knn"] | None = None
    among: str | None = None
    force: bool = False
    device: str = "auto"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Find what is nearest to images, texts or vectors; near-duplicates; doubtful labels.

    By cosine similarity, exactly:

        likewise search runs/RUN photo.jpg --among photos.parquet      the nearest of what `likewise embed` wrote
        likewise search runs/RUN new/ --among photos/ --html page.html   both encoded now; a page with the images
        likewise search runs/RUN --within photos.parquet --k 3         the nearest others of each sample
        likewise search runs/RUN --within photos/ --duplicates 0.98    groups that pairs of at least 0.98 link
        likewise search runs/RUN --within photos/ --mistakes           labels that a sample's neighbours do not have
        likewise search runs/RUN "a red bus" --side second --among photos/    of pairs, from one side to the other
        likewise search runs/RUN --negatives --output mined.jsonl      its training pairs, each with 5 hard negatives
        likewise search mine.npz --duplicates 0.98                     features from anywhere; so are their neighbours
        likewise search mine.npz ID                                    of an id, and --mistakes
        likewise search new.jpg --among photos/                        without a run: by a network that others trained
        likewise search --within photos/ --duplicates 0.98             likewise
    """

    workflow = "likewise.workflows.searches.search"
    run: str | None = None
    query: Sequence[str] = ()
    among: Path | None = None
    within: Path | None = None
    side: Literal["first", "second"] = "first"
    k: int = 5
    at_least: float | None = None
    gallery_includes_queries: bool = False
    duplicates: float | None = None
    mistakes: bool = False
    negatives: bool = False
    from_rank: int = 1
    margin: float | None = None
    output: Path | None = None
    html: Path | None = None
    force: bool = False
    device: str = "auto"


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Encode any data into one file: ids, features, and labels and parts where there are some.

        likewise embed runs/RUN photos/ --output photos.parquet
        likewise embed runs/RUN texts.csv --output texts.npz --data.label none
        likewise embed encoder.onnx photos/ --output photos.parquet --dtype float16
        likewise embed photos/                            by a network that others trained, into photos.parquet
        likewise embed photos/ --encoder Timm --encoder.name resnet18 --encoder.pretrained true --data.size 224
        likewise embed photos/ --encoder resnet18 --weights resnet18.pth --data.size 224
        likewise embed runs/RUN answers.jsonl --side second --output answers.parquet

    Images are brought to the run's size by its own rule. Parts are those of the data, or of a run's own data those that
    it was split into. It works shard by shard: what was finished before Ctrl-C is in OUTPUT.partial, and the same
    command goes on from there. Images that can't be read are left out, and listed.

    Args:
        run: A run's folder, or an exported .onnx file.
        data: What to encode: a folder of photos, a file, a data set of torchvision, or a class.
        output: The file to write, .parquet or .npz. Default: called as the data is, here.
        side: The side of a run of pairs that the data belongs to: first or second.
        encoder: An encoder in place of a run's. Default: without a run, for photos and texts one that others trained;
            see likewise train --help.
        weights: A file of its weights, .safetensors or .pth; see `likewise train`. Default: those that it comes with.
        dtype: The type of the features.
        shard_size: Samples that are done at once or not at all.
        batch_size: Samples encoded at a time. Default: as many as suit their size.
        workers: Processes that read and decode samples; 0: none. Default: one per core, up to 8.
        force: Whether an output that exists is replaced, and what was begun with other options.
        device: Where the encoder runs: auto, cpu, cuda ...
    """

    run: Path | None = None
    data: Source
    output: Path | None = None
    side: Literal["first", "second"] = "first"
    encoder: Encoder | None = None
    weights: str | None = None
    dtype: Literal["float32", "float16"] = "float32"
    shard_size: int = 10_000
    batch_size: int | None = None
    workers: int | None = None
    force: bool = False
    device: str = "auto"


RECORDS: dict[str, tuple[type[Any], str]] = {
    "train": (TrainOptions, "[DATA]"),
    "evaluate": (EvaluateOptions, "SOURCE"),
    "compare": (CompareOptions, "RUNS ..."),
    "export": (ExportOptions, "RUN"),
    "embed": (EmbedOptions, "[RUN] DATA"),
    "predict": (PredictOptions, "RUN INPUT ..."),
    "search": (SearchOptions, "[RUN] [QUERY ...]"),
}
"""By verb: the record of its options, and its positional arguments."""
PARTS = ("data", "split", "batches", "encoder", "head", "loss", "optimizer", "schedule")
_USUAL = vars(TrainOptions())
DEFAULTS: dict[str, Any] = {
    **{part: _USUAL[part]["class_path"] for part in PARTS},
    **{f"{part}.{name}": value for part in PARTS for name, value in _USUAL[part]["init_args"].items()},
    **{f"trainer.{name}": value for name, value in _USUAL["trainer"].items()},
}
SOURCES = ("config", "recipe", "resume")
"""Options that bring others, and have no meaning of their own once those are known."""
RESUMED_WITH = (
    "report", "sections", "log", "workers", "checkpoint_minutes", "keep_checkpoints", "timeout_minutes", "trainer",
)  # fmt: skip
OF_LOSSES = {"gather_distributed": True, "label_similarity": "npmi"}
"""The command's defaults for losses that take these arguments; with one process there is nothing to gather."""
FILLED_OPTIONS = {
    ("encoder", "input_shape"): "data",
    ("head", "feature_dim"): "encoder",
    ("loss", "num_samples"): "data",
    ("loss", "feature_dim"): "head",
    ("loss", "num_classes"): "data",
}
"""Arguments of parts that the parts before them supply, whatever the options say."""
HIDDEN_OPTIONS = {name for _, name in FILLED_OPTIONS} | {"params"}
"""Parameters that are no options: those filled in, and the parameters that an optimizer updates."""

"""The options of the command's verbs: one record each, received by the workflow, with the help as its docstring.

A part is described by its class and arguments, and its annotation names the required base class.
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
            [] switches evaluation off. Default: the applicable ones of KNN, LinearProbe, OwnClassifier and Retrieval,
            WithinClass for a second, finer labelling, and FewShot for new classes.
        evaluation_samples: The largest number of samples of each part to encode and evaluate, for pairs in whole
            groups. Default: all; for a run evaluated again, the encoded ones.
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
    ZeroShot run only if named.

    An array file has the keys features (N, D) and labels (N,), and optionally parts (N,) of train, validation, test;
    or train_features, train_labels, test_features, test_labels. Without parts, the samples of each class are split
    in proportion. Pairs have counterpart_features (N, D) too, and need no labels.

    Args:
        source: A run's folder, a checkpoint in it, an .npz or .parquet file, or a folder of .npy or .parquet files.
        workers: Processes that read inputs not in memory. Default: one per core, up to 8; 0: none.
        device: Where the encoder runs, and on an NVIDIA GPU also kNN, the probe and retrieval: auto, cpu, cuda ...
    """

    source: Path
    workers: int | None = None
    device: str = "auto"


@dataclass(frozen=True, kw_only=True)
class TrainOptions(SharedOptions):
    """Pretrain an encoder by contrastive learning, evaluate it frozen, and write the run's folder and its report.

    Without options: SupConLoss and a small ConvNet on the handwritten digits that scikit-learn ships.
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
    also from a file in the current folder: --loss my_losses.MyLoss. A configuration imports code: trust it like code.

    Args:
        config: A YAML file of options; options on the command line win. Several as --config A --config B.
        recipe: A built-in configuration, METHOD-DATA or METHOD: simclr, supcon, moco, byol, rascal or cross-entropy,
            for digits, omniglot, cifar10, cifar100, cifar100-lt, image-folder and more. All other options win over it.
        resume: The folder of an interrupted run to resume; the only other options are --report, --sections, --log,
            --workers, --checkpoint_minutes, --keep_checkpoints, --timeout_minutes and --trainer.*.
        seed: Seed of everything random except the split.
        name: The name of the run's folder, after its date. Default: the loss and the data.
        checkpoint_minutes: Minutes between checkpoints within an epoch.
        keep_checkpoints: Keep the last checkpoint of a finished run, or the best epoch's, with the weights of head,
            loss and inputs; otherwise only its encoder is kept.
        timeout_minutes: Minutes to wait for another process before all processes end.
        minutes: Train for as many steps as fit, with the evaluation, into this time; a few steps are timed first. The
            run's options record their number, for an exact repetition. Default: the trainer's limit holds.
        chunk_size: Views encoded at a time in each process, for batches whose activations exceed the memory; the loss
            is still over the whole batch. Default: all.
        widths: Numbers of leading features, such as 384,128,64; the loss is the mean over them, for embeddings that
            can be truncated (Matryoshka). Default: only the full length.
        temperature_rate_factor: Factor of a learned temperature's learning rate; --loss.temperature learned learns it.
        unlabelled: How a loss with labels treats unlabelled samples, as from --subset FewLabels: left out, or each as a
            class of its own. Losses without labels are trained on all samples.
        weights: A file of initial weights for the encoder, .safetensors or .pth, from any training: they are matched
            by name and shape, ignoring prefixes of the names, or else by order and shape, which is reported. Default:
            the encoder's own.
        freeze: The frozen parts of the encoder: all, "all but the last block", or names of parts, layer1,layer2; their
            batch statistics are frozen, too. Default: nothing.
        unfreeze_epoch: The epoch from which frozen parts are trained. Default: never.
        encoder_rate_factor: Factor of the encoder's learning rate relative to the head's.
        layer_decay: Factor of the learning rate from each block of the encoder to the one before it, nearer the input.
        workers: Processes that read and decode samples; 0: only the training process. Default: as many as help.
        compile: Whether to compile encoder, head and momentum encoder with torch.compile. The loss is not compiled:
            it runs as usual, with any of its backends. No CUDA graph is captured.
        validation_epochs: Epochs between validation scores; the last epoch always has them. 0: none at all.
        keep: Which weights a finished run keeps: of the last epoch, or of the best in validation, which may be those
            before training. Default: the best where validation can choose, in recipes the last.
        patience: Validations without a better score, as for --keep best, that end the training. Default: never.
        log: Tools to log the training to: tensorboard, wandb, mlflow, csv; several as --log [tensorboard,mlflow].
        data: The source of the samples: a class, a folder of photos, a file, or a data set of torchvision.
        min_per_class: The fewest samples of a class; smaller classes are left out of every part.
        subset: Fewer training samples: a long tail, a fraction, some classes; several with --subset+. Default: all.
        split: How samples are split into training, validation and test parts.
        batches: Which samples form a batch, and the views made of them.
        encoder: The network kept after training: a class; or scratch, a small one for the data; or auto, the default,
            for photos and texts a published one, from the Hugging Face cache, the hub or a package
            (likewise[pretrained]).
        head: The network between encoder and loss, dropped after training.
        loss: The loss.
        inputs: Further inputs of the loss, such as a queue: --inputs Momentum --inputs+ KeyQueue; [] is none.
        optimizer: The optimizer of the parameters.
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
    """Compare runs: a table with intervals and paired differences, overlaid curves, differences by class.

        likewise compare runs/A runs/B                         compare.html, and the table as compare.csv and .md
        likewise compare runs/* --output results/all.html

    Runs that differ only in the seed are one setting; the others are compared with the first run's setting. Scores
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
    """Write a run's encoder to a file for use elsewhere, or to a folder for another library.

    The file is named after the run, unless --output is given:

        likewise export runs/RUN --format onnx            RUN.onnx: any number of inputs, checked against the encoder
        likewise export runs/RUN --classifier probe       encoder and classifier as one, in RUN.onnx
        likewise export runs/RUN --output encoder.safetensors
        likewise export runs/RUN --side second --format onnx     the other encoder of a run of pairs
        likewise export runs/RUN --format sentence-transformers  a folder for SentenceTransformer; also
                                                                 transformers, and timm for a timm network
    """

    workflow = "likewise.workflows.exports.export"
    run: Path
    output: Path | None = None
    format: Literal["safetensors", "onnx", "sentence-transformers", "transformers", "timm"] | None = None
    side: Literal["first", "second"] = "first"
    classifier: Literal["probe"] | None = None


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Predict the class or labels of samples with a run, and report samples unlike its training data.

        likewise predict runs/RUN photos/ --output photos.csv        one row per photo
        likewise predict runs/RUN photo.jpg                          one photo, printed
        likewise predict runs/RUN "a text" "another"                 texts, printed; - takes the lines of standard input
        likewise predict runs/RUN photos/ --by knn                   by the nearest training samples
        likewise predict runs/RUN photos/ --among support/           by the nearest of these, such as new classes

    The columns are id, class and probability, or labels and their probabilities, and unlike: the share of held-out
    samples nearer to the training data; unlike_training is true above 0.95. Where the samples have labels, these are
    added, and the accuracy and the most frequent confusions are printed.
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
    """Find the nearest neighbours of images, texts or vectors; near-duplicates; or doubtful labels.

    The search is exact, by cosine similarity:

        likewise search runs/RUN photo.jpg --among photos.parquet      the nearest in a file from `likewise embed`
        likewise search runs/RUN new/ --among photos/ --html page.html   both encoded now; a page with the images
        likewise search runs/RUN --within photos.parquet --k 3         the nearest others of each sample
        likewise search runs/RUN --within photos/ --duplicates 0.98    groups that pairs of at least 0.98 link
        likewise search runs/RUN --within photos/ --mistakes           labels that a sample's neighbours do not have
        likewise search runs/RUN "a red bus" --side second --among photos/    of pairs, from one side to the other
        likewise search runs/RUN --negatives --output mined.jsonl      its training pairs, each with 5 hard negatives
        likewise search mine.npz --duplicates 0.98                     features from anywhere; also with --mistakes
        likewise search mine.npz ID                                    the neighbours of an id in these
        likewise search new.jpg --among photos/                        without a run: by a published network
        likewise search --within photos/ --duplicates 0.98             as above
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
    """Encode any data into one file: ids, features, and labels and parts if there are any.

        likewise embed runs/RUN photos/ --output photos.parquet
        likewise embed runs/RUN texts.csv --output texts.npz --data.label none
        likewise embed encoder.onnx photos/ --output photos.parquet --dtype float16
        likewise embed photos/                            by a published network, into photos.parquet
        likewise embed photos/ --encoder Timm --encoder.name resnet18 --encoder.pretrained true --data.size 224
        likewise embed photos/ --encoder resnet18 --weights resnet18.pth --data.size 224
        likewise embed runs/RUN answers.jsonl --side second --output answers.parquet

    Images are resized to the run's size by its own rule. Parts come from the data, or for a run's own data from its
    split. Encoding works shard by shard: after Ctrl-C the finished shards are in OUTPUT.partial, and the same command
    resumes there. Unreadable images are left out, and listed.

    Args:
        run: A run's folder, or an exported .onnx file.
        data: The data to encode: a folder of photos, a file, a data set of torchvision, or a class.
        output: The file to write, .parquet or .npz. Default: named after the data, in the current folder.
        side: The side of a run of pairs that the data belongs to: first or second.
        encoder: An encoder in place of a run's. Default: without a run, for photos and texts a published one; see
            likewise train --help.
        weights: A file of its weights, .safetensors or .pth; see `likewise train`. Default: the encoder's own.
        dtype: The type of the features.
        shard_size: Samples in a shard, which is written whole or not at all.
        batch_size: Samples encoded at a time. Default: chosen by the size of a sample.
        workers: Processes that read and decode samples; 0: none. Default: one per core, up to 8.
        force: Whether to replace an existing output, and shards begun with other options.
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
"""Arguments of parts that earlier parts supply, whatever the options say."""
HIDDEN_OPTIONS = {name for _, name in FILLED_OPTIONS} | {"params"}
"""Parameters that are not options: those filled in, and the parameters that an optimizer updates."""

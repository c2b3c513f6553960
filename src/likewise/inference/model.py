"""Trained models: from inputs in any usual form to features."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final, get_args

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from likewise.data import ImagePreprocessing, LazyInputs, Samples, Texts
from likewise.data.arrays import as_images
from likewise.data.image_files import ImageFiles
from likewise.data.lazy_inputs import files_of, in_words, unreadable
from likewise.evaluation import Features, Predictions, RunPredictors
from likewise.evaluation.arrays import is_arrays, vectors_of
from likewise.evaluation.run_predictors import By
from likewise.files.detection import exists, expanded, file_at
from likewise.files.formats import image_suffixes
from likewise.inference.onnx import Given, OnnxEncoder, OnnxTexts, onnx_encoder
from likewise.models import Encoder, reads_texts
from likewise.models.encoder import Progress
from likewise.runs import Run, Side

if TYPE_CHECKING:
    from PIL.Image import Image

    from likewise.inference.search import Neighbours, Stored

    Input = str | Path | Image | NDArray[Any] | Tensor | Sequence[float]
    Inputs = Input | Sequence[Input] | Samples | LazyInputs


@final
class Model:
    """A trained encoder, with the preprocessing of its inputs; see `load`.

    Args:
        encoder: The encoder, which is put into evaluation mode.
        preprocessing: The preprocessing of images. None: they are cropped and resized to the encoder's input shape.
        run: The run that the encoder comes from, if any.
        side: The side of the encoder, in a run of pairs; see `of`.

    Example:
        >>> from likewise.models import ConvNet
        >>> from PIL import Image
        >>> model = Model(ConvNet((3, 16, 16), width=4))
        >>> model.encode([Image.new("RGB", (40, 30)), Image.new("L", (16, 16))]).shape
        (2, 16)
    """

    def __init__(
        self,
        encoder: Encoder,
        preprocessing: ImagePreprocessing | None = None,
        run: Run | None = None,
        side: Side = "first",
    ) -> None:
        shape = encoder.input_shape
        if preprocessing is None and len(shape) == 3 and shape[0] in {1, 3}:
            preprocessing = ImagePreprocessing(*shape)
        self.encoder = encoder.eval()
        self.preprocessing = preprocessing
        self.run = run
        self.side: Side = side

    def __repr__(self) -> str:
        takes = "texts" if reads_texts(self.encoder) else f"{tuple(self.encoder.input_shape)}"
        return f"Model({type(self.encoder).__name__}: {takes} -> {self.feature_dim})"

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self.encoder.feature_dim

    @property
    def paired(self) -> bool:
        """Whether its run is one of pairs, with a model for each side."""
        facts = self.run.metadata if self.run else {}
        return self.encoder.paired if isinstance(self.encoder, Given) else facts.get("second") is not None

    @property
    def encodes(self) -> bool:
        """Whether it has an encoder; else it takes given features unchanged."""
        return not isinstance(self.encoder, Given)

    def of(self, side: Side) -> "Model":
        """Return the model of a side of pairs: this one, or the other side's, loaded on first use."""
        if side == self.side:
            return self
        if side not in get_args(Side):
            raise ValueError(f"expected side as first or second, got {side!r}")
        if not self.paired:
            got = self.run.folder if self.run else "an encoder alone"
            raise ValueError(f"expected a run of pairs for the {side} side, got {got}: leave out the side")
        return self.across

    @cached_property
    def across(self) -> "Model":
        """The model of the other side of pairs, which searches look through; without pairs, itself."""
        if not self.paired:
            return self
        side: Side = "second" if self.side == "first" else "first"
        encoder: Any = self.encoder
        facts = self.run.metadata if self.run and self.encodes else {"second": {"encoder": None}}
        if self.run and facts["second"]["encoder"] is not None:  # each side has its own encoder
            encoder = self.run.encoder(side).to(encoder.mean.device)
        other = Model(encoder, _preprocessing(facts, side), self.run, side)
        vars(other)["across"] = self
        return other

    def encode(
        self, inputs: "Inputs", *, side: Side | None = None, batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Float[NDArray[np.float32], "n d"]:  # fmt: skip
        """Encode inputs as in training; the same photo gives the same features in every form of input.

        Args:
            inputs: One input or several. Images: paths, Pillow images, or arrays and tensors, one image (H, W),
                (H, W, channels) or (channels, H, W), or several (N, H, W), (N, H, W, channels) or (N, channels, H, W),
                uint8 or from 0 to 1, of any size; alone, (3, H, W) is one image for a colour model, and three for a
                greyscale one. Texts: strings. Vectors: arrays and tensors (F,) or (N, F). Or `Samples`.
            side: The side of the inputs, in a run of pairs: "first" or "second". None: the model's own.
            batch_size: Number of inputs encoded at a time. None: as many as the encoder's `encode` takes.
            progress: Wraps the iteration over batches, for example tqdm.

        Returns:
            Features (N, D); for one input (1, D).

        Raises:
            ValueError: An input can't be read, or is of another kind than the encoder takes; or there is one side.

        Memory:
            One batch of inputs and activations, in addition to the features, where inputs are paths.
        """
        if side is not None and side != self.side:
            return self.of(side).encode(inputs, batch_size=batch_size, progress=progress)
        rows = self.rows(inputs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "an image that cannot be read")  # which is an error here
            features = self.encoder.encode(rows, batch_size, progress=progress)
        if lost := files_of(unreadable(rows, torch.arange(len(rows)))):
            raise ValueError(f"expected images that can be read, got others: {in_words(lost)}: leave them out")
        return features.numpy()

    def predict(
        self, inputs: "Inputs", by: By | None = None, *, among: Features | None = None, batch_size: int | None = None
    ) -> Predictions:
        """Predict the class or the labels of inputs, and how unlike the training data each input is.

        Args:
            inputs: See `encode`.
            by: "probe", the linear probe of the run; "own", the classifier or prototypes trained with the
                encoder; "knn", the nearest training samples. None: the first of these that the run has.
            among: Features with labels of other samples, such as a few of new classes, whose nearest 20 predict
                instead.
            batch_size: See `encode`.

        Raises:
            ValueError: An input can't be read, or the run has learned no classes or labels.

        Example:
            >>> from likewise.evaluation import FeatureParts, save_features
            >>> part = Features(torch.eye(3), torch.arange(3), ("red", "green", "blue"))
            >>> run = Run.create(Path(), "mine")
            >>> run.describe({})
            >>> save_features(run.embeddings, FeatureParts(part, part, part))
            >>> load(run).predict([0.0, 1.0, 0.0]).labels
            ['green']
        """
        features = torch.from_numpy(self.encode(inputs, batch_size=batch_size))
        batch: Any = [inputs] if isinstance(inputs, str | Path) else inputs
        files = isinstance(batch, list) and self.preprocessing and all(isinstance(path, str | Path) for path in batch)  # pyright: ignore[reportUnknownVariableType]
        ids = batch.ids if isinstance(batch, Samples) else batch if files else range(len(features))
        return self.learned.predictions(features, list(map(str, ids)), by, among)

    @cached_property
    def learned(self) -> RunPredictors:
        """The run's predictors, learned from features."""
        if isinstance(self.encoder, OnnxEncoder | OnnxTexts):
            return RunPredictors(None, self.encoder.file.probe)
        if self.run is None:
            raise ValueError("expected the model of a run, got an encoder alone: load one with likewise.load(run)")
        return RunPredictors(self.run)

    def search(
        self,
        queries: "Inputs | Stored",
        among: "Stored | Path | str | Sequence[Any] | NDArray[np.floating[Any]] | None" = None,
        *,
        side: Side | None = None,
        k: int = 5,
        at_least: float | None = None,
        gallery_includes_queries: bool = False,
    ) -> "Neighbours":
        """Find the exact nearest neighbours by cosine similarity; of equal ones, the earlier comes first.

        In a run of pairs, queries of one side find samples of the other.

        Args:
            queries: Inputs for `encode`; or features in a file, opened by `open_features`.
            among: Features (N, D); a file of them, as from `likewise embed`; a run's folder, for the run's own; or a
                folder, a table, or a list of files or texts, which are encoded. None: each query's nearest among the
                others, of one side.
            side: The side of the queries, in a run of pairs. None: the model's own.
            k: The number of neighbours of each query.
            at_least: The smallest similarity that counts. None: any.
            gallery_includes_queries: Whether the queries are among the searched samples: each one's own row is omitted.

        Returns:
            Ids, indices and similarities, and texts where available; ids of an array are its row numbers.

        Raises:
            ValueError: A file can't be read, or the width of the features differs from the model's.

        Memory:
            The queries' features, and a piece of the searched ones.

        Example:
            >>> from likewise.models import MLP
            >>> model = Model(MLP((2,), width=16))
            >>> nearest = model.search([[1.0, 2.0]], model.encode([[5.0, -3.0], [1.0, 2.0]]), k=1)
            >>> nearest.ids, round(float(nearest.similarities[0, 0]), 4)
            ([['1']], 1.0)
        """
        from likewise.inference.search import Neighbours, Stored, neighbours, own_of, stored_at  # noqa: PLC0415 - a cycle

        def as_stored(features: Any) -> Stored:
            if isinstance(features, Stored):
                return features
            return Stored.of(torch.from_numpy(vectors_of(features, "features")), list(map(str, range(len(features)))))

        model = self.of(side or self.side)
        stored_queries = as_stored(queries if isinstance(queries, Stored) else model.encode(queries))
        if isinstance(among, list) and among and isinstance(among[0], str | Path):
            among = model.across.encode(among)
        gallery = stored_at(among, model.across) if isinstance(among, str | Path) else among
        gallery = None if gallery is None else as_stored(gallery)
        mine = None
        if gallery is not None and gallery_includes_queries:
            mine = own_of(stored_queries, gallery, included=True)
        pieces = neighbours(stored_queries, gallery, k, at_least, own_index=mine)
        _, *parts = zip(*pieces, strict=True)
        similarities, indices = (torch.cat(tensors).numpy() for tensors in parts)
        source = stored_queries if gallery is None else gallery

        def each(column: Any) -> list[list[str]]:
            return [[str(column[int(at)]) for at in row if at >= 0] for row in indices]

        return Neighbours(each(source.ids), indices, similarities, None if source.texts is None else each(source.texts))

    def rows(self, inputs: "Inputs") -> Tensor | LazyInputs:
        """Return inputs in the encoder's form, (N, ...); files are read on demand."""
        batch: Any = inputs.inputs if isinstance(inputs, Samples) else inputs
        if isinstance(batch, Tensor | np.ndarray):
            return self._of_array(batch)
        if isinstance(batch, Sequence) and not isinstance(batch, str):
            several: list[Any] = list(batch)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(batch, str | Path) or hasattr(batch, "getexif"):
            several = [batch]
        else:
            return batch
        if not several:
            raise ValueError("expected at least one input, got none: give a path, an image, a text or an array")
        if reads_texts(self.encoder):
            return self._texts(several)
        if self.preprocessing is None:
            return self._of_array(np.asarray(several))
        if all(isinstance(path, str | Path) for path in several):
            return ImageFiles([file_at(path, paired=self.paired) for path in several], self.preprocessing)
        return torch.cat([self._image(image) for image in several])

    def _texts(self, several: list[Any]) -> Texts:
        odd = next((text for text in several if not isinstance(text, str)), None)
        if odd is not None:
            raise ValueError(f"expected texts as strings, got {type(odd).__name__}: this run was trained on texts")
        if self.paired and not all(map(str.strip, several)):
            raise ValueError("expected texts, got an empty one: leave it out, as training does")
        for text in several if self.paired else ():
            if exists(expanded(text)) and self.across.preprocessing and Path(text).suffix.lower() in image_suffixes():
                side = self.across.side
                raise ValueError(f"expected texts, got {text}, an image of the {side} side: give it as that")
        return Texts(several)

    def _of_array(self, values: Any) -> Tensor:
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        if reads_texts(self.encoder):
            raise ValueError("expected texts as strings, got an array: this run was trained on texts")
        if self.preprocessing is not None:
            channels_last, channels = array.shape[-1:] in {(1,), (3,)}, self.preprocessing.channels
            is_single = array.ndim == 2 or (array.ndim == 3 and (channels_last or array.shape[0] == channels))
            return self.preprocessing.of_tensor(as_images(array[None] if is_single else array))
        shape = self.encoder.input_shape
        array = array[None] if array.shape == shape else array
        if array.shape[1:] != shape or array.dtype.kind not in "uifb":
            expected = f"expected vectors ({', '.join(map(str, ('N', *shape)))}), numbers, as this run was trained on"
            raise ValueError(f"{expected}, got {array.shape} of {array.dtype}")
        return torch.from_numpy(np.require(array, np.float32, "W"))

    def _image(self, image: Any) -> Tensor:
        if isinstance(image, str | Path):
            from likewise.data import read_image  # noqa: PLC0415 - for paths only

            return read_image(image, self._made_of).unsqueeze(0)
        if hasattr(image, "getexif"):
            file = Path(getattr(image, "filename", "") or "")
            if image.format == "JPEG" and image.tile and file.is_file():  # as it would be from its path: see `draft`
                return self._image(file)
            return self._made_of(image.copy()).unsqueeze(0)  # may rotate it in place
        if isinstance(image, Tensor | np.ndarray):
            first = image.ndim == 3 and image.shape[0] == 3 and image.shape[-1] not in {1, 3}  # grey images
            images = self._of_array(image[None] if first else image)
            if len(images) == 1:
                return images
            raise ValueError(f"expected one image in each place, got {tuple(image.shape)}: give several alone")
        raise ValueError(f"expected images as paths, arrays or Pillow's, got {type(image).__name__}: give one of these")

    @property
    def _made_of(self) -> ImagePreprocessing:
        if self.preprocessing is None:
            raise ValueError(f"expected vectors, got an image: this run was trained on {self.encoder.input_shape}")
        return self.preprocessing


def load(run: Run | Path | str, *, module: nn.Module | None = None, device: str | torch.device | None = None) -> Model:
    """Load a run's trained model, ready for use.

    Args:
        run: The run, its folder, or its ONNX file from `export`, which onnxruntime then computes. Or features from
            anywhere, in a file for `open_features` or a run without an encoder, which stay unchanged.
        module: The trained network, or the module in it, where its class is not found, such as one from a notebook; it
            gets the trained weights.
        device: Where the encoder computes. None: a GPU if there is one.

    Raises:
        ValueError: It is neither a run's folder nor such a file, the run has trained no encoder yet, or another module.
        ModuleNotFoundError: It is an ONNX file, and onnxruntime is not installed.

    Memory:
        The encoder.

    Example:
        >>> from likewise.models import MLP
        >>> run, arguments = Run.create(Path(), "mine"), {"input_shape": [3], "width": 8}
        >>> run.describe({"parts": {"encoder": {"class_path": "likewise.models.MLP", "init_args": arguments}}})
        >>> run.save_encoder(MLP((3,), width=8))
        >>> load(run.folder).encode([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]).shape
        (2, 8)
    """
    if not isinstance(run, Run) and Path(run).suffix == ".onnx" and module is None:
        encoder = onnx_encoder(run, device)
        facts = encoder.file.metadata
        return Model(encoder, _preprocessing(facts), side=facts.get("side", "first"))
    if not isinstance(run, Run) and is_arrays(expanded(run)) and (identity := Given.at(expanded(run))) is not None:
        return Model(identity)
    opened = run if isinstance(run, Run) else Run.open(run)
    if opened.embeddings.is_file() and not opened.weights.is_file():
        return Model(Given.at(opened.embeddings), run=opened)
    trained: Any = opened.encoder(module=module)
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Model(trained.to(target), _preprocessing(opened.metadata), opened)


def _preprocessing(facts: Mapping[str, Any], side: Side = "first") -> ImagePreprocessing | None:
    made_of = (facts if side == "first" else facts["second"]).get("preprocessing")
    return None if made_of is None else ImagePreprocessing(**made_of)

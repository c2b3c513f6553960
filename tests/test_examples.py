"""Every example runs, and ends with the result that it promises."""

import ast
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

import likewise as lw

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
BETTER = {  # what each script prints last: an evaluation, what it starts from, what it ends with, by how much at least
    "training_loop.py": ("kNN accuracy of", "pixels", "features", 0.0),
    "lightning_module.py": ("nearest image by", "pixels", "features", 0.02),
    "hugging_face.py": ("mAP of nearest texts by", "TF-IDF", "features", 0.1),
    "moco.py": ("nearest image by", "pixels", "features", 0.01),
    "translations.py": ("recall@1 first to second of", "raw inputs", "encoder", 0.5),
    "pair_weights.py": ("R-precision with", "equal trust", "trust", 0.03),
}
NEEDS = {"lightning_module.py": ["lightning"], "hugging_face.py": ["datasets", "tokenizers", "transformers"]}
NOTEBOOK = EXAMPLES / "look_at_a_run.ipynb"
COMMAND = EXAMPLES / "own_loss.py"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of libraries, and of few workers


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Run in an empty folder, with all libraries' ordinary settings, and leave no module behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    torch.set_deterministic_debug_mode("default")
    pytest.importorskip("sklearn", reason="needs pip install 'likewise[train]'")
    yield
    sys.modules.pop(COMMAND.stem, None)


def printed(text, what):
    """Return the number that was printed after some words."""
    (found,) = re.findall(rf"^{re.escape(what)}\D*: (\d\.\d+)$", text, re.MULTILINE)
    return float(found)


@pytest.mark.parametrize("name", BETTER)
def test_a_script_prints_a_better_number_than_it_starts_from(name, capsys, monkeypatch):
    for module in NEEDS.get(name, []):
        pytest.importorskip(module, reason=f"{name} needs {module}: see examples/README.md")
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    text = capsys.readouterr().out
    words, before, after, least = BETTER[name]
    assert printed(text, f"{words} {after}") > printed(text, f"{words} {before}") + least


def test_the_new_loss_is_sup_con_where_all_trust_is_one():
    """The same loss comes from a matrix, and both have its gradient."""
    example = runpy.run_path(str(EXAMPLES / "pair_weights.py"))
    labels, trust = torch.arange(40) % 5, torch.rand(40, dtype=torch.float64)
    z = torch.randn(40, 8, dtype=torch.float64, requires_grad=True)
    new, matrix = example["trusted_sup_con"], example["with_a_matrix"]
    for one, other in (
        (new(z, labels, torch.ones_like(trust)), lw.SupConLoss(temperature=0.1)(z, labels)),
        (new(z, labels, trust), matrix(z, labels, trust)),
    ):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(*(torch.autograd.grad(of, z)[0] for of in (one, other)))


def test_the_command_trains_a_loss_from_the_current_folder(tmp_path, capsys):
    """With the words of its docstring."""
    pytest.importorskip("lightning", reason="needs pip install 'likewise[train]'")
    from likewise.cli import main  # noqa: PLC0415 - where it is tested

    source = COMMAND.read_text(encoding="utf-8")
    (tmp_path / COMMAND.name).write_text(source, encoding="utf-8")
    (words,) = re.findall(r"^    likewise (train .*)$", source, re.MULTILINE)
    quick = "--evaluations KNN --report false --trainer.enable_progress_bar false --trainer.accelerator cpu"
    assert main([*words.split(), *quick.split()]) == 0
    accuracy, raw = re.search(r"kNN, accuracy: ([\d.]+) %.*raw inputs ([\d.]+) %", capsys.readouterr().out).groups()
    assert float(accuracy) > float(raw)
    (run,) = (tmp_path / "runs").iterdir()
    loss = json.loads((run / "run.json").read_text(encoding="utf-8"))["parts"]["loss"]
    assert loss["class_path"] == "own_loss.ViewWeightedLoss"
    assert loss["init_args"]["own_views"] == 4


def test_the_own_loss_is_sup_con_where_own_views_count_once_and_nt_xent_where_they_count_alone():
    """On views and classes; SupCon's with its gradient."""
    loss = runpy.run_path(str(COMMAND))["ViewWeightedLoss"]
    labels = torch.arange(12) % 3
    z = torch.randn(12, 2, 8, dtype=torch.float64, requires_grad=True)
    one, other = loss(own_views=1)(z, labels), lw.SupConLoss(temperature=0.1)(z, labels)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(*(torch.autograd.grad(of, z)[0] for of in (one, other)))
    alone = loss(own_views=1e9)(z, labels)
    torch.testing.assert_close(alone, lw.NTXentLoss(temperature=0.1)(z), rtol=1e-6, atol=0)


def test_the_notebooks_cells_run_in_order(capsys):
    """In one namespace, as in a fresh kernel; its figures are drawn, and features beat raw inputs."""
    for module in ("lightning", "plotly"):
        pytest.importorskip(module, reason="needs pip install 'likewise[train]'")
    namespace, figures = {"__name__": "__main__"}, 0
    for cell in cells("code"):
        tree = ast.parse(cell)
        shown = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, NOTEBOOK.name, "exec"), namespace)  # noqa: S102 - our own
        if shown is not None:
            value = eval(compile(shown, NOTEBOOK.name, "eval"), namespace)  # noqa: S307 - likewise
            figures += hasattr(value, "to_html") and len(value.data) > 0
    assert figures == 5
    assert namespace["status"] == 0
    assert namespace["agreement"]["encoder"] > namespace["agreement"]["raw inputs"] + 0.05
    assert "retrieval" in capsys.readouterr().out


def cells(kind):
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_the_notebook_is_valid_and_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell["cell_type"] in {"code", "markdown"}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_every_example_is_run_here_listed_there_and_says_how_to_run_it():
    """No file without a test, a row in the table, a place in the pages, and a command in its first words."""
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".ipynb"}}
    assert files == {*BETTER, NOTEBOOK.name, COMMAND.name}
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for name in files:
        assert f"| [{name}]({name}) |" in table
        assert (name if name == NOTEBOOK.name else f'\n--8<-- "examples/{name}"\n') in page
        text = cells("markdown")[0] if name == NOTEBOOK.name else (EXAMPLES / name).read_text(encoding="utf-8")
        assert "    pip install '.[" in text
        assert re.search(rf"^    (python|likewise train|jupyter lab) .*{Path(name).stem}", text, re.MULTILINE)

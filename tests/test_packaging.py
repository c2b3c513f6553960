"""What is published: a wheel of the package alone, a source distribution that builds the same, a citation."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

import likewise

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "likewise"
VERSION = likewise.__version__
INFO = f"likewise-{VERSION}.dist-info"
NO_INDEX = ("Failed to resolve requirements", "Failed to fetch", "error sending request", "Could not connect")


def build(source, folder):
    """Build with uv, and return what it made; skip where there is no uv, or no build backend to be had."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("no uv to build with: pip install uv")
    command = [uv, "build", str(source), "--out-dir", str(folder), "--python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and any(words in done.stderr for words in NO_INDEX):
        pytest.skip("no build backend: hatchling is neither cached nor at a package index that can be reached")
    assert done.returncode == 0, done.stderr
    return {path.name.removeprefix(f"likewise-{VERSION}"): path for path in folder.iterdir() if path.suffix != ".lock"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the source distribution of the working tree, and the wheel that it builds."""
    made = build(ROOT, tmp_path_factory.mktemp("built"))
    return made[".tar.gz"], made["-py3-none-any.whl"]


def contents(wheel):
    with zipfile.ZipFile(wheel) as file:
        assert file.testzip() is None
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.process
def test_the_wheel_has_the_whole_package_and_nothing_else(built):
    """Every file of the package, byte by byte, by way of the source distribution; no tests, no pages, no examples."""
    names = contents(built[1])
    package = {
        path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    described = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert names.keys() - package.keys() == described
    assert {name: content for name, content in names.items() if name in package} == package
    assert names[f"{INFO}/entry_points.txt"].split() == b"[console_scripts] likewise = likewise.cli:main".split()


@pytest.mark.process
def test_the_wheel_says_what_it_needs_and_where_it_comes_from(built):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = message_from_bytes(contents(built[1])[f"{INFO}/METADATA"])
    assert (said["Name"], said["Version"], said["License-Expression"]) == ("likewise", VERSION, "MIT")
    needed = [each for each in said.get_all("Requires-Dist") if "extra ==" not in each]
    assert sorted(needed) == ["jaxtyping>=0.3", "torch>=2.8"]
    assert set(said.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    assert dict(each.split(", ") for each in said.get_all("Project-URL")) == project["urls"]
    shown = said.get_payload()
    assert shown.startswith("# likewise")
    addresses = re.findall(r"\]\(([^)]+)\)", shown)
    assert len(addresses) == len(links())
    assert all(address.startswith(f"{project['urls']['Source']}/") for address in addresses)
    assert f"({project['urls']['Source']}/raw/main/docs/images/cost.svg)" in shown


def links():
    return re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))


def test_every_link_of_the_readme_leads_to_a_file():
    if not (ROOT / ".github").is_dir():
        pytest.skip("no clone: a source distribution has no results of benchmarks")
    assert [link for link in links() if not (ROOT / link.partition("#")[0]).exists()] == []


@pytest.mark.process
def test_the_source_distribution_has_the_tests_with_what_they_read(built):
    """And no more than what belongs to it."""
    with tarfile.open(built[0]) as file:
        names = {Path(*Path(member.name).parts[1:]).as_posix() for member in file if member.isfile()}
    assert {name for name in names if "/" not in name} == {
        *(".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md"),
        *("conftest.py", "mkdocs.yml", "pyproject.toml"),
    }
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders == {"src", "tests", "examples", "docs", "benchmarks"}
    assert {"tests/test_packaging.py", "examples/README.md", "docs/index.md"} <= names


def test_the_citation_and_the_changelog_are_of_this_version():
    """With what version 1.2.0 of the format requires, and nothing that differs from the project's own words."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["cff-version"], cited["title"]) == ("1.2.0", "likewise")
    assert cited["message"]
    assert cited["authors"] == [{"name": "The likewise authors"}]
    ours = {"version": VERSION, "license": "MIT", "abstract": project["description"], "keywords": project["keywords"]}
    assert {key: cited[key] for key in ours} == ours
    source, *others = sorted(project["urls"].values(), key=len)
    assert cited["repository-code"] == project["urls"]["Source"] == source
    assert all(address.startswith(f"{source}/") for address in others)
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert next(line for line in lines if line.startswith("## ")).startswith(f"## {VERSION} - ")


def test_the_workflow_runs_all_checks_on_every_python():
    if not (ROOT / ".github").is_dir():
        pytest.skip("no clone: a source distribution has no workflows")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = [each.rpartition(" ")[2] for each in project["classifiers"] if each.startswith("Programming Language :: ")]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    job = jobs["checks"]
    assert job["strategy"]["matrix"]["python"] == known[1:]  # the first is all of Python 3
    files = re.findall(r"tests/[\w/]+\.py", jobs["losses"]["steps"][-1]["run"])
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert project["requires-python"] == f">={known[1]}"
    assert job["steps"][-1]["run"] == ".ci/run"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)

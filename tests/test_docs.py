"""What the pages must have: every loss, where a reader looks for it."""

import re
from pathlib import Path

import pytest

import likewise as lw
from likewise.losses import ContrastiveLoss

DOCS = Path(__file__).parent.parent / "docs"
LOSSES = sorted(name for name in lw.__all__ if name.endswith("Loss"))
CONTRASTIVE = [name for name in LOSSES if issubclass(getattr(lw, name), ContrastiveLoss)]
PAGES = {
    name: page.name
    for page in sorted((DOCS / "losses").glob("*.md"))
    for name in re.findall(r"^::: likewise\.(\w+Loss)$", page.read_text(encoding="utf-8"), re.MULTILINE)
}
SECTIONS = ["When to use it", "Pull and push", "Example", "Source", "API"]


def test_every_loss_has_one_page():
    """Each public loss ends a page of its own, and there is no page without a loss."""
    assert sorted(PAGES) == LOSSES
    assert len(set(PAGES.values())) == len(list((DOCS / "losses").glob("*.md"))) == len(LOSSES)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_page_says_all_there_is_to_say(loss):
    """A page opens with an equation, and goes on with when, pull and push of a contrast, an example, and its source."""
    page = (DOCS / "losses" / PAGES[loss]).read_text(encoding="utf-8")
    headings = re.findall(r"^## ([^,\n]+)", page, re.MULTILINE)
    assert headings == [each for each in SECTIONS if each != "Pull and push" or loss in CONTRASTIVE]
    assert page.index("\n$$\n") < page.index("\n## ")


@pytest.mark.parametrize(
    ("page", "loss"), [("index.md", loss) for loss in LOSSES] + [("one-equation.md", loss) for loss in CONTRASTIVE]
)
def test_overviews_lead_to_every_loss(loss, page):
    """The list of what to use links to each loss's page, and the table of the one equation to that of each contrast."""
    assert f"(losses/{PAGES[loss]})" in (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("loss", LOSSES)
def test_the_readme_names_every_loss(loss):
    """Its table of what there is has a place for each."""
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^\|.*`{loss}`", readme, re.MULTILINE)

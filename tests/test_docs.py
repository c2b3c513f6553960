"""What the pages must have: every loss, where a reader looks for it."""

import re
from pathlib import Path

import pytest

import likewise as lw

DOCS = Path(__file__).parent.parent / "docs"
LOSSES = sorted(name for name in lw.__all__ if name.endswith("Loss"))
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
    """A page opens with an equation, and goes on with when, pull and push, an example, and its source."""
    page = (DOCS / "losses" / PAGES[loss]).read_text(encoding="utf-8")
    headings = re.findall(r"^## ([^,\n]+)", page, re.MULTILINE)
    assert headings == SECTIONS
    assert page.index("\n$$\n") < page.index("\n## ")


@pytest.mark.parametrize("page", ["index.md", "one-equation.md"])
@pytest.mark.parametrize("loss", LOSSES)
def test_overviews_lead_to_every_loss(loss, page):
    """The list of what to use and the table of all losses link to each loss's page."""
    assert f"(losses/{PAGES[loss]})" in (DOCS / page).read_text(encoding="utf-8")

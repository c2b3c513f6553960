"""A hook of MkDocs: equations become MathML while the pages are built, so that reading them needs no script."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
FUNCTION = re.compile(r"<m[io]>(?:log|exp|max|min|cos)</m[io]>")
SPACE = '<mspace width="0.17em" />'
BAR = '<mo stretchy="false">&#x0007C;</mo>'


def on_page_content(content: str, **_: Any) -> str:
    """Replace the LaTeX that arithmatex has marked."""
    return EQUATION.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    latex = html.unescape(match[3]).strip().replace("{aligned}", "{split}")  # the one of the two names it knows
    markup = convert(latex, display="inline" if match[2] == "(" else "block")
    markup = FUNCTION.sub(rf"{SPACE}\g<0>{SPACE}", markup)
    markup = markup.replace(BAR, BAR.replace("<mo", '<mo lspace="0" rspace="0"'))
    return markup if match[2] == "(" else f'<div class="equation">{markup}</div>'

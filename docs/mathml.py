"""A hook of MkDocs: equations become MathML while the pages are built, so that reading them needs no script."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
FUNCTION = re.compile(r"<m[io]>(?:log|exp|max|min|cos)</m[io]>")
SPACE = '<mspace width="0.17em" />'
BAR = re.compile(r"<mo[^>]*>&#x0007C;</mo>")


def on_page_content(content: str, **_: Any) -> str:
    """Replace the LaTeX that arithmatex has marked."""
    return EQUATION.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    latex = html.unescape(match[3]).strip().replace("{aligned}", "{split}")  # the one of the two names it knows
    markup = convert(latex, display="inline" if match[2] == "(" else "block")
    markup = markup.replace("<mi>&#x029F5;</mi>", "<mo>&#x2216;</mo>")  # few fonts have the first set minus
    markup = FUNCTION.sub(rf"{SPACE}\g<0>{SPACE}", markup)
    markup = BAR.sub('<mo stretchy="false" lspace="0" rspace="0">|</mo>', markup)
    return markup if match[2] == "(" else f'<div class="equation">{markup}</div>'

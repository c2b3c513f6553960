"""An MkDocs hook that converts equations to MathML at build time, so that pages need no script to show them."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
FUNCTION = re.compile(r"<m[io]>(?:log|exp|max|min|cos)</m[io]>")
SPACE = '<mspace width="0.17em" />'
BAR = re.compile(r"<mo[^>]*>&#x0007C;</mo>")


def on_page_content(content: str, **_: Any) -> str:
    """Replace the LaTeX marked by arithmatex."""
    return EQUATION.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    latex = html.unescape(match[3]).strip().replace("{aligned}", "{split}")  # the converter knows only this name
    markup = convert(latex, display="inline" if match[2] == "(" else "block")
    markup = markup.replace("<mi>&#x029F5;</mi>", "<mo>&#x2216;</mo>")  # few fonts have the first character
    markup = FUNCTION.sub(rf"{SPACE}\g<0>{SPACE}", markup)
    markup = BAR.sub('<mo stretchy="false" lspace="0" rspace="0">|</mo>', markup)
    return markup if match[2] == "(" else f'<div class="equation">{markup}</div>'

"""An MkDocs hook that names the language of translated pages, such as `page.ja.md`, for browsers and screen readers."""

import re
from typing import Any

TRANSLATED = re.compile(r"\.(ja|zh)\.md$")


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Return a page's HTML, which the theme calls English, in its own language."""
    found = TRANSLATED.search(page.file.src_path)
    return output if found is None else output.replace('<html lang="en"', f'<html lang="{found[1]}"', 1)

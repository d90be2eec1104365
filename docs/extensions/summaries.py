"""The first sentence of a docstring."""

from __future__ import annotations

import re


def summary(docstring: str) -> str:
    """The first sentence, as a cell of a table."""
    first = docstring.split("\n\n", maxsplit=1)[0].replace("\n", " ").strip()
    found = re.match(r"(.*?[.!?])(?= [A-Z`]|$)", first)
    return re.sub(r"\s+", " ", found[1] if found else first).replace("|", r"\|")

"""The cells of a notebook, run as a kernel runs them: the last expression of each is displayed."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

METHODS = ("_repr_html_", "_repr_png_")


def shown(value: Any) -> str | bytes:
    """Return a value as a notebook shows it: as HTML, as a picture, or as text."""
    for name in METHODS:
        method = getattr(value, name, None)
        page = None if method is None else method()
        if page is not None:
            return page  # type: ignore[no-any-return]
    return repr(value)


def run(path: Path) -> list[str | bytes]:
    """Run a notebook; return what its cells display."""
    names: dict[str, Any] = {"__name__": "__main__"}
    pages = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]), filename=f"{path.name} {cell['id']}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
            pages += [] if value is None else [shown(value)]
    return pages

"""`python -m tests.numpy_page` writes docs/numpy.md: what gdt has of NumPy's namespace."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np

import gdt
from gdt.array.registry import ALIASES, FUNCTIONS
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.op import Op
from gdt.engine.planned import PlannedOp

PAGE = Path(__file__).parent.parent / "docs/numpy.md"
DATES = "gdt has no dates"
OBJECTS = "gdt's arrays have no views, strides or order of memory that a program can ask for"
ABSENT = {
    **dict.fromkeys(("busday_count", "busday_offset", "is_busday", "isnat"), DATES),
    **dict.fromkeys(("datetime_as_string", "datetime_data"), DATES),
    **dict.fromkeys(("asmatrix", "bmat"), "matrices are arrays of rank 2"),
    **dict.fromkeys(("isfortran", "may_share_memory", "nested_iters", "require"), OBJECTS),
    "shares_memory": OBJECTS,
    **dict.fromkeys(("array2string", "array_str"), "`repr(x)` shows the edges of an array"),
    **dict.fromkeys(("get_include", "info", "show_runtime", "test"), "about NumPy itself"),
    **dict.fromkeys(("fromregex", "frompyfunc"), "Python objects and text, one at a time"),
    **dict.fromkeys(("polydiv", "polyfit", "roots"), "not yet: `gdt.linalg.lstsq` fits"),
}  # fmt: skip
NOT_YET = "not yet"


def names_of_numpy() -> list[str]:
    """The functions of NumPy's main namespace."""
    found = [n for n in np.__all__ if callable(getattr(np, n))]
    return sorted(n for n in found if not inspect.isclass(getattr(np, n)))


def how(name: str) -> str:
    """How a function runs: by which rule, as a function of ops, or on the host."""
    function = FUNCTIONS.get(ALIASES.get(name, name.rstrip("_")))
    if function is None:
        return "NumPy's own"
    if isinstance(function, PlannedOp):
        return "an op that moves blocks"
    if isinstance(function, Op):
        rule = function.declaration.rule
        whole = " ".join(sorted(function.declaration.whole))
        text = f"op `{rule}`" if isinstance(rule, str) else "op, its rule by axes"
        return f"{text}, whole `{whole}`" if whole else text
    chapter = function.__module__.removeprefix("gdt.ops.")
    return f"function of ops, `{chapter}`"


def gradient(name: str) -> str:
    """Whether there is a gradient."""
    function: Any = FUNCTIONS.get(ALIASES.get(name, name.rstrip("_")))
    if isinstance(function, Op | custom_vjp):
        return "yes" if any(function.vjps) or function.joint_vjp else "no"
    return "by its ops" if function is not None else "no"


def text() -> str:
    """The page."""
    names = names_of_numpy()
    present = [n for n in names if hasattr(gdt, n) and not inspect.ismodule(getattr(gdt, n))]
    absent = [n for n in names if n not in present]
    lines = [
        "# NumPy's functions",
        "",
        f"gdt has {len(present)} of the {len(names)} functions of NumPy's main namespace. "
        "This page is written by",
        "`python -m tests.numpy_page`, and a test keeps it current.",
        "",
        "An *op* runs by its rule: factors that are not whole may be split, and nothing moves; the",
        "factors that are *whole* are gathered first. A *function of ops* moves what its ops move;",
        "`gdt.explain(lambda: gdt.name(x))` prints the bytes for any layout.",
        "",
        "| function | runs as | gradient |",
        "|---|---|---|",
    ]
    for name in present:
        alias = f" (`{ALIASES[name]}`)" if name in ALIASES else ""
        lines.append(f"| `{name}`{alias} | {how(name)} | {gradient(name)} |")
    lines += ["", "## What is missing", "", "| function | why |", "|---|---|"]
    lines += [f"| `{name}` | {ABSENT.get(name, NOT_YET)} |" for name in absent]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text())

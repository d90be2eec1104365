"""Displayed: the base of objects that notebooks show as HTML."""

from __future__ import annotations

import html
import importlib
from functools import singledispatch


@singledispatch
def to_html(value: object) -> str:
    """Return an object as HTML. `gdt.debug.html` registers the functions for gdt's classes."""
    return f"<pre style='font-family:monospace'>{html.escape(repr(value))}</pre>"


class Displayed:
    """An object that Jupyter and other notebooks show as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        importlib.import_module("gdt.debug.html")  # above this package, and seldom needed
        return to_html(self)

"""Displayed: the base of objects that notebooks show as HTML."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import singledispatch

LOADERS: list[Callable[[], object]] = []
"""Functions that load what registers with `to_html`, which is above this package, and seldom
needed; `gdt` adds one."""


@singledispatch
def to_html(value: object) -> str:
    """Return an object as HTML. `gdt.debug.html` registers the functions for gdt's classes."""
    return f"<pre style='font-family:monospace'>{html.escape(repr(value))}</pre>"


class Displayed:
    """An object that Jupyter and other notebooks show as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        while LOADERS:
            LOADERS.pop()()
        return to_html(self)

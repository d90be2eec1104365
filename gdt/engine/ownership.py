"""The blocks to which nothing else refers, so that an update may overwrite them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.backend.numpy import ONE_REFERENCE

count = sys.getrefcount


def is_owned(mapping: Mapping[str, Any], name: str) -> list[bool]:
    """For every block of the array in `mapping[name]`, whether nothing else refers to it."""
    return [is_only_owned(mapping, name, i) for i in range(len(mapping[name].blocks))]


def is_only_owned(mapping: Mapping[str, Any], name: str, i: int = 0) -> bool:
    """Whether nothing else refers to the array in `mapping[name]`, to its tuple of blocks, to its
    block `i`, or to that block's memory, which is no file's and no other object's."""
    # What is counted is in no variable, which CPython 3.14 counts once and others twice.
    return count(mapping[name]) == ONE_REFERENCE and has_own_block(mapping[name], i)


def is_only_owned_source(place: str) -> str:
    """The source of `is_only_owned(mapping, name)` for the expression `mapping[name]`, in a
    namespace with `OWNERSHIP`: a call less for each parameter of a step."""
    return f"count({place}) == one and has_own_block({place}, 0)"


def has_own_block(array: DistributedArray, i: int) -> bool:
    """Whether nothing but an array refers to its tuple of blocks, to its block `i`, or to that
    block's memory, which is no file's and no other object's."""
    if array._resolved is not None or count(array.blocks) != ONE_REFERENCE:
        return False
    if count(array.blocks[i]) != ONE_REFERENCE:
        return False
    block = array.blocks[i]
    if block.base is None:
        has_memory = block.flags.owndata
    else:
        pooled = backend_of(array.type.layout.mesh).owns(block.base)
        if count(block.base) != ONE_REFERENCE + pooled:
            return False
        has_memory = pooled or getattr(getattr(block.base, "flags", None), "owndata", False)
    return has_memory and getattr(block.flags, "writeable", True)  # CuPy's all are


OWNERSHIP = {"count": count, "one": ONE_REFERENCE, "has_own_block": has_own_block}

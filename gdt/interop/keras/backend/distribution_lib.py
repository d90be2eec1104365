"""Devices and layouts of `keras.distribution`, as gdt's meshes."""

from __future__ import annotations

from typing import Any

from gdt.array.array import DistributedArray


def distribute_variable(value: DistributedArray, layout: Any) -> DistributedArray:
    """Return the value of a variable in a layout."""
    return value

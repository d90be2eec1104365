"""Elements that the host has in its memory: looked at without a fetch, for errors and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.errors import frame_of_user
from gdt.observe import is_recorded, observing_only
from gdt.sharding.array_type import ArrayType

Block = Any


def valid_parts(array_type: ArrayType, blocks: Sequence[Block]) -> Sequence[Block]:
    """Arrays of all elements but the padding."""
    if not array_type.uneven:
        return blocks
    with observing_only():  # nothing of them is taken to the host
        return [shard.data for shard in DistributedArray(array_type, tuple(blocks)).shards]


def warn(text: str) -> None:
    """Give a RuntimeWarning with the user's line."""
    warnings.warn(text, RuntimeWarning, stacklevel=frame_of_user()[1])


def warn_where(is_wrong: DistributedArray, text: str) -> None:
    """Give one RuntimeWarning, with the user's line, if an element of an array of bools is True. A
    step that is recorded gives none, and neither does a GPU, which would be waited for."""
    if is_recorded() or is_wrong.mesh.device_type() != "CPU":
        return
    is_wrong = is_wrong.resolve()
    if any(part.any() for part in valid_parts(is_wrong.type, is_wrong.blocks)):
        warn(text)

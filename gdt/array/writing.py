"""Writing: an array gets another value, and observers that keep arrays are told."""

from __future__ import annotations

from typing import Any

from gdt.comm.agreement import HISTORIES, origin_of
from gdt.observe import KEEPERS, OBSERVERS


def rebind(array: Any, after: Any) -> None:
    """Give `array`, a DistributedArray, the value of `after`, which has its shape and dtype."""
    before = array._alias()
    before._resolved = array._resolved
    keepers = [observer for reference in [*KEEPERS] if (observer := reference()) is not None]
    for observer in {*OBSERVERS.get(), *keepers}:
        observer.on_write(array, before, after)
    partial = getattr(array, "_partial", lambda: None)()
    if partial is not None and partial._resolved is array:
        partial._resolved = before
    array.type, array.blocks, array._resolved = after.type, after.blocks, None
    if HISTORIES:
        array._origin = origin_of(after)

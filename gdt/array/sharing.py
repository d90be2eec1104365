"""Whether two arrays share memory, as a program can tell: whether a write to one shows in the
other."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.views import overlap


def share_memory(x: Any, y: Any) -> bool:
    """Whether what is written into one of the arrays may show in the other one.

    Distributed arrays do where they are views of one base, and NumPy's of such views would. An
    array of the host shares memory with one that was made of it without a copy, or whose values it
    views.
    """
    distributed = [a for a in (x, y) if hasattr(a, "blocks")]
    if len(distributed) == 2:
        return overlap(x, y)
    if not distributed:
        return bool(np.may_share_memory(np.asarray(x), np.asarray(y)))
    host = np.asarray(y if distributed[0] is x else x)
    blocks = [b for b in distributed[0].blocks if isinstance(b, np.ndarray)]
    return any(np.may_share_memory(block, host) for block in blocks)

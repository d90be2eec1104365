"""Softmax cross-entropy with integer labels as a compiled loop, for few and short rows.

Of long rows NumPy takes exponentials faster, several at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.engine.loops import are_arrays, loop
from gdt.engine.plan import Shards
from gdt.ops.blocks.sums import LONGEST

Block = Any
Body = Callable[..., Any]

MOST_EXPONENTIALS = 1 << 13


@loop("labels, input, output, output")
def _losses(labels: Block, logits: Block, loss: Block, softmax: Block) -> int:
    """The number of rows whose label is no class; if there are some, nothing else is made."""
    rows = labels.size
    classes = logits.size // rows
    logits, softmax = logits.reshape((rows, classes)), softmax.reshape((rows, classes))
    element = logits.dtype.type
    outside = 0
    for r in range(rows):
        outside += labels[r] < 0 or labels[r] >= classes
    if outside:
        return outside
    for r in range(rows):
        largest = logits[r, 0]
        for c in range(1, classes):
            largest = max(largest, logits[r, c])
        exact = 0.0
        for c in range(classes):
            softmax[r, c] = np.exp(logits[r, c] - largest)
            exact += softmax[r, c]
        total = element(exact)
        for c in range(classes):
            softmax[r, c] /= total
        loss[r] = np.log(total) - (logits[r, labels[r]] - largest)
    return 0


def losses_loop(
    body: Body,
    labels: Block,
    logits: Block,
    /,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    *,
    shards: Shards,
) -> Body | None:
    """`cross_entropy_of_whole` of few and short rows, without smoothing and ignored ones."""
    if not are_arrays(labels, logits) or label_smoothing or ignore_index is not None:
        return None
    run, rows, shape, dtype = _losses[logits.dtype.char], labels.shape, logits.shape, logits.dtype
    if run is None or not 0 < logits.size <= MOST_EXPONENTIALS or shape[-1] < 2:
        return None
    if dtype.itemsize > 4 and shape[-1] > LONGEST:  # added up pairwise by NumPy
        return None

    def cross_entropy(labels: Block, logits: Block) -> tuple[Block, Block]:
        loss, softmax = np.empty(rows, dtype), np.empty(shape, dtype)
        classes = labels.astype(np.int64, copy=False).ravel()
        outside = run(classes, logits.ravel(), loss.ravel(), softmax.ravel())
        return body(labels, logits) if outside else (loss, softmax)

    return cross_entropy

"""Arrays of a program as batches of rows: what `fit`, `evaluate` and `predict` of models take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from gdt import random
from gdt.array.array import DistributedArray
from gdt.data.batches import Batches
from gdt.data.files import is_path
from gdt.errors import ArgumentError, error, type_text
from gdt.state.trees import leaves, mapped, with_leaves

ROWS = 32  # of a batch, as in Keras
NAMES = ("x", "y", "sample_weight")


def is_array(value: Any) -> bool:
    """Return whether a value is an array, or a tree of arrays, and no iterable of batches."""
    if isinstance(value, Mapping):
        return True
    if isinstance(value, list | tuple):
        return not value or not isinstance(value[0], tuple | list) or _is_nested_numbers(value)
    return isinstance(value, DistributedArray | np.ndarray) or hasattr(value, "__array__")


def _is_nested_numbers(value: Any) -> bool:
    """Return whether nested lists hold numbers: an array written down."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, int | float | np.generic)


def _on_host(value: Any) -> Any:
    """Return an array, or a tree of arrays, on the host; a list of numbers is an array, and a list
    of one array is that array."""
    if isinstance(value, list | tuple) and (not value or _is_nested_numbers(value)):
        return np.asarray(value)
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return mapped(
        lambda leaf: leaf.numpy() if isinstance(leaf, DistributedArray) else np.asarray(leaf), value
    )


def rows_of_batch(op: str, **trees: Any) -> int:
    """Return how many rows arrays have; raise ArgumentError if they differ, or have none."""
    arrays = {n: [tree] if _is_nested_numbers(tree) else leaves(tree) for n, tree in trees.items()}
    shapes = {name: [*map(np.shape, each)] for name, each in arrays.items()}
    counts = {shape[0] if shape else 0 for each in shapes.values() for shape in each}
    if len(counts) != 1 or not min(counts):
        problem = "arrays differ in their rows" if len(counts) > 1 else "there are no rows"
        operands = {name: ", ".join(str(list(s)) for s in each) for name, each in shapes.items()}
        raise error(ArgumentError, op, problem, operands=operands)
    return counts.pop()


def batches_of(
    op: str,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int | None = None,
    shuffle: bool = False,
) -> Iterable[Any]:
    """Return batches of arrays, or the iterable of batches that x is.

    shuffle: whether rows of arrays come in another order in every pass, from `gdt.random`."""
    if x is None:
        raise error(ArgumentError, op, "there is no x")
    if is_path(x) or (isinstance(x, list | tuple) and x and all(map(is_path, x))):
        remedy = "Write gdt.data.Batches(x, y, batch_size=32) for x, which reads `.npy` files."
        raise error(ArgumentError, op, f"x is {type_text(x)}, and no array", remedy=remedy)
    if not is_array(x):
        others = {"y": y, "sample_weight": sample_weight, "batch_size": batch_size}
        wrong = [name for name, value in others.items() if value is not None]
        if wrong:
            problem = f"{wrong[0]} is given, and x yields batches, being {type_text(x)}"
            remedy = "Let x yield (x, y) or (x, y, weights)."
            raise error(ArgumentError, op, problem, remedy=remedy)
        return x  # type: ignore[no-any-return]
    if y is None and op != "predict":
        remedy = "Pass y, or an iterable of batches (x, y)."
        raise error(ArgumentError, op, "there are no targets y", remedy=remedy)
    parts = tuple([_on_host(part) for part in (x, y, sample_weight) if part is not None])
    rows_of_batch(op, **dict(zip(NAMES, parts, strict=False)))
    seed = None
    if shuffle:
        # Mixed, so that the seeds of one state are not those of another seed some draws later.
        seed = int(np.random.SeedSequence(random.generator.take()).generate_state(1)[0])

    def rebuilt(*arrays: np.ndarray) -> Any:
        return with_leaves(parts, arrays)

    rows = ROWS if batch_size is None else batch_size
    return Batches(*leaves(parts), batch_size=rows, seed=seed, place=rebuilt)


def split_rows(fraction: float, **parts: Any) -> list[dict[str, Any]]:
    """Return the first rows of x, y and sample_weight, and the last, of which there are a
    `fraction`, by name; None is left out."""
    parts = {name: _on_host(part) for name, part in parts.items() if part is not None}
    rows = rows_of_batch("fit", **parts)
    first = math.floor(rows * (1 - fraction))
    if not 0 < fraction < 1 or not 0 < first < rows:
        problem = f"validation_split is {fraction!r} of {rows} rows"
        remedy = "It is between 0 and 1, and leaves rows on both sides."
        raise error(ArgumentError, problem, remedy=remedy)
    cuts = itemgetter(slice(first)), itemgetter(slice(first, None))
    return [{name: mapped(cut, part) for name, part in parts.items()} for cut in cuts]


def held_out_arrays(data: Any) -> dict[str, Any] | None:
    """Return the arrays x, y and sample_weight of validation data by name; None for batches: an
    iterable that is no list or tuple, a list of tuples or lists, and other tuples of them."""
    if not isinstance(data, tuple | list):
        return None
    is_batches = all(isinstance(item, tuple | list) for item in data)
    if is_batches and (isinstance(data, list) or len(data) not in (2, 3)):
        return None
    if len(data) not in (2, 3):
        problem = f"validation_data is {type_text(data)} of {len(data)}"
        remedy = "Pass (x, y), (x, y, weights), or an iterable of such batches."
        raise error(ArgumentError, problem, remedy=remedy)
    return dict(zip(NAMES, data, strict=False))

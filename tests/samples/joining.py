"""Joining, splitting, rearranging, repeating and padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(22)


def _real(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape)


def _ints(*shape: int) -> np.ndarray:
    return _rng.integers(-9, 9, shape)


_A, _B, _C, _LINE, _EMPTY = _real(9, 4), _real(3, 4), _real(2, 3, 5), _real(7), _real(0, 4)


def _samples(
    function: Callable[..., Any], *cases: tuple[tuple[Any, ...], dict[str, Any]]
) -> list[Sample]:
    """Samples of a movement: exact in every layout, and equal to NumPy's."""
    return [Sample(args, static, expect=function, exact=True) for args, static in cases]


def _shifted(x: np.ndarray, n: int, axis: int = -1, fill: object = 0) -> np.ndarray:
    """Return what `gdt.shift` does, by NumPy."""
    size = x.shape[axis]
    by = max(-size, min(n, size))
    widths = [(0, 0)] * x.ndim
    widths[axis] = (max(by, 0), max(-by, 0))
    kept = np.take(x, range(max(-by, 0), size - max(by, 0)), axis)
    return np.pad(kept, widths, constant_values=fill)


SAMPLES: dict[str, list[Sample]] = {
    "concat": _samples(
        np.concatenate,
        (([_A, _B],), {}),
        (([_B, _A, _B],), {"axis": 0}),
        (([_A, _real(9, 1), _real(9, 0)],), {"axis": -1}),
        (([_EMPTY, _B],), {}),
        (([_LINE, _ints(3), np.array([True, False])],), {}),
        (([_ints(4, 2).astype(np.int8), _real(4, 3).astype(np.float16)],), {"axis": 1}),
        (([_B, _C],), {"axis": None}),
        (([_LINE],), {}),
    ),
    "stack": _samples(
        np.stack,
        (([_A, _real(9, 4)],), {}),
        (([_B, _ints(3, 4), _real(3, 4)],), {"axis": -1}),
        (([_LINE, _real(7)],), {"axis": 1}),
        (([np.array(1.0), np.array(2.0)],), {}),
    ),
    "split": _samples(
        np.split,
        ((_A,), {"indices_or_sections": 3}),
        ((_A,), {"indices_or_sections": [2, 2, 7, 20], "axis": 0}),
        ((_C,), {"indices_or_sections": (1, -1), "axis": -1}),
    ),
    "array_split": _samples(
        np.array_split,
        ((_A,), {"indices_or_sections": 4}),
        ((_B,), {"indices_or_sections": 5, "axis": 1}),
    ),
    "flip": _samples(
        np.flip,
        ((_A,), {}),
        ((_A,), {"axis": 0}),
        ((_C,), {"axis": (0, -1)}),
        ((_EMPTY,), {"axis": 0}),
        ((np.array(2.0),), {}),
    ),
    "roll": _samples(
        np.roll,
        ((_LINE,), {"shift": 2}),
        ((_A,), {"shift": -3, "axis": 0}),
        ((_A,), {"shift": 10}),
        ((_A,), {"shift": (2, 5), "axis": (0, 1)}),
        ((_C,), {"shift": 1, "axis": (0, 2)}),
        ((_EMPTY,), {"shift": 3, "axis": 0}),
        ((_ints(5) > 0,), {"shift": 1}),
    ),
    "shift": _samples(
        _shifted,
        ((_LINE,), {"n": 2}),
        ((_A,), {"n": -3, "axis": 0}),
        ((_A,), {"n": 1, "axis": 0, "fill": 2.5}),
        ((_A,), {"n": 0}),
        ((_A,), {"n": 40, "axis": 0}),
        ((_B,), {"n": -40, "axis": 1, "fill": 7}),
        ((_C,), {"n": 1, "axis": 1}),
        ((_EMPTY,), {"n": 3, "axis": 0}),
        ((_real(1, 2),), {"n": -1, "axis": 0}),
        ((_ints(5),), {"n": 2, "fill": -7}),
        ((_ints(5) > 0,), {"n": 1, "fill": True}),
        ((_real(5).astype(np.float16),), {"n": 1, "fill": -0.0}),
        ((_real(6) * 1j,), {"n": -2, "fill": 1j}),
    ),
    "moveaxis": _samples(
        np.moveaxis,
        ((_C,), {"source": 0, "destination": -1}),
        ((_C,), {"source": (0, 1), "destination": (-1, 0)}),
    ),
    "swapaxes": _samples(np.swapaxes, ((_C,), {"axis1": 0, "axis2": -1})),
    "ravel": _samples(np.ravel, ((_A,), {}), ((_C,), {}), ((np.array(1.0),), {})),
    "atleast_1d": _samples(
        np.atleast_1d, ((np.array(1.0),), {}), ((np.array(1.0), _B), {}), ((_B,), {})
    ),
    "atleast_2d": _samples(
        np.atleast_2d, ((np.array(1.0),), {}), ((_LINE, _B), {}), ((_LINE,), {}), ((_C,), {})
    ),
    "broadcast_arrays": _samples(
        lambda *arrays: tuple(np.broadcast_arrays(*arrays)),
        ((_real(5, 1), _real(3)), {}),
        ((_B, _real(1, 1, 4), np.array(2.0)), {}),
    ),
    "tile": _samples(
        np.tile,
        ((_LINE,), {"reps": 3}),
        ((_A,), {"reps": (70, 1)}),
        ((_A,), {"reps": (2, 1)}),
        ((_B,), {"reps": (2, 1, 3)}),
        ((_C,), {"reps": 2}),
        ((_B,), {"reps": (0, 2)}),
    ),
    "repeat": _samples(
        np.repeat,
        ((_LINE,), {"repeats": 2}),
        ((_A,), {"repeats": 3, "axis": 0}),
        ((_LINE,), {"repeats": 70}),
        ((_A,), {"repeats": 0, "axis": 1}),
        ((_B,), {"repeats": [2, 0, 1], "axis": 0}),
        ((_C,), {"repeats": 2}),
        ((np.array(3.0),), {"repeats": 4}),
    ),
    "pad": [
        *_samples(
            np.pad,
            ((_LINE,), {"pad_width": 2}),
            ((_A,), {"pad_width": (1, 3), "constant_values": 2.5}),
            ((_A,), {"pad_width": ((0, 2), (1, 0)), "constant_values": ((1, 2), (3, 4))}),
            ((_B,), {"pad_width": ((2, 2), (0, 0)), "constant_values": (7, -3)}),
            ((_ints(4).astype(np.int8),), {"pad_width": (1, 0), "constant_values": -5}),
            ((_EMPTY,), {"pad_width": ((2, 1), (0, 0)), "constant_values": 1}),
            ((_ints(5).astype(np.uint8),), {"pad_width": (1, 1), "constant_values": 200}),
            ((_ints(5) > 0,), {"pad_width": (1, 1), "constant_values": True}),
            ((_A,), {"pad_width": 0}),
            ((_LINE,), {"pad_width": (3, 2), "mode": "edge"}),
            ((_A,), {"pad_width": ((1, 9), (2, 0)), "mode": "reflect", "reflect_type": "odd"}),
            ((_LINE,), {"pad_width": (3, 11), "mode": "symmetric", "reflect_type": "odd"}),
            ((_B,), {"pad_width": (1, 2), "mode": "maximum"}),
            ((np.array([True, False, False]),), {"pad_width": (1, 1), "mode": "mean"}),
            ((_LINE,), {"pad_width": (0, 3), "mode": "median", "stat_length": 3}),
            ((_ints(5) > 0,), {"pad_width": (3, 1), "mode": "linear_ramp"}),
            ((np.array([-5, 2, -7]),), {"pad_width": (3, 4), "mode": "linear_ramp"}),
            ((np.array([1, 2, 2]),), {"pad_width": (1, 2), "mode": "mean"}),
            ((_A,), {"pad_width": ((4, 2), (1, 0)), "mode": "reflect"}),
            ((_LINE,), {"pad_width": (9, 15), "mode": "reflect"}),
            ((_A,), {"pad_width": ((3, 3), (0, 2)), "mode": "symmetric"}),
            ((_LINE,), {"pad_width": (9, 3), "mode": "wrap"}),
            ((_real(1, 3),), {"pad_width": ((2, 2), (1, 1)), "mode": "reflect"}),
        ),
        *[
            Sample((_A,), {"pad_width": (2, 1), **options}, expect=np.pad)
            for options in (
                {"mode": "mean", "stat_length": ((1, 12), (3, 5))},
                {"mode": "linear_ramp", "end_values": (2, -1)},
            )
        ],
    ],
}

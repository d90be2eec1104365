"""Fourier transforms, compared with `numpy.fft`; their gradients are in `tests/fft/test_fft.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(71)


def _real(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape)


def _complex(*shape: int) -> np.ndarray:
    return _real(*shape) + 1j * _real(*shape)


def _along_one(name: str, make: Any, narrow: Any) -> list[Sample]:
    """Transforms along one axis: of 25 = 5 * 5 elements in four steps, of 17 gathered, and along an
    axis beside another one."""
    calls = [
        (make(25), {}),
        (make(7), {"n": 17, "norm": "ortho"}),
        (make(5, 10).astype(narrow), {"axis": 0, "norm": "forward"}),
    ]
    return [Sample((x,), static, expect=getattr(np.fft, name)) for x, static in calls]


def _along_several(name: str, make: Any) -> list[Sample]:
    calls: list[tuple[np.ndarray, dict[str, Any]]] = [
        (make(4, 5, 3), {"axes": (0, 1), "norm": "ortho"}),
        (make(5, 8), {"s": (6, 4), "axes": (1, 0)}),
    ]
    return [Sample((x,), static, expect=getattr(np.fft, name)) for x, static in calls]


def _frequencies(name: str) -> list[Sample]:
    return [Sample((), {"n": n, "d": 0.25}, expect=getattr(np.fft, name)) for n in (1, 8, 9)]


def _shifts(name: str) -> list[Sample]:
    calls: list[tuple[np.ndarray, dict[str, Any]]] = [
        (_real(7, 4), {}),
        (_real(8), {"axes": 0}),
        (_real(5, 3), {"axes": (-1,)}),
        (_complex(0, 3), {}),
    ]
    return [Sample((x,), static, expect=getattr(np.fft, name), exact=True) for x, static in calls]


def _of_whole(function: Any, *calls: tuple[np.ndarray, dict[str, Any]]) -> list[Sample]:
    return [Sample((x,), static, expect=function) for x, static in calls]


def _twiddled(x: np.ndarray, n: int, inverse: bool = False) -> np.ndarray:
    i, j = (np.arange(size) for size in x.shape[-2:])
    turn = (2j if inverse else -2j) * np.pi / n
    return x * np.exp(turn * np.multiply.outer(i, j))


def _weighted(
    x: np.ndarray, inverse: bool = False, scale: float = 1.0, other: bool = False
) -> np.ndarray:
    k, half = np.arange(x.shape[-1]), x.shape[-1] - (not inverse)
    unit = 1j if inverse else -1j
    weights = unit * np.exp(unit * np.pi * k / half)
    return x * (1 - weights if other else 1 + weights) * scale / 2


def _joined(
    x: np.ndarray, backwards: np.ndarray, inverse: bool = False, scale: float = 1.0
) -> np.ndarray:
    x, backwards = x.copy(), backwards.conj()
    if inverse:
        x[..., 0], backwards[..., 0] = x[..., 0].real, backwards[..., 0].real
    return _weighted(x, inverse, scale) + _weighted(backwards, inverse, scale, other=True)


SAMPLES: dict[str, list[Sample]] = {
    **{f"fft.{n}": _along_one(n, _complex, np.complex64) for n in ("fft", "ifft", "irfft", "hfft")},
    "fft.rfft": [
        *_along_one("rfft", _real, np.float32),
        Sample((_real(40),), {"norm": "ortho"}, expect=np.fft.rfft),  # as 20 complex numbers
        Sample((_real(2, 36).astype("f"),), {"norm": "forward"}, expect=np.fft.rfft),
    ],
    **{f"fft.{n}": _along_several(n, _complex) for n in ("fftn", "irfftn")},
    "fft.rfftn": _along_several("rfftn", _real),
    **{f"fft.{n}": _frequencies(n) for n in ("fftfreq", "rfftfreq")},
    **{f"fft.{n}": _shifts(n) for n in ("fftshift", "ifftshift")},
    "fft_of_whole": _of_whole(
        lambda x, axes, inverse: (np.fft.ifftn if inverse else np.fft.fftn)(x, axes=axes),
        (_complex(4, 5), {"axes": (-1,), "inverse": False}),
        (_real(4, 5), {"axes": (-2, -1), "inverse": True}),
    ),
    "rfft_of_whole": _of_whole(np.fft.rfft, (_real(4, 5), {"axis": -1}), (_real(6), {"axis": -1})),
    "irfft_of_whole": _of_whole(np.fft.irfft, (_complex(4, 3), {"axis": -1, "n": 5})),
    "joined": [
        Sample((_complex(3, 9), _complex(3, 9)), expect=_joined),
        Sample((_complex(19), _complex(19)), {"inverse": True, "scale": 2.0}, expect=_joined),
    ],
    "weighted": _of_whole(_weighted, (_complex(2, 9), {}), (_complex(4), {"other": True})),
    "twiddled": _of_whole(
        _twiddled, (_complex(5, 7), {"n": 63}), (_complex(2, 4, 3), {"n": 12, "inverse": True})
    ),
}

# These differ from others by a norm, a conjugation, or the axes that they take by default.
ELSEWHERE = {
    f"fft.{name}": "tests/fft/test_fft.py"
    for name in ("fft2", "ifft2", "rfft2", "irfft2", "ifftn", "ihfft")
}

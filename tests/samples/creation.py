"""Samples of tril and triu; what makes arrays from nothing is tested in tests/test_creation.py."""

from __future__ import annotations

import numpy as np

from gdt.testing import Sample

_rng = np.random.default_rng(11)
_MATRICES = [
    _rng.standard_normal((8, 6)),
    _rng.standard_normal((5, 9)),
    _rng.standard_normal((3, 4, 5)),
    _rng.integers(0, 9, (7, 3)).astype("int8"),
    _rng.random((4, 5)) < 0.5,
    np.zeros((0, 3)),
]

SAMPLES: dict[str, list[Sample]] = {
    f.__name__: [
        Sample((x,), {"k": k} if k else {}, expect=f, exact=True)
        for x in _MATRICES
        for k in (0, 1, -2)
    ]
    for f in (np.tril, np.triu)
}

ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(
        ("arange", "asarray", "empty", "empty_like", "eye", "full", "full_like", "identity"),
        "tests/test_creation.py",
    ),
    **dict.fromkeys(
        ("linspace", "ones", "ones_like", "tri", "zeros", "zeros_like"), "tests/test_creation.py"
    ),
    "array_repr": "tests/test_printing.py",
}

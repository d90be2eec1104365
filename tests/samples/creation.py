"""Samples of tril and triu; tests/ops/test_creation.py tests what makes arrays from nothing."""

from __future__ import annotations

from functools import partial

import numpy as np

from gdt.random import bits as random_bits
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

_KEYS = _rng.integers(0, 2**64, (3, 5), dtype="uint64")

SAMPLES: dict[str, list[Sample]] = {
    "fold_in": [
        Sample((_KEYS, np.arange(5)), expect=partial(random_bits.fold_in, np), exact=True),
        Sample((_KEYS[0], 7), expect=partial(random_bits.fold_in, np), exact=True),
    ],
    "split_key": [
        Sample((k,), {"n": 3}, expect=partial(random_bits.split, np), exact=True)
        for k in (_KEYS, _KEYS[0, 0].reshape(()))
    ],
    **{
        f.__name__: [
            Sample((x,), {"k": k} if k else {}, expect=f, exact=True)
            for x in _MATRICES
            for k in (0, 1, -2)
        ]
        for f in (np.tril, np.triu)
    },
}

ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(
        ("from_dlpack", "may_share_memory", "require", "shares_memory"),
        "tests/array/test_interchange.py",
    ),
    "array2string": "tests/functions/test_numpy_arguments.py",
    "store": "tests/ops/test_datasets.py",
    **dict.fromkeys(
        (
            "arange",
            "array",
            "asarray",
            "empty",
            "empty_like",
            "eye",
            "full",
            "full_like",
            "identity",
        ),
        "tests/ops/test_creation.py",
    ),
    **dict.fromkeys(
        ("linspace", "ones", "ones_like", "tri", "zeros", "zeros_like"),
        "tests/ops/test_creation.py",
    ),
    **dict.fromkeys(
        ("call_with_layout", "check_layout", "copy_to_mesh", "fetch_layout", "is_distributed"),
        "tests/functions/test_placement.py",
    ),
    **dict.fromkeys(
        ("map_shards", "pack", "synchronize", "unpack"), "tests/functions/test_placement.py"
    ),
    **dict.fromkeys(
        ("can_cast", "common_type", "finfo", "iinfo", "iscomplexobj", "isdtype", "isrealobj"),
        "tests/test_namespace.py",
    ),
    **dict.fromkeys(
        ("isscalar", "issubdtype", "min_scalar_type", "promote_types", "result_type"),
        "tests/test_namespace.py",
    ),
    "array_repr": "tests/functions/test_printing.py",
    "array_str": "tests/functions/test_printing.py",
}

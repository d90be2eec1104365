"""Samples of every public function: each module here holds those of one family.

A module defines `SAMPLES: dict[str, list[Sample]]`, keyed by the name in
`gdt.array.registry.FUNCTIONS`, and may define `ELSEWHERE: dict[str, str]`: names that cannot be
compared with functions of whole arrays, and the test that covers them.
"""

from __future__ import annotations

import importlib
import pkgutil

from gdt.testing import Sample

from ..compositions import COMPOSED, CREATIONS

SAMPLES: dict[str, list[Sample]] = {}
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys((*COMPOSED, *CREATIONS), "tests/functions/test_compositions.py"),
    "lib.stride_tricks.sliding_window_view": "tests/test_clients.py",
    **dict.fromkeys(("asarray_chkfinite", "einsum_path"), "tests/test_fuzz.py"),
    **dict.fromkeys(("count_edges", "convolve_rows"), "tests/functions/test_compositions.py"),
    **dict.fromkeys(
        ("frombuffer", "fromfile", "fromiter", "fromstring", "genfromtxt", "load", "loadtxt"),
        "tests/functions/test_files.py",
    ),
    **dict.fromkeys(
        ("save", "savetxt", "savez", "savez_compressed"), "tests/functions/test_files.py"
    ),
    "copy": "tests/array/test_array.py",
    **dict.fromkeys(
        ("apply_along_axis", "apply_over_axes"), "tests/functions/test_compositions.py"
    ),
}

for _library in ("gdt.nn.functions", "gdt.optim"):  # which declare ops when they are loaded
    importlib.import_module(_library)
for _module in pkgutil.iter_modules(__path__):
    _family = importlib.import_module(f"{__name__}.{_module.name}")
    for _name, _samples in _family.SAMPLES.items():
        SAMPLES.setdefault(_name, []).extend(_samples)
    ELSEWHERE.update(getattr(_family, "ELSEWHERE", {}))

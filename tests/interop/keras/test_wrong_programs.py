"""Every wrong program of docs/keras.md says what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import gdt

PAGE = Path(gdt.__file__).parent.parent / "docs" / "keras.md"
ROWS = re.findall(r"^\| `(.+)` \| (\w+Error): (.+) \|$", PAGE.read_text(), re.MULTILINE)
D = keras.distribution


def dense(**options: Any) -> Any:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, name="dense")])
    model.compile("sgd", "mse", **options)
    return model


def mesh(*sizes: int) -> Any:
    names = [f"cpu:{i}" for i in range(np.prod(sizes))]
    return D.DeviceMesh(sizes, ["batch", "model"][: len(sizes)], names)


def maps(**layouts: Any) -> Any:
    layout_map = D.LayoutMap(mesh(2, 2))
    for path, axes in layouts.items():
        layout_map[path] = axes
    return layout_map


def parallel(**layouts: Any) -> Any:
    D.set_distribution(D.ModelParallel(layout_map=maps(**layouts)))
    return dense()


def test_the_page_has_forty() -> None:
    assert len(ROWS) >= 40


@pytest.mark.parametrize(("program", "kind", "text"), ROWS, ids=[row[0] for row in ROWS])
@pytest.mark.usefixtures("temporary_folder")
def test_a_wrong_program_says_what_the_page_says(program: str, kind: str, text: str) -> None:
    names = {"x": np.ones((8, 6), "float32"), "y": np.ones((8, 3), "float32"), "np": np}
    names |= {"dense": dense, "mesh": mesh, "maps": maps, "parallel": parallel, "D": D}
    names |= {"keras": keras, "layers": layers, "ops": ops, "gdt": gdt}
    with pytest.raises(Exception, match=re.escape(text)) as caught:
        eval(program, names)
    assert type(caught.value).__name__ == kind


def test_another_backend_is_an_error() -> None:
    command = [sys.executable, "-c", "import gdt.interop.keras"]
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "InteropError: gdt.interop.keras: the environment has KERAS_BACKEND=jax" in done.stderr

"""Arrays from files, text and memory, and into files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gdt

MESH = gdt.create_mesh([("x", 4)], device_type="CPU", blocks=4)
ROWS = gdt.Layout(["x", None], MESH)
TABLE = np.arange(15.0).reshape(5, 3)


def test_arrays_are_saved_and_loaded(tmp_path: Path) -> None:
    x = gdt.asarray(TABLE, layout=ROWS)
    gdt.save(tmp_path / "x.npy", x)
    loaded = gdt.load(tmp_path / "x.npy", layout=ROWS)
    assert loaded.layout is ROWS and loaded.tolist() == TABLE.tolist()
    for save in (gdt.savez, gdt.savez_compressed):
        save(tmp_path / "several.npz", x, rows=x[0])
        several = gdt.load(tmp_path / "several.npz", device=MESH)
        assert several["arr_0"].tolist() == TABLE.tolist() and several["rows"].device is MESH
    gdt.savetxt(tmp_path / "x.txt", x, "%.3f", ",")
    for read in (gdt.loadtxt, gdt.genfromtxt):
        assert read(tmp_path / "x.txt", delimiter=",", layout=ROWS).tolist() == TABLE.tolist()


def test_numbers_of_memory_and_text(tmp_path: Path) -> None:
    vector = gdt.Layout(["x"], MESH)
    TABLE.tofile(tmp_path / "x")
    for x in (
        gdt.frombuffer(TABLE.tobytes(), layout=vector),
        gdt.fromfile(tmp_path / "x", layout=vector),
        gdt.fromiter(iter(TABLE.ravel()), float, layout=vector),
        gdt.fromstring(" ".join(map(str, TABLE.ravel())), sep=" ", layout=vector),
    ):
        assert x.layout is vector and x.tolist() == TABLE.ravel().tolist()
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        gdt.load(tmp_path / "objects.npy")

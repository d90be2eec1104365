"""No op sends more bytes than TF DTensor's choice does for the same operands."""

from __future__ import annotations

import numpy as np
import pytest

import gdt
from gdt.comm.transport import transport_of
from tests.comm.dtensor_moves import AXES, REFUSED, ROWS, Row, sent

MODES = pytest.mark.parametrize("blocks", [1, 8], ids=["folded", "apart"])
EVERY_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)


def operand(text: str, mesh: gdt.Mesh, seed: int) -> gdt.DistributedArray:
    """An array of numbers in [0, 1), or of integers below 8."""
    shape, specs, *dtype = text.split()
    sizes = [int(n) for n in shape.split("x")]
    values = np.random.default_rng(seed).random(sizes, dtype=np.float32)
    if dtype:
        values = (values * 8).astype(*dtype)
    split = [None if s == "-" else s for s in specs.split(",")]
    return gdt.asarray(values, layout=gdt.Layout(split, mesh))


def run(row: Row, mesh: gdt.Mesh) -> tuple[int, list[np.ndarray]]:
    """Bytes sent until nothing is partial in the results, and their values."""
    operands = [operand(text, mesh, seed) for seed, text in enumerate(row.operands)]
    with gdt.count_collectives() as counter:
        made = row.program(*operands)
        outs = [out.resolve() for out in (made if isinstance(made, list | tuple) else [made])]
    return counter.bytes, [out.numpy() for out in outs]


@MODES
@EVERY_ROW
def test_an_op_sends_no_more_than_dtensor(row: Row, blocks: int) -> None:
    """Where DTensor refuses the operands, gdt works."""
    mesh = gdt.create_mesh(AXES, blocks=blocks, device_type="CPU")
    nbytes, values = run(row, mesh)
    if row.traffic != REFUSED:
        assert nbytes <= row.bytes
    one_device = gdt.create_mesh(dict.fromkeys(AXES, 1), device_type="CPU")
    for got, want in zip(values, run(row, one_device)[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@EVERY_ROW
def test_bytes_do_not_depend_on_how_coordinates_are_stored(row: Row) -> None:
    """The transport between separate blocks has sent what observers are told, and what they are
    told where all coordinates share one block."""
    apart = gdt.create_mesh(AXES, blocks=8, device_type="CPU")
    before = sum(transport_of(apart).bytes.values())
    operands = [operand(text, apart, seed) for seed, text in enumerate(row.operands)]
    placed = sum(transport_of(apart).bytes.values())
    assert placed == before
    with gdt.count_collectives() as counter:
        made = row.program(*operands)
        for out in made if isinstance(made, list | tuple) else [made]:
            out.resolve()
    assert sum(transport_of(apart).bytes.values()) - placed == counter.bytes
    folded = gdt.create_mesh(AXES, blocks=1, device_type="CPU")
    for _ in range(2):  # a plan's first run, and a later one
        assert run(row, folded)[0] == counter.bytes


def test_rows_have_titles_of_their_own() -> None:
    assert len({row.title for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("collective", "nbytes"),
    [
        ("AllGather(-,- <= x,-) 2x8", 8 * 3 * 64),
        ("AllGather(-,- <= x,y) 2x4", 8 * 7 * 32),
        ("AllReduce(Add over y) 4", 4 * 2 * 1 * 16),
        ("AllReduce(Add over x+y) scalar", 2 * 7 * 4),
        ("AllToAll(-,x <= x,-) 2x8", 8 * 3 * 64 // 4),
        ("AllScatter(x <= -) 8xi64", 0),
    ],
)
def test_bytes_of_a_collective(collective: str, nbytes: int) -> None:
    assert sent(collective) == nbytes

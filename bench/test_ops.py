"""pytest-benchmark of single tiny calls: one group an op, NumPy's call on the block beside gdt's.

Every round is one call; look at `min`. The table that subtracts them is `python -m bench.overhead`.
"""

import pytest

import gdt
from bench.tiny import tiny_ops

OPS = tiny_ops()
ROUNDS = {"rounds": 5000, "warmup_rounds": 100}


@pytest.fixture(params=OPS)
def tiny_op(request, benchmark):
    benchmark.group = request.param
    return OPS[request.param]


def test_numpy(tiny_op, benchmark):
    benchmark.pedantic(tiny_op.bare, **ROUNDS)


def test_gdt(tiny_op, benchmark):
    benchmark.pedantic(tiny_op.op, **ROUNDS)


def test_gdt_with_tape(tiny_op, benchmark):
    with gdt.GradientTape() as tape:
        benchmark.pedantic(tiny_op.op, setup=tape.nodes.clear, **ROUNDS)

"""The proof of sharding rules: every strategy that a rule allows gives the right result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import SCALARS
from gdt.engine.first_run import plan_of
from gdt.engine.op import Op
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.prices import OpStrategy
from gdt.sharding.strategy import legal_strategies
from gdt.testing.operands import assert_close, assert_consistent, placed
from gdt.testing.oracle import Oracle, Sample

Type = ArrayType | None  # None: a Python scalar


def bound_call(op: Op[..., Any], sample: Sample) -> tuple[list[Any], dict[str, Any]]:
    """Return the operands (NumPy arrays and Python scalars) and the statics of a sample."""
    args, static = tuple(sample.args), dict(sample.static)
    if not op.declaration.variadic:
        args, static = op.bind_arguments(args, static)
    return [a if type(a) in SCALARS else np.asarray(a) for a in args], static


def replicated_types(operands: Sequence[Any], mesh: Mesh) -> tuple[Type, ...]:
    """Return the types of operands that are whole on every device."""
    return tuple(
        ArrayType.of(a.shape, a.dtype, Layout.replicated(mesh, a.ndim))
        if isinstance(a, np.ndarray)
        else None
        for a in operands
    )


def strategies_of(
    op: Op[..., Any], operands: Sequence[Any], static: dict[str, Any], mesh: Mesh
) -> Iterator[OpStrategy]:
    """Return every strategy that the op's rule allows on `mesh` for operands of these shapes."""
    types = replicated_types(operands, mesh)
    rule, sizes, _ = op.declaration.bound_rule(types, static)
    return legal_strategies(rule, types, sizes)


def check_rule(op: Op[..., Any], sample: Sample, mesh: Mesh) -> int:
    """Run the op by every strategy that its rule allows, on poisoned shards, and return their
    number.

    Raises AssertionError for the first strategy that gives a wrong result.

    >>> import numpy as np
    >>> sample = gdt.testing.Sample((np.ones((4, 6)), np.ones(6)), expect=np.add)
    >>> gdt.testing.check_rule(gdt.add, sample, gdt.create_mesh([("x", 2)]))
    4
    """
    expected = [np.asarray(v) for v in Oracle(op, sample).expected]
    bound = Oracle(op, sample).bound
    operands, static = bound_call(op, sample)
    strategies = list(strategies_of(op, operands, static, mesh))
    for strategy in strategies:
        try:
            _check_strategy(op, operands, static, strategy, expected, bound)
        except Exception as e:
            e.add_note(
                f"in {op.name} run as {described(strategy)} on {mesh} with blocks {mesh.grid}"
            )
            raise
    return len(strategies)


def described(strategy: OpStrategy) -> str:
    """Return the layouts of operands and outputs as one line of text."""
    operands, outputs = strategy.target_layouts, strategy.output_layouts
    return f"{', '.join(map(str, operands))} -> {', '.join(map(str, outputs))}"


def _check_strategy(
    op: Op[..., Any],
    operands: Sequence[Any],
    static: dict[str, Any],
    strategy: OpStrategy,
    expected: Sequence[np.ndarray],
    bound: float,
) -> None:
    """Raise AssertionError unless the op, run by `strategy`, gives the expected results."""
    arrays = [
        placed(a, layout, poison=True) if layout is not None else a
        for a, layout in zip(operands, strategy.target_layouts, strict=True)
    ]
    types = tuple(a.type if isinstance(a, DistributedArray) else None for a in arrays)
    rounds = op.declaration.rounds(types, static)
    rule, sizes, prepared = op.declaration.bound_rule(types, static)
    plan = plan_of(op.declaration, types, rule, sizes, prepared, strategy, rounds)
    blocks = [a.blocks if isinstance(a, DistributedArray) else a for a in arrays]
    with np.errstate(all="ignore"):
        results = plan.run(blocks)
    if len(results) != len(expected):
        raise AssertionError(f"{len(results)} results, expected {len(expected)}")
    for out_type, result, want in zip(plan.outs, results, expected, strict=True):
        out = DistributedArray(out_type, tuple(result))
        if (out.shape, out.dtype) != (want.shape, want.dtype):
            raise AssertionError(f"{out_type} is not {want.dtype}{want.shape}")
        assert_consistent(out)
        assert_close(out.numpy(), want, bound, f"result {out_type}")

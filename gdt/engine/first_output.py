"""Calls of an op of several outputs for the first one alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from gdt.array.array import DistributedArray
from gdt.comm.agreement import HISTORIES
from gdt.engine.declaration import Declaration
from gdt.engine.op import Op
from gdt.observe import OBSERVERS
from gdt.sharding.rule import RuleSpec


def first_output(op: Op[..., Any]) -> Callable[..., DistributedArray]:
    """Return a function that calls `op`, which has neither `merge=` nor `finish=`, and returns its
    first output.

    The gradient and other observers read the other outputs, such as the statistics of rows. Where
    nobody observes, the kernel is called with `alone=True`, and makes and returns the first alone.
    `op` has its kernel by then.
    """
    alone = op.variant(declaration=_declaration(op), alternative_plan=None)
    run: Callable[..., Any] = op.__call__  # calls of the objects take longer
    run_alone: Callable[..., DistributedArray] = alone.__call__

    @wraps(op.declaration.body)
    def call(*args: Any, **static: Any) -> DistributedArray:
        # Processes number the arrays that they make, and each has observers of its own.
        if OBSERVERS.get() or HISTORIES:
            return run(*args, **static)[0]  # type: ignore[no-any-return]
        return run_alone(*args, **static)

    return call


def _declaration(op: Op[..., Any]) -> Declaration:
    """Return the declaration of an op with the first output alone."""
    declared = op.declaration

    def rule(*types: Any, **static: Any) -> RuleSpec:
        spec = declared.rule(*types, **static) if callable(declared.rule) else declared.rule
        spec = RuleSpec(spec) if isinstance(spec, str) else spec
        inputs, _, outputs = spec.text.partition("->")
        return replace(spec, text=f"{inputs}->{outputs.split(',')[0]}")

    @wraps(declared.body)
    def body(*args: Any, **keywords: Any) -> Any:
        return declared.body(*args, **keywords)[0]

    kernel = declared.kernel and partial(declared.kernel, alone=True)
    return replace(
        declared,
        rule=rule,
        body=body,
        kernel=kernel,
        specialization=None,  # which makes all outputs
        rounded=declared.rounded[:1],
    )

"""Derivatives along directions, and matrices of derivatives: `jvp`, `jacobian` and `hessian`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.autodiff.functional import argument_at, renamed, vjp
from gdt.autodiff.tape import GradientTape, Tree, check_all_differentiable, flatten
from gdt.errors import GradientError, error
from gdt.ops.comparison import equal
from gdt.ops.creation import ones_like, zeros
from gdt.ops.elementwise import astype
from gdt.ops.joining import stack
from gdt.ops.movement import relayout
from gdt.ops.ranges import arange
from gdt.ops.shapes import reshape
from gdt.sharding.layout import Layout
from gdt.state.trees import mapped

__all__ = ["hessian", "jacobian", "jvp"]


@checked
def jvp(
    f: Callable[..., Any], primals: Sequence[Tree], tangents: Sequence[Tree]
) -> tuple[Tree, Tree]:
    """Return `f(*primals)`, and its derivative along the direction `tangents`.

    primals, tangents: tuples of arrays or of trees of arrays; a tangent has the structure, the
        shapes and the dtypes of its primal. The derivative is a tree as `f` returns.

    The derivative is that of the backward pass, which is linear in the cotangent, with respect to
    the cotangent. So it takes a backward pass, and one through that. Follows `jax.jvp`.

    Raises GradientError for tangents that do not fit.

    >>> value, slope = gdt.jvp(lambda x: x * x, (gdt.asarray([1.0, 2.0]),), (gdt.ones(2),))
    >>> slope.tolist()
    [2.0, 4.0]
    """
    _check_tangents(tuple(primals), tuple(tangents))
    out, pull = vjp(f, *primals)
    _, pull_back = vjp(pull, mapped(ones_like, out))
    (along,) = pull_back(tuple(tangents))
    return out, along


def _check_tangents(primals: Tree, tangents: Tree) -> None:
    of_primals, of_tangents = flatten(primals)[0], flatten(tangents)[0]
    check_all_differentiable(of_primals, "jvp", "primal")
    check_all_differentiable(of_tangents, "jvp", "tangent")
    if len(of_primals) != len(of_tangents):
        problem = f"there are {len(of_tangents)} tangents for {len(of_primals)} primals"
        raise error(GradientError, problem)
    for x, tangent in zip(of_primals, of_tangents, strict=True):
        if (x.shape, x.dtype) != (tangent.shape, tangent.dtype):
            raise error(
                GradientError,
                "a tangent has another shape or dtype than its primal",
                operands={"primal": x.type, "tangent": tangent.type},
            )


@partial(checked, eager=True)
def jacobian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Return a function of `f`'s arguments that returns the derivative of every element of `f`'s
    value with respect to every element of an argument.

    f: returns an array, or a tree of arrays. argnums: as of `gdt.value_and_grad`.

    For a value of shape (m, ...) and an argument of shape (n, ...), the result has the shape
    (m, ..., n, ...), split along the last axes as the argument is. The tree of values holds trees
    of arguments. There is one backward pass for each element of the value. Complex values of
    complex arguments count as holomorphic. Follows `jax.jacobian`, which is `jax.jacrev`.

    Raises GradientError for values or arguments that are not of floating-point numbers, and where
    of a value and an argument only one is complex.

    >>> gdt.jacobian(lambda x: x * x)(gdt.asarray([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    return _jacobian("jacobian", f, argnums)


@partial(checked, eager=True)
def hessian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Return a function of `f`'s arguments that returns the second derivatives of `f`'s value.

    argnums: as of `gdt.value_and_grad`. For a scalar function and an argument of shape (n, ...),
    the result has the shape (n, ..., n, ...): `jacobian` of `jacobian`, with a backward pass for
    each element of the argument. A product with a vector takes one, as
    `gdt.jvp(gdt.grad(f), (x,), (v,))`. Follows `jax.hessian`.

    >>> gdt.hessian(lambda x: gdt.sum(x * x * x))(gdt.asarray([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return _jacobian("hessian", _jacobian("hessian", f, argnums), argnums)


def _jacobian(op: str, f: Callable[..., Any], argnums: int | tuple[int, ...]) -> Callable[..., Any]:
    """Return the function that `jacobian` returns, of whose errors `op` is the name."""

    def wrapped(*args: Any, **kwargs: Any) -> Tree:
        argument_at(op, args, argnums)
        arguments = [*args]
        for n in argnums if isinstance(argnums, tuple) else (argnums,):
            arguments[n] = renamed(arguments[n])
        sources, rebuild = flatten(argument_at(op, arguments, argnums))
        check_all_differentiable(sources, op, "source")
        with GradientTape(persistent=True) as tape:
            value = f(*arguments, **kwargs)
        targets, with_targets = flatten(value)
        check_all_differentiable(targets, op, "value")
        return with_targets([rebuild(_derivatives(op, tape, t, sources)) for t in targets])

    return wrapped


def _derivatives(
    op: str, tape: GradientTape, target: DistributedArray, sources: Sequence[DistributedArray]
) -> list[DistributedArray]:
    """Return the derivatives of all elements of the target with respect to each source."""
    for x in sources:
        if (x.dtype.kind == "c") != (target.dtype.kind == "c"):
            raise error(
                GradientError,
                op,
                "of the value and the argument only one is complex",
                operands={"value": target.type, "argument": x.type},
                remedy="Differentiate the real and the imaginary part, as of gdt.real(f(x)).",
            )
    layout = target.layout.resolved
    every = arange(target.size, layout=Layout.replicated(target.mesh, 1))
    numbers = relayout(reshape(every, target.shape), layout)
    rows = [
        tape.gradient(
            target, [*sources], astype(equal(numbers, i), target.dtype), unconnected="zero"
        )
        for i in range(target.size)
    ]
    if not rows:
        return [
            zeros((*target.shape, *x.shape), x.dtype, layout=_behind(target.ndim, x))
            for x in sources
        ]
    return [
        reshape(stack(of_source), (*target.shape, *x.shape))
        for x, of_source in zip(sources, zip(*rows, strict=True), strict=True)
    ]


def _behind(rank: int, x: DistributedArray) -> Layout:
    """Return the layout of `x` behind axes that are not split."""
    return Layout.of(x.mesh, (*((),) * rank, *x.layout.dims))

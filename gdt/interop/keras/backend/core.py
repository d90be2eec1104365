"""Keras' core functions: arrays and variables, control flow, and slices."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from keras.src import tree
from keras.src.backend.common import KerasVariable, standardize_dtype
from keras.src.backend.common.keras_tensor import KerasTensor
from keras.src.backend.common.stateless_scope import StatelessScope, get_stateless_scope
from keras.src.backend.common.symbolic_scope import SymbolicScope

import gdt
from gdt.array.array import DistributedArray
from gdt.array.views import rebind, valued_as
from gdt.interop.keras.backend.variables import (
    Variable,
    convert_to_numpy,
    convert_to_tensor,
    is_tensor,
)
from gdt.observe import Observer, is_recorded, observing, observing_only

__all__ = ["Variable", "convert_to_numpy", "convert_to_tensor", "is_tensor"]

SUPPORTS_SPARSE_TENSORS = False
SUPPORTS_RAGGED_TENSORS = False
SUPPORTS_COMPLEX_DTYPES = True
IS_THREAD_SAFE = False  # callbacks run at once: a thread for them costs more than reading logs

Tree = Any


def shape(x: Any) -> tuple[int, ...]:
    """Return the shape of an array, a variable or a symbolic tensor."""
    return x.shape  # type: ignore[no-any-return]


def cast(x: Any, dtype: Any) -> DistributedArray:
    """Return `x` as an array of the dtype."""
    return convert_to_tensor(x, dtype=dtype)


def stop_gradient(variable: Any) -> DistributedArray:
    """Return the same values, through which no gradient flows."""
    return gdt.stop_gradient(convert_to_tensor(variable))


def random_seed_dtype() -> str:
    """Return the dtype of the seeds that Keras keeps and counts."""
    return "uint32"


@contextmanager
def device_scope(device_name: str) -> Iterator[None]:
    """Check the name of a device, such as "cpu:0". Arrays stay where their mesh is: layouts place
    them."""
    kind = device_name.lower().partition(":")[0] if isinstance(device_name, str) else ""
    if kind not in ("cpu", "gpu", "cuda"):
        raise ValueError(
            "Invalid value for argument `device_name`. Expected a string like 'gpu:0'. "
            f"Received: device_name='{device_name}'"
        )
    yield


# ---------------------------------------------------------------- symbolic calls


ABSTRACT = gdt.create_mesh([("device", 1)], device_type="abstract")


class _Shapes(StatelessScope):  # type: ignore[misc]
    """A scope in which variables have shapes and dtypes, and no values."""

    def get_current_value(self, variable: Any) -> Any:
        """Return what was assigned to the variable, or an array like it on the abstract mesh."""
        if id(variable) not in self.state_mapping:
            self.add_update((variable, gdt.zeros(variable.shape, variable._dtype)))
        return super().get_current_value(variable)


def compute_output_spec(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Tree:
    """Return what `fn` returns for symbolic tensors: symbolic tensors of its shapes and dtypes.

    `fn` is called with arrays on an abstract mesh, where nothing is computed; if it fails there,
    for it reads values or has arrays of its own on another mesh, with zeros, as Keras' backend for
    PyTorch does. It is called twice where lengths are unknown (None), with two lengths in their
    place: those of the results that differ are unknown too.
    """
    symbolic = [x for x in tree.flatten((args, kwargs)) if isinstance(x, KerasTensor)]
    lengths = (83, 89) if any(None in x.shape for x in symbolic) else (83,)
    with observing_only(), SymbolicScope(), np.errstate(all="ignore"):
        try:
            with _Shapes(), gdt.default_mesh(ABSTRACT):
                results = [_called_on_zeros(fn, args, kwargs, length) for length in lengths]
        except Exception:  # which comes again, if it is the user's
            with StatelessScope():
                results = [_called_on_zeros(fn, args, kwargs, length) for length in lengths]
    return tree.map_structure(_spec, *results)


def _called_on_zeros(fn: Callable[..., Any], args: Tree, kwargs: Tree, length: int) -> Tree:
    def zeros(x: Any) -> Any:
        if not isinstance(x, KerasTensor):
            return x
        return gdt.zeros([length if n is None else n for n in x.shape], x.dtype)

    args, kwargs = tree.map_structure(zeros, (args, kwargs))
    return fn(*args, **kwargs)


def _spec(*results: Any) -> Any:
    """Return the symbolic tensor of the results of all calls; another value as it is."""
    if not all(is_tensor(x) for x in results):
        return results[0]
    dims = zip(*[x.shape for x in results], strict=True)
    return KerasTensor(
        [n[0] if len(set(n)) == 1 else None for n in dims], standardize_dtype(results[0].dtype)
    )


# ---------------------------------------------------------------- control flow


def cond(pred: Any, true_fn: Callable[[], Tree], false_fn: Callable[[], Tree]) -> Tree:
    """Return what `true_fn` or `false_fn` returns.

    In a step that is recorded both run, and what they return and assign to variables is selected
    element by element: a replay cannot ask which.
    """
    if not is_tensor(pred) or not is_recorded():
        return true_fn() if pred else false_fn()
    branches = [_without_effects(f) for f in (true_fn, false_fn)]
    for key in {key: None for _, effects in branches for key in effects}:
        owner = next(effects[key][0] for _, effects in branches if key in effects)
        is_variable = isinstance(owner, KerasVariable)
        own = owner.value if is_variable else owner
        values = [effects.get(key, (None, own))[1] for _, effects in branches]
        put = owner.assign if is_variable else partial(rebind, owner)
        put(gdt.where(pred, *values))
    return tree.map_structure(
        lambda x, y: gdt.where(pred, x, y) if is_tensor(x) or is_tensor(y) else x,
        *[out for out, _ in branches],
    )


Effects = dict[int, tuple[Any, Any]]  # by identity, variables and arrays with what they become


class _Assigned(StatelessScope):  # type: ignore[misc]
    """A scope that keeps what is assigned to variables, above that of the caller."""

    def __init__(self) -> None:
        super().__init__()
        outer = get_stateless_scope()
        self.state_mapping.update(outer.state_mapping if outer is not None else {})
        self.effects: Effects = {}

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Keep the variable and its new value."""
        super().add_update(update)
        self.effects[id(update[0])] = update


class _Written(Observer):
    """An observer that keeps the values of arrays before they were written to, as by `x -= y`."""

    def __init__(self) -> None:
        self.before: Effects = {}

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        """Keep the value before the first write."""
        self.before.setdefault(id(array), (array, before))


def _without_effects(f: Callable[[], Tree]) -> tuple[Tree, Effects]:
    """Return what `f` returns, and what it would have changed."""
    written = _Written()
    with _Assigned() as scope, observing(written):
        out = f()
    after = {key: (array, valued_as(array)) for key, (array, _) in written.before.items()}
    out = tree.map_structure(lambda x: after.get(id(x), (None, x))[1], out)
    for array, before in written.before.values():
        rebind(array, before)
    return out, scope.effects | after


def switch(index: Any, branches: Sequence[Callable[..., Tree]], *operands: Any) -> Tree:
    """Return what the branch of number `index`, which is clipped to those there are, returns."""
    number = int(convert_to_tensor(index, "int32"))
    return branches[builtins.min(builtins.max(number, 0), len(branches) - 1)](*operands)


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Tree],
    loop_vars: Tree,
    maximum_iterations: int | None = None,
) -> Tree:
    """Return the variables of a loop that runs while `cond` of them is true."""
    is_sequence = isinstance(loop_vars, tuple | list)
    variables = tuple(loop_vars) if is_sequence else (loop_vars,)
    variables = tree.map_structure(convert_to_tensor, variables)
    count = 0
    while (maximum_iterations is None or count < maximum_iterations) and cond(*variables):
        out = body(*variables)
        variables = tuple(out) if isinstance(out, list | tuple) else (out,)
        count += 1
    return variables if is_sequence else variables[0]


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[int, Tree], Tree], init_val: Tree
) -> Tree:
    """Return the value of a loop over the numbers from `lower` to `upper`."""
    value = init_val
    for i in range(int(lower), int(upper)):
        value = body_fun(i, value)
    return value


def vectorized_map(function: Callable[[Tree], Tree], elements: Tree) -> Tree:
    """Return the results of `function` for every slice along the first axis, stacked."""
    return gdt.vmap(function)(tree.map_structure(convert_to_tensor, elements))


def map(f: Callable[[Tree], Tree], xs: Tree) -> Tree:
    """Return the results of `f` for every slice along the first axis, stacked."""
    return scan(lambda _, x: ((), f(x)), (), xs)[1]


def scan(
    f: Callable[[Tree, Tree], tuple[Tree, Tree]],
    init: Tree,
    xs: Tree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: bool | int = 1,
) -> tuple[Tree, Tree]:
    """Return the last carry and all stacked results of `carry, y = f(carry, x)` over the slices of
    `xs` along their first axis; it follows `jax.lax.scan`."""
    if not callable(f):
        raise TypeError(f"`f` should be a callable. Received: f={f}")
    if not isinstance(unroll, bool) and (not isinstance(unroll, int) or unroll < 1):
        raise ValueError(
            f"`unroll` must be an positive integer or boolean. Received: unroll={unroll}"
        )
    if xs is None and length is None:
        raise ValueError("Got no `xs` to scan over and `length` not provided.")
    slices = [gdt.unstack(convert_to_tensor(x)) for x in tree.flatten(xs)] if xs is not None else []
    count = len(slices[0]) if length is None else int(length)
    carry = tree.map_structure(convert_to_tensor, init)
    results: list[Tree] = [None] * count
    for i in reversed(range(count)) if reverse else range(count):
        x = None if xs is None else tree.pack_sequence_as(xs, [s[i] for s in slices])
        carry, results[i] = f(carry, x)
    if count and results[0] is None:
        return carry, None
    return carry, tree.map_structure(
        lambda *ys: gdt.stack([convert_to_tensor(y) for y in ys]), *results
    )


def associative_scan(
    f: Callable[[Tree, Tree], Tree], elems: Tree, reverse: bool = False, axis: int = 0
) -> Tree:
    """Return all partial results of an associative `f` along an axis, in a logarithm of its length
    of calls; it follows `jax.lax.associative_scan`."""
    if not callable(f):
        raise TypeError(f"`f` should be a callable. Received: f={f}")
    arrays = [convert_to_tensor(x) for x in tree.flatten(elems)]
    lengths = {x.shape[axis] for x in arrays}
    if len(lengths) > 1:
        raise ValueError(
            "Array inputs to associative_scan must have the same first dimension. "
            f"(saw: {[x.shape for x in arrays]})"
        )
    at = axis % arrays[0].ndim

    def combine(xs: list[Any], ys: list[Any]) -> Any:
        return tree.flatten(f(tree.pack_sequence_as(elems, xs), tree.pack_sequence_as(elems, ys)))

    if reverse:
        arrays = [gdt.flip(x, axis=at) for x in arrays]
    results = _scanned(arrays, at, combine)
    if reverse:
        results = [gdt.flip(x, axis=at) for x in results]
    return tree.pack_sequence_as(elems, results)


def _scanned(
    xs: list[Any], axis: int, combine: Callable[[list[Any], list[Any]], list[Any]]
) -> list[Any]:
    """Return the results of `combine` over all elements up to each, along an axis."""
    count = xs[0].shape[axis]
    if count < 2:
        return xs

    def part(xs: Sequence[Any], *bounds: int | None) -> list[Any]:
        return [x[(builtins.slice(None),) * axis + (builtins.slice(*bounds),)] for x in xs]

    odd = _scanned(combine(part(xs, 0, count - 1, 2), part(xs, 1, None, 2)), axis, combine)
    rest = part(odd, 0, (count - 1) // 2)
    even = combine(rest, part(xs, 2, None, 2)) if count > 2 else part(xs, 0, 0)
    even = [gdt.concat(pair, axis=axis) for pair in zip(part(xs, 0, 1), even, strict=True)]
    return [_interleaved(x, y, axis) for x, y in zip(even, odd, strict=True)]


def _interleaved(x: Any, y: Any, axis: int) -> DistributedArray:
    """Return elements of `x` and `y` in turns; `x` may have one more."""
    count = y.shape[axis]
    whole = (builtins.slice(None),) * axis
    pairs = gdt.stack([x[(*whole, builtins.slice(count))], y], axis=axis + 1)
    mixed = gdt.reshape(pairs, (*y.shape[:axis], 2 * count, *y.shape[axis + 1 :]))
    if x.shape[axis] == count:
        return mixed
    return gdt.concat([mixed, x[(*whole, builtins.slice(count, None))]], axis=axis)


def custom_gradient(fun: Callable[..., tuple[Tree, Callable[..., Tree]]]) -> Callable[..., Tree]:
    """Return a function like `fun` without the second value that it returns: the function from the
    cotangents of its results to those of its arguments."""

    def call(*args: Any, **kwargs: Any) -> Tree:
        args, kwargs = tree.map_structure(
            lambda x: x.value if isinstance(x, KerasVariable) else x, (args, kwargs)
        )
        results: list[Any] = []

        @gdt.custom_vjp
        def custom_gradient(*operands: Any) -> Any:
            out, gradient = fun(*operands, **kwargs)
            results[:] = [out, gradient]
            outputs = tuple(tree.flatten(out))
            return outputs if len(outputs) > 1 else outputs[0]

        def pull(g: Any, out: Any, *operands: Any) -> tuple[Any, ...]:
            cotangents = results[1](*(g if isinstance(g, tuple) else (g,)))
            return tuple(cotangents) if isinstance(cotangents, list | tuple) else (cotangents,)

        custom_gradient.vjp(joint=pull)
        outputs = custom_gradient(*args)
        flat = outputs if isinstance(outputs, tuple) else (outputs,)
        return tree.pack_sequence_as(results[0], flat)

    return call


def remat(f: Callable[..., Tree]) -> Callable[..., Tree]:
    """Return a function like `f` that runs again in the backward pass in the place of what it would
    keep."""
    return gdt.checkpointed(f)


# ---------------------------------------------------------------- slices


def _at(indices: Any) -> tuple[DistributedArray, ...]:
    """Return an index of an array whose last axis holds the indices of each element."""
    indices = convert_to_tensor(indices)
    return tuple(indices[..., i] for i in range(indices.shape[-1]))


def scatter(indices: Any, values: Any, shape: Sequence[int]) -> DistributedArray:
    """Return zeros to which `values` are added at `indices`."""
    values = convert_to_tensor(values)
    zeros = gdt.zeros(tuple(shape), values.dtype)
    return gdt.update_at(zeros, values, _at(indices), "add")


REDUCTIONS = {None: "set", "add": "add", "max": "max", "min": "min", "mul": "multiply"}


def scatter_update(
    inputs: Any, indices: Any, updates: Any, reduction: str | None = None
) -> DistributedArray:
    """Return `inputs` with `updates` put at `indices`, or combined with what is there."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"Unsupported reduction: {reduction}")
    inputs = convert_to_tensor(inputs)
    updates = convert_to_tensor(updates, inputs.dtype)
    return gdt.update_at(inputs, updates, _at(indices), REDUCTIONS[reduction])


def slice(inputs: Any, start_indices: Any, shape: Sequence[int]) -> DistributedArray:
    """Return the part of `inputs` that begins at `start_indices` and has a shape, of which -1
    stands for all that is left; as in JAX, a part that would end outside begins earlier."""
    inputs = convert_to_tensor(inputs)
    if len(start_indices) != len(shape):
        raise ValueError(
            "Length of `start_indices` must match length of `shape`. "
            f"Received: start_indices={start_indices}, shape={shape}"
        )
    for axis, (start, count) in enumerate(zip(start_indices, shape, strict=True)):
        inputs = _part(inputs, start, int(count), axis)
    return inputs


def _part(x: DistributedArray, start: Any, count: int, axis: int) -> DistributedArray:
    length = x.shape[axis]
    if is_tensor(start) and count != -1:
        first = gdt.clip(start, 0, length - count)
        indices = gdt.astype(gdt.reshape(first, ()), "int64") + gdt.arange(count)
        return x if count == length else gdt.take(x, indices, axis=axis)
    first = int(start)
    count = length - first if count == -1 else count
    first = builtins.min(first, length - count)
    return x[(builtins.slice(None),) * axis + (builtins.slice(first, first + count),)]


def slice_update(inputs: Any, start_indices: Any, updates: Any) -> DistributedArray:
    """Return `inputs` with `updates` in the place that begins at `start_indices`; as in JAX,
    updates that would end outside begin earlier."""
    inputs = convert_to_tensor(inputs)
    updates = convert_to_tensor(updates, inputs.dtype)
    places: list[Any] = []
    for axis, start in enumerate(start_indices):
        count = updates.shape[axis]
        last = inputs.shape[axis] - count
        if is_tensor(start):
            first = gdt.astype(gdt.reshape(gdt.clip(start, 0, last), ()), "int64")
            places.append(first + gdt.arange(count))
        else:
            first = builtins.max(builtins.min(int(start), last), 0)
            places.append(builtins.slice(first, first + count))
    if any(is_tensor(place) for place in places):
        whole = [
            gdt.arange(p.start, p.stop) if isinstance(p, builtins.slice) else p for p in places
        ]
        places = list(gdt.ix_(*whole))
    return gdt.update_at(inputs, updates, tuple(places))


def unstack(x: Any, num: int | None = None, axis: int = 0) -> list[DistributedArray]:
    """Return the slices along an axis."""
    return list(gdt.unstack(convert_to_tensor(x), axis=axis))

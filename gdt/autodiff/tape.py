"""The gradient tape: a list of calls in the order in which they ran, of which `backward` computes
gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.array.gathers import LAST, LastGather
from gdt.autodiff.backward import gradients
from gdt.autodiff.reverse_mode import Fetched, ScalarRead, check_fetched, warn_of_scalars
from gdt.autodiff.unread import LARGE, UnreadArrays
from gdt.comm.agreement import HISTORIES
from gdt.comm.notes import note_operands
from gdt.engine.forms import FORMS, Forms
from gdt.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    error,
    frame_of_user,
    line_of_user,
    type_text,
)
from gdt.observe import OBSERVERS, Observer, keep_informed
from gdt.ops.movement import _relayout
from gdt.sharding.dtypes import INEXACT
from gdt.sharding.layout import Layout
from gdt.state import PARAMETERS, reasons, state_layouts
from gdt.state.trees import leaves, mapped

__all__ = ["GradientTape"]


Tree = (
    Any  # an array, or nested lists, tuples and dicts of arrays, or an object with `parameters()`
)


@checked_class("on_op")
class GradientTape(Observer):
    """A recorder of the ops that run inside its `with` block, of which `gradient` differentiates.

    persistent: whether `gradient` may be called more than once. If not, a call frees the arrays
        that the tape holds as it goes.

    Every op is recorded, so arrays need not be watched; `watch` names the sources of a `gradient`
    call without sources. A persistent tape also records the ops of a `gradient` that is called
    inside its block, for gradients of gradients. Follows `tf.GradientTape`.

    >>> w = gdt.asarray([1.0, 2.0, 3.0])
    >>> with gdt.GradientTape() as tape:
    ...     loss = gdt.sum(w * w)
    >>> tape.gradient(loss, w).tolist()
    [2.0, 4.0, 6.0]
    """

    wants_parts = False
    wants_moves = False

    def __init__(self, persistent: bool = False) -> None:
        self.persistent = persistent
        self.nodes: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] | None = []
        self.watched: list[DistributedArray] = []
        self.fetched: list[Fetched] = []
        self.scalars: list[ScalarRead] = []
        # What was written, weakly, since a checkpointed call keeps nothing, and its values before.
        self.written: list[tuple[weakref.ref[DistributedArray], DistributedArray]] = []
        self.unread = UnreadArrays()
        self.has_fetched = False  # whether values were gathered to the host
        self.forms, self.last_gather = Forms(), LastGather()
        self._tokens: Any = None

    def __repr__(self) -> str:
        state = "used up" if self.nodes is None else f"{len(self.nodes)} ops recorded"
        return f"<gdt.GradientTape, {state}>"

    def __enter__(self) -> GradientTape:
        if self.nodes is None:
            raise error(
                GradientError,
                "this tape has been used up",
                remedy="Make a new tape.",
            )
        if self in OBSERVERS.get():
            raise error(GradientError, "this tape is recording already")
        self.forms = FORMS.get() or self.forms  # those of a tape around this one
        self.last_gather = LAST.get() or self.last_gather
        self._tokens = OBSERVERS.set((*OBSERVERS.get(), self)), *self._set_own()
        keep_informed(self)
        return self

    def __exit__(self, *exception: object) -> None:
        OBSERVERS.reset(self._tokens[0])
        FORMS.reset(self._tokens[1])
        LAST.reset(self._tokens[2])

    def _set_own(self) -> tuple[Any, Any]:
        """Have ops use the forms and the last gather of this tape; return what resets that."""
        return FORMS.set(self.forms), LAST.set(self.last_gather)

    def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
        if self.nodes is not None:  # None after a gradient that was called inside the block
            first = out[0] if type(out) is tuple else out
            if self.unread.entries or first.type.local_nbytes >= LARGE:
                if type(out) is tuple:  # the caller's own refers to the arrays too
                    out = (*out,)
                args = self.unread.note(op, args, out, self.forms)
            self.nodes.append((op, args, static, out))

    def on_fetch(self, array_type: object, nbytes: int) -> None:
        self.has_fetched = True

    def on_implicit_fetch(self, array: DistributedArray) -> None:
        if array.dtype.kind in INEXACT:
            self.fetched.append((array, line_of_user()))

    def on_item(self, array: DistributedArray) -> None:
        if array.dtype.kind in INEXACT:
            frame, _ = frame_of_user()
            self.scalars.append((array, frame.f_code.co_filename, frame.f_lineno))

    def on_write(self, array: Any, before: Any, after: Any) -> None:
        """Rename arrays in the record: what has read `array` has read `before`, and what has
        returned `after` has returned `array`."""
        self.forms.discard(array)
        if self.nodes is not None:
            self.unread.entries.clear()  # which count the references of the nodes
            _rename(self.nodes, array, before, after)
            self.fetched[:] = [(before if x is array else x, line) for x, line in self.fetched]
            self.scalars[:] = [(before if x is array else x, f, n) for x, f, n in self.scalars]
            self.written.append((weakref.ref(array), before))

    def on_outdate(self, view: Any, before: Any) -> None:
        self.on_write(view, before, None)

    def on_renew(self, view: Any, value: Any) -> None:
        """Rename `value` in the record: what has returned it has returned `view`."""
        if self.nodes is not None:
            self.unread.entries.clear()
            _rename(self.nodes, view, None, value)

    def on_leave(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        if name == "gradient":
            # An inner tape has moved its gradients to the layouts of their sources.
            for g, moved in zip(args, out, strict=True):
                if g is not None and moved is not g and moved is not g._resolved:
                    self.on_op(_relayout, (g,), {"layout": moved.layout}, moved)

    def watch(self, tensor: Tree) -> None:
        """Add the arrays of the tree `tensor` to the default sources of `gradient`.

        Raises GradientError for an array that is not of floating-point numbers.

        >>> x = gdt.asarray([1.0, 2.0])
        >>> with gdt.GradientTape() as tape:
        ...     tape.watch(x)
        ...     loss = gdt.sum(x * x)
        >>> [gradient.tolist() for gradient in tape.gradient(loss)]
        [[2.0, 4.0]]
        """
        arrays, _ = flatten(tensor)
        for x in arrays:
            check_differentiable(x, "GradientTape.watch", "tensor")
        self.watched += arrays

    def gradient(
        self,
        target: Tree,
        sources: Tree = None,
        output_gradients: Tree = None,
        *,
        unconnected: str = "raise",
        together_with: Sequence[DistributedArray] = (),
        resolve: bool = True,
    ) -> Tree:
        """Return the gradients of the sum of `target`'s elements, in a tree shaped as `sources`.

        target: an array, or a tree of arrays, that was computed inside the tape's block.
        sources: an array, a tree of arrays, or an object with `parameters()`; by default the
            watched arrays.
        output_gradients: the cotangents of the targets, a tree as `target`; ones by default.
        unconnected: the gradient of a source on which `target` does not depend: `"raise"` raises
            GradientError, `"zero"` gives zeros, `"none"` gives None.
        together_with: further arrays (metrics, say) whose partial reductions are resolved in one
            bundle with those of the gradients and of `target`.
        resolve: False leaves gradients as they are computed, mostly partial, so that those of
            several micro-batches are added before one reduction: `Optimizer.update` reduces their
            sum.

        Each gradient has the shape and dtype of its source, and its layout with nothing partial; or
        the layout that a `gdt.nn.LayoutMap` gives to the state of a Module's parameter.

        Raises GradientError for a tape that has been used up; for sources without an array, such
        as a Module without parameters, unless `unconnected` allows them; and where a NumPy function
        that gdt lacks fetched an array that depends on a source: no gradient would come back from
        there. (`x.numpy()`, `float(x)` and printing fetch values on purpose, as constants.)

        >>> x = gdt.asarray(3.0)
        >>> with gdt.GradientTape() as tape:
        ...     y = x * x
        >>> float(tape.gradient(y, x))
        6.0
        """
        if unconnected not in ("raise", "zero", "none"):
            problem = f"unconnected is {unconnected!r}, not 'raise', 'zero' or 'none'"
            raise error(ArgumentError, problem)
        return self._gradient(
            target, sources, output_gradients, unconnected, together_with, resolve
        )

    def _gradient(
        self,
        target: Tree,
        sources: Tree,
        output_gradients: Tree = None,
        unconnected: str = "raise",
        together_with: Sequence[DistributedArray] = (),
        resolve: bool = True,
    ) -> Tree:
        """`gradient`, which has one more policy: `"unread"` raises GradientError for a source that
        no recorded op has read, and gives zeros for another on which `target` does not depend."""
        op = "GradientTape.gradient"
        if self.nodes is None:
            raise error(
                GradientError,
                op,
                "the tape has been used up",
                remedy="Use GradientTape(persistent=True).",
            )
        targets, _ = flatten(target)
        tree = self.watched if sources is None else sources
        source_arrays, rebuild = flatten(tree)
        if not source_arrays and unconnected in ("raise", "unread"):
            raise _without_sources(op, sources)
        check_all_differentiable(targets, op, "target")
        check_all_differentiable(source_arrays, op, "source")
        if self.written and any(x is w() for x in source_arrays for w, _ in self.written):
            raise error(
                GradientError,
                op,
                "a source was written, as x[i] = value does, since the tape began to record",
                remedy="Write x = x.at[i].set(value): the source keeps its value then.",
            )
        seeds = None if output_gradients is None else _cotangents(targets, output_gradients)
        if HISTORIES:
            note_operands(op, [*targets, *source_arrays])
        nodes = self.nodes
        self.unread.entries.clear()
        if self.persistent:
            nodes = nodes.copy()
        else:
            self.nodes = None
        if self.fetched:
            check_fetched(nodes, source_arrays, self.fetched)
        if self.scalars:
            warn_of_scalars(nodes, source_arrays, self.scalars)
        observers = OBSERVERS.get()
        if self in observers and not self.persistent:
            observers = tuple([o for o in observers if o is not self])
        tokens = OBSERVERS.set(observers), *self._set_own()
        try:
            layouts = (
                gradient_layouts(tree, source_arrays) if resolve else [None] * len(source_arrays)
            )
            arrays = (nodes, targets, seeds, source_arrays, together_with)
            name_of = partial(_source_name, tree)
            return rebuild(gradients(*arrays, unconnected, layouts, name_of))
        finally:
            OBSERVERS.reset(tokens[0])
            FORMS.reset(tokens[1])
            LAST.reset(tokens[2])
            self.forms.entries.clear()  # so that each gradient moves what the first one does
            self.last_gather.release()


Node = tuple[Any, tuple[Any, ...], dict[str, Any], Any]


def _rename(nodes: list[Node], array: Any, before: Any, after: Any) -> None:
    """Put `before` in the place of `array`, and `array` in the place of `after`, which may be None,
    in the nodes from the last one back to those that have made the two."""
    names = {id(array): before} | ({} if after is None else {id(after): array})
    missing = {id(array), id(after)}
    for n in reversed(range(len(nodes))):
        op, args, static, out = nodes[n]
        nodes[n] = op, _renamed(args, names), static, _renamed(out, names)
        missing.difference_update(map(id, out if isinstance(out, tuple) else (out,)))
        if not missing:
            break


def _renamed(value: Any, names: Mapping[int, Any]) -> Any:
    """Return an array of a node, or a tuple of them, with others in the place of some."""
    if isinstance(value, tuple):
        return tuple([_renamed(item, names) for item in value])
    return names.get(id(value), value)


def _without_sources(op: str, sources: Tree) -> GradientError:
    """Return the error for a gradient without sources: a training step would take its result for
    gradients of 0."""
    if sources is None:
        problem, remedy = "no array is watched", "Pass sources, or call tape.watch(x) before."
        return error(GradientError, op, f"there are no sources: {problem}", remedy=remedy)
    name = type(sources).__name__
    return error(
        GradientError,
        op,
        f"there are no sources: the {name} has no parameters",
        operands=reasons(sources),
        remedy=PARAMETERS,
    )


def _source_name(tree: Tree, number: int) -> str:
    """Return what errors call an array of `flatten(tree)`: the name of a parameter, or its
    number."""
    named = tree.parameters() if hasattr(tree, "parameters") else tree
    is_flat = type(named) is dict and all(isinstance(x, DistributedArray) for x in named.values())
    return repr(sorted(named, key=str)[number]) if is_flat else str(number)


def gradient_layouts(tree: Tree, arrays: Sequence[DistributedArray]) -> Sequence[Layout]:
    """Return the layouts in which the gradients of the arrays of a tree are returned; none if they
    are those of the arrays."""
    layouts = None if type(tree) is dict else state_layouts(tree)
    if not layouts:
        return ()
    names = {id(x): name for name, x in tree.parameters().items()}
    return [layouts.get(names[id(x)], x.layout.resolved) for x in arrays]


def check_all_differentiable(arrays: Sequence[object], op: str, role: str) -> None:
    """Raise GradientError unless all `arrays` are distributed arrays of floating-point numbers."""
    for x in arrays:  # mostly without a call for each
        if type(x) is not DistributedArray or x.type.dtype.kind not in INEXACT:
            check_differentiable(x, op, role)


def check_differentiable(x: object, op: str, role: str) -> None:
    """Raise GradientError unless `x` is a distributed array of floating-point numbers."""
    if not isinstance(x, DistributedArray):
        raise error(GradientError, op, f"a {role} is {type_text(x)}, not a distributed array")
    if x.type.dtype.kind not in INEXACT:
        raise error(
            GradientError,
            op,
            f"a {role} has dtype {x.dtype}, and only floating-point numbers have gradients",
            operands={role: x.type},
            remedy="Convert it with x.astype('float32') before the tape.",
        )


def _cotangents(targets: Sequence[DistributedArray], tree: Tree) -> list[DistributedArray]:
    """Return the arrays of `tree`, or raise GradientError if they do not fit the targets."""
    cotangents, _ = flatten(tree)
    if len(cotangents) != len(targets):
        raise error(
            GradientError,
            "GradientTape.gradient",
            f"{len(cotangents)} output gradients for {len(targets)} targets",
        )
    for t, g in zip(targets, cotangents, strict=True):
        if t.shape != g.shape:
            raise error(
                GradientError,
                "GradientTape.gradient",
                "an output gradient has another shape than its target",
                operands={"target": t.type, "output gradient": g.type},
            )
    return cotangents


# ---------------------------------------------------------------- trees of arrays


def flatten(
    tree: Tree, *, others: bool = False
) -> tuple[list[DistributedArray], Callable[[Sequence[Any]], Tree]]:
    """Return the arrays of a tree, and a function that puts others in their place.

    The arrays of a mapping come in the order of its keys' names: they travel together, and each
    process may have filled the mapping in another order. An object with `parameters()` stands for
    the dict that it returns.

    others: whether the tree may hold anything but arrays, which stays where it is; if not, such a
        tree raises DtypeError.
    """
    if isinstance(tree, DistributedArray):
        return [tree], lambda new: new[0]
    if hasattr(tree, "parameters"):
        return flatten(tree.parameters(), others=others)
    if type(tree) is dict and set(map(type, tree.values())) == {DistributedArray}:
        # As parameters are mostly kept; what follows takes longer.
        keys = sorted(tree, key=str)
        return [*map(tree.__getitem__, keys)], partial(_by_key, tree, keys)
    of_arrays = mapped(lambda x: x.parameters() if hasattr(x, "parameters") else x, tree)
    values = [*leaves(of_arrays, by_name=True)]
    arrays = [x for x in values if isinstance(x, DistributedArray)]
    if len(arrays) < len(values) and not others:
        other = next(x for x in values if not isinstance(x, DistributedArray))
        raise error(
            DtypeError,
            "gradient",
            f"{type_text(other)} is no distributed array, nor a list, tuple or dict of them",
            remedy="Make an array of it with gdt.asarray.",
        )

    def rebuild(new: Sequence[Any]) -> Tree:
        remaining = iter(new)
        return mapped(
            lambda x: next(remaining) if isinstance(x, DistributedArray) else x,
            of_arrays,
            by_name=True,
        )

    return arrays, rebuild


def _by_key(tree: Mapping[Any, Any], keys: Sequence[Any], values: Iterable[Any]) -> dict[Any, Any]:
    """Return a dict of these keys and values, in the order of the keys of `tree`."""
    arrays = dict.fromkeys(tree)
    arrays.update(zip(keys, values, strict=True))
    return arrays

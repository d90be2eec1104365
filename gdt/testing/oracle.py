"""Samples of arguments, and the oracle that checks functions on them.

Checks raise AssertionError themselves: Python leaves out `assert` statements under `-O`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.placing import distribute
from gdt.autodiff.tape import GradientTape
from gdt.backend import backend_of
from gdt.observe import observing
from gdt.sharding.default_mesh import default_mesh
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh, create_mesh
from gdt.state.trees import leaves, mapped
from gdt.testing.layouts import choices
from gdt.testing.operands import assert_close, assert_consistent, placed, poisoned, tolerance
from gdt.testing.views import ViewObserver

Tree = Any  # a value, or nested lists, tuples and dicts of them

STEP = 1e-6  # the step of finite differences, in units of the operands


@dataclass(frozen=True)
class Sample:
    """Arguments on which a function is tested.

    args: operands as NumPy arrays or Python scalars; lists of them where the function takes lists.
    static: keyword arguments.
    expect: a function of the same arguments on whole NumPy arrays, whose results are expected; None
        for those of the function itself on one device.
    grad: whether gradients with respect to the real floating-point operands are checked.
    exact: whether results must have the same bits in every layout.
    warns: whether warnings of NumPy (overflow, 1 / 0) are ignored.

    >>> import numpy as np
    >>> sample = gdt.testing.Sample((np.ones((5, 3)), 2.0), expect=np.multiply)
    >>> gdt.testing.check_mesh(gdt.multiply, sample, gdt.create_mesh([("x", 2)]))
    """

    args: tuple[Any, ...]
    static: Mapping[str, Any] = field(default_factory=dict)
    expect: Callable[..., Any] | None = None
    grad: bool = True
    exact: bool = False
    warns: bool = False

    @property
    def arrays(self) -> list[np.ndarray]:
        """The operands that are arrays, in order."""
        return [a for a in leaves(self.args) if isinstance(a, np.ndarray)]

    def with_arrays(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments with `arrays` in the places of the sample's own arrays.

        >>> import numpy as np
        >>> gdt.testing.Sample((np.ones(2), 3)).with_arrays([np.zeros(2)])
        (array([0., 0.]), 3)
        """
        remaining = iter(arrays)
        args: tuple[Any, ...] = mapped(
            lambda a: next(remaining) if isinstance(a, np.ndarray) else a, self.args
        )
        return args


def _on_host(x: DistributedArray) -> list[np.ndarray]:
    """Return copies of the blocks of an array, on the host."""
    return [backend_of(x.mesh).to_host(b).copy() for b in x.blocks]


class Oracle:
    """The results of a function for one sample: values, gradients and second derivatives, which
    `check` compares with those in other layouts. one: the mesh of one device.

    >>> import numpy as np
    >>> sample = gdt.testing.Sample((np.array([3.0]),), expect=np.square)
    >>> gdt.testing.Oracle(gdt.square, sample).expected[0].tolist()
    [9.0]
    """

    def __init__(self, function: Callable[..., Any], sample: Sample) -> None:
        self.function, self.sample = function, sample
        self.one = create_mesh([("device", 1)], device_type="CPU")

    @cached_property
    def expected(self) -> list[Any]:
        """The leaves of the expected result: NumPy arrays, or other values as the function returns
        them."""
        sample = self.sample
        if sample.expect is not None:
            return [
                np.asarray(v) if isinstance(v, np.generic) else v
                for v in leaves(sample.expect(*sample.args, **sample.static))
            ]
        return [
            v.numpy() if isinstance(v, DistributedArray) else v
            for v in self._on_one_device(sample.arrays)
        ]

    def _on_one_device(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Return the leaves of the function's result for `arrays` on one device."""
        operands = self._placed_on_one(arrays)
        with default_mesh(self.one):
            out = self.function(*self.sample.with_arrays(operands), **self.sample.static)
        return list(leaves(out))

    @cached_property
    def bound(self) -> float:
        """The relative tolerance of values; 0 asks for equality."""
        arrays = [*self.sample.arrays, *(v for v in self.expected if isinstance(v, np.ndarray))]
        if self.sample.exact:
            return 0.0
        return tolerance([a.dtype for a in arrays], max((a.size for a in arrays), default=1))

    # ---- gradients

    @cached_property
    def precise(self) -> list[np.ndarray]:
        """The sample's arrays, those of real floating-point numbers in float64."""
        return [a.astype(np.float64) if kind_of(a.dtype) == "f" else a for a in self.sample.arrays]

    @cached_property
    def sources(self) -> list[int]:
        """The positions of the arrays that have gradients."""
        return [i for i, a in enumerate(self.sample.arrays) if kind_of(a.dtype) == "f"]

    @cached_property
    def cotangents(self) -> list[np.ndarray | None]:
        """A fixed random cotangent for every output; None where there is no gradient."""
        rng = np.random.default_rng(1)
        outs = self._on_one_device(self.precise)
        return [
            rng.uniform(0.5, 1.5, v.shape)
            if isinstance(v, DistributedArray) and kind_of(v.dtype) == "f"
            else None
            for v in outs
        ]

    @property
    def differentiable(self) -> bool:
        """Whether there is a gradient to check."""
        return (
            self.sample.grad and bool(self.sources) and any(c is not None for c in self.cotangents)
        )

    def loss(self, operands: Sequence[DistributedArray]) -> DistributedArray:
        """Return the sum of the outputs times their cotangents."""
        outs = leaves(self.function(*self.sample.with_arrays(operands), **self.sample.static))
        pairs = zip(outs, self.cotangents, strict=True)
        parts: list[DistributedArray] = [(v * c).sum() for v, c in pairs if c is not None]
        return reduce(add, parts)

    def gradient(self, operands: Sequence[DistributedArray]) -> list[DistributedArray]:
        """Return the gradients of `loss` with respect to the sources."""
        with default_mesh(operands[0].mesh), GradientTape() as tape:
            loss = self.loss(operands)
        gradients: list[DistributedArray] = tape.gradient(
            loss, [operands[i] for i in self.sources], unconnected="zero"
        )
        return gradients

    def slope(self, operands: Sequence[DistributedArray]) -> DistributedArray:
        """Return the derivative of `loss` along a fixed random direction."""
        rng = np.random.default_rng(2)
        gradients = self.gradient(operands)
        return reduce(add, [(g * rng.uniform(0.5, 1.5, g.shape)).sum() for g in gradients])

    def curvature(self, operands: Sequence[DistributedArray]) -> list[DistributedArray]:
        """Return the gradients of `slope` with respect to the sources."""
        with default_mesh(operands[0].mesh), GradientTape() as tape:
            slope = self.slope(operands)
        gradients: list[DistributedArray] = tape.gradient(
            slope, [operands[i] for i in self.sources], unconnected="zero"
        )
        return gradients

    @cached_property
    def gradients(self) -> list[np.ndarray]:
        """The gradients on one device, after a comparison with finite differences."""
        return self._compared(self.gradient, self.loss, "gradient")

    @cached_property
    def curvatures(self) -> list[np.ndarray]:
        """The second derivatives on one device, after a comparison with finite differences."""
        return self._compared(self.curvature, self.slope, "second derivative")

    def _compared(
        self, gradient: Callable[..., Any], value: Callable[..., Any], what: str
    ) -> list[np.ndarray]:
        """Return `gradient` on one device; raise AssertionError if it is not the derivative of
        `value` along a random direction."""
        gradients = [g.numpy() for g in gradient(self._placed_on_one(self.precise))]
        rng = np.random.default_rng(3)
        directions = [rng.standard_normal(self.precise[i].shape) for i in self.sources]
        up, down = (
            float(value(self._placed_on_one(self._shifted(directions, s)))) for s in (STEP, -STEP)
        )
        want = (up - down) / (2 * STEP)
        got = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
        # Cancellation leaves eps * |value| / step, truncation is of the order of step ** 2.
        slack = 1e-6 * max(1.0, abs(up), *(float(np.abs(g).sum()) for g in gradients))
        if not abs(got - want) <= slack:
            problem = f"{what} along a direction is {got}, finite differences give {want}"
            raise AssertionError(problem)
        return gradients

    def _placed_on_one(self, arrays: Sequence[np.ndarray]) -> list[DistributedArray]:
        """Return arrays on the mesh of one device."""
        return [distribute(a, Layout.replicated(self.one, a.ndim)) for a in arrays]

    def _shifted(self, directions: Sequence[np.ndarray], step: float) -> list[np.ndarray]:
        """Return the arrays with `step * direction` added to the sources."""
        arrays = list(self.precise)
        for i, d in zip(self.sources, directions, strict=True):
            arrays[i] = arrays[i] + step * d
        return arrays

    # ---- checks

    def check(
        self, mesh: Mesh, layouts: Sequence[Layout], *, gradients: bool = True, second: bool = False
    ) -> None:
        """Raise AssertionError unless the function is right on operands in these layouts.

        gradients, second: whether to check gradients and second derivatives, if there are any."""
        try:
            self._check_values(mesh, layouts)
            if gradients and self.differentiable:
                self._check_gradients(layouts, self.gradient, self.gradients, "gradient")
                if second:
                    self._check_gradients(
                        layouts, self.curvature, self.curvatures, "second derivative"
                    )
        except Exception as e:
            name = getattr(self.function, "__name__", repr(self.function))
            operands = [
                f"{a.dtype}{list(a.shape)} {w}"
                for a, w in zip(self.sample.arrays, layouts, strict=True)
            ]
            call = f"{name}({', '.join(operands)}; {dict(self.sample.static)})"
            e.add_note(f"in {call} on {mesh} with blocks {mesh.grid}")
            raise

    def _check_values(self, mesh: Mesh, layouts: Sequence[Layout]) -> None:
        """Check the results in these layouts, then again with other values in the padding, where
        results that change have read it."""
        with default_mesh(mesh):
            operands = [placed(a, w) for a, w in zip(self.sample.arrays, layouts, strict=True)]
            with (
                warnings.catch_warnings(),
                np.errstate(all="ignore" if self.sample.warns else None),
            ):
                if self.sample.warns:
                    warnings.simplefilter("ignore", RuntimeWarning)
                self._check_run(operands)
            if not any(x.type.uneven for x in operands):
                return  # there is no padding to poison
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                self._check_run([poisoned(x) for x in operands], "poisoned padding: ")

    def _check_run(self, operands: Sequence[DistributedArray], state: str = "") -> None:
        """Raise AssertionError, whose text begins with `state`, unless the results are right and
        the operands unchanged."""
        before = [_on_host(x) for x in operands]
        with observing(ViewObserver()):
            out = self.function(*self.sample.with_arrays(operands), **self.sample.static)
        outs = list(leaves(out))
        if len(outs) != len(self.expected):
            raise AssertionError(f"{len(outs)} results, expected {len(self.expected)}")
        for got, expected in zip(outs, self.expected, strict=True):
            want = np.asarray(expected)
            if not isinstance(got, DistributedArray):
                if not np.array_equal(np.asarray(got), want):
                    raise AssertionError(f"{state}got {got!r}, expected {expected!r}")
                continue
            for name in ("shape", "dtype"):
                own, other = getattr(got, name), getattr(want, name)
                if own != other:
                    raise AssertionError(f"{state}{name} is {own}, expected {other}")
            assert_consistent(got)
            assert_close(got.numpy(), want, self.bound, f"{state}result {got.type}")
        for x, blocks in zip(operands, before, strict=True):
            same = all(
                np.array_equal(b, c, equal_nan=kind_of(b.dtype) in "fc")
                for b, c in zip(_on_host(x), blocks, strict=True)
            )
            if not same:
                raise AssertionError(f"an operand has been changed: {x.type}")

    def _check_gradients(
        self,
        layouts: Sequence[Layout],
        gradient: Callable[..., Any],
        want: Sequence[np.ndarray],
        what: str,
    ) -> None:
        """Raise AssertionError unless `gradient`, for operands in these layouts, returns `want`,
        each in the layout of its source."""
        operands = [placed(a, w, poison=True) for a, w in zip(self.precise, layouts, strict=True)]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            gradients = gradient(operands)
        length = max(a.size for a in self.precise) * 8  # several sums follow each other
        for g, i, expected in zip(gradients, self.sources, want, strict=True):
            source = operands[i]
            if g.type is not source.type.with_layout(source.layout.resolved):
                raise AssertionError(f"the {what} of {source.type} is {g.type}")
            assert_consistent(g)
            assert_close(
                g.numpy(),
                expected,
                tolerance([g.dtype], length),
                f"{what} of array {i}, {source.type}",
            )


def check(
    function: Callable[..., Any],
    sample: Sample,
    mesh: Mesh,
    layouts: Sequence[Layout],
    *,
    second: bool = False,
) -> None:
    """Raise AssertionError unless `function` is right on the sample's arrays in these layouts.

    function: takes distributed arrays where the sample has NumPy arrays. second: whether to check
    second derivatives as well as gradients.

    >>> import numpy as np
    >>> mesh = gdt.create_mesh([("x", 2)])
    >>> sample = gdt.testing.Sample((np.arange(3.0),), expect=np.exp)
    >>> gdt.testing.check(gdt.exp, sample, mesh, [gdt.Layout(["x"], mesh)])
    """
    Oracle(function, sample).check(mesh, layouts, second=second)


def check_mesh(
    function: Callable[..., Any], sample: Sample, mesh: Mesh, *, limit: int = 64, seed: int = 0
) -> None:
    """Run `check` in all layouts that the sample's arrays can have on `mesh`.

    limit: the largest number of choices of layouts; of more, a random sample is checked.
    seed: of that sample.

    >>> import numpy as np
    >>> sample = gdt.testing.Sample((np.ones((3, 2)), 2.0), expect=np.add)
    >>> gdt.testing.check_mesh(gdt.add, sample, gdt.create_mesh([("x", 2)]))
    """
    oracle = Oracle(function, sample)
    for layouts in choices(mesh, [a.ndim for a in sample.arrays], limit=limit, seed=seed):
        oracle.check(mesh, layouts)

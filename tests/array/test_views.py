"""Views: slices, transposes and reshapes show what is written to their base, and write to it."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.registry import FUNCTIONS
from gdt.array.views import check_writable
from gdt.errors import ReadOnlyError
from gdt.state.trees import leaves
from tests.samples import SAMPLES

from . import view_chains


@pytest.fixture(params=[1, 2], ids=["folded", "apart"])
def x(request: pytest.FixtureRequest) -> gdt.DistributedArray:
    """Return an array of 4 rows, split in two."""
    mesh = gdt.create_mesh([("x", 2)], blocks=request.param)
    return gdt.asarray(np.arange(12.0).reshape(4, 3), layout=gdt.Layout(["x", None], mesh))


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("layout", range(6))
def test_random_chains_of_views_and_writes_equal_numpys(layout: int, blocks: int) -> None:
    for seed in range(layout, 150, 6):
        view_chains.run(seed, blocks)


# ---------------------------------------------------------------- which results are views


def numpys(name: str) -> Callable[..., Any] | None:
    """Return NumPy's function of that name, or its method."""
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part, None)
    return found or getattr(np.ndarray, name, None)


WRITERS = {"copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"}
# Views in NumPy that are read-only here, and zeros that are.
READ_ONLY_HERE = {"einsum", "broadcast_arrays"}


@pytest.mark.parametrize("name", [name for name in sorted(SAMPLES) if numpys(name)])
def test_results_are_views_where_numpys_are(name: str) -> None:
    for sample in SAMPLES[name]:
        arrays = [np.array(a, order="C") for a in sample.arrays]
        mine = [gdt.asarray(a) for a in arrays]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                theirs = numpys(name)(*sample.with_arrays(arrays), **sample.static)  # type: ignore[misc]
            except (TypeError, ValueError, AttributeError):  # other arguments than gdt's
                continue
            results = FUNCTIONS[name](*sample.with_arrays(mine), **sample.static)
        want = [out for out in leaves(theirs) if isinstance(out, np.ndarray)]
        got = [out for out in leaves(results) if isinstance(out, gdt.DistributedArray)]
        for out, expected in zip(got, want, strict=False) if len(got) == len(want) else ():
            shares = any(np.shares_memory(expected, a) for a in arrays)
            is_view = any(out is x or out.base is x for x in mine)
            is_zero = name == "imag" and mine[0].dtype.kind != "c"
            assert shares == is_view or not out.size or is_zero, sample
            if is_view and name not in READ_ONLY_HERE:
                assert is_writable(out) == expected.flags.writeable


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - WRITERS))
def test_writes_to_results_that_are_no_views_leave_operands_as_they_are(name: str) -> None:
    for sample in SAMPLES[name][:4]:
        operands = [gdt.asarray(np.array(a)) for a in sample.arrays]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            returned = FUNCTIONS[name](*sample.with_arrays(operands), **sample.static)
        results = [out for out in leaves(returned) if isinstance(out, gdt.DistributedArray)]
        before = [x.numpy().copy() for x in operands]
        for out in results:
            if out.base is None and not any(out is x for x in operands) and is_writable(out):
                out[...] = 3
        for x, value in zip(operands, before, strict=True):
            np.testing.assert_array_equal(x.numpy(), value)


def is_writable(x: gdt.DistributedArray) -> bool:
    """Return whether an array can be written."""
    try:
        check_writable(x)
    except ReadOnlyError:
        return False
    return True


OWN: dict[str, Callable[[Any, Any], Any]] = {
    "delete nothing": lambda xp, x: xp.delete(x, [], axis=0),
    "append nothing": lambda xp, x: xp.append(x, xp.zeros((0, 3)), axis=0),
    "take all": lambda xp, x: xp.take(x, [0, 1, 2, 3], axis=0),
    "compress all": lambda xp, x: xp.compress([True] * 4, x, axis=0),
    "clip nothing": lambda xp, x: xp.clip(x, -1e9, 1e9),
    "tile once": lambda xp, x: xp.tile(x, 1),
    "repeat once": lambda xp, x: xp.repeat(x, 1, axis=0),
    "concatenate one": lambda xp, x: xp.concatenate([x]),
    "resize to the shape": lambda xp, x: xp.resize(x, (4, 3)),
    "sum along no axis": lambda xp, x: xp.sum(x, axis=()),
    "roll by 0": lambda xp, x: xp.roll(x, 0),
    "roll by a round": lambda xp, x: xp.roll(x, 4, axis=0),
    "a median": lambda xp, x: xp.median(x, axis=0),
    "fftshift of no axes": lambda xp, x: xp.fft.fftshift(x, axes=()),
    "pad by 0": lambda xp, x: xp.pad(x, 0),
    "flatten": lambda xp, x: x.flatten(),
    "nan_to_num": lambda xp, x: xp.nan_to_num(x.astype(int)),
    "flat": lambda xp, x: x.flat[:],
    "copy": lambda xp, x: x.copy(),
    "astype": lambda xp, x: x.astype(x.dtype),
    "rows by an array": lambda xp, x: x[[0, 1]],
    "rows by a mask": lambda xp, x: x[x[:, 0] > -1],
    "columns in another order, flattened": lambda xp, x: x.T.reshape(-1),
    "meshgrid": lambda xp, x: xp.meshgrid(x[:, 0], x[:, 1])[0],
}
VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "split": lambda xp, x: xp.split(x, 2)[1],
    "unstack": lambda xp, x: xp.unstack(x)[2],
    "rot90": lambda xp, x: xp.rot90(x),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, 1),
    "rollaxis": lambda xp, x: xp.rollaxis(x, 1),
    "atleast_3d": lambda xp, x: xp.atleast_3d(x),
    "einsum": lambda xp, x: xp.einsum("ij->ji", x),
    "mT": lambda xp, x: x.mT,
    "in columns": lambda xp, x: xp.reshape(x, (12, 1), order="C")[::-3],
    "iteration": lambda xp, x: [*x][1],
    "matrix to the power of 1": lambda xp, x: xp.linalg.matrix_power(x[:3], 1),
    "nan_to_num of itself": lambda xp, x: xp.nan_to_num(x, copy=False),
    "real": lambda xp, x: x.real,
    "swapaxes of a row": lambda xp, x: xp.swapaxes(x[1:2, None], 0, 2),
}


@pytest.mark.parametrize("name", [*OWN, *VIEWS])
def test_writes_to_results_reach_what_numpys_reach(name: str, x: gdt.DistributedArray) -> None:
    function = {**OWN, **VIEWS}[name]
    values = x.numpy().copy()
    out, expected = function(gdt, x), function(np, values)
    out[...] = 7.0
    expected[...] = 7.0
    np.testing.assert_array_equal(x.numpy(), values)
    assert ((values == 7.0).sum() > 1) == (name in VIEWS)
    x[...], values[...] = 1.0, 1.0
    np.testing.assert_array_equal(out.numpy(), expected)


# ---------------------------------------------------------------- what cannot be written


def test_read_only_views_show_their_base_and_refuse_writes(x: gdt.DistributedArray) -> None:
    makers: list[Callable[[Any], Any]] = [
        lambda x: gdt.broadcast_to(x, (2, 4, 3)), gdt.diagonal, gdt.diag,
        lambda x: gdt.einsum("ii->i", x[:3]),
        lambda x: gdt.lib.stride_tricks.sliding_window_view(x, 2, axis=0),
        lambda x: gdt.broadcast_to(x, (2, 4, 3))[0, 1:],
    ]  # fmt: skip
    views = [make(x) for make in makers]
    before = x.tolist()
    for view in views:
        with pytest.raises(ReadOnlyError, match=r"read-only(.|\n)*x\.at\[index\]\.set"):
            view[0] = 1.0
        with pytest.raises(ReadOnlyError):
            view += 1.0  # noqa: PLW2901
        for write in (lambda v: v.__setitem__(..., v[...]), lambda v: np.put(v, [], []),
                      lambda v: np.copyto(v, 1.0)):  # fmt: skip
            with pytest.raises(ReadOnlyError):
                write(view)
    assert x.tolist() == before
    x += 1.0
    for make, view in zip(makers, views, strict=True):
        assert view.tolist() == make(x).tolist()


def test_elements_are_values_of_their_own(x: gdt.DistributedArray) -> None:
    element = x[1, 2]
    with pytest.raises(ReadOnlyError, match="an element that an index of ints has taken"):
        x[1, 2][...] = 0.0
    total = element
    total += 1.0
    assert float(total) == 6.0 and float(element) == float(x[1, 2]) == 5.0
    x[1, 2, ...][...] = 8.0
    assert float(x[1, 2]) == 8.0


def test_copies_and_pickles_of_views_and_of_their_bases_are_arrays_of_their_own(
    x: gdt.DistributedArray,
) -> None:
    view, total = x[1:3], gdt.sum(x, axis=0)
    x += 1.0  # the view has yet to be made anew
    for value in (view, x, total, total.resolve()):
        for copied in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
            before = value.tolist()
            assert copied.tolist() == before and copied.layout is value.layout
            copied[...] = 0.0
            assert value.tolist() == before and copied.base is None


def test_views_share_memory_where_numpys_do(x: gdt.DistributedArray) -> None:
    values = np.zeros((4, 3))
    makers: list[Callable[[Any], Any]] = [
        lambda a: a, lambda a: a[:2], lambda a: a[2:], lambda a: a.T[1:2], lambda a: a[1:, 2],
        lambda a: a.reshape(-1)[:3], lambda a: a + 1, lambda a: a.copy(),
    ]  # fmt: skip
    mine, theirs = [f(x) for f in makers], [f(values) for f in makers]
    for a, n in zip(mine, theirs, strict=True):
        for b, m in zip(mine, theirs, strict=True):
            assert np.may_share_memory(a, b) == np.may_share_memory(n, m)
    assert not gdt.shares_memory(x[0, 0], x)


def test_writes_that_fail_change_nothing(x: gdt.DistributedArray) -> None:
    view, row, before = x[1:3], x[1], x.tolist()
    for wrong in (lambda: view.__setitem__(0, "a"), lambda: view.__setitem__(5, 1.0),
                  lambda: view.__setitem__(0, [1.0, 2.0]), lambda: row.__iadd__(1j)):  # fmt: skip
        with pytest.raises(gdt.errors.GdtError):
            wrong()
    assert x.tolist() == before and view.tolist() == before[1:3] and row.tolist() == before[1]


# ---------------------------------------------------------------- gradients and recorded steps


def test_gradients_through_writes_to_views_are_those_of_at(x: gdt.DistributedArray) -> None:
    w = gdt.asarray([1.0, 2.0, 3.0])

    def by_views(w: Any, x: Any) -> Any:
        y = x * 2
        before = y[1]
        scale = before * w  # reads the view before the write
        y[1:3] *= w
        y.T[0][1:] += w[0]
        y.reshape(-1)[3:6] = y[0] * w
        return gdt.sum(y * y) + gdt.sum(before * w) + gdt.sum(scale)

    def by_at(w: Any, x: Any) -> Any:
        y = x * 2
        scale = y[1] * w
        y = y.at[1:3].multiply(w)
        y = y.at[1:, 0].add(w[0])
        y = y.at[1].set(y[0] * w)
        return gdt.sum(y * y) + gdt.sum(y[1] * w) + gdt.sum(scale)

    for argnums in (0, 1):
        got = gdt.value_and_grad(by_views, argnums)(w, x)
        want = gdt.value_and_grad(by_at, argnums)(w, x)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


def test_recorded_steps_write_to_arguments_and_state_as_they_are_written(
    x: gdt.DistributedArray,
) -> None:
    class Model(gdt.nn.Module):
        def __init__(self) -> None:
            self.mean = gdt.zeros((4, 3), layout=x.layout)

        def __call__(self, x: Any) -> Any:
            self.mean *= 0.5
            self.mean[1:3] += x[1:3]
            row = x[0]
            row += 1.0
            return gdt.sum(self.mean * row)

    values, seen = [], []
    for decorate in (lambda f: f, gdt.function, lambda f: gdt.function(f, verify=2)):
        model, batch = Model(), x.copy()
        view, column = model.mean[1], batch.T[0]
        step = decorate(lambda x, model=model: model(x))
        values.append([float(step(batch)) for _ in range(6)])
        seen.append([model.mean.tolist(), view.tolist(), batch.tolist(), column.tolist()])
    assert values[0] == values[1] == values[2] and seen[0] == seen[1] == seen[2]
    assert seen[0][1] == seen[0][0][1] and seen[0][3] == [row[0] for row in seen[0][2]]


def test_a_step_that_raises_leaves_arrays_as_they_were(x: gdt.DistributedArray) -> None:
    @gdt.function
    def step(x: Any, fails: bool) -> Any:
        x += 1.0
        if fails:
            raise KeyError("stop")
        return gdt.sum(x)

    view, before = x[2], x.tolist()
    with pytest.raises(KeyError):
        step(x, True)
    assert x.tolist() == before and view.tolist() == before[2]


# ---------------------------------------------------------------- memory


def test_nobody_holds_views(x: gdt.DistributedArray) -> None:
    with gdt.GradientTape() as tape:  # which is told of all writes as long as it lives
        tape.watch(gdt.ones((2,)))
    gc.disable()  # no cycles either
    try:
        for _ in range(100):
            view = x[1:]
            view[0] = 1.0
            x[2] = 3.0
        held = weakref.ref(view)
        del view
        assert held() is None and len(x._shared) <= 16
        rows = [*x]
        base = weakref.ref(x.T.base)
        assert base() is x and rows[0].base is x
    finally:
        gc.enable()

"""Bad input raises an error of the common form, at once, and leaves everything as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import errors as e
from gdt.engine.op import Op
from gdt.ops.axes import negative_axes
from gdt.sharding.layout import Layout

MESH = gdt.create_mesh([("x", 4), ("y", 2)])
OTHER = gdt.create_mesh([("x", 2)])
APART = gdt.create_mesh([("x", 4), ("y", 2)], blocks=8)
ROWS, COLUMNS = Layout(["x", None], MESH), Layout([None, "y"], MESH)


def array(*shape: int, layout: Layout | None = None, dtype: Any = float) -> gdt.DistributedArray:
    return gdt.ones(shape, dtype, layout=layout or Layout.replicated(MESH, len(shape)))


A, B = array(8, 6, layout=ROWS), array(5, 3, layout=COLUMNS)
INTS = array(4, dtype=int)

Case = tuple[Callable[[], Any], type[Exception], str]

# What is done, the class of the error, and a pattern for its text.
CASES: dict[str, Case] = {
    # ---- meshes
    "mesh axis named twice": (
        lambda: gdt.create_mesh([("x", 2), ("x", 2)]), e.MeshError,
        "create_mesh: two mesh axes are called 'x'"),
    "mesh axis of size 0": (
        lambda: gdt.create_mesh([("x", 0)]), e.MeshError, "axis 'x' has size 0; .* at least 1"),
    "mesh axis of size -1": (
        lambda: gdt.create_mesh([("x", -1)]), e.MeshError, "size -1"),
    "mesh axis of size 2.0": (
        lambda: gdt.create_mesh([("x", 2.0)]), e.MeshError, "size 2.0"),
    "mesh axis that is no name": (
        lambda: gdt.create_mesh([("a b", 2)]), e.MeshError, "'a b' cannot name a mesh axis"),
    "mesh axis called unsharded": (
        lambda: gdt.create_mesh([("unsharded", 2)]), e.MeshError, "cannot name a mesh axis"),
    "mesh without axes": (
        lambda: gdt.create_mesh([]), e.MeshError, "needs at least one axis"),
    "mesh dims that are no pairs": (
        lambda: gdt.create_mesh(["x"]), e.MeshError, "'x' is not a pair"),
    "mesh larger than the devices named": (
        lambda: gdt.create_mesh([("x", 3)], devices=["cpu:0", "cpu:1"]), e.MeshError,
        r"a mesh of 3 coordinates does not fit 2 device\(s\)\n  devices: cpu:0, cpu:1"),
    "mesh smaller than the devices named": (
        lambda: gdt.create_mesh([("x", 2)], devices=["cpu:0", "cpu:1", "cpu:2"]), e.MeshError,
        "does not fit 3"),
    "device named twice": (
        lambda: gdt.create_mesh([("x", 2)], devices=["cpu:0", "cpu:0"]), e.MeshError,
        "device 'cpu:0' is named 2 times"),
    "device that does not exist": (
        lambda: gdt.create_mesh([("x", 1)], devices=["cuda:99"]), e.DeviceError,
        "'cuda:99' does not exist"),
    "device string that names nothing": (
        lambda: gdt.create_mesh([("x", 1)], devices=["tpu:0"]), e.DeviceError,
        "'tpu:0' does not name a device"),
    "devices that are a string": (
        lambda: gdt.create_mesh([("x", 1)], devices="cpu:0"), e.DeviceError, "Give a list"),
    "device type that conflicts": (
        lambda: gdt.create_mesh([("x", 1)], devices=["cpu:0"], device_type="GPU"), e.DeviceError,
        "not of device_type 'cuda'"),
    "unknown device type": (
        lambda: gdt.create_mesh([("x", 1)], device_type="TPU"), e.DeviceError,
        "unknown device type 'TPU'"),
    "blocks that do not divide the mesh": (
        lambda: gdt.create_mesh([("x", 4)], blocks=3), e.MeshError, "into 3 equal boxes"),
    "more blocks than coordinates": (
        lambda: gdt.create_mesh([("x", 2)], blocks=4), e.MeshError, "4"),
    "size of an unknown mesh axis": (
        lambda: MESH.dim_size("zz"), e.MeshError,
        "no mesh axis 'zz'.*\n.*\n  Its axes are 'x', 'y'"),
    "unknown mesh axis by index": (
        lambda: MESH["zz"], e.MeshError, "no mesh axis 'zz'"),
    "coordinate of a device that is not there": (
        lambda: MESH.coords(99), e.MeshError, r"device 99 is outside 0\.\.7"),
    "negative device": (
        lambda: MESH.device_location(-1), e.MeshError, "device -1 is outside"),
    "mesh from other text": (
        lambda: gdt.Mesh.from_string("|x=4|0,1|"), e.MeshError, "cannot read"),
    # ---- layouts
    "mesh axis used twice": (
        lambda: Layout(["x", "x"], MESH), e.LayoutError, "mesh axis 'x' is used 2 times"),
    "mesh axis used twice in one tuple": (
        lambda: Layout([("x", "x")], MESH), e.LayoutError, "used 2 times"),
    "mesh axis that splits and waits": (
        lambda: Layout(["x"], MESH, partial=["x"]), e.LayoutError, "used 2 times"),
    "unknown mesh axis in a layout": (
        lambda: Layout(["zz"], MESH), e.LayoutError,
        "no mesh axis 'zz'\n  mesh: Mesh.*\n  A spec is gdt.UNSHARDED or one of 'x', 'y'"),
    "spec that is a number": (
        lambda: Layout([0], MESH), e.LayoutError, "0 is not a sharding spec"),
    "specs that are a string": (
        lambda: Layout("x", MESH), e.LayoutError, "not a list with one entry per array axis"),
    "unknown partial reduction": (
        lambda: Layout([None], MESH, partial={"x": "mean"}), e.LayoutError,
        "unknown reduction 'mean'.*\n  Use one of sum, max, min, prod"),
    "layout on no mesh": (
        lambda: Layout(["x"], "mesh"), e.MeshError, "'mesh' is not a Mesh"),
    "batch_sharded over an unknown mesh axis": (
        lambda: Layout.batch_sharded(MESH, "zz", 2), e.LayoutError, "no mesh axis 'zz'"),
    "batch_sharded with an axis out of range": (
        lambda: Layout.batch_sharded(MESH, "x", 2, axis=2), e.LayoutError,
        "axis 2 is out of range for rank 2"),
    "batch_sharded of rank 0": (
        lambda: Layout.batch_sharded(MESH, "x", 0), e.LayoutError, "out of range for rank 0"),
    "num_shards of an axis out of range": (
        lambda: ROWS.num_shards(5), e.LayoutError, "axis 5 is out of range for rank 2"),
    "replicated of negative rank": (
        lambda: Layout.replicated(MESH, -1), e.LayoutError, "rank is -1"),
    "delete of an axis out of range": (
        lambda: ROWS.delete([7]), e.LayoutError, "Layout.delete: axis 7 is out of range"),
    "layout from other text": (
        lambda: Layout.from_string("x,y"), e.LayoutError, "cannot read 'x,y'"),
    # ---- making and moving arrays
    "layout of another rank": (
        lambda: gdt.zeros((3,), layout=ROWS), e.LayoutError,
        "rank 2 does not fit an array of rank 1"),
    "relayout to another rank": (
        lambda: gdt.relayout(A, Layout(["x"], MESH)), e.LayoutError,
        "relayout: a layout of rank 1 does not fit an array of rank 2\n  x: float64"),
    "relayout to what is no layout": (
        lambda: gdt.relayout(A, "x"), e.LayoutError, "'x' is not a layout"),
    "relayout to an unknown mesh axis": (
        lambda: gdt.relayout(A, ["zz", None]), e.LayoutError, "no mesh axis 'zz'"),
    "layout that is a list where a Layout is wanted": (
        lambda: gdt.ones((2,), layout=["x"]), e.LayoutError, r"Use gdt\.Layout"),
    "shape with a negative size": (
        lambda: gdt.zeros((2, -1)), e.ShapeError, "-1 in shape .* is no size"),
    "array of text": (
        lambda: gdt.asarray(["a", "b"]), e.DtypeError, "which is no number"),
    "ragged lists": (
        lambda: gdt.asarray([[1.0], [1.0, 2.0]]), e.ShapeError, "is no array"),
    "pack of too few parts": (
        lambda: gdt.pack([np.ones(2)] * 3, Layout(["x"], MESH)), e.ShapeError,
        "pack: 3 parts for 8 devices"),
    "pack of unequal shapes": (
        lambda: gdt.pack([np.ones(1), np.ones(3)], Layout(["x"], OTHER)), e.ShapeError,
        "do not make an array"),
    "pack of unequal dtypes": (
        lambda: gdt.pack([np.ones(2), np.ones(2, int)], Layout(["x"], OTHER)), e.DtypeError,
        "different dtypes"),
    "pack of another rank": (
        lambda: gdt.pack([np.ones((2, 2))] * 2, Layout(["x"], OTHER)), e.LayoutError, "rank 1"),
    "pack of replicas that differ": (
        lambda: gdt.pack([np.ones(2), np.zeros(2)], Layout([None], OTHER)), e.LayoutError,
        r"devices \(0,\) and \(1,\) are not equal"),
    "pack of one array": (
        lambda: gdt.pack(3.0, Layout(["x"], OTHER)), e.DtypeError, "float"),
    "unpack of a NumPy array": (
        lambda: gdt.unpack(np.ones(3)), e.DtypeError, "ndarray is no distributed array"),
    "layout of a NumPy array": (
        lambda: gdt.fetch_layout(np.ones(3)), e.DtypeError, "ndarray has no layout"),
    "layout that is not the expected one": (
        lambda: gdt.check_layout(A, COLUMNS), e.LayoutError,
        r"check_layout: .*\n  x: float64\[8, 6\]  \['x', -\].*\n  expected: Layout"),
    # ---- ops
    "operands on two meshes": (
        lambda: A + gdt.ones((8, 6), layout=Layout.replicated(OTHER, 2)), e.MeshError,
        r"add: operands live on different meshes\n  x: .*Mesh\(x=4, y=2\)\n  y: .*Mesh\(x=2\)"),
    "operands on meshes that differ in their blocks": (
        lambda: A + gdt.ones((8, 6), layout=Layout.replicated(APART, 2)), e.MeshError,
        r"(?s)x: .* on Mesh\(x=4, y=2\), blocks=1\n  y: .* on Mesh\(x=4, y=2\), blocks=8\n"),
    "layout and device that differ in their blocks": (
        lambda: gdt.zeros((2, 2), layout=ROWS, device=APART), e.MeshError,
        r"layout: .*y=2\), blocks=1\n  device: Mesh\(x=4, y=2\), blocks=8"),
    "axis that is a tuple": (
        lambda: gdt.sort(A, axis=(0, 1)), TypeError, "sort: axis is a tuple, and no integer"),
    "gradient of bools": (
        lambda: gdt.gradient(A > 0), TypeError, "gradient: bools have no difference"),
    "differences of bools": (
        lambda: gdt.ediff1d(A > 0), TypeError, "ediff1d: bools have no difference"),
    "shapes that do not broadcast": (
        lambda: A + B, e.ShapeError,
        "shapes do not broadcast: axis -2 is 8 in x but 5 in y\n  x: .*\n  y: .*\n  rule: "),
    "matrix product of unequal sizes": (
        lambda: A @ B, e.ShapeError, r"matmul.*6.*5"),
    "matrix product of a scalar": (
        lambda: A @ array(), e.ShapeError, "matmul"),
    "concat of unequal sizes": (
        lambda: gdt.concat([A, B], axis=0), e.ShapeError, "concat"),
    "concat along an axis out of range": (
        lambda: gdt.concat([A, A], axis=2), e.ShapeError, "axis 2 is out of range for rank 2"),
    "concat of nothing": (
        lambda: gdt.concat([]), e.ShapeError, "concat: the list of arrays is empty"),
    "stack of unequal shapes": (
        lambda: gdt.stack([A, B]), e.ShapeError, "stack"),
    "sum over an axis out of range": (
        lambda: gdt.sum(A, axis=2), e.ShapeError,
        "sum: axis 2 is out of range for rank 2\n  x: float64"),
    "sum over one axis twice": (
        lambda: gdt.sum(A, axis=(0, -2)), e.ShapeError, "an axis is repeated"),
    "reshape to another size": (
        lambda: gdt.reshape(A, (7, 7)), e.ShapeError, r"48 elements do not fit shape \[7, 7\]"),
    "reshape with two unknown sizes": (
        lambda: gdt.reshape(A, (-1, -1)), e.ShapeError, "reshape"),
    "transpose with an axis twice": (
        lambda: gdt.transpose(A, (0, 0)), e.ShapeError, "no order of 2 axes"),
    "broadcast to a smaller shape": (
        lambda: gdt.broadcast_to(A, (8, 1)), e.ShapeError, "broadcast_to"),
    "squeeze of a longer axis": (
        lambda: gdt.squeeze(A, 0), e.ShapeError, "axis 0 is no axis of length 1"),
    "sections as text": (
        lambda: gdt.split(A, "12"), e.ArgumentError, "array_split"),
    "split into unequal parts": (
        lambda: gdt.split(A, 5), e.ShapeError, "split"),
    "index out of range": (
        lambda: A[8], e.IndexRangeError, "index 8 is out of range"),
    "negative index out of range": (
        lambda: A[:, -7], e.IndexRangeError, "-7"),
    "too many indices": (
        lambda: A[0, 0, 0], e.IndexRangeError, "3"),
    "index by a number that is no integer": (
        lambda: A[1.5], e.GdtError, "1.5"),
    "take out of range": (
        lambda: gdt.take(A, np.array([0, 9]), axis=0), e.IndexRangeError, "9"),
    "assignment of what does not broadcast": (
        lambda: A.__setitem__(0, [1.0] * 99), e.ShapeError, "broadcast"),
    "truth of several elements": (
        lambda: bool(A), e.ShapeError, "ambiguous"),
    "operand that is no array": (
        lambda: gdt.exp("text"), e.DtypeError, "exp: x is a str"),
    "operand that is missing": (
        lambda: gdt.add(A), e.ArgumentError, "argument 'y' is missing"),
    "unknown argument": (
        lambda: gdt.exp(A, axis=0), e.ArgumentError, "no argument 'axis'"),
    "float function of text dtype": (
        lambda: A.astype("U3"), e.DtypeError, "U3"),
    "bitwise and of floats": (
        lambda: A & A, e.DtypeError, "bitwise_and: does not take float64, float64"),
    "difference of bools": (
        lambda: (A > 0) - (A > 0), e.DtypeError, "subtract"),
    "maximum of nothing": (
        lambda: gdt.max(array(0)), e.ShapeError, "max"),
    "argmax of nothing": (
        lambda: gdt.argmax(array(0)), e.ShapeError, "argmax"),
    "einsum with unequal sizes": (
        lambda: gdt.einsum("ij,jk->ik", A, B), e.ShapeError, "einsum"),
    "einsum with bad subscripts": (
        lambda: gdt.einsum("ij,j", A), e.GdtError, "einsum"),
    "labels out of range": (
        lambda: gdt.sparse_softmax_cross_entropy_with_logits(np.array([0] * 7 + [6]), A),
        e.IndexRangeError, "6"),
    "repeat too often": (
        lambda: gdt.repeat(A, 2**62), e.ShapeError, "repeat: shape .* is more than"),
    "repeat by counts that overflow": (
        lambda: gdt.repeat(array(4), [2**62] * 4), e.ShapeError, "repeat: shape .* is more than"),
    "repeat by split counts that overflow": (
        lambda: gdt.repeat(array(4), gdt.full(4, 2**62)), e.ShapeError, "repeat: shape .* is mo"),
    # ---- gradients
    "gradient of something not recorded": (
        lambda: gdt.grad(lambda x: gdt.sum(gdt.asarray(x.numpy() * 2)))(array(8, 6)),
        e.GradientError, "the target does not depend on source 0"),
    "gradient of an integer": (
        lambda: gdt.grad(gdt.sum)(INTS), e.GradientError,
        "dtype int64, and only floating-point"),
    "gradient of an array": (
        lambda: gdt.grad(lambda x: x * x)(A), e.GradientError, "does not return a scalar array"),
    "gradient with respect to a number": (
        lambda: gdt.grad(lambda x: gdt.sum(A * x))(2.0), e.GdtError, "float"),
    "watch of a NumPy array": (
        lambda: gdt.GradientTape().watch(np.ones(3)), e.GdtError, "ndarray"),
    "gradient policy that does not exist": (
        lambda: gdt.GradientTape().gradient(A, A, unconnected="maybe"), e.ArgumentError, "'maybe'"),
    # ---- random numbers
    "random numbers of an integer dtype": (
        lambda: gdt.random.uniform((3,), dtype="int32"), e.DtypeError, "uniform"),
    "normal numbers in NumPy's order": (
        lambda: gdt.random.normal(0.0, 1, 3), e.ArgumentError, "the first argument is the shape"),
    "uniform numbers in NumPy's order": (
        lambda: gdt.random.uniform(0.0, 1.0, 3), e.ArgumentError, r"Write uniform\(shape, 0.0, 1"),
    "seed that is text": (
        lambda: gdt.random.seed("seed"), e.GdtError, "seed"),
    # ---- arguments of a wrong type
    "reshape to text": (lambda: gdt.reshape(A, "ab"), e.DtypeError, "'a' in shape"),
    "reshape to None": (lambda: gdt.reshape(A, None), e.DtypeError, "None in shape"),
    "transpose by text": (lambda: gdt.transpose(A, "ab"), e.ShapeError, "transpose"),
    "zeros of a float": (lambda: gdt.zeros(2.5), e.DtypeError, "2.5"),
    "cumsum over two axes": (lambda: gdt.cumsum(A, axis=(0, 1)), e.ArgumentError, "no integer"),
    "cumsum over a float": (lambda: gdt.cumsum(A, axis=1.5), e.ArgumentError, "1.5"),
    "a transform of no whole length": (
        lambda: gdt.fft.fft(A, 2.5), TypeError, "n is 2.5, not int"),
    "tiles that are no integers": (lambda: gdt.tile(A, 1.5), TypeError, "reps is 1.5, not int"),
    "fewer bits than none": (
        lambda: gdt.unpackbits(gdt.ones(2, "uint8"), count=-17), ValueError, "more than 16 bits"),
    "an order of bits": (
        lambda: gdt.packbits([1], bitorder="x"), ValueError, "neither 'big' nor 'little'"),
    "a mean in integers": (lambda: gdt.nanmean(A, dtype=int), TypeError, "the result is no int64"),
    "a variance in integers": (
        lambda: gdt.nanstd(A, dtype=int), TypeError, "nanvar: a variance is no int"),
    "rows of indices for all elements": (
        lambda: gdt.take_along_axis(A, [[0]], axis=None), ValueError, "take_along_axis"),
    "argmax along several axes": (lambda: gdt.argmax(A, (0, 1)), TypeError, "axis is a tuple, and"),
    "nonzero of rank 0": (lambda: gdt.nonzero(1.0), ValueError, "rank 0 has no axes"),
    "deletion at no index": (lambda: gdt.delete(A, 1.5), IndexError, "1.5 names no indices"),
    "weights of nothing": (
        lambda: gdt.average(A, weights=0 * A), ZeroDivisionError, "the weights add up to 0"),
    "a negative width of rank 0": (lambda: gdt.pad(2.0, (1, -1)), ValueError, "what is no width"),
    "a width that is no integer": (lambda: gdt.pad(A, 0.5), TypeError, "holds what is no width"),
    "gradient of bits": (
        lambda: gdt.grad(lambda x: gdt.sum(x.view("float16")))(gdt.ones(2, "float32")),
        e.GradientError, "view: the bits of float32 numbers have no gradient as float16 numbers"),
    # ---- the default mesh
    "mesh of a number": (
        lambda: gdt.create_mesh(5), e.MeshError, r"5 is not a pair(?s:.*)\[\(\"x\", 8\)\]"),
    "layout in the place of a dtype": (
        lambda: gdt.zeros((8, 6), ROWS), e.DtypeError, "Write layout=..., by name"),
    "name in the place of a layout": (
        lambda: gdt.relayout(A, "model"), e.LayoutError, r"such as Layout\(\['.*', None\], mesh"),
    "layout of a weight of another rank": (
        lambda: gdt.nn.Dense(4, 3, gdt.Layout([None], A.mesh)), e.LayoutError,
        r"Dense: a layout of rank 1(?s:.*)Give an entry for each axis"),
    "result in the place of a function": (
        lambda: gdt.explain(A.sum()), e.ArgumentError, r"Write gdt.explain\(lambda: x.sum\(\)\)"),
    "one-hot labels of classes": (
        lambda: gdt.nn.losses.sparse_softmax_cross_entropy(A, A), e.DtypeError,
        "gdt.nn.losses.softmax_cross_entropy"),
    "default mesh that is none": (
        lambda: gdt.default_mesh("mesh").__enter__(), e.MeshError, "'mesh' is not a Mesh"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case: str) -> None:
    call, kind, text = CASES[case]
    before = gdt.get_default_mesh()
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert isinstance(caught.value, e.GdtError)
    assert re.search(text, message), message
    assert re.match(r"[\w.\[\]+*/%@=<>&|^~-]+: \S", message), f"no `op: problem`: {message}"
    assert gdt.get_default_mesh() is before and gdt.observe.OBSERVERS.get() == ()
    # Nothing is poisoned: the next op runs.
    assert float(gdt.sum(A)) == 48.0


def test_an_argument_that_cannot_be_hashed_leaves_no_other_error_behind() -> None:
    with pytest.raises(e.ArgumentError, match="out") as caught:
        gdt.tril(A, out=np.zeros(3))
    assert caught.value.__context__ is None


def test_errors_are_also_those_of_python() -> None:
    for ours, pythons in [
        (e.MeshError, ValueError), (e.LayoutError, ValueError), (e.ShapeError, ValueError),
        (e.IndexRangeError, IndexError), (e.IndexTypeError, IndexError),
        (e.DtypeError, TypeError), (e.GradientError, ValueError),
        (e.NanError, FloatingPointError), (e.MoveError, RuntimeError),
        (e.ImmutableError, AttributeError),
    ]:  # fmt: skip
        assert issubclass(ours, pythons) and issubclass(ours, e.GdtError)


def test_a_used_tape_says_so() -> None:
    with gdt.GradientTape() as tape:
        loss = gdt.sum(A * A)
    tape.gradient(loss, A)
    with pytest.raises(e.GradientError, match="persistent=True"):
        tape.gradient(loss, A)
    with pytest.raises(e.GradientError, match="Make a new tape"), tape:
        pass


def test_errors_of_a_backward_pass_name_the_call_that_runs_it() -> None:
    @gdt.custom_vjp
    def twice(x: Any) -> Any:
        return x * 2

    twice.vjp(lambda g, out, x: negative_axes(x.type, 7))
    with pytest.raises(e.AxisError, match=r"^grad: axis 7"):
        gdt.grad(lambda x: gdt.sum(twice(x)))(A)
    with gdt.GradientTape() as tape:
        loss = gdt.sum(twice(A))
    with pytest.raises(e.AxisError, match=r"^GradientTape\.gradient: axis 7"):
        tape.gradient(loss, A)


def test_layout_has_no_shape() -> None:
    with pytest.raises(AttributeError, match="num_shards"):
        ROWS.shape  # noqa: B018


def test_uneven_sizes_are_no_error() -> None:
    x = gdt.asarray(np.arange(45.0).reshape(9, 5), layout=Layout(["x", "y"], MESH))
    assert x.shards[-1].data.shape == (0, 2) and x[0].shape == (5,)
    assert [float(row.sum()) for row in x][:2] == [10.0, 35.0]


# ---------------------------------------------------------------- checkpoints


def saved(tmp_path: Path) -> Path:
    return gdt.checkpoint.save(tmp_path / "saved.safetensors", {"w": A})


def test_restore_from_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(e.CheckpointError, match=r"gone\.safetensors"):
        gdt.checkpoint.restore(tmp_path / "gone.safetensors", {"w": A})


@pytest.mark.parametrize("kept", [0, 4, 100, -8])
def test_restore_from_a_truncated_file(tmp_path: Path, kept: int) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(e.CheckpointError, match=r"saved\.safetensors"):
        gdt.checkpoint.restore(path, {"w": A})


def test_restore_from_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "text.safetensors"
    path.write_text("this is no checkpoint, but it is long enough to look like one")
    with pytest.raises(e.CheckpointError, match=r"text\.safetensors"):
        gdt.checkpoint.restore(path, {"w": A})


def test_restore_of_another_shape_changes_nothing(tmp_path: Path) -> None:
    path, into = saved(tmp_path), {"w": array(8, 5), "v": array(2)}
    before = dict(into)
    with pytest.raises(e.CheckpointError, match=r"(?s)w.*\[8, 6\].*") as caught:
        gdt.checkpoint.restore(path, into)
    assert "v" in str(caught.value)
    assert all(into[n] is before[n] for n in into)
    assert float(gdt.sum(into["w"])) == 40.0


@pytest.mark.parametrize("name", ["interp", "digitize"])
def test_complex_numbers_have_no_place_between_points(name: str) -> None:
    points = [[0.0, 1.0]] * (2 if name == "interp" else 1)
    with pytest.raises(e.DtypeError, match=f"{name}: x is complex"):
        getattr(gdt, name)(gdt.asarray([0.5 + 1j]), *points)


def test_a_mean_that_counts_cannot_hold_is_refused() -> None:
    with pytest.raises(e.ArgumentError, match=r"lam is 1e\+30, not at least 0 and at most 4.6"):
        gdt.random.poisson(3, 1e30)


# ---------------------------------------------------------------- names of calls


def of_a_user(xp: Any, x: Any, /, axis: int) -> Any:
    return x


def with_axes(x: Any, *, axis: int) -> dict[str, Any]:
    return {"axis": negative_axes(x, axis)}


def test_errors_are_named_by_the_innermost_public_call() -> None:
    names = {
        "average": lambda: gdt.average(gdt.ones(2), weights=gdt.zeros(2)),
        "linalg.norm": lambda: gdt.linalg.norm(gdt.ones((2, 2)), "nucular"),
        "CheckpointManager": lambda: gdt.CheckpointManager("folder", gdt.ones(1), max_to_keep=0),
        "Batches": lambda: gdt.data.Batches(np.ones(3), np.ones(2), batch_size=1),
        "Dense": lambda: gdt.nn.Dense(2)(gdt.ones(())),
        "restore": lambda: gdt.checkpoint.restore("nowhere", {}),
        "matmul_backend": lambda: gdt.matmul_backend("mkl"),
        "sum": lambda: gdt.sum(A, axis=2),
        "log_softmax": lambda: gdt.log_softmax(A, axis=2),
        "logsumexp": lambda: gdt.logsumexp(A, axis=2),
        "vmap": lambda: gdt.vmap(gdt.sum, in_axes=2)(A),
        "lib.stride_tricks.sliding_window_view": lambda: gdt.lib.stride_tricks.sliding_window_view(
            A, 2, axis=2
        ),
        "compile": lambda: gdt.nn.Dense(2).compile("sgd"),
        "of_a_user": lambda: Op(of_a_user, "... d -> ... d", prepare=with_axes)(A, axis=2),
    }
    for name, call in names.items():
        with pytest.raises(gdt.errors.GdtError, match=rf"\A{re.escape(name)}: "):
            call()


def test_errors_of_subclasses_are_named_by_these() -> None:
    class Mine(gdt.data.Batches):
        pass

    with pytest.raises(gdt.errors.GdtError, match=r"\AMine: 3 rows"):
        Mine(np.ones(3), batch_size=4, drop_remainder=True)

"""Predictions of steps: FLOPs, bytes, memory and seconds that formulas give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gdt
from bench.schemes import Scheme, training
from examples.parallel_gpt import Size
from gdt import nn
from gdt.backend.abstract import DEVICE
from gdt.errors import ArgumentError, MeshError
from gdt.prediction import Prediction, depth

FLOPS, BANDWIDTH, LINK = 1e13, 1e12, 1e10
MACHINE = gdt.Machine(
    flops={"float32": FLOPS}, bandwidth=BANDWIDTH, memory=1e10, share=1.0, bandwidth_share=1.0,
    half=0.0, launch=0.0, links={"data": gdt.Link(LINK, 0.0), "model": gdt.Link(10 * LINK, 0.0)},
)  # fmt: skip
ROWS, SIZE = 1 << 16, 1024


def data_parallel(devices: int, checkpointed: bool = False) -> Callable[[], Any]:
    """The gradient of two layers, whose batch is split."""
    mesh = gdt.create_mesh([("data", devices)], device_type="abstract")
    x = gdt.ones((ROWS, SIZE), "float32", layout=gdt.Layout(["data", None], mesh))
    w1, w2 = (
        gdt.ones((SIZE, SIZE), "float32", layout=gdt.Layout([None, None], mesh)) for _ in "12"
    )
    layer = lambda x, w1, w2: gdt.relu(x @ w1) @ w2
    layer = gdt.checkpointed(layer) if checkpointed else layer
    return lambda: gdt.grad(lambda xs: gdt.mean(layer(*xs) ** 2))([x, w1, w2])


def test_a_step_has_the_flops_and_bytes_of_theory() -> None:
    found = gdt.predict(data_parallel(64), machine=MACHINE)
    products = 6 * 2 * ROWS * SIZE * SIZE // 64
    assert found.flops == pytest.approx(products, rel=0.01)
    assert found.products == pytest.approx(products / FLOPS)
    nbytes = 2 * 63 / 64 * 2 * SIZE * SIZE * 4
    assert found.bytes == {("data",): pytest.approx(nbytes)} and found.collectives == 1
    assert found.exposed == pytest.approx(nbytes / LINK)  # of gradients that nobody copies
    parts = found.products + found.memory + found.launches + found.exposed
    assert found.seconds == pytest.approx(parts)
    assert found.mfu == pytest.approx(products / FLOPS / found.seconds)


class Layers(nn.Module):
    """Dense layers, each a unit."""

    def __init__(self) -> None:
        self.layers = [nn.Dense(SIZE, SIZE, use_bias=False, key=n) for n in range(6)]

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_unit_is_gathered_while_the_one_before_computes() -> None:
    """It takes its memory, and time only where devices do not communicate beside computation."""
    mesh = gdt.create_mesh([("model", 64)], device_type="abstract")  # by the faster link
    with gdt.default_mesh(mesh):
        model = nn.layout_maps.transformer(mesh, model=None, data="model").apply(Layers())
    x = gdt.ones((ROWS, SIZE), "float32", layout=gdt.Layout(["model", None], mesh))
    unit, rows = SIZE * SIZE * 4, ROWS * SIZE * 4 // 64
    forward = gdt.predict(lambda: model(x), machine=MACHINE)
    held = forward.peak - forward.state
    assert 2 * unit + rows <= held <= 2 * (unit + rows) + unit / 8  # and what is packed
    step = lambda: gdt.grad(lambda model: gdt.mean(model(x) ** 2))(model)
    found = gdt.predict(step, machine=MACHINE)
    serial = gdt.predict(step, machine=replace(MACHINE, overlaps=False))
    assert (serial.hidden, serial.collectives) == (0, found.collectives)
    assert serial.exposed == pytest.approx(found.exposed + found.hidden)
    assert serial.seconds - found.seconds == pytest.approx(found.hidden)
    assert found.hidden > 3 * found.exposed


def test_recomputation_costs_flops_and_no_utilisation() -> None:
    plain, again = (gdt.predict(data_parallel(64, c), machine=MACHINE) for c in (False, True))
    assert again.flops / plain.flops == pytest.approx(8 / 6, rel=0.01)
    assert again.mfu * again.seconds == pytest.approx(plain.mfu * plain.seconds)


def test_the_arrays_at_the_peak_are_named_with_their_lines() -> None:
    found = gdt.predict(data_parallel(64), machine=MACHINE)
    activation = ROWS * SIZE * 4 // 64
    assert found.held[0].nbytes >= activation and "test_predict.py" in found.held[0].line
    assert found.peak == found.state + sum(h.nbytes for h in found.held)
    assert any(h.what.startswith(("matrix_product", "relu")) for h in found.held)


def test_an_array_that_no_op_has_returned_is_held_too() -> None:
    mesh = gdt.create_mesh([("data", 8)], device_type="abstract")
    layout, value = gdt.Layout(["data", None], mesh), np.ones((256, 256), "float32")

    def step() -> list[gdt.DistributedArray]:
        first = gdt.asarray(value, layout=layout)
        return [first, gdt.exp(first), gdt.asarray(np.tile(value, (4, 1)), layout=layout)]

    names = {row.what: row.nbytes for row in gdt.predict(step, machine=MACHINE).held}
    assert names["made last"] == 4 * names["made for exp"] == 4 * value.nbytes // 8


def test_memory_decides_what_fits() -> None:
    def fits(devices: int) -> bool:
        return gdt.predict(data_parallel(devices), machine=MACHINE).fits

    assert not gdt.predict(data_parallel(1), machine=gdt.Machine(
        flops={"float32": FLOPS}, bandwidth=BANDWIDTH, memory=1e8)).fits  # fmt: skip
    assert fits(64)


def test_a_step_on_other_devices_is_refused() -> None:
    x = gdt.ones((4, 4))
    for step in (lambda: x @ x, lambda: None):
        with pytest.raises(MeshError, match='device_type="abstract"'):
            gdt.predict(step, machine=MACHINE)
    assert DEVICE.listener is None


def test_a_failing_step_leaves_no_listener() -> None:
    x = gdt.ones((4,), device=gdt.create_mesh([("x", 2)], device_type="abstract"))
    with pytest.raises(gdt.errors.DeviceError, match="needs values"):
        gdt.predict(lambda: float(gdt.sum(x)), machine=MACHINE)
    assert DEVICE.listener is None


def test_a_prediction_in_a_step_is_no_part_of_it() -> None:
    step, other = data_parallel(64), data_parallel(8)
    step(), step()  # has recorded its backward pass

    def nested() -> None:
        step()
        gdt.predict(other, machine=MACHINE)

    alone, found = (gdt.predict(f, machine=MACHINE) for f in (step, nested))
    assert [op.name for op in found.ops] == [op.name for op in alone.ops]
    assert (found.seconds, found.bytes, found.peak) == (alone.seconds, alone.bytes, alone.peak)
    with gdt.count_collectives() as counter:
        gdt.predict(step, machine=MACHINE)
    assert len(counter) == 0


def test_scaling_is_shown_beside_measurements() -> None:
    found = gdt.predict_scaling(data_parallel, [8, 64], machine=MACHINE, measured={64: 1.0})
    assert found.predictions[64].products == pytest.approx(found.predictions[8].products / 8)
    assert found.errors == {64: pytest.approx(found.predictions[64].seconds - 1)}
    assert "measured" in repr(found).splitlines()[0] and len(repr(found).splitlines()) == 3
    assert found.plot().axes[0].get_xlabel() == "devices"


# ---------------------------------------------------------------- layers

WIDE = Size(1, width=4096, heads=4, vocabulary=64, tokens=64, batch=256)
NARROW = WIDE._replace(width=256, vocabulary=32_768, tokens=16, batch=16)
# The scheme, the size, and whether all layers are traced: their gradients fill a message together.
DEEP = {
    "FSDP in replicas, checkpointed": (Scheme(4, 4, is_checkpointed=True), WIDE, False),
    "FSDP x sequence, whose peak moves": (
        Scheme(shards=2, tensor=2, is_sequence=True, is_checkpointed=True),
        NARROW._replace(vocabulary=8192, batch=64),
        False,
    ),
    "data x tensor, checkpointed": (Scheme(2, tensor=2, is_checkpointed=True), WIDE, False),
    "data x tensor, shared messages": (Scheme(2, tensor=2), NARROW, True),
}


@pytest.mark.parametrize("name", DEEP)
def test_layers_are_extended_to_what_all_of_them_take(name: str) -> None:
    scheme, size, is_whole = DEEP[name]
    made: list[int] = []

    def make_step(layers: int) -> Callable[[], Any]:
        made.append(layers)
        return training(scheme, size._replace(layers=layers), "abstract")[0]

    batch = gdt.ones((1 << 20,), device=gdt.create_mesh([("x", 1)], device_type="abstract"))
    count, of_machine = 12, gdt.Machine.named("a100-80gb")
    found = gdt.predict_layers(make_step, count, machine=of_machine)
    assert made == [*depth.DEPTHS, *[count] * is_whole]
    whole = gdt.predict(make_step(count), machine=of_machine)
    for name in ("flops", "collectives"):
        assert getattr(found, name) == getattr(whole, name)
    for name in ("seconds", "products", "memory", "exposed", "hidden", "mfu", "bytes"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), rel=1e-9, abs=1e-12)
    assert found.state == pytest.approx(whole.state, rel=1e-3)  # keys of random numbers
    assert found.peak == pytest.approx(whole.peak, rel=1e-3)
    held = sum(row.nbytes for row in found.held)
    assert held == 0 or found.state + held == pytest.approx(found.peak, rel=depth.APART)
    assert batch.nbytes < found.state  # is held too, as by `gdt.predict`


def test_layers_that_differ_in_turn_are_traced() -> None:
    mesh = gdt.create_mesh([("data", 8)], device_type="abstract")
    x = gdt.ones((64, 64), "float32", layout=gdt.Layout(["data", None], mesh))

    def make_step(layers: int) -> Callable[[], Any]:
        with gdt.default_mesh(mesh):
            sizes = [64 if n % 2 else 128 for n in range(layers)]
            model = nn.Sequential(*[nn.Dense(64, size) if size == 64 else nn.Sequential(
                nn.Dense(64, size), nn.Dense(size, 64)) for size in sizes])  # fmt: skip
        return lambda: gdt.grad(lambda model: gdt.mean(model(x) ** 2))(model)

    found = gdt.predict_layers(make_step, 9, machine=MACHINE)
    assert found.flops == gdt.predict(make_step(9), machine=MACHINE).flops
    pairs = gdt.predict_layers(lambda count: make_step(2 * count), 9, machine=MACHINE)
    assert pairs.flops == gdt.predict(make_step(18), machine=MACHINE).flops


def test_a_step_whose_ops_all_differ_by_depth_is_extended() -> None:
    mesh = gdt.create_mesh([("data", 8)], device_type="abstract")

    def make_step(layers: int) -> Callable[[], Any]:
        x = gdt.ones((64 * layers, 32), "float32", layout=gdt.Layout(["data", None], mesh))
        return lambda: gdt.exp(x)

    found = gdt.predict_layers(make_step, 9, machine=MACHINE)
    whole = gdt.predict(make_step(9), machine=MACHINE)
    assert (found.flops, found.peak) == (whole.flops, whole.peak)
    assert found.seconds == pytest.approx(whole.seconds, rel=1e-9)


@pytest.mark.parametrize("layers", [0, True, 2.0])
def test_a_number_of_layers_of_no_meaning_is_refused(layers: Any) -> None:
    with pytest.raises(ArgumentError, match=f"layers is {layers}"):
        gdt.predict_layers(lambda count: data_parallel(8), layers, machine=MACHINE)
    with pytest.raises(ArgumentError, match="make_step has returned 3"):
        gdt.predict_layers(lambda count: 3, 8, machine=MACHINE)  # type: ignore[arg-type,return-value]


# ---------------------------------------------------------------- numbers of devices


@pytest.mark.parametrize(
    ("devices", "measured", "problem"),
    [
        ([], None, "devices is empty"),
        ([8], {16: 1.0}, "measured has 16 devices"),
        ([8], {8: 0.0}, r"measured\[8\] is 0.0"),
        ([8], {8: "1 s"}, r"measured\[8\] is '1 s'"),
        ([8, 16], None, r"the step of make_step\(16\) has run on Mesh\(data=8\)"),
    ],
)
def test_scalings_of_no_meaning_are_refused(devices: Any, measured: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        make_step = lambda n: data_parallel(8)
        gdt.predict_scaling(make_step, devices, machine=MACHINE, measured=measured)


def test_the_text_of_a_prediction() -> None:
    found = gdt.predict(data_parallel(64), machine=MACHINE)
    assert isinstance(found, Prediction)
    assert "fits in 10 GB" in repr(found) and "sent by a device in 1 collectives" in repr(found)


def test_explain_prices_each_op() -> None:
    step = data_parallel(64)
    explanation, found = gdt.explain(step, machine=MACHINE), gdt.predict(step, machine=MACHINE)
    prices = [row.predicted for row in explanation.rows if row.predicted is not None]
    assert sum(p.total for p in prices) == pytest.approx(found.seconds)
    assert "seconds" in str(explanation).splitlines()[1]
    x = gdt.ones((4, 4))  # on devices that are there nothing is priced
    assert [row.predicted for row in gdt.explain(lambda: x @ x, machine=MACHINE).rows] == [None]


def test_a_recorded_step_is_predicted_as_it_is_written() -> None:
    mesh = gdt.create_mesh([("data", 8)], device_type="abstract")
    x = gdt.ones((64, 32), "float32", layout=gdt.Layout(["data", None], mesh))
    w = gdt.ones((32, 32), "float32", layout=gdt.Layout([None, None], mesh))
    step = lambda x, w: gdt.grad(lambda w: gdt.mean((x @ w) ** 2))(w)
    recorded = gdt.function(step)
    for _ in range(4):  # records, verifies and replays
        recorded(x, w)
    written, replayed = (gdt.predict(f, x, w, machine=MACHINE) for f in (step, recorded))
    assert replayed.bytes == written.bytes and replayed.flops == written.flops

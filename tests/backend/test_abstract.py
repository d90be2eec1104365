"""Abstract devices: types, collectives and memory are those of real devices, and no values."""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import gdt
from bench import large_models
from examples import parallel_gpt
from gdt import nn
from gdt.array.registry import FUNCTIONS
from gdt.backend import NUMPY
from gdt.backend.abstract import DEVICE
from gdt.errors import DeviceError
from gdt.fusion import llvm
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.state.trees import leaves
from gdt.testing import Oracle, choices
from tests.samples import SAMPLES

SIZES = {"a": 2, "b": 2}
# How many elements these return depends on values; `digitize` checks that its bins ascend.
NEED_VALUES = {
    "argwhere", "compress", "extract", "flatnonzero", "intersect1d", "nonzero", "setdiff1d",
    "setxor1d", "union1d", "unique", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "digitize",
}  # fmt: skip


def mesh_of(device_type: str, sizes: dict[str, int] = SIZES) -> Mesh:
    """The abstract mesh of these sizes, or one of virtual devices with a block each."""
    if device_type == "abstract":
        return gdt.create_mesh(sizes, device_type="abstract")
    return gdt.create_mesh(sizes, device_type="CPU", blocks=math.prod(sizes.values()))


def facts_of(value: Any) -> str:
    return str(value.type) if isinstance(value, gdt.DistributedArray) else repr(value)


Seen = tuple[list[str], list[Any]]


def seen(run: Callable[[], Any], mesh: Mesh) -> Seen:
    """The types of the results of a call, and its collectives."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), gdt.default_mesh(mesh):
        warnings.simplefilter("ignore")
        with gdt.count_collectives() as counter:
            results = run()
    return [facts_of(x) for x in leaves(results)], counter.collectives


def placed(mesh: Mesh, array: np.ndarray, layout: Layout) -> gdt.DistributedArray:
    """An array in this layout on a mesh; indices are whole, which the host checks."""
    whole = array.dtype.kind in "biu"
    reductions = (None,) * mesh.ndim if whole else layout.reductions
    return gdt.asarray(array, layout=Layout.of(mesh, layout.dims, reductions))


def sample_seen(oracle: Oracle, layouts: Sequence[Layout], device_type: str) -> Iterator[Seen]:
    """What is seen of a sample, and of its gradient."""
    mesh, sample = mesh_of(device_type), oracle.sample
    xs = [placed(mesh, a, w) for a, w in zip(sample.arrays, layouts, strict=True)]
    yield seen(lambda: oracle.function(*sample.with_arrays(xs), **sample.static), mesh)
    if oracle.differentiable:
        yield seen(lambda: oracle.gradient(xs), mesh)


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - NEED_VALUES))
def test_a_sample_has_the_types_and_the_collectives_of_real_devices(name: str) -> None:
    for n, sample in enumerate(SAMPLES[name][:2]):
        oracle, ranks = Oracle(FUNCTIONS[name], sample), [a.ndim for a in sample.arrays]
        every = choices(mesh_of("CPU"), ranks, limit=2, seed=n)  # the first: whole on all devices
        for layouts in every if n == 0 else every[-1:]:
            got, want = (sample_seen(oracle, layouts, kind) for kind in ("abstract", "CPU"))
            assert [*got] == [*want], f"sample {n}, {layouts}"


@pytest.mark.parametrize("name", sorted(NEED_VALUES))
def test_what_depends_on_values_is_refused(name: str) -> None:
    sample = SAMPLES[name][0]
    layouts = [Layout.replicated(mesh_of("CPU"), a.ndim) for a in sample.arrays]
    with pytest.raises(DeviceError, match="needs values"):
        next(sample_seen(Oracle(FUNCTIONS[name], sample), layouts, "abstract"))


# ---------------------------------------------------------------- layers and a network

IMAGES, ROWS, WORDS = (4, 8, 8, 4), (8, 6), (4, 6, 8)
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "dense": (lambda: nn.Dense(6, 4, activation="relu"), ROWS),
    "layer norm": (lambda: nn.LayerNorm(6), ROWS),
    "RMS norm": (lambda: nn.RMSNorm(6), ROWS),
    "dropout": (lambda: nn.Dropout(0.5), ROWS),
    "attention": (lambda: nn.MultiHeadAttention(4, 8, key_heads=2, causal=True), WORDS),
    "LSTM": (lambda: nn.LSTM(4), WORDS),
    "GRU": (lambda: nn.GRU(4), WORDS),
    "convolution": (lambda: nn.Conv2D(4, 3, padding="same"), IMAGES),
    "batch norm": (lambda: nn.BatchNorm(4), IMAGES),
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGES),
    "max pool": (lambda: nn.MaxPool(2), IMAGES),
    "average pool": (lambda: nn.AveragePool(2), IMAGES),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("spec", [["a"], [None, "b"]], ids=str)
def test_a_layer_has_the_types_and_the_collectives_of_real_devices(
    name: str, spec: list[str | None]
) -> None:
    make, shape = LAYERS[name]

    def gradients(device_type: str) -> Seen:
        mesh = mesh_of(device_type)
        specs = [*spec, *[None] * (len(shape) - len(spec))]
        with gdt.default_mesh(mesh):
            layer, x = make(), gdt.ones(shape, "float32", layout=gdt.Layout(specs, mesh))
            layer(x)  # layers that see their input size first

        def run() -> Any:
            of_x = gdt.grad(lambda x: gdt.sum(layer(x)))(x)
            if not hasattr(layer, "parameters") or not layer.parameters():
                return of_x
            return of_x, gdt.grad(lambda layer: gdt.sum(layer(x)))(layer)

        return seen(run, mesh)

    assert gradients("abstract") == gradients("CPU")


@pytest.mark.parametrize("scheme", parallel_gpt.SCHEMES, ids=lambda s: s.name)
def test_a_training_step_has_the_collectives_of_real_devices(scheme: parallel_gpt.Scheme) -> None:
    def collectives(device_type: str) -> list[Any]:
        step = gpt_step(mesh_of(device_type, dict(scheme.dims)), scheme)
        step()
        with gdt.count_collectives() as counter:
            step()
        # Gathers of FSDP run ahead, where devices communicate beside computation.
        return sorted(counter.collectives, key=repr) if "FSDP" in scheme.name else [*counter]

    assert collectives("abstract") == collectives("CPU")


def gpt_step(
    mesh: Mesh, scheme: parallel_gpt.Scheme, size: parallel_gpt.Size = parallel_gpt.SMALL
) -> Callable[[], Any]:
    """The step of the example in a scheme."""
    with gdt.default_mesh(mesh):
        model = parallel_gpt.GPT(size)
    scheme.layouts(mesh).apply(model)
    model.blocks = [scheme.wrap(block) for block in model.blocks]
    return step_of(model, gdt.Layout(scheme.batch, mesh), size.batch, size.tokens)


def step_of(model: Any, layout: Layout, batch: int, tokens: int) -> Callable[[], Any]:
    """A training step of a language model by Adam."""
    optimizer = gdt.optim.Adam(1e-3).init(model)
    x, y = (gdt.zeros((batch, tokens), "int64", layout=layout) for _ in "xy")

    def loss(model: Any) -> Any:
        return nn.losses.sparse_softmax_cross_entropy(y, model(x))

    def step() -> Any:
        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return step


# ---------------------------------------------------------------- memory


@contextmanager
def no_recycled_memory() -> Iterator[None]:
    """Let blocks of the host be computed by bodies, in memory that is freed at once, and whole:
    threads hold temporary arrays of a piece."""
    with pytest.MonkeyPatch.context() as patch, gdt.host_threads(1):
        patch.setattr(NUMPY.pool, "smallest", math.inf)
        patch.setattr(NUMPY, "recycled_size", math.inf)
        patch.setattr(llvm, "WANTED", False)
        yield


# The example's arrays, so large that Python's objects beside them do not count.
LARGE = parallel_gpt.Size(width=128, vocabulary=256, tokens=64, batch=32)


def taken(scheme: parallel_gpt.Scheme, device_type: str) -> int:
    """The most that a step takes of a device beside its state."""
    mesh = mesh_of(device_type, dict(scheme.dims))
    step = gpt_step(mesh, scheme, LARGE)
    step(), step()
    gc.collect()
    if device_type == "abstract":
        before = DEVICE.peak = DEVICE.now
        step()
        return DEVICE.peak - before
    tracemalloc.start()
    step()
    held = tracemalloc.get_traced_memory()[1] // len(mesh.blocks)
    tracemalloc.stop()
    return held


def test_the_peak_on_several_devices_is_never_low() -> None:
    """Virtual devices take turns, so that the memory inside of an op is that of one of them;
    `tests/processes/test_peaks.py` has a process for each."""
    for scheme in parallel_gpt.SCHEMES[3:6:2]:
        gc.collect()
        with no_recycled_memory():
            want, got = (taken(scheme, kind) for kind in ("CPU", "abstract"))
        assert 0.98 * want <= got <= 1.5 * want, scheme.name


def test_memory_is_counted_until_the_last_view_is_gone() -> None:
    before, mesh = DEVICE.now, mesh_of("abstract")
    x = gdt.zeros((8, 4), "float32", layout=gdt.Layout(["a", None], mesh))
    assert DEVICE.now - before == 8 * 4 * 4 // 2
    row = x.blocks[0][0]
    del x
    assert DEVICE.now - before == 8 * 4 * 4 // 2
    del row
    assert DEVICE.now == before


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    "ask",
    [float, bool, np.asarray, lambda x: x.item(), lambda x: x.tolist(),
     lambda x: x.numpy(), lambda x: 1 if x > 0 else 0, lambda x: [1, 2][x.astype("int64")]],
)  # fmt: skip
def test_asking_for_a_value_names_the_line(ask: Callable[[Any], Any]) -> None:
    x = gdt.sum(gdt.ones((4, 4), layout=gdt.Layout(["a", "b"], mesh_of("abstract"))))
    with pytest.raises(DeviceError, match=r"needs values(?s:.*)line \d+ of .*test_abstract.py"):
        ask(x)


def test_an_array_is_shown_without_values() -> None:
    x = gdt.ones((4, 4), layout=gdt.Layout(["a", "b"], mesh_of("abstract")))
    assert repr(x) == "DistributedArray(..., float64[4, 4]  ['a', 'b'])"
    assert str(gdt.sum(x)) == "..."
    assert "float64[4, 4]" in x._repr_html_()


def test_an_abstract_mesh_is_interned_and_written_as_text() -> None:
    mesh = mesh_of("abstract")
    assert mesh is mesh_of("abstract") and gdt.Mesh.from_string(mesh.to_string()) is mesh
    assert mesh.device_type() == "ABSTRACT" and mesh.devices[3] == "abstract:3"


# ---------------------------------------------------------------- scale


@pytest.mark.parametrize("make_step", [large_models.llama, large_models.glam])
def test_a_step_of_a_large_model_takes_seconds(
    make_step: Callable[[int], large_models.Step],
) -> None:
    """Of the widths of 405 billion parameters on 16,384 devices, and of 1.2 trillion with experts
    on 512, at 6 of their layers."""
    began = time.process_time()
    make_step(6)()
    assert time.process_time() - began < 10

"""What the tests run in several processes: `python -m tests.processes.programs NAME OUTPUT [ARGS]`.

Every process runs the function of that name, and writes what it returns to OUTPUT.INDEX as JSON.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import itertools
import json
import os
import re
import shutil
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from safetensors.numpy import save_file

import gdt
from gdt import Layout
from gdt.array.registry import FUNCTIONS
from gdt.autodiff.backward import BACKWARDS
from gdt.backend import backend_of
from gdt.comm import nccl
from gdt.comm.notes import connected
from gdt.comm.transport import Transfer, transport_of
from gdt.errors import CheckpointError, DistributedError, FunctionError
from gdt.nn.losses import sparse_softmax_cross_entropy
from gdt.ops.products import panels
from gdt.sharding.array_type import ArrayType
from gdt.sharding.reduction import UFUNCS
from gdt.sharding.routes import route
from gdt.testing import Oracle, Sample, choices, layouts
from tests.samples import SAMPLES

from .deaths import dies, trains  # noqa: F401  # programs of `main`

SCHEMES = {
    "data": [("batch", 8)],
    "model": [("batch", 4), ("model", 2)],
    "spatial": [("batch", 2), ("feature", 2), ("model", 2)],
}  # those of examples.imdb


def ops(limit: str, gradients: str, first: str, step: str) -> list[str]:
    """Compare samples of every op with the whole array, as in `tests/ops/test_ops.py`, in `limit`
    combinations of layouts, of which the first replicates all and is left out where there are
    others; return their names."""
    meshes = [
        gdt.create_mesh([("a", 4)]),
        gdt.create_mesh([("a", 2), ("b", 2)], blocks=4),
    ]
    checked = []
    for name in sorted(SAMPLES)[int(first) :: int(step)]:
        for n, sample in enumerate(SAMPLES[name]):
            oracle = Oracle(FUNCTIONS[name], sample)
            mesh = meshes[n % 2]
            seed = zlib.crc32(f"{name} {n}".encode())
            ranks = [a.ndim for a in sample.arrays]
            combinations = choices(mesh, ranks, limit=int(limit), seed=seed)
            for i, chosen in enumerate(combinations[1:] or combinations):
                oracle.check(mesh, chosen, gradients=n == 0 and i < int(gradients))
        checked.append(name)
    return checked


def relayouts(every: str) -> dict[str, Any]:
    """Move arrays that do not divide between layouts; return how often, and the bytes sent."""
    mesh = gdt.create_mesh([("a", 2), ("b", 2)], blocks=4)
    whole = np.arange(35.0).reshape(5, 7)
    every_layout = layouts(mesh, 2, partial=True)
    pairs = [(have, want) for have in every_layout for want in every_layout][:: int(every)]
    transport, nbytes = transport_of(mesh), 0
    for have, want in pairs:
        x = gdt.asarray(whole, layout=have)
        transport.bytes.clear()
        moved = gdt.relayout(x, want)
        nbytes += sum(transport.bytes.values())
        assert (moved.numpy() == whole).all(), f"{have} -> {want}"
    for have, want in pairs[::5]:
        moved = gdt.relayout(gdt.asarray(whole, gdt.bfloat16, layout=have), want)
        assert moved.dtype == gdt.bfloat16 and (moved.numpy() == whole).all(), f"{have} -> {want}"
    parts = gdt.asarray([256.0, 1, 1, 1], gdt.bfloat16, layout=Layout([("a", "b")], mesh))
    assert float(gdt.sum(parts)) == 260, "sums of 16 bits are added up in float32"
    announced = sum(
        s.nbytes
        for have, want in pairs
        for s in route(ArrayType.of((5, 7), np.dtype(float), have), want)
    )
    return {"pairs": len(pairs), "sent": nbytes, "announced": announced}


def bad_steps() -> list[Any]:
    """Return, for layers without sizes in replicas and in shards that are trained outside of the
    scope, the text of a bad step's error and whether the state is that of before it."""
    x, y = np.linspace(0, 1, 160, dtype="float32").reshape(40, 4), np.arange(40) % 2
    bad, ends = np.where(np.arange(40)[:, None] == 24, np.nan, x).astype("float32"), []
    mesh = gdt.create_mesh([("data", 4), ("model", 2)])
    layouts = gdt.nn.LayoutMap(mesh)
    layouts[".*"] = gdt.nn.Sharded(kept="data")
    for strategy in (gdt.MirroredStrategy(mesh=mesh), gdt.ModelParallel(layout_map=layouts)):
        models = []
        for rows in (bad, x[:24]):
            with strategy.scope():
                layers = gdt.nn.Dense(8, key=1), gdt.nn.BatchNorm(), gdt.nn.Dense(2, key=2)
                models.append(gdt.nn.Sequential(*layers))
            models[-1].compile("adam", "sparse_softmax_cross_entropy")
            try:
                models[-1].fit(rows, y[: len(rows)], 8, shuffle=False, verbose=0)
            except gdt.errors.NanError as problem:
                ends.append(str(problem).splitlines()[1].strip())
        pairs = zip(*[model.get_weights() for model in models], strict=True)
        ends.append(all(np.array_equal(one, other) for one, other in pairs))
    return ends


def neighbours() -> list[str]:
    """Halo exchanges and rings on 4 x 2 devices, with gradients, against the whole array."""
    rng = np.random.default_rng(0)
    mesh = gdt.create_mesh([("h", 4), ("w", 2)])
    image, kernel = rng.standard_normal((2, 9, 7, 2)), rng.standard_normal((3, 4, 2, 3))
    static = {"padding": "same", "strides": (2, 1)}
    checks = {
        "convolution": (Sample((image, kernel), static), [["h", "w"], [("h", "w"), None]]),
        "max_pool": (Sample((image,), {"size": 3, "strides": 2}), [["h", "w"]]),
        "attention": (
            Sample(tuple(rng.standard_normal((3, 2, 3, 13, 4))), {"causal": True}),
            [[None, "h"], [None, ("h", "w")], ["w", "h"]],
        ),
    }
    for name, (sample, splits) in checks.items():
        oracle = Oracle(FUNCTIONS[name], sample)
        for split in splits:
            layout, whole = Layout([None, *split, None], mesh), Layout.replicated(mesh, 4)
            is_kernel = [name == "convolution" and i == 1 for i in range(len(sample.arrays))]
            oracle.check(mesh, [whole if k else layout for k in is_kernel])
    matrices, plain = [rng.standard_normal(shape) for shape in ((16, 24), (24, 8))], panels.GATHERED
    panels.GATHERED = 64
    oracle = Oracle(FUNCTIONS["matrix_product"], Sample(tuple(matrices)))
    for split in [["h", "w"], [("h", "w"), None], [None, "h"]]:
        oracle.check(mesh, [Layout(split, mesh)] * 2)
    panels.GATHERED = plain
    return [*checks, "matrix_product"]


def collectives() -> int:
    """Compare the collectives of a mesh with one block in each process with NumPy. On a GPU, NCCL
    carries them out for a single process as well."""
    count, own = gdt.distributed.process_count(), gdt.distributed.process_index()
    mesh = gdt.create_mesh([("x", count)])
    backend, transport = backend_of(mesh), transport_of(mesh)
    if mesh.device_kind == "cuda":
        transport = nccl.NcclTransport(mesh, nccl.load(), backend, connected())
    checked = 0

    def check(made: Any, want: np.ndarray) -> None:
        nonlocal checked
        np.testing.assert_array_equal(backend.to_host(made), want)
        checked += 1

    for dtype in "?bBhHiIlLefdFD":
        values = np.arange(count * count * 3).reshape(count, count, 1, 3) % 5
        parts = values.astype(dtype)  # by process: (other process, 1, 3)
        with backend.on(mesh, 0):
            block, row = backend.asarray(parts[own]), backend.asarray(parts[own, :1])
        for reduction, reduce in UFUNCS.items():
            want = functools.reduce(reduce, parts)
            check(transport.all_reduce([block], (0,), reduction)[0], want)
            first = transport.reduce([block], (0,), reduction)
            check(transport.broadcast(first, (0,))[0], want)
            check(transport.reduce_scatter([block], 0, reduction)[0], want[own : own + 1])
        check(transport.all_gather([[row]], (0,))[0][0], parts[:, 0])
        check(transport.all_to_all([block], 0)[0], parts[:, own].reshape(1, count, 3))
        with backend.on(mesh, 0):
            filled = backend.empty(row.shape, row.dtype)
            kept = row.copy()  # a broadcast may overwrite what it is given
        check(transport.broadcast([kept], (0,))[0], parts[0, :1])
        there, back = (own + 1) % count, (own - 1) % count
        transport.exchange([Transfer(own, there, row)], [Transfer(back, own, filled)], "a ring")
        check(filled, parts[back, :1])
    transport.wait()
    return checked


def examples(*names: str) -> list[Any]:
    """The modules of some examples, without what they plot and count words with, whose import takes
    longer than the training here."""
    importlib.import_module("examples")  # which asks whether those libraries are there
    for library in ("matplotlib", "sklearn", "sklearn.feature_extraction.text"):
        sys.modules[library] = MagicMock()
    return [importlib.import_module(f"examples.{name}") for name in names]


def trainings(data: str, steps: str, *names: str) -> dict[str, Any]:
    """Losses, layouts and collectives of the examples' models under every scheme, or of those
    named, as in "imdb data"."""
    imdb, mnist = examples("imdb", "mnist")

    def reviews(mesh: gdt.Mesh, feature: str | None, model: str | None) -> gdt.nn.Module:
        return imdb.MLP(Layout([feature, model], mesh), Layout([model, None], mesh))

    def digits(mesh: gdt.Mesh, feature: str | None, model: str | None) -> gdt.nn.Module:
        return mnist.MLP(mnist.SIZES, Layout([feature, model], mesh))

    arrays, found = np.load(data), {}
    for scheme in SCHEMES:
        for name, make, optimizer in (
            ("imdb", reviews, lambda: gdt.optim.SGD(0.02)),
            ("mnist", digits, lambda: gdt.optim.Adam(1e-3)),
        ):
            x, y, full = arrays[f"{name} x"], arrays[f"{name} y"], f"{name} {scheme}"
            if not names or full in names:
                found[full] = training(x, y, scheme, int(steps), make, optimizer)
    return found


def gpts(steps: str, is_tiny: str, *schemes: str) -> dict[str, list[float]]:
    """The losses of the example's GPT under these schemes, or all, by the number of blocks too.

    A tiny run is of random characters, and with the blocks that processes have by themselves.
    """
    (gpt,) = examples("gpt")
    gpt.EVALUATED = 1
    tiny = np.random.default_rng(0).integers(0, len(gpt.ALPHABET), 5000)
    data, counts = ((tiny, tiny), [None]) if int(is_tiny) else (gpt.load(None), [None, 8])
    return {
        f"{name}, {count or 'own'} blocks": [
            step["loss"] for step in gpt.train(name, data, int(steps), count)[1].steps
        ]
        for name in schemes or gpt.SCHEMES
        for count in counts
    }


def training(
    x: np.ndarray,
    y: np.ndarray,
    scheme: str,
    steps: int,
    make: Callable[..., gdt.nn.Module],
    optimizer: Callable[[], gdt.optim.Optimizer],
) -> dict[str, Any]:
    """Train by a trainer, and the same by a recorded step."""
    mesh = gdt.create_mesh(SCHEMES[scheme])
    feature, model = (n if mesh.contains_dim(n) else None for n in ("feature", "model"))
    network, twin, twin_optimizer = (
        make(mesh, feature, model), make(mesh, feature, model), optimizer(),
    )  # fmt: skip
    rows = len(x) // steps
    batches = [
        (
            gdt.asarray(x[at : at + rows], layout=Layout(["batch", feature], mesh)),
            gdt.asarray(y[at : at + rows], layout=Layout(["batch"], mesh)),
        )
        for at in range(0, len(x), rows)
    ]
    trainer = gdt.training.Trainer(
        network,
        optimizer(),
        sparse_softmax_cross_entropy,
        {"accuracy": gdt.metrics.accuracy},
    )
    with gdt.count_collectives() as counter:
        history = trainer.fit(batches)

    @gdt.function
    def step(images: gdt.DistributedArray, labels: gdt.DistributedArray) -> gdt.DistributedArray:
        value, gradients = gdt.value_and_grad(
            lambda m: sparse_softmax_cross_entropy(labels, m(images))
        )(twin)
        twin_optimizer.update(twin, gradients)
        return value

    return {
        "losses": history["loss"] + [s["loss"] for s in history.steps],
        "recorded": [float(step(*batch)) for batch in batches],
        "accuracy": history["accuracy"],
        "collectives": [list(c) for c in counter],
        "layouts": [str(p.type) for p in network.parameters().values()],
    }


def checkpoints(directory: str, count: str) -> dict[str, Any]:
    """Save a tree, and restore those that other numbers of processes have saved."""
    mesh = gdt.create_mesh([("a", 4), ("b", 2)])

    def tree(make: Callable[[tuple[int, ...], Layout], Any]) -> dict[str, Any]:
        return {
            "split": make((9, 6), Layout(["a", "b"], mesh)),
            "flat": make((11,), Layout([("b", "a")], mesh)),
            "whole": make((3, 3), Layout([None, None], mesh)),
            "step": 0,
        }

    state = tree(lambda s, w: gdt.random.normal(s, key=len(s), layout=w)) | {"step": 7}
    path = Path(directory) / f"{count}.safetensors"
    gdt.checkpoint.save(path, state)
    restored = {}
    for other in sorted(Path(directory).glob("*.safetensors")):
        into = tree(lambda s, w: gdt.zeros(s, layout=Layout([None] * len(s), w.mesh)))
        gdt.checkpoint.restore(other, into)
        same = [np.array_equal(into[n].numpy(), state[n].numpy()) for n in into if n != "step"]
        restored[other.stem] = all(same) and into["step"] == 7
    manager = gdt.CheckpointManager(state, Path(directory) / "numbered" / count, max_to_keep=2)
    kept = [manager.save().name for _ in range(3)]
    gdt.distributed.barrier()
    left = sorted(p.name for p in (Path(directory) / "numbered" / count).iterdir())
    return {
        "digest": hashlib.sha256(path.read_bytes()).hexdigest(),
        "restored": restored,
        "saved": kept,
        "left": left,
    }


def saves(directory: str) -> None:
    """Saving trees in which the processes differ replaces nothing; their order may differ."""
    mesh, other = gdt.create_mesh([("a", 4)]), gdt.distributed.process_index() == 1
    split, whole = Layout(["a", None], mesh), Layout([None, None], mesh)
    right = {
        "w": gdt.random.normal((4, 4), key=1, layout=split),
        "v": gdt.random.normal((4, 4), key=2, layout=split),
        "epoch": 7,
    }
    path = Path(directory) / "saved.safetensors"
    gdt.checkpoint.save(path, dict(reversed(right.items())) if other else right)
    into = {"w": gdt.zeros((4, 4), layout=split), "v": gdt.zeros((4, 4), layout=whole), "epoch": 0}
    gdt.checkpoint.restore(path, into)
    for name in ("w", "v"):
        np.testing.assert_array_equal(into[name].numpy(), right[name].numpy())
    gdt.distributed.barrier()
    before = path.read_bytes()
    float32, wide = right["w"].astype("float32"), gdt.ones((4, 5), layout=split)
    moved = gdt.relayout(right["w"], whole)
    for changed, says in [
        ({"epoch": 8}, "epoch: 7 in process 0, 8 in 1"),
        ({"more": right["w"]}, "more: nothing in process 0, float64[4, 4]"),
        ({"w": float32}, "w: float64[4, 4]  ['a', -] on Mesh(a=4) in process 0, float32[4, 4]"),
        ({"w": moved}, "in process 0, float64[4, 4]  [-, -] on Mesh(a=4) in 1"),
        ({"w": wide}, "in process 0, float64[4, 5]"),
        ({"w": right["v"]}, "['a', -] on Mesh(a=4), another array in process 1 than in 0"),
    ]:
        try:
            gdt.checkpoint.save(path, right | changed if other else right)
        except CheckpointError as failure:
            assert "save: processes save different trees to " in str(failure)
            assert says in str(failure), str(failure)
            check_sides(failure, "saves")
        else:
            raise AssertionError(f"{says} was saved")
        gdt.distributed.barrier()
        assert path.read_bytes() == before
        assert len(list(path.parent.iterdir())) == 1
    gdt.distributed.barrier()
    restores_of_other_files(Path(directory), whole)


def check_sides(failure: CheckpointError, function: str) -> None:
    """An error names both processes, and the line of each."""
    for i in range(2):
        side = rf"process {i} \(host .*, pid \d+\): line \d+ of .*programs\.py \({function}\)"
        assert re.search(side, str(failure)), failure


def restores_of_other_files(directory: Path, layout: Layout) -> None:
    """Files of one name that differ, as on hosts of their own, are restored by no process."""
    index = gdt.distributed.process_index()
    own = directory / f"of process {index}"
    own.mkdir()
    save_file({"x": np.full((4, 4), float(index))}, own / "foreign.safetensors")
    for n in range(2):
        gdt.checkpoint.save(directory / f"{n}.safetensors", {"x": gdt.full((4, 4), float(n))})
    shutil.copy(directory / f"{index}.safetensors", own / "saved.safetensors")
    before = Path.cwd()
    os.chdir(own)
    for name in ("foreign.safetensors", "saved.safetensors"):
        into = {"x": gdt.full((4, 4), 7.0, layout=layout)}
        try:
            gdt.checkpoint.restore(name, into)
        except CheckpointError as failure:
            assert f"processes 0 and 1 read different files at {name}" in str(failure), failure
            check_sides(failure, "restores_of_other_files")
        else:
            raise AssertionError(f"{name} was restored")
        assert (into["x"].numpy() == 7.0).all()
    os.chdir(before)


def models(directory: str) -> None:
    """What is saved is there when `save_model` returns, and models that differ are not saved."""
    mesh, other = gdt.create_mesh([("a", 4)]), gdt.distributed.process_index() == 1
    whole, folder = Layout([None, None], mesh), Path(directory)
    with gdt.default_mesh(mesh):
        for width in range(1, 6):
            model = gdt.nn.Sequential(gdt.nn.Dense(3, width, key=width), gdt.relu)
            model.save(folder)
            read = gdt.load_model(folder, mesh=mesh)(gdt.ones((2, 3), "float32", layout=whole))
            assert read.shape == (2, width)
        model = gdt.nn.Sequential(gdt.nn.Dense(3, 5, key=1), gdt.tanh if other else gdt.relu)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    try:
        model.save(folder)
    except CheckpointError as failure:
        assert "save_model: processes save different models to " in str(failure), failure
        assert 'gdt.relu", in process 0' in str(failure), failure
        check_sides(failure, "models")
    else:
        raise AssertionError("different models were saved")
    gdt.distributed.barrier()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    gdt.distributed.barrier()
    own = folder / f"of process {int(other)}"
    shutil.copytree(folder, own, ignore=shutil.ignore_patterns("of process *"))
    if other:
        content = json.loads((own / "model.json").read_text())
        content["arrays"] = dict(reversed(content["arrays"].items()))
        del content["crc32"]
        (own / "model.json").write_text(json.dumps(content))
    here = Path.cwd()
    os.chdir(own)
    try:
        gdt.load_model(".", mesh=mesh)
    except CheckpointError as failure:
        assert "load_model: processes 0 and 1 read different files at model.json" in str(failure)
        check_sides(failure, "models")
    else:
        raise AssertionError("different models were loaded")
    if other:
        Path("model.json").unlink()
    try:
        gdt.load_model(".", mesh=mesh)
    except CheckpointError as failure:
        assert "model.json cannot be read (No such file" in str(failure), failure
        assert other or "process 1 cannot read model.json, so no process does" in str(failure)
    else:
        raise AssertionError("a model was loaded of which a process has no file")
    gdt.distributed.barrier()
    os.chdir(here)


class DataSet:
    """An array in a file, as far as it can be read by slices."""

    chunks = None

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        part: np.ndarray = self.values[index]
        return part


def values() -> dict[str, Any]:
    """Read arrays as a program can: as text, numbers and shards, and by explain."""
    mesh = gdt.create_mesh([("a", 4), ("b", 2)])
    x = gdt.asarray(np.arange(54.0).reshape(9, 6), layout=Layout(["a", "b"], mesh))
    large = gdt.asarray(np.arange(4000).reshape(40, 100), layout=Layout([None, "a"], mesh))
    total = gdt.map_shards(
        lambda part: part.sum(), Layout(["a", "b"], mesh), Layout([], mesh, partial=["a", "b"])
    )
    packed = gdt.pack(gdt.unpack(x), x.layout)
    mean = gdt.metrics.Mean()
    mean.update(gdt.mean(x))
    steps, recordings = recorded(mesh)
    read, target = gdt.asarray(DataSet(x.numpy()), layout=x.layout), np.zeros(x.shape)
    gdt.store(read, target)
    return {
        "data set": [
            read.tolist(),
            all((target[s.index] == s.data).all() for s in x.shards),
            bool(target.sum() == sum(s.data.sum() for s in x.shards)),
        ],
        "written into": gdt.add.reduce(x, axis=1, out=gdt.zeros(9), where=x.numpy() > 3).tolist(),
        "told": gdt.distributed.broadcast(gdt.distributed.process_index() or "process 0"),
        "recorded": steps,
        "apart": apart(mesh),
        "verified": verified(mesh),
        "recordings": recordings,
        "text": [repr(x), repr(large), repr(gdt.sum(x, axis=0)), repr(gdt.ones(2)), repr(mesh)],
        "numbers": [x[3, 4].item(), float(gdt.sum(x)), int(gdt.argmax(x)), bool(gdt.any(x > 52))],
        "random": gdt.random.normal((3, 3), key=1, layout=Layout(["a", "b"], mesh)).tolist(),
        "counts": gdt.random.poisson((3, 3), 20.0, key=1, layout=Layout(["a", "b"], mesh)).tolist(),
        "total": float(total(x)),
        "packed": bool(gdt.all(packed == x)),
        "mean": mean.result(),
        "sharded": sharded(),
        "views": views(mesh),
        "all-reduces": [all_reduces(way) for way in ("to_one", "hierarchical")],
        "explain": str(gdt.explain(lambda a: (a @ a.T).resolve(), x)),
        "shards": [[s.device, list(s.coordinate), s.data.tolist()] for s in x.shards],
    }


def views(mesh: gdt.Mesh) -> list[Any]:
    """Arrays that are written through views of them, and views of arrays that are written."""
    x = gdt.asarray(np.arange(54.0).reshape(9, 6), layout=Layout(["a", "b"], mesh))
    row, columns, flat = x[7], x.T[1:4:2], x.reshape(-1)
    row[2:] += 100.0
    x[0] = columns[:, 0].sum()
    flat[5:8] = [1.0, 2.0, 3.0]
    x.T[5][::-2] = -1.0

    @gdt.function
    def step(x: gdt.DistributedArray) -> gdt.DistributedArray:
        part = x[2:5]
        part *= 0.5
        return gdt.sum(part)

    sums = [float(step(x)) for _ in range(4)]
    return [x.tolist(), row.tolist(), columns.tolist(), flat.tolist(), sums]


def all_reduces(reduce_by: str) -> list[Any]:
    """Sums of small and of large arrays, and the collectives in which they are reduced."""
    mesh = gdt.create_mesh([("host", 2), ("device", 4)], reduce_by=reduce_by)
    layout = Layout([("host", "device"), None], mesh)
    with gdt.count_collectives() as counter:
        sums = [gdt.sum(gdt.full((8, n), 3, layout=layout), axis=0) for n in (1, 5, 5000)]
        numbers = [sorted(set(x.tolist())) for x in sums]
    return [numbers, [[c.kind, list(c.axes), c.bytes] for c in counter]]


def carried() -> dict[str, Any]:
    """Of training steps and sums of one device a process: the bytes that are counted, those that
    this process's transport has counted, and those that have reached its sockets."""
    count = gdt.distributed.process_count()
    results: dict[str, Any] = {}

    def measure(name: str, mesh: gdt.Mesh, run: Callable[[], Any], times: int) -> None:
        run(), run()  # makes plans; what differs between first calls is told once
        transport = transport_of(mesh)
        transport.bytes.clear()
        before = received()
        with gdt.count_collectives() as counter:
            for _ in range(times):
                run()
        results[name] = counter.bytes, sum(transport.bytes.values()), received() - before

    mesh = gdt.create_mesh([("data", count)])
    for name, entry in (
        ("data parallel", gdt.nn.Sharded()),
        ("FSDP", gdt.nn.Sharded(kept="data")),
        ("tensor", gdt.nn.Sharded(used=[None, "data"])),
    ):
        with gdt.default_mesh(mesh):
            layers = [gdt.nn.Dense(256, 256, activation="tanh", key=n) for n in range(3)]
        model, layouts = gdt.nn.Sequential(*layers), gdt.nn.LayoutMap(mesh)
        layouts[".*weight"] = entry
        layouts.apply(model)
        optimizer = gdt.optim.SGD(0.1)
        rows = None if name == "tensor" else "data"
        x = gdt.ones((128, 256), "float32", layout=Layout([rows, None], mesh))

        def step(x: Any = x, model: Any = model, optimizer: Any = optimizer) -> Any:
            loss, gradients = gdt.value_and_grad(lambda m: gdt.mean(m(x) ** 2))(model)
            optimizer.update(model, gradients)
            return loss

        measure(name, mesh, step, 2)
    for n in (4_096, 100_000):  # of float32: 16 KiB, which are sent whole, and more
        x = gdt.ones((count, n), "float32", layout=Layout(["data", None], mesh))
        measure(f"a sum of {n} numbers", mesh, lambda x=x: gdt.sum(x, axis=0).resolve(), 20)
    return results


def received() -> int:
    """The bytes that have reached the sockets of this process (Linux: `tcp_info`)."""
    gdt.distributed.barrier()  # what was sent before has arrived
    sockets = [s.socket for c in connected().connections.values() for s in c.streams]
    info = [s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256) for s in sockets]
    gdt.distributed.barrier()  # nobody sends more before all have looked
    return sum(struct.unpack_from("<Q", facts, 128)[0] for facts in info)


def sharded() -> dict[str, Any]:
    """Losses and collectives of trainings whose weights, or whose state, are split."""
    results: dict[str, Any] = {}
    for name, entry in (
        ("FSDP", gdt.nn.Sharded(kept="data", used=[None, "model"])),
        ("ZeRO", gdt.nn.Sharded(used=[None, "model"], state="data")),
    ):
        mesh = gdt.create_mesh([("data", 4), ("model", 2)])
        with gdt.default_mesh(mesh):
            dense = [gdt.nn.Dense(8, 8, use_bias=False, key=n) for n in range(2)]
        model = gdt.nn.Sequential(
            *dense, gdt.checkpointed(gdt.nn.Sequential(gdt.tanh, gdt.nn.Dropout(0.5, key=3)))
        )
        model_layouts = gdt.nn.LayoutMap(mesh)
        model_layouts[".*weight"] = entry
        model_layouts.apply(model)
        optimizer = gdt.optim.Adam(0.01)

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            loss, gradients = gdt.value_and_grad(lambda m: gdt.mean(m(x) ** 2))(model)
            optimizer.update(model, gradients)
            return loss

        rows = np.random.default_rng(0).normal(size=(8, 8)).astype("float32")
        x = gdt.asarray(rows, layout=Layout(["data", None], mesh))
        with gdt.count_collectives() as counter:
            losses = [step(x)]
        run = gdt.function(step)
        losses += [run(x) for _ in range(4)]
        results[name] = [f"{float(loss):.5f}" for loss in losses], counter.bytes, len(counter)
    return results


def recorded(mesh: gdt.Mesh) -> tuple[list[float], int]:
    """Results of a step that process 0 alone records anew in every call, and how often it was
    recorded here: all must send the same, also for what nobody reads. What is done with the results
    and operands is the same too, of which process 0 has one array where others may have two, and
    which it alone copies; and an update takes the memory of what it updates. The fifth call is
    verified, of which another process may replay what this one records."""
    state: dict[str, Any] = {"calls": 0, "unit": gdt.ones(3, layout=Layout([None], mesh))}
    weights = {"w": gdt.ones(3, layout=Layout([None], mesh))}
    optimizer = gdt.optim.SGD(0.5)

    @gdt.function(verify=5)
    def step(x: gdt.DistributedArray, waiting: gdt.DistributedArray) -> Any:
        gdt.sum(x * state["unit"] * float(state["calls"] > 99)).resolve()
        gdt.relayout(x, Layout([None, None], mesh))
        gdt.random.normal(8, layout=Layout(["a"], mesh))
        gdt.ones(8, layout=Layout(["a"], mesh)) + gdt.arange(8.0, layout=Layout([None], mesh))
        value, gradients = gdt.value_and_grad(lambda p: gdt.sum(p["w"] * x))(weights)
        optimizer.update(weights, gradients)
        total = gdt.sum(x)
        return value, gdt.abs(waiting), total, total.resolve(), x

    x = gdt.asarray(np.arange(24.0).reshape(8, 3), layout=Layout(["a", None], mesh))
    waiting, found = gdt.sum(x, axis=0), []
    for call in range(6):
        if is_first := gdt.distributed.process_index() == 0:
            state["calls"] = call
            gdt.stop_gradient(x)
        block = id(weights["w"].blocks[0])
        results = step(x, waiting)
        is_replay = call > 2 and not is_first
        assert id(weights["w"].blocks[0]) == block or not is_replay, "memory is taken in replays"
        packed = gdt.pack([np.ones((2, 3)) for _ in mesh.local_devices()], x.layout)
        found += [float(gdt.sum(r)) for r in (*results, waiting, x - packed, results[-1] - x)]
    return found, len(step.programs)


def verified(mesh: gdt.Mesh) -> list[Any]:
    """Losses of a training with dropout and batch normalization, whose third call all processes
    verify, although process 0 alone has recorded it anew; and calls of a step that reads a number
    which no recording sees."""
    gdt.random.seed(2)
    with gdt.default_mesh(mesh):
        layers = gdt.nn.Dense(3, 4), gdt.nn.BatchNorm(4), gdt.nn.Dropout(0.25), gdt.nn.Dense(4, 1)
        model, optimizer = gdt.nn.Sequential(*layers), gdt.optim.Adam(0.1)
    state, rates, ends = {"calls": 0}, np.array([1.0]), []

    @gdt.function
    def train(x: gdt.DistributedArray) -> gdt.DistributedArray:
        value, gradients = gdt.value_and_grad(lambda m: gdt.mean(m(x) ** 2))(model)
        optimizer.update(model, gradients)
        return value * float(state["calls"] > -1)

    @gdt.function
    def scaled(x: gdt.DistributedArray) -> gdt.DistributedArray:
        return gdt.sum(x * float(rates[0]))

    x = gdt.asarray(
        np.arange(24.0, dtype="float32").reshape(8, 3), layout=Layout(["a", None], mesh)
    )
    for call in range(6):
        if gdt.distributed.process_index() == 0 and call < 4:
            state["calls"] = call
        ends.append(f"{float(train(x)):.4f}")
    for call in range(5):
        rates[0] = call // 2
        try:
            ends.append(float(scaled(x)))
        except FunctionError as e:
            ends.append("differ in what it returns" in str(e))
    return ends


def apart(mesh: gdt.Mesh) -> list[str]:
    """Results of trainings, in whose course process 0 alone does what others need not know of: it
    counts collectives, forgets backward passes, prints what it holds, and runs steps of its own."""
    is_first, layout = gdt.distributed.process_index() == 0, Layout(["a"], mesh)
    weights = {name: gdt.ones(8, layout=Layout([None], mesh)) for name in ("w", "v")}
    optimizer, x, losses = gdt.optim.Adam(0.1), gdt.arange(8.0, layout=layout), []
    rows = gdt.arange(8, layout=layout)

    def step(x: gdt.DistributedArray) -> Any:
        loss = lambda p: gdt.mean(gdt.square(gdt.take(p["w"], rows) * x - p["v"]))
        value, gradients = gdt.value_and_grad(loss)(weights)
        optimizer.update(weights, gradients)
        return value, {name: weights[name] for name in ("wv" if is_first else "vw")}

    for run in (step, gdt.function(step), gdt.function(step, verify=2)):
        for call in range(6):
            is_apart = is_first and call in (0, 3)
            with gdt.count_collectives() if is_apart else contextlib.nullcontext():
                loss, after = run(x)
            losses.append((loss.resolve() * 1.0).item())
            if is_apart:
                run_alone()
                BACKWARDS.clear()
                assert repr(loss).startswith(f"DistributedArray({losses[-1]:.8}"[:20])
                assert str(weights["w"]) == repr(weights["w"])
            parts = gdt.pack([np.ones(2) for _ in mesh.local_devices()], layout)
            losses.append(gdt.sum(parts - x - after["v"]).item())
    return [f"{loss:.5f}" for loss in losses]


def run_alone() -> None:
    """Steps and gradients on a mesh that one process owns."""
    x = gdt.ones(4, layout=Layout(["own"], gdt.create_mesh([("own", 1)])))
    double, square = gdt.function(lambda x: x * 2.0), gdt.grad(lambda x: gdt.sum(x * x))
    for _ in range(3):
        x = square(double(x))


def fork() -> None:
    """Start a child process that ends without a word, and one that outlives its parent, as the
    workers of a data loader may."""
    child = os.fork()
    if child == 0:
        try:
            gdt.distributed.barrier()
        except DistributedError as failure:
            is_told = "is a child of process 1 " in str(failure)
            gdt.distributed.shutdown()
            os._exit(0 if is_told else 1)
        os._exit(2)
    assert os.waitpid(child, 0) == (child, 0)
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        time.sleep(20.0)
        os._exit(0)


def endless(where: str) -> None:
    """A program that takes steps until it is killed; in the fifth, process 1 tells its number and
    goes on to compute, or to wait in a collective for process 0, which computes for a second."""
    mesh = gdt.create_mesh([("batch", gdt.distributed.process_count())])
    x, index = gdt.ones(6, layout=Layout(["batch"], mesh)), gdt.distributed.process_index()
    for step in itertools.count():
        if step == 5 and index == 1:
            if where == "collective, and a child":
                fork()
            print(os.getpid(), flush=True)
            while where == "compute":
                np.ones((300, 300)) @ np.ones((300, 300))
        if step >= 5 and index == 0:
            time.sleep(1.0)
        gdt.sum(x).resolve()


def failing(index: str) -> None:
    """A program of which one process raises an error in the midst of a step."""
    mesh = gdt.create_mesh([("batch", 4)])
    x = gdt.ones(8, layout=Layout(["batch"], mesh))
    for step in range(5):
        if step == 3 and gdt.distributed.process_index() == int(index):
            raise ValueError("no such file")
        gdt.sum(x).resolve()


def different(what: str) -> None:
    """A program whose processes do not do the same."""
    first = gdt.distributed.process_index() == 0
    sizes = {"batch": 8 if first and what == "mesh" else 4}
    layout = Layout(["batch"], gdt.create_mesh(sizes))
    x = gdt.ones(16 if first or what != "shape" else 15, layout=layout)
    if what == "batch":  # each passes its own part of what should be one array
        x = gdt.asarray(np.arange(40_000.0)[:20_000] + 20_000 * first, layout=layout)
    if what == "slice":
        gdt.relayout(gdt.ones(16)[: 14 if first else 13], layout).numpy()
    if what == "print" and first:
        repr(x)
    if what == "seed":
        gdt.random.seed(5 if first else 6)
        x = gdt.random.normal(16, layout=layout)
    if what == "draw":
        x = gdt.random.normal(16 if first else 15, key=5, layout=layout)
    if what == "end" and first:
        return
    if what == "exit" and first:
        os._exit(0)
    if what == "dtype":
        x = x.astype("float32" if first else "float64")
    DIFFERENT.get(what, lambda *_: None)(x, first)
    gdt.sum(x).resolve()
    gdt.max(x).resolve()


def swapped(a: Any, b: Any, swaps: bool) -> tuple[Any, Any]:
    return (b, a) if swaps else (a, b)


def take_gradient(a: gdt.DistributedArray, b: gdt.DistributedArray, *, of_first: bool) -> None:
    with gdt.GradientTape() as tape:
        tape.watch([a, b])
        product = gdt.sum(a * b)
    tape.gradient(product, a if of_first else b)


def replay(a: gdt.DistributedArray, b: gdt.DistributedArray, *, swaps: bool) -> None:
    """Three calls of a recorded step, of which the last may have other arguments."""
    step = gdt.function(lambda a, b: a - b)
    for i in range(3):
        step(*swapped(a, b, swaps and i == 2))


def write(x: gdt.DistributedArray, y: gdt.DistributedArray) -> None:
    """Write to an array, and use it."""
    x[...] = y
    x.at[0].set(1.0)


def replay_other(a: gdt.DistributedArray, b: gdt.DistributedArray, *, swaps: bool) -> None:
    """Three calls of a recorded step that passes its arguments to an op, maybe the other way."""
    step = gdt.function(lambda a, b: np.subtract(*swapped(a * 2.0, b * 3.0, swaps)))
    for _ in range(3):
        step(a, b)


def update_in_step(x: gdt.DistributedArray, first: str, second: str) -> None:
    """A recorded step that updates two parameters of one type by two gradients."""
    weights = {"a": gdt.ones(16, layout=x.layout), "b": gdt.zeros(16, layout=x.layout)}
    optimizer = gdt.optim.SGD(0.1)

    @gdt.function
    def step(x: gdt.DistributedArray) -> None:
        optimizer.update(weights, {first: x * 2.0, second: x * 3.0})

    step(x)


def exchange_state(x: gdt.DistributedArray, *, swaps: bool) -> None:
    """Steps of an optimizer between which the state of two parameters may change its place."""
    weights = {name: gdt.full(16, n, layout=x.layout) for name, n in (("a", 1.0), ("b", 2.0))}
    optimizer = gdt.optim.Adam(0.1)
    for _ in range(2):
        optimizer.update(weights, {"a": weights["a"] * 2.0, "b": weights["b"] * 3.0})
        for state in optimizer.state.values():
            state["a"], state["b"] = swapped(state["a"], state["b"], swaps)


def exchange_averages(x: gdt.DistributedArray, *, swaps: bool) -> None:
    """Steps between which the averages of two parameters may change their places."""
    weights = {name: gdt.full(16, n, layout=x.layout) for name, n in (("a", 1.0), ("b", 2.0))}
    optimizer = gdt.optim.MovingAverage(gdt.optim.SGD(0.1))
    for _ in range(2):
        optimizer.update(weights, {"a": weights["a"] * 2.0, "b": weights["b"] * 3.0})
        averages = optimizer.state["average"]
        averages["a"], averages["b"] = swapped(averages["a"], averages["b"], swaps)


def update_by(optimizer: gdt.optim.Optimizer, x: gdt.DistributedArray) -> None:
    """Two steps of an optimizer."""
    weights = {"a": x * 2.0}
    for _ in range(2):
        optimizer.update(weights, {"a": x * 3.0})


def take_step(x: gdt.DistributedArray, first: str, second: str) -> None:
    """An update of two parameters of one type by two gradients."""
    a, b = gdt.ones(16, layout=x.layout), gdt.zeros(16, layout=x.layout)
    gdt.optim.SGD(0.1).update({"a": a, "b": b}, {first: x * 2.0, second: x * 3.0})


def take_steps(x: gdt.DistributedArray, rate: float, factor: float, *, skipped: str = "") -> None:
    """Three recorded steps of gradient descent, of which the last two are replayed or might be."""
    whole = Layout.replicated(x.mesh, 1)
    weights = {name: gdt.ones(16, layout=whole) for name in ("a", "b")}
    optimizer = gdt.optim.SGD(rate)

    @gdt.function
    def step(x: gdt.DistributedArray) -> None:
        loss = lambda w: gdt.sum((w["a"] - w["b"]) * x * factor)
        gradients = gdt.grad(loss)(weights)
        gradients.pop(skipped, None)
        optimizer.update({name: weights[name] for name in gradients}, gradients)

    for _ in range(3):
        step(x)


def multiplied(x: gdt.DistributedArray, precision: str) -> gdt.DistributedArray:
    with gdt.matmul_precision(precision):
        return x * 2


def calling(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that calls another one, and also itself where it is given a list."""

    def call(part: Any) -> Any:
        return list(map(call, part)) if isinstance(part, list) else f(part)

    return call


def with_factor(value: float) -> Callable[[Any], Any]:
    """A function with a default that can be given by name alone."""

    def scaled(part: Any, *, factor: float = value) -> Any:
        return part * factor

    return scaled


def normalize(x: gdt.DistributedArray, momentum: float) -> None:
    """Three recorded steps of batch normalisation."""
    layer = gdt.nn.LayoutMap(x.mesh).apply(gdt.nn.BatchNorm(2, momentum=momentum))
    step = gdt.function(lambda x: layer(x, training=True), state=[layer])
    for _ in range(3):
        step(gdt.reshape(x, (8, 2)))


def shards_times(x: gdt.DistributedArray, factor: float) -> gdt.DistributedArray:
    return gdt.map_shards(lambda part: part * factor, x.layout, x.layout)(x)


def fetch_ahead(mesh: gdt.Mesh, factor: float) -> None:
    """Train on batches of the values 0, 1, ... times a factor, which a thread puts on the mesh."""
    with gdt.default_mesh(mesh):
        model = gdt.nn.Dense(2, 1, key=0)
    trainer = gdt.training.Trainer(model, gdt.optim.SGD(0.1), gdt.nn.losses.mean_squared_error)
    rows = np.arange(16.0).reshape(8, 2) * factor
    batches = gdt.data.Batches(rows, np.zeros((8, 1)), batch_size=4, seed=0)
    trainer.fit(batches, show=False, prefetch=2)


def in_threads(*calls: Callable[[], Any]) -> None:
    """Each call in a thread of its own."""
    with ThreadPoolExecutor(len(calls), "worker") as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()


# What processes do differently without sending anything that shows it.
DIFFERENT: dict[str, Callable[[gdt.DistributedArray, bool], Any]] = {
    "scalar": lambda x, first: x * (2.0 if first else 3.0),
    "sign": lambda x, first: x * (0.0 if first else -0.0),
    "operand": lambda x, first: [gdt.sum(v) for v in (x, x[:12])][not first].resolve(),
    "op": lambda x, first: gdt.exp(x) if first else gdt.log(x),
    "static": lambda x, first: gdt.sum(gdt.ones((4, 4), layout=Layout(["batch", None], x.mesh)),
                                       axis=0, keepdims=first),
    "one more": lambda x, first: [gdt.exp(x) for _ in range(3 + first)],
    "layout": lambda x, first: gdt.exp(gdt.relayout(gdt.ones(4, layout=Layout([None], x.mesh)),
                                                    ["batch" if first else None])),
    "momentum": lambda x, first: update_by(
        gdt.optim.MovingAverage(gdt.optim.SGD(0.1), 0.9 if first else 0.8), x),
    "flag": lambda x, first: update_by(gdt.optim.SGD(0.1, 0.9, nesterov=first), x),
    "averages": lambda x, first: exchange_averages(x, swaps=not first),
    "way": lambda x, first: gdt.sum(gdt.ones(16, layout=Layout(["batch"], gdt.create_mesh(
        {"batch": 4}, reduce_by="all_reduce" if first else "to_one")))).resolve(),
    "rate": lambda x, first: take_steps(x, 0.1 if first else 0.2, 1.0),
    "recorded scalar": lambda x, first: take_steps(x, 0.1, 1.0 if first else 2.0),
    "index": lambda x, first: x[3 if first else 4].resolve(),
    "written": lambda x, first: x.at[3 if first else 4].set(1.0).resolve(),
    "bounds": lambda x, first: gdt.linspace(0.0, 1.0 if first else 2.0, 16, layout=x.layout),
    "option": lambda x, first: gdt.random.poisson(16, 3.0 if first else 4.0, layout=x.layout),
    "shards": lambda x, first: gdt.map_shards((lambda part: part * 2) if first else
                                              (lambda part: part * 3), x.layout, x.layout)(x),
    "bound": lambda x, first: shards_times(x, 2.0 if first else 3.0),
    "given first": lambda x, first: gdt.map_shards(
        functools.partial(np.multiply, 2.0 if first else 3.0), x.layout, x.layout)(x),
    "bound function": lambda x, first: gdt.map_shards(
        calling((lambda part: part * 2.0) if first else (lambda part: part * 3.0)),
        x.layout, x.layout)(x),
    "inner function": lambda x, first: gdt.map_shards(
        (lambda part: np.apply_along_axis(lambda p: p * 2.0, 0, part)) if first else
        (lambda part: np.apply_along_axis(lambda p: p * 3.0, 0, part)), x.layout, x.layout)(x),
    "default by name": lambda x, first: gdt.map_shards(
        with_factor(2.0 if first else 3.0), x.layout, x.layout)(x),
    "own array": lambda x, first: x * gdt.asarray(np.full(16, 2.0 if first else 3.0)),
    "running moments": lambda x, first: normalize(x, 0.9 if first else 0.8),
    "packed": lambda x, first: gdt.pack([np.ones((4, 4)) for _ in x.mesh.local_devices()],
                                        Layout(["batch", None][:: 1 if first else -1], x.mesh)),
    "parts": lambda x, first: gdt.pack(
        [np.ones(4, "float32" if first else "float64") for _ in x.mesh.local_devices()], x.layout),
    "precision": lambda x, first: multiplied(x, "tensorfloat32" if first else "float32"),
    "fetched ahead": lambda x, first: fetch_ahead(x.mesh, 1.0 if first else 2.0),
    "operands": lambda x, first: np.subtract(*swapped(gdt.exp(x), gdt.log(x), not first)),
    "fetched": lambda x, first: swapped(x * 2.0, x * 3.0, not first)[0].numpy(),
    "sources": lambda x, first: take_gradient(x * 2.0, x * 3.0, of_first=first),
    "arguments": lambda x, first: replay(x * 2.0, x * 3.0, swaps=not first),
    "gradients": lambda x, first: take_step(x, *swapped("a", "b", not first)),
    "shown": lambda x, first: repr(swapped(x * 2.0, x * 3.0, not first)[0]),
    "shards of another": lambda x, first: gdt.map_shards(np.exp, x.layout, x.layout)(
        swapped(x * 2.0, x * 3.0, not first)[0]),
    "operands in a step": lambda x, first: replay_other(x, x[::-1], swaps=not first),
    "results of a step": lambda x, first: gdt.function(
        lambda x: swapped(x * 2.0, x * 3.0, not first))(x),
    "gradients in a step": lambda x, first: update_in_step(x, *swapped("a", "b", not first)),
    "state": lambda x, first: exchange_state(x, swaps=not first),
    "rebound": lambda x, first: write(swapped(x * 2.0, x * 3.0, not first)[0], x),
    "maker": lambda x, first: (gdt.eye if first else gdt.tri)(
        4, layout=Layout(["batch", None], x.mesh)),
    "parameters": lambda x, first: take_steps(x, 0.1, 1.0, skipped="a" if first else "b"),
    "folder": lambda x, first: gdt.checkpoint.save(f"{os.devnull}/x", {"x": x}),
    "thread": lambda x, first: in_threads((x * 2.0).sum().resolve),
    "two threads": lambda x, first: in_threads(*swapped(
        (x * 2.0).sum().resolve, (x * 3.0).sum().resolve, not first)),
    "thread that saves": lambda x, first: in_threads(
        lambda: gdt.checkpoint.save(f"{os.devnull}/x", {"x": x})),
}  # fmt: skip


def ordered() -> dict[str, list[float]]:
    """The parameters after some steps of optimizers, kept in a dict that each process has filled in
    an order of its own: in a dict of dicts, and in one alone."""
    return in_any_order("inner of ") | in_any_order("") | wrapped_in_any_order()


def wrapped_in_any_order() -> dict[str, list[float]]:
    """The parameters after some steps of optimizers around others."""
    backwards = gdt.distributed.process_index() % 2
    layout, found = Layout(["batch"], gdt.create_mesh([("batch", 4)])), {}
    for optimizer in (
        gdt.optim.MovingAverage(gdt.optim.RMSprop(0.1, momentum=0.5)),
        gdt.optim.LossScaling(gdt.optim.SGD(0.1, 0.9)),
    ):
        made = {"a": gdt.ones(4, layout=layout), "b": gdt.ones(8, layout=layout)}
        weights = {name: made[name] for name in ("ba" if backwards else "ab")}
        for _ in range(3):
            scaled = {name: optimizer.scaled(weights[name]) for name in "ab"}
            gradients = optimizer.unscaled(scaled)
            optimizer.update(weights, {name: gradients[name] for name in weights})
        name = type(optimizer).__name__
        found |= {f"{name} {n}": weights[n].tolist() for n in "ab"}
    return found


def in_any_order(prefix: str) -> dict[str, list[float]]:
    mesh, backwards = gdt.create_mesh([("batch", 4)]), gdt.distributed.process_index() % 2
    x = gdt.asarray(np.arange(8.0).reshape(4, 2), layout=Layout(["batch", None], mesh))
    names = ["a", "b", "c"][:: -1 if backwards else 1]
    factors = {"a": 1.0, "b": 2.0, "c": 3.0}
    weights = {n: gdt.ones(2, layout=Layout([None], mesh)) for n in names}
    optimizer = gdt.optim.Adam(0.1)

    def of(weights: dict[str, Any]) -> dict[str, Any]:
        return {"inner": weights} if prefix else weights

    def loss(tree: dict[str, Any]) -> gdt.DistributedArray:
        weights = tree["inner"] if prefix else tree
        terms = [x * weights[n] * factors[n] for n in "abc"]
        return gdt.sum(terms[0] + terms[1] + terms[2])

    for step in range(3):
        with gdt.count_collectives() as counter:
            gradients = gdt.grad(loss)(of(weights))
            if step == 2:  # not resolved yet, and moved by the optimizer
                gradients = of({n: gdt.sum(x * factors[n], axis=0) for n in "abc"})
            optimizer.update(of(weights), gradients)
        assert max(c.arrays for c in counter) >= 3, "all gradients travel together"
    return {prefix + n: weights[n].tolist() for n in "abc"}


def peaks() -> dict[str, list[int]]:
    """The most bytes that a GPT's step takes beside its state, by scheme: of this process, and of
    an abstract device."""
    abstract = importlib.import_module("tests.backend.test_abstract")
    found, count = {}, gdt.distributed.process_count()
    for scheme in abstract.parallel_gpt.SCHEMES:
        if scheme.name in ("data", "FSDP", "FSDP, checkpointed blocks", "tensor", "sequence"):
            ((axis, _),) = scheme.dims
            own = scheme._replace(dims=[(axis, count)])
            with abstract.no_recycled_memory():
                found[scheme.name] = [abstract.taken(own, kind) for kind in ("CPU", "abstract")]
    return found


def several(calls: str) -> dict[str, Any]:
    """The results of several programs, of which the arguments are given as JSON."""
    named = json.loads(calls).items()
    return {name: globals()[name](*map(str, arguments)) for name, arguments in named}


def main() -> None:
    name, output, *arguments = sys.argv[1:]
    if os.environ.get("MPI_OF_USER"):
        importlib.import_module("mpi4py.MPI")
    gdt.distributed.initialize(timeout=float(os.environ.get("TIMEOUT", "60")))
    result = globals()[name](*arguments)
    Path(f"{output}.{gdt.distributed.process_index()}").write_text(json.dumps(result))


if __name__ == "__main__":
    main()

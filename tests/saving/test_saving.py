"""Whole models come back from files on any mesh; files name what is known, and execute nothing."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import gdt
from gdt import create_mesh, nn
from gdt.errors import ArgumentError, CheckpointError
from gdt.training import ModelCheckpoint

X = np.random.default_rng(0).standard_normal((8, 6)).astype("float32")
IMAGES = np.random.default_rng(1).standard_normal((4, 8, 8, 1)).astype("float32")
MESH = create_mesh([("batch", 2), ("model", 2)])


@gdt.saving.register
class Doubled(nn.Module):
    """A module of the program, whose constructor files do not run."""

    def __init__(self, inner: nn.Module) -> None:
        self.inner, self.parts = inner, {"same": inner, "other": nn.Dense(4, 4, key=9)}
        self.scale = np.float32(2.5)
        self.limits = (float("inf"), slice(None, 2), ...)

    def __call__(self, x: Any) -> Any:
        return self.scale * self.parts["other"](self.inner(x))


@gdt.saving.register
def shifted(x: Any) -> Any:
    return x + 1


def sequential() -> nn.Module:
    split = gdt.Layout([None, "model"], MESH)
    with gdt.default_mesh(MESH):
        return nn.Sequential(
            nn.Dense(6, 4, split, activation="relu", key=1),
            nn.BatchNorm(4),
            nn.Dropout(0.5, key=2),
            shifted,
            nn.Dense(3, initializer=functools.partial(nn.initializers.normal, deviation=0.1)),
        )


def functional() -> nn.Module:
    x = nn.Input((8, 8, 1))
    shared = nn.Conv2D(2, 3, padding="same")
    features = nn.MaxPool(2)(shared(x) * 2.0 + x)
    return nn.Model(x, nn.Dense(3, activation=gdt.tanh)(nn.Flatten()(features)))


def attention() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(11, 8), nn.Residual(nn.MultiHeadAttention(2, causal=True)), nn.LayerNorm()
    )


MODELS: dict[str, tuple[Any, np.ndarray]] = {
    "sequential": (sequential, X),
    "own": (lambda: Doubled(nn.Dense(6, 4, key=3)), X),
    "functional": (functional, IMAGES),
    "attention": (attention, np.arange(10).reshape(2, 5)),
}


@pytest.mark.parametrize("called", [True, False], ids=["called", "new"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_on_any_mesh(name: str, called: bool, tmp_path: Path) -> None:
    make, x = MODELS[name]
    model = make().eval()
    expected = model(x).numpy() if called else None
    path = model.save(tmp_path / "model")
    meshes = [None, create_mesh([("one", 1)]), create_mesh([("model", 4)], blocks=4), MESH]
    for mesh in meshes:
        loaded = gdt.load_model(path, mesh=mesh)
        assert type(loaded) is type(model) and not loaded.training
        values = zip(model.state().items(), loaded.state().items(), strict=True)
        for (before, a), (after, b) in values:
            assert before == after and np.array_equal(a.numpy(), b.numpy())
            assert mesh is not None or b.layout is a.layout
        if expected is not None:
            np.testing.assert_allclose(loaded(x).numpy(), expected, rtol=1e-5, atol=1e-6)
    if name == "sequential":
        assert loaded[0].weight.layout.sharding_specs == ["unsharded", "model"]
        loaded.train(), model.train()
        if called:
            np.testing.assert_allclose(loaded(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
    if name == "own":
        assert loaded.parts["same"] is loaded.inner and loaded.scale.dtype == "float32"
        assert loaded.limits == (float("inf"), slice(None, 2), ...)


def test_a_compiled_model_goes_on_training(tmp_path: Path) -> None:
    y = np.arange(8) % 3
    model = sequential()
    optimizer = gdt.optim.AdamW(gdt.optim.linear_decay(0.01, 50), weight_decay=0.1)
    model.compile(optimizer, "sparse_softmax_cross_entropy", ["accuracy", gdt.metrics.AUC()][:1])
    model.fit(X, y, 4, epochs=2, shuffle=False, verbose=0)
    loaded = gdt.load_model(model.save(tmp_path))
    histories = [m.fit(X, y, 4, epochs=2, shuffle=False, verbose=0) for m in (model, loaded)]
    assert histories[0].history == histories[1].history
    for a, b in zip(model.state().values(), loaded.state().values(), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
    plain = gdt.load_model(tmp_path, compile=False)
    with pytest.raises(ArgumentError, match="not compiled"):
        plain.fit(X, y)


def test_layouts_that_gather_before_use_come_back(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Dense(6, 4, key=1), nn.Dense(4, 4, key=2))
    layouts = nn.LayoutMap(create_mesh([("data", 4)]))
    layouts[".*"] = nn.Sharded(kept="data")
    layouts.apply(model)
    expected = model(X).numpy()
    loaded = gdt.load_model(model.save(tmp_path))
    assert loaded[0].weight.layout.is_fully_replicated() is False
    np.testing.assert_allclose(loaded(X).numpy(), expected, rtol=1e-6)
    with gdt.count_collectives() as counted:
        loaded(X)
    assert counted.collectives


def test_checkpoints_of_callbacks_are_whole_models(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Dense(6, 1, key=1))
    model.compile("sgd", "mse")
    callback = ModelCheckpoint(tmp_path / "{epoch}", monitor="loss", save_best_only=True)
    model.fit(X, X[:, :1], epochs=2, verbose=0, callbacks=[callback])
    assert gdt.load_model(tmp_path / "2").predict(X, verbose=0).shape == (8, 1)


def arrays_of(folder: Path) -> Path:
    """The file of the arrays of the model in a folder."""
    return folder / str(json.loads((folder / "model.json").read_text())["file"])


def test_arrays_have_the_names_of_the_model(tmp_path: Path) -> None:
    model = sequential()
    model.save(tmp_path)
    path = arrays_of(tmp_path)
    assert safetensors.numpy.load_file(path).keys() >= model.state().keys()
    gdt.checkpoint.restore(path, {"layers.0.bias": sequential()[0].bias}, partial=True)


def test_files_do_not_run_constructors_or_code(tmp_path: Path, monkeypatch: Any) -> None:
    Doubled(nn.Dense(6, 4, key=3)).save(tmp_path)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a constructor ran")

    monkeypatch.setattr(Doubled, "__init__", refuse)
    monkeypatch.setattr(nn.Dense, "__init__", refuse)
    assert gdt.load_model(tmp_path)(X).shape == (8, 4)


def test_a_save_replaces_the_model_before_it_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for _ in range(2):
        sequential().save(tmp_path)
        names = {p.name.partition("-")[0] for p in tmp_path.iterdir()}
        assert names == {"arrays", "model.json", "notes.txt"} and len(list(tmp_path.iterdir())) == 3
    older = tmp_path / "older"
    older.mkdir()
    content = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / content.pop("file")).rename(older / "arrays.safetensors")
    (older / "model.json").write_text(json.dumps(content))  # as it once had one name
    assert gdt.load_model(older)(X).shape == (8, 3)
    sequential().save(older)
    assert not (older / "arrays.safetensors").exists()


KILLED = """
import itertools, os, pathlib, signal, sys
import gdt

folder = pathlib.Path(sys.argv[1])

def save(kind, key, activation):
    model = gdt.nn.Sequential(gdt.nn.Dense(3, 2, use_bias=False, key=key, activation=activation))
    if kind == "model":
        model.save(folder)
    else:
        gdt.checkpoint.save(folder / "w.safetensors", {"key": key, "model": model})

def load(kind):
    if kind == "model":
        model = gdt.load_model(folder)
        key = {gdt.relu: 1, gdt.tanh: 2}[model[0].activation]
    else:
        tree = {"key": 0, "model": gdt.nn.Sequential(gdt.nn.Dense(3, 2, use_bias=False))}
        gdt.checkpoint.restore(folder / "w.safetensors", tree)
        key, model = tree["key"], tree["model"]
    expected = gdt.nn.Dense(3, 2, use_bias=False, key=key).weight.numpy()
    assert (model[0].weight.numpy() == expected).all(), "half of the one, half of the other"
    return key

for kind in ("model", "checkpoint"):
    code, moment = 9, 0
    while code:
        save(kind, 1, gdt.relu)
        child = os.fork()
        if child == 0:
            moments = itertools.count()
            def kill(event, arguments):
                if (event == "open" or event.startswith("os.")) and next(moments) == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
            sys.addaudithook(kill)
            save(kind, 2, gdt.tanh)
            os._exit(0)
        code, moment = os.waitpid(child, 0)[1], moment + 1
        print(load(kind), end=" ")
    print()
"""


def test_a_save_that_is_killed_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """SIGKILL before each thing that a save of a model, or of a checkpoint, does with files."""
    line = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    for kind in done.stdout.splitlines():
        keys = [int(key) for key in kind.split()]
        assert keys == sorted(keys) and keys.count(1) >= 5 and keys[-1] == 2, kind


@pytest.mark.parametrize("kind", ["model", "checkpoint"])
def test_a_file_is_on_disk_before_it_has_its_name(
    kind: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """A power cut leaves of a file what was brought to disk."""
    model, synced, events = sequential(), {}, []
    save = model.save if kind == "model" else lambda path: gdt.checkpoint.save(path / "w", model)
    save(tmp_path)
    fsync, replace, unlink = os.fsync, Path.replace, Path.unlink

    def bring_to_disk(descriptor: int) -> None:
        fsync(descriptor)
        inode = os.fstat(descriptor).st_ino
        path = next(p for p in [tmp_path, *tmp_path.iterdir()] if p.stat().st_ino == inode)
        synced[inode] = path.is_dir() or path.read_bytes()
        events.extend(["synced the folder"] if path.is_dir() else [])

    def rename(path: Path, target: Path) -> None:
        assert path.read_bytes() == synced[path.stat().st_ino]
        replace(path, target)
        events.append(f"renamed {target.name[:6]}")

    def remove(path: Path, missing_ok: bool = False) -> None:
        events.extend([f"removed {path.name[:6]}"] if path.exists() else [])
        unlink(path, missing_ok)

    for owner, name, function in (
        (os, "fsync", bring_to_disk), (Path, "replace", rename), (Path, "unlink", remove)
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, function)
    save(tmp_path)
    of_model = ["renamed arrays", "synced the folder", "renamed model.", "synced the folder"]
    expected = {
        "model": [*of_model, "removed arrays"],
        "checkpoint": ["renamed w", "synced the folder"],
    }
    assert events == expected[kind]


def changed(path: Path, **changes: Any) -> None:
    content = json.loads((path / "model.json").read_text())
    del content["crc32"]
    (path / "model.json").write_text(json.dumps({**content, **changes}))


def replaced(path: Path, old: str, new: str) -> None:
    text = (path / "model.json").read_text()
    (path / "model.json").write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda p: (p / "model.json").unlink(), "cannot be read"),
        (lambda p: (p / "model.json").write_text("{"), "is damaged"),
        (lambda p: (p / "model.json").write_text("[]"), "is no model of gdt"),
        (
            lambda p: (p / "model.json").write_text('{"format": "gdt model", "version": 1}'),
            "damaged",
        ),
        (lambda p: changed(p, version=7), "is of version 7, and this gdt reads 1"),
        (lambda p: changed(p, model={"object": "os.system", "attributes": {}}), "'os.system'"),
        (lambda p: changed(p, model={"function": "own:absent", "number": 0}), "(?s)absent.*regist"),
        (lambda p: changed(p, model={"eval": "1"}), "unknown 'eval'"),
        (lambda p: changed(p, model={"object": "gdt.relu", "attributes": {}}), "is no class"),
        (lambda p: changed(p, model={"object": "gdt.nn.layers.Dense"}), "is damaged"),
        (lambda p: changed(p, model={"array": "absent"}), "is damaged"),
        (lambda p: changed(p, model={}), "unknown '{}'"),
        (lambda p: replaced(p, "gdt.relu", "gdt.tanh"), "is damaged"),
        (lambda p: arrays_of(p).unlink(), r"there is no file .*arrays-\w+.safetensors"),
        (lambda p: arrays_of(p).write_bytes(b"abc"), r"arrays-\w+.safetensors is damaged"),
        (lambda p: changed(p, file="../x.safetensors"), "'../x.safetensors' is no name of a file"),
    ],
)
def test_damaged_files_are_named(damage: Any, problem: str, tmp_path: Path) -> None:
    sequential().save(tmp_path)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=problem):
        gdt.load_model(tmp_path)


def test_what_files_cannot_name_is_named(tmp_path: Path) -> None:
    class Local(nn.Module):
        pass

    with pytest.raises(CheckpointError, match=r"(?s)layers\.1 is .*<lambda>.*register"):
        nn.Sequential(nn.Dense(2, 2), lambda x: x).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"layers\.0 is a .*Local"):
        nn.Sequential(Local()).save(tmp_path)
    assert not (tmp_path / "model.json").exists()
    with pytest.raises(ArgumentError, match="no class or function with a name"):
        gdt.saving.register(lambda x: x)
    with pytest.raises(ArgumentError, match="'shifted' is the name of"):
        gdt.saving.register(Local, name="shifted")


def test_a_class_that_the_program_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nn.Sequential(Doubled(nn.Dense(4, 4))).save(tmp_path)
    monkeypatch.setattr(gdt.saving.registry, "OWN", {})
    with pytest.raises(CheckpointError, match=r"names '[^:]*Doubled', which this program has not"):
        gdt.load_model(tmp_path)


# ---------------------------------------------------------------- weights of other libraries


def block(size: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(size), nn.Dense(size, 2 * size), nn.Dense(2 * size, size))


NAMES: dict[str, Any] = {
    r"h\.(\d+)\.ln\.weight": r"layers.\1.layers.0.scale",
    r"h\.(\d+)\.ln\.bias": r"layers.\1.layers.0.offset",
    r"h\.(\d+)\.up\.weight": (r"layers.\1.layers.1.weight", np.transpose),
    r"h\.(\d+)\.up\.bias": r"layers.\1.layers.1.bias",
    r"h\.(\d+)\.down\.weight": (r"layers.\1.layers.2.weight", np.transpose),
    r"h\.(\d+)\.down\.bias": r"layers.\1.layers.2.bias",
}


def foreign(size: int = 4, blocks: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        "ln.weight": (size,), "ln.bias": (size,), "up.weight": (2 * size, size),
        "up.bias": (2 * size,), "down.weight": (size, 2 * size), "down.bias": (size,),
    }  # fmt: skip
    return {
        f"h.{i}.{name}": rng.standard_normal(shape).astype("float32")
        for i in range(blocks) for name, shape in shapes.items()
    }  # fmt: skip


def test_weights_with_other_names_load_split(tmp_path: Path) -> None:
    arrays = foreign()
    parts = [dict(list(arrays.items())[:5]), dict(list(arrays.items())[5:])]
    for i, part in enumerate(parts):
        safetensors.numpy.save_file(part, tmp_path / f"model-{i}.safetensors")
    model = nn.Sequential(block(4), block(4))
    layouts = nn.LayoutMap(MESH)
    layouts[r".*layers\.1\.weight"] = [None, "model"]
    layouts.apply(model)
    assert len(gdt.load_weights(model, tmp_path, NAMES)) == 12
    x = X[:, :4]
    expected = x
    for i in range(2):
        get = lambda name, i=i: arrays[f"h.{i}.{name}"]
        centred = expected - expected.mean(-1, keepdims=True)
        centred /= np.sqrt((centred**2).mean(-1, keepdims=True) + model[i][0].epsilon)
        hidden = (centred * get("ln.weight") + get("ln.bias")) @ get("up.weight").T + get("up.bias")
        expected = hidden @ get("down.weight").T + get("down.bias")
    np.testing.assert_allclose(model(x).numpy(), expected, rtol=1e-4, atol=1e-4)
    assert model[0][1].weight.layout.num_shards(1) == 2


def test_weights_that_do_not_fit_are_all_listed(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    arrays = foreign(blocks=1)
    arrays["h.0.up.bias"], arrays["extra"] = np.ones(3, "f4"), np.ones(1, "f4")
    del arrays["h.0.ln.bias"]
    safetensors.numpy.save_file(arrays, path)
    model = nn.Sequential(block(4))
    before = model.state()
    with pytest.raises(CheckpointError) as caught:
        gdt.load_weights(model, path, NAMES)
    for line in ("h.0.up.bias: shape [3]", "extra: the model has no extra", "offset: not in"):
        assert line in str(caught.value)
    assert all(model.state()[name] is x for name, x in before.items())
    del arrays["h.0.up.bias"]
    safetensors.numpy.save_file(arrays, path)
    assert len(gdt.load_weights(model, path, NAMES, strict=False)) == 4
    safetensors.numpy.save_file({"a": np.ones((2, 3)), "b": np.zeros((2, 3))}, tmp_path / "twice")
    with pytest.raises(CheckpointError, match="b: weight has been given before"):
        gdt.load_weights(nn.Dense(2, 3, use_bias=False), tmp_path / "twice", {"a|b": "weight"})
    with pytest.raises(ArgumentError, match="does not fit the pattern"):
        gdt.load_weights(model, path, {"h.*": r"\3"})
    with pytest.raises(ArgumentError, match=r"'\(' is no pattern"):
        gdt.load_weights(model, path, {"(": "offset"})
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="is cut off"):
        gdt.load_weights(model, path, NAMES, strict=False)
    bounds = [{"shape": [9], "data_offsets": [0, 32]}, {"shape": [8], "data_offsets": [32, 0]}, {}]
    for header in ([], *({"offset": {"dtype": "F32", **facts}} for facts in bounds)):
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(32))
        with pytest.raises(CheckpointError, match="no safetensors file"):
            gdt.load_weights(model, path, strict=False)
    with pytest.raises(CheckpointError, match="no safetensors file"):
        gdt.load_weights(model, tmp_path / "absent", NAMES)


def test_of_a_file_no_more_is_read_than_is_kept(tmp_path: Path) -> None:
    values = X[:1].repeat(1 << 15, axis=0)
    safetensors.numpy.save_file(
        {"weight": np.ascontiguousarray(values.T), "empty": values[:0]}, tmp_path / "w.safetensors"
    )
    model = nn.Dense(*values.shape, use_bias=False)
    layouts = nn.LayoutMap(gdt.create_mesh([("model", 4)], blocks=4))
    layouts["weight"] = ["model", None]
    layouts.apply(model)
    tracemalloc.start()
    gdt.load_weights(model, tmp_path, {"weight": ("weight", np.transpose)}, strict=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(model.weight.numpy(), values)
    assert peak < 1.5 * values.nbytes  # twice that, where the file is read whole


def test_bfloat16_weights_are_read_as_float32(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0, 0.0], [3.0, 4.0, 1e30]], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    facts = {"weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, len(bits)]}}
    header = json.dumps(facts).encode()
    (tmp_path / "b.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bits)
    model = nn.Dense(2, 3, use_bias=False)
    gdt.load_weights(model, tmp_path)
    np.testing.assert_allclose(model.weight.numpy(), values, rtol=2**-7)

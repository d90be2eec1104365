"""Checkpoints: bitwise on every mesh, no byte too many, whole or absent, and readable by others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gdt
from gdt import UNSHARDED, Layout, create_mesh
from gdt.checkpoint import CheckpointManager, contents, restore, save, saving, verify
from gdt.checkpoint.checksums import checksums, damaged
from gdt.errors import CheckpointError, DistributedError
from gdt.optim import Adam
from gdt.sharding import processes
from tests.allocations import allocations

Tree = dict[str, Any]

SHAPES = {"weight": ((1200, 48), "float32"), "odd": ((9, 7), "float64"), "bias": ((48,), "float16")}
SHAPES |= {"scalar": ((), "float32"), "none": ((0, 3), "float32"), "flags": ((5,), "bool")}
SHAPES |= {"ids": ((3, 4, 5), "int8"), "wide": ((2, 3), "uint64"), "waves": ((4, 2), "complex64")}


def values(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random bits, so NaNs of every kind are among the floats."""
    found = {}
    for name, (shape, dtype) in SHAPES.items():
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        bits = rng.integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
        found[name] = bits.view(dtype).reshape(shape)
    return found


def tree_on(mesh: gdt.Mesh, specs: list[Any], arrays: dict[str, np.ndarray]) -> Tree:
    """The arrays, each split by as many of the specs as it has axes."""
    tree: Tree = {"epoch": 12}
    for name, value in arrays.items():
        layout = Layout(specs[: value.ndim] + [None] * (value.ndim - len(specs)), mesh)
        tree[name] = gdt.asarray(value, layout=layout)
    return tree


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


SAVED_ON = [
    ([("batch", 4), ("model", 2)], ["batch", "model"], 1),
    ([("batch", 4), ("model", 2)], [("model", "batch"), None], 8),
]
RESTORED_ON = [
    ([("x", 1)], [None, None], 1),
    ([("x", 8)], ["x", None], 1),
    ([("x", 8)], [None, "x"], 8),
    ([("x", 2), ("y", 4)], ["y", "x"], 1),
    ([("x", 3), ("y", 2)], [("y", "x"), None], 6),
    ([("x", 2), ("y", 2), ("z", 2)], ["z", ("x", "y")], 4),
    ([("x", 5)], [None, None], 5),
]


@pytest.mark.parametrize("source", SAVED_ON, ids=str)
@pytest.mark.parametrize("target", RESTORED_ON, ids=str)
def test_restored_bitwise_on_another_mesh_and_layout(
    source: Any, target: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    arrays = values(rng)
    path = save(
        tmp_path / "a.safetensors",
        tree_on(create_mesh(source[0], blocks=source[2]), source[1], arrays),
    )
    zeros = {name: np.zeros_like(value) for name, value in arrays.items()}
    tree = tree_on(create_mesh(target[0], blocks=target[2]), target[1], zeros)
    tree["epoch"], layouts = 0, {n: x.layout for n, x in tree.items() if n != "epoch"}
    done = restore(path, tree)
    for name, value in arrays.items():
        assert same_bits(tree[name].numpy(), value), name
        assert tree[name].layout is layouts[name]
    assert tree["epoch"] == 12
    # Each byte is needed by some device of this process, and is read once.
    assert done.bytes_read == sum(value.nbytes for value in arrays.values()) + 8
    assert done.arrays == len(arrays) + 1


def test_only_the_slices_of_the_arrays_asked_for_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {"big": gdt.ones((1000, 1000)), "w": gdt.ones((10, 3))})
    tree = {"w": gdt.zeros((10, 3))}
    assert restore(path, tree, partial=True).bytes_read == 10 * 3 * 8
    assert (tree["w"].numpy() == 1).all()


@pytest.mark.parametrize("size", [9, 10])  # the last shard is empty, or has padding
def test_padding_of_restored_shards_is_sound(size: int, tmp_path: Path) -> None:
    """Element-wise functions see no values that the array does not hold."""
    mesh = create_mesh([("x", 4)], blocks=4)
    path = save(tmp_path / "a.safetensors", {"x": gdt.full((size,), 2.0)})
    tree = {"x": gdt.zeros((size,), layout=Layout(["x"], mesh))}
    restore(path, tree)
    held = {float(v) for block in tree["x"].blocks for v in block.ravel()}
    assert held == ({1.0, 2.0} if size == 9 else {2.0})
    assert float(gdt.sum(tree["x"])) == 2.0 * size


@pytest.mark.parametrize("blocks", [1, 8])
def test_safetensors_alone_reads_the_file(
    blocks: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    arrays = values(rng)
    mesh = create_mesh([("batch", 4), ("model", 2)], blocks=blocks)
    path = save(tmp_path / "a.safetensors", tree_on(mesh, ["model", "batch"], arrays))
    found = load_file(path)
    assert found.keys() == {*arrays, "epoch"}
    for name, value in arrays.items():
        assert same_bits(found[name], value), name
    assert contents(path)["weight"] == ((1200, 48), "float32")
    verify(path)


def test_files_of_other_programs_are_restored(tmp_path: Path, rng: np.random.Generator) -> None:
    arrays = {"w": rng.standard_normal((6, 4)), "b": rng.standard_normal(4)}
    save_file(arrays, tmp_path / "a.safetensors")
    tree = {name: gdt.zeros(value.shape) for name, value in arrays.items()}
    restore(tmp_path / "a.safetensors", tree)
    assert same_bits(tree["w"].numpy(), arrays["w"])
    verify(tmp_path / "a.safetensors")


def test_partial_sums_are_saved_as_values(tmp_path: Path) -> None:
    for blocks in (1, 4):
        mesh = create_mesh([("x", 4)], blocks=blocks)
        x = gdt.sum(gdt.ones((8, 3), layout=Layout(["x", UNSHARDED], mesh)), axis=0)
        assert any(x.layout.reductions)
        path = save(tmp_path / "a.safetensors", {"x": x})
        np.testing.assert_array_equal(load_file(path)["x"], [8.0, 8.0, 8.0])


def test_a_training_continues_from_its_checkpoint_as_if_never_stopped(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Parameters, moments and the step count are all there, on another mesh."""
    gradients = rng.standard_normal((6, 8, 4))

    def train(tree: Tree, steps: Any) -> None:
        for g in steps:
            layout = tree["model"]["w"].layout
            tree["optimizer"].update(tree["model"], {"w": gdt.asarray(g, layout=layout)})

    def fresh(layout: Layout) -> Tree:
        model = {"w": gdt.ones((8, 4), layout=layout)}
        return {"model": model, "optimizer": Adam(0.1).init(model)}

    whole = fresh(Layout(["x", None], create_mesh([("x", 2)])))
    train(whole, gradients)
    first = fresh(Layout(["x", None], create_mesh([("x", 2)])))
    train(first, gradients[:3])
    path = save(tmp_path / "a.safetensors", first)
    second = fresh(Layout([None, "y"], create_mesh([("y", 4)], blocks=4)))
    restore(path, second)
    train(second, gradients[3:])
    assert same_bits(second["model"]["w"].numpy(), whole["model"]["w"].numpy())
    assert sorted(contents(path)) == [
        "model.w",
        "optimizer.state.m.w",
        "optimizer.state.v.w",
        "optimizer.steps",
    ]


def test_every_mismatch_is_listed_and_nothing_is_changed(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.safetensors",
        {"w": gdt.ones((2, 3)), "b": gdt.ones((3,)), "old": gdt.ones(())},
    )
    tree = {"w": gdt.zeros((2, 4)), "b": gdt.zeros((3,), "float32"), "new": gdt.zeros((1,)), "k": 5}
    before = dict(tree)
    with pytest.raises(CheckpointError) as caught:
        restore(path, tree)
    text = str(caught.value)
    assert str(path) in text
    assert "w: float64[2, 4] wanted, float64[2, 3] given" in text
    assert "b: float32[3] wanted, float64[3] given" in text
    assert "new: missing" in text and "k: missing" in text and "old: given, and not wanted" in text
    assert all(tree[name] is value for name, value in before.items())


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "truncated", "cut header", "text", "directory"]
)
def test_a_damaged_file_is_named_and_nothing_is_changed(damage: str, tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {"w": gdt.ones((50, 3))})
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "directory":
        path.unlink()
        path.mkdir()
    else:
        kept = {
            "empty": b"",
            "truncated": content[:-7],
            "cut header": content[:40],
            "text": b"hello" * 99,
        }
        path.write_bytes(kept[damage])
    tree = {"w": gdt.zeros((50, 3))}
    with pytest.raises(CheckpointError, match=r"^restore: .*a\.safetensors"):
        restore(path, tree)
    assert (tree["w"].numpy() == 0).all()


def test_verify_names_the_array_whose_bytes_have_changed(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {"w": gdt.ones((50, 3)), "v": gdt.zeros((40,))})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # of the array that is written last
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"a\.safetensors is damaged: bytes have changed in w"
    ):
        verify(path)


@pytest.mark.parametrize("specs", [[None, None], ["x", None], [None, "x"], ["x", "y"]], ids=str)
@pytest.mark.parametrize("blocks", [1, 4])
def test_restore_finds_changed_bytes_and_changes_nothing(
    specs: list[str | None], blocks: int, tmp_path: Path
) -> None:
    path = save(tmp_path / "a.safetensors", {"w": gdt.ones((150, 3)), "epoch": 3})
    whole = path.read_bytes()
    size, mesh = 150 * 3 * 8 + 8, create_mesh([("x", 2), ("y", 2)], blocks=blocks)
    for at in (0, 8, 24 * 70, size - 9, size - 1):
        content = bytearray(whole)
        content[len(whole) - size + at] ^= 1
        path.write_bytes(content)
        tree = {"w": gdt.zeros((150, 3), layout=Layout(specs, mesh)), "epoch": 0}
        before = dict(tree)
        with pytest.raises(CheckpointError, match=r"restore: .*bytes have changed in (w|epoch)"):
            restore(path, tree)
        assert all(tree[name] is before[name] for name in tree)
    path.write_bytes(whole)
    assert restore(path, tree).bytes_read == size


def test_a_share_of_the_rows_is_verified_alone() -> None:
    whole = np.arange(300.0).reshape(100, 3)
    sums = checksums(whole)
    share = whole[50:80].copy()
    assert not damaged(sums, whole.shape, {((50, 80), (0, 3)): share})
    share[20, 1] += 1
    assert damaged(sums, whole.shape, {((50, 80), (0, 3)): share})
    # Of a slab that is read in part, nothing can be said.
    assert not damaged(sums, whole.shape, {((70, 71), (0, 3)): share[20:21]})


def test_a_dtype_that_safetensors_lacks_is_named_and_no_file_appears(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"z: complex128\[2\]"):
        save(tmp_path / "a.safetensors", {"z": gdt.zeros((2,), "complex128")})
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.safetensors", {"w": gdt.ones((3,))})

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(path, {"w": gdt.zeros((3,))})
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    assert load_file(path)["w"].tolist() == [1, 1, 1]


def test_a_process_that_hears_of_a_death_leaves_the_file_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process may hear of it later, and may still be completing the file."""
    tree, temporary = {"w": gdt.ones(3)}, tmp_path / "shared.tmp"
    temporary.touch()
    steps = iter([None, DistributedError("process 2 has died")])

    def decided(count: int, value: Any, decision: Any, what: str) -> Any:
        failure = next(steps)
        if failure is not None:
            raise failure
        return decision([value] * count)

    monkeypatch.setattr(saving, "of_first_process", lambda name: temporary.name)
    monkeypatch.setattr(saving, "decided", decided)
    second = processes.Processes(1, ("host", "host", "host"))
    monkeypatch.setattr(processes, "current", lambda: second)
    with pytest.raises(DistributedError, match="process 2 has died"):
        save(tmp_path / "w.safetensors", tree)
    assert temporary.exists()


@pytest.mark.parametrize("damage", ["a shard is missing", "a shard is another", "the header"])
def test_a_file_that_does_not_read_back_replaces_nothing(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, layout = tmp_path / "a.safetensors", Layout(["x"], gdt.create_mesh([("x", 4)]))
    tree = {"w": gdt.asarray(np.arange(16.0), layout=layout), "n": 3}
    save(path, tree)
    before, pieces, header = path.read_bytes(), saving._pieces, saving._header
    if damage == "the header":
        monkeypatch.setattr(
            saving, "_header", lambda entries, sums: header({**entries, "v": entries["n"]}, sums)
        )
    else:
        is_missing = damage == "a shard is missing"

        def damaged(value: Any, is_first: bool) -> Any:
            for index, data in list(pieces(value, is_first))[is_missing:]:
                yield index, data if is_missing else Forgetful(data)

        monkeypatch.setattr(saving, "_pieces", damaged)
    tree["w"] = tree["w"] + 1
    with pytest.raises(CheckpointError, match=r"a\.safetensors cannot be written"):
        save(path, tree)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


class Forgetful:
    """Data of which the first element is another each time that it is read."""

    def __init__(self, data: Any) -> None:
        self.data, self.reads = np.array(data), 0

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        self.reads += 1
        data = self.data.copy()
        data.reshape(-1)[0] += self.reads
        return data.astype(dtype)


def test_saving_puts_no_whole_array_together(tmp_path: Path) -> None:
    """What is allocated beside the shards is far less than the model."""
    mesh = create_mesh([("x", 8)], blocks=8)
    tree = {
        f"w{i}": gdt.ones((512, 1024), "float32", layout=Layout(["x", None], mesh))
        for i in range(4)
    }
    with allocations() as allocated:
        save(tmp_path / "a.safetensors", tree)
    assert allocated.peak < 512 * 1024 * 4 / 4


# ---------------------------------------------------------------- manager


def test_the_manager_keeps_the_newest_and_numbers_on(tmp_path: Path) -> None:
    tree = {"w": gdt.zeros(())}
    manager = CheckpointManager(tree, tmp_path / "run", max_to_keep=3)
    folder = str(tmp_path / "run")
    assert repr(manager) == f"CheckpointManager(dict, {folder!r}, max_to_keep=3, name='ckpt')"
    assert manager.latest is None and manager.checkpoints == []
    assert manager.restore_or_initialize() is None
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        manager.restore()
    for i in range(11):
        tree["w"] = gdt.asarray(float(i))
        manager.save()
    assert [p.name for p in manager.checkpoints] == [f"ckpt-{n}.safetensors" for n in (9, 10, 11)]
    tree["w"] = gdt.asarray(-1.0)
    again = CheckpointManager(tree, tmp_path / "run", max_to_keep=3)
    assert again.restore() == again.latest == tmp_path / "run" / "ckpt-11.safetensors"
    assert tree["w"].item() == 10.0
    again.restore(again.checkpoints[0])
    assert tree["w"].item() == 8.0
    assert again.save().name == "ckpt-12.safetensors"


def test_the_manager_minds_only_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "ckpt-best.safetensors").write_text("mine")
    (tmp_path / "other-7.safetensors").write_text("mine")
    (tmp_path / ".ckpt-1.safetensors.4242.tmp").write_text("left by a killed process")
    manager = CheckpointManager({"w": gdt.zeros(())}, tmp_path, max_to_keep=1)
    for _ in range(3):
        manager.save()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["ckpt-3.safetensors", "ckpt-best.safetensors", "other-7.safetensors"]


SAVER = """
import sys, numpy as np, gdt
from gdt.checkpoint import CheckpointManager
mesh = gdt.create_mesh([("x", 4)], blocks=4)
layout = gdt.Layout([None, "x"], mesh)
tree = {"step": 0, "w": None}
manager = CheckpointManager(tree, sys.argv[1], max_to_keep=3)
for step in range(1, 10_000):
    tree["step"], tree["w"] = step, gdt.full((512, 512), float(step), layout=layout)
    manager.save()
    print(step, flush=True)
"""


def test_a_killed_process_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    """SIGKILL at many moments of a save: the newest file is whole, and is what was reported or
    newer."""
    for round_, delay in enumerate([0.0, 0.001, 0.003, 0.008]):
        folder = tmp_path / str(round_)
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        reported = [int(process.stdout.readline()) for _ in range(4)]
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        reported += [int(line) for line in process.stdout.read().split()]
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        tree = {"step": 0, "w": gdt.zeros((512, 512))}
        manager = CheckpointManager(tree, folder, max_to_keep=3)
        for path in manager.checkpoints:
            verify(path)
        assert len(manager.checkpoints) >= 3
        manager.restore()
        assert tree["step"] >= reported[-1]
        assert (tree["w"].numpy() == tree["step"]).all()


def test_the_header_is_what_safetensors_specifies(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {"b": gdt.ones((3,), "int8"), "w": gdt.ones((2, 3))})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0 and header.pop("__metadata__")["format"] == "gdt"
    assert header["w"] == {"dtype": "F64", "shape": [2, 3], "data_offsets": [0, 48]}
    assert header["b"] == {"dtype": "I8", "shape": [3], "data_offsets": [48, 51]}
    assert len(content) == 8 + length + 51


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ({"a.b": gdt.ones((2,)), "a": {"b": gdt.zeros((2,))}}, "'a.b' is the name of two values"),
        ({"0": gdt.ones((2,)), 0: gdt.zeros((2,))}, "'0' is the name of two values"),
        ({"__metadata__": gdt.ones((2,))}, "'__metadata__' is a reserved name"),
        ({"a": {"w\udc80": gdt.ones((2,))}}, r"'a\.w\\udc80' cannot be written as UTF-8"),
    ],
)
def test_names_that_a_file_cannot_hold(tmp_path: Path, tree: Tree, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        save(tmp_path / "a.safetensors", tree)
    assert not list(tmp_path.iterdir())


UNSAVABLE: dict[str, tuple[Any, str]] = {
    "entries": (
        {"w": gdt.ones(2), "a": [0.5, True, None], "n": np.int64(7), "t": {"x": np.arange(3)}},
        r"a\.0: 0\.5\n  a\.1: True\n  a\.2: None\n  n: np\.int64\(7\)\n"
        r"  t\.x: a NumPy array, int64\[3\]\n",
    ),
    "object": ({"state": Path("x")}, "state: a .*Path"),
    "object alone": (Path("x"), "a .*Path"),
    "text": ("hello", "'hello'"),
    "none": (None, "None"),
    "counter alone": (5, r"\n  5\n"),
    "counters in a tuple": ({"t": (3, 4)}, r"t\.0: 3 in a tuple\n  t\.1: 4 in a tuple"),
    "nothing": ({}, "a dict holds no array"),
    "module without arrays": (gdt.nn.Flatten(), "a Flatten holds no array and no counter"),
}


@pytest.mark.parametrize("case", UNSAVABLE)
def test_what_a_file_cannot_hold_is_listed_and_not_left_out(case: str, tmp_path: Path) -> None:
    tree, text = UNSAVABLE[case]
    with pytest.raises(CheckpointError, match=f"(?s)^save: .*{text}"):
        save(tmp_path / "a.safetensors", tree)
    with pytest.raises(CheckpointError, match=text):
        CheckpointManager(tree, tmp_path).save()
    assert not list(tmp_path.iterdir())
    path = save(tmp_path / "a.safetensors", {"w": gdt.ones(2)})
    with pytest.raises(CheckpointError, match=f"(?s)^restore: .*{text}"):
        restore(path, tree)


def test_a_counter_that_64_bits_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"(?s)64 bits in .*\n  big: {2**70}\n"):
        save(tmp_path / "a.safetensors", {"big": 2**70, "n": 2**63 - 1, "m": -(2**63)})
    assert not list(tmp_path.iterdir())


def test_a_trainer_is_saved_and_restored(tmp_path: Path) -> None:
    def trainer(key: int) -> gdt.training.Trainer:
        model = gdt.nn.Sequential(gdt.nn.Dense(2, 1, key=key))
        loss = gdt.nn.losses.mean_squared_error
        return gdt.training.Trainer(model, Adam(0.1).init(model), loss)

    one, other = trainer(1), trainer(2)
    one.step(gdt.ones((3, 2), "float32"), gdt.zeros((3, 1), "float32"))
    CheckpointManager(one, tmp_path).save()
    CheckpointManager(other, tmp_path).restore()
    assert other.optimizer.steps == 1
    for name, array in one.model.state().items():
        assert same_bits(array.numpy(), other.model.state()[name].numpy())
        for kind in ("m", "v"):
            moments = [t.optimizer.state[kind][name].numpy() for t in (one, other)]
            assert same_bits(*moments) and moments[0].any()


def test_configuration_of_a_module_is_not_saved(tmp_path: Path) -> None:
    class Scaled(gdt.nn.Module):
        def __init__(self) -> None:
            self.w, self.rates, self.shape = gdt.ones(2), [0.5, None], (3, 4)

    path = save(tmp_path / "a.safetensors", Scaled())
    assert list(contents(path)) == ["w"]
    restore(path, Scaled())


def test_a_changed_bit_of_the_header_is_found(tmp_path: Path) -> None:
    """One bit of a header, each in turn: an error that names the file, or the same values."""
    arrays = {"w": np.arange(6.0).reshape(3, 2), "flag": np.array([True, False])}
    path = save(tmp_path / "a.safetensors", {n: gdt.asarray(x) for n, x in arrays.items()})
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    for bit in range(0, 8 * end, 3):  # all bits of a byte in turn
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        tree = {name: gdt.zeros(x.shape, x.dtype) for name, x in arrays.items()}
        try:
            restore(path, tree)
        except CheckpointError as e:
            assert str(path) in str(e)
            assert not any(x.numpy().any() for x in tree.values())
        else:
            assert all(same_bits(tree[n].numpy(), x) for n, x in arrays.items()), bit


@pytest.mark.parametrize(
    "sums", ["notjson", "[1]", '{"w": 3}', '{"w": []}', '{"other": ["00000000"]}', "null"]
)
@pytest.mark.parametrize("read", [verify, lambda path: restore(path, {"w": gdt.zeros(3)})])
def test_checksums_that_are_none(sums: str, read: Any, tmp_path: Path) -> None:
    save_file({"w": np.ones(3)}, tmp_path / "a.safetensors", metadata={"crc32": sums})
    with pytest.raises(CheckpointError, match="its checksums are not those of its arrays"):
        read(tmp_path / "a.safetensors")


def test_a_file_is_little_endian(tmp_path: Path) -> None:
    """Also of arrays whose blocks another library made in the other byte order."""
    x = gdt.asarray(np.array([1.0, 2.0, 3.0], ">f4"))
    path = save(tmp_path / "a.safetensors", {"x": x})
    assert load_file(path)["x"].tolist() == [1.0, 2.0, 3.0]


def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    folder, link = tmp_path / "real", tmp_path / "link.safetensors"
    link.symlink_to(folder / "a.safetensors")
    for value in (1.0, 2.0):  # the target is made, then replaced
        assert save(link, {"w": gdt.full((), value)}) == link
        assert link.is_symlink() and [p.name for p in folder.iterdir()] == ["a.safetensors"]
        assert load_file(link)["w"] == value


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_regular_file_is_not_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(os.devnull)
    with pytest.raises(CheckpointError, match=r"cannot be written \(it is not a regular file\)"):
        save(path, {"w": gdt.ones(2)})
    assert list(tmp_path.iterdir()) == [path] and not path.is_file()


def test_a_directory_and_what_is_no_file_are_told_from_a_missing_file(tmp_path: Path) -> None:
    tree = {"w": gdt.ones((2,))}
    for read in (lambda p: restore(p, tree), verify, contents):
        with pytest.raises(CheckpointError, match=r"there is no file .*/a$"):
            read(tmp_path / "a")
    with pytest.raises(CheckpointError, match="is a directory, not a file\n  It holds no checkpo"):
        restore(tmp_path, tree)
    save(tmp_path / "b.safetensors", tree)
    with pytest.raises(CheckpointError, match=r"directory, not a file\n  It holds b\.safetensors"):
        restore(tmp_path, tree)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(CheckpointError, match="fifo is not a regular file"):
        restore(tmp_path / "fifo", tree)


def test_a_directory_called_like_a_newer_checkpoint_is_skipped(tmp_path: Path) -> None:
    tree = {"w": gdt.ones((2,))}
    manager = CheckpointManager(tree, tmp_path)
    manager.save()
    (tmp_path / "ckpt-2.safetensors").mkdir()
    (tmp_path / "ckpt-3.safetensors").symlink_to(tmp_path / "nowhere")
    assert manager.restore().name == "ckpt-1.safetensors"
    assert manager.latest == manager.restore_or_initialize()
    assert manager.save().name == "ckpt-4.safetensors"
    assert [p.name for p in manager.checkpoints] == ["ckpt-1.safetensors", "ckpt-4.safetensors"]


def test_a_managers_name_may_hold_any_character_of_a_file_name(tmp_path: Path) -> None:
    tree = {"w": gdt.zeros(())}
    manager = CheckpointManager(tree, tmp_path / "[a]", 2, name="run[1]*")
    (tmp_path / "[a]").mkdir()
    (tmp_path / "[a]" / ".run[1]*-1.safetensors.4242-1.tmp").write_text("of a killed process")
    for i in range(3):
        tree["w"] = gdt.asarray(float(i))
        manager.save()
    names = sorted(p.name for p in (tmp_path / "[a]").iterdir())
    assert names == ["run[1]*-2.safetensors", "run[1]*-3.safetensors"]
    manager.restore()
    assert tree["w"].item() == 2.0
    for name in ("a/b", "/", "a\0"):
        with pytest.raises(gdt.errors.ArgumentError, match="which is no name of a file"):
            CheckpointManager(tree, tmp_path, name=name)


def test_threads_that_save_to_one_path(tmp_path: Path) -> None:
    path, tree = tmp_path / "a.safetensors", {"w": gdt.ones((300, 300))}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: save(path, tree), range(40)))
    verify(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(
        CheckpointError, match=r"save: a\.safetensors cannot be written \(.*No such"
    ):
        gdt.checkpoint.save("a.safetensors", {"x": gdt.ones(2)})

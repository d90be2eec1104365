"""The door to Keras: who may go in, what the backend must have, and Keras' own tests of it."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.interop.keras import finder, keras
from tests.interop.keras.run import root_of, run, surprises

REPOSITORY = Path(__file__).parents[3]
MODULES = ("core", "numpy", "nn", "math", "linalg", "image", "random", "rnn")
OF_JAX_ALONE = {
    "core.should_shard_at_init",
    "nn.wrap_flash_attention",
    "random.jax_draw_seed",
    "rnn.unstack",
}


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=variables | environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def functions_of(module: str) -> Iterator[str]:
    """The public functions of a module of Keras' backend for JAX, which is not imported."""
    text = (root_of("keras") / "src" / "backend" / "jax" / f"{module}.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name


@pytest.mark.parametrize("module", MODULES)
def test_the_backend_has_every_function_that_the_one_for_jax_has(module: str) -> None:
    own = vars(importlib.import_module(f"keras.src.backend.numpy.{module}"))
    assert own["__name__"] == f"gdt.interop.keras.backend.{module}"
    names = {name for name in functions_of(module) if f"{module}.{name}" not in OF_JAX_ALONE}
    assert names <= own.keys()


@pytest.mark.parametrize("module", ["core", "image", "linalg", "math", "nn"])
def test_functions_have_the_parameters_of_keras_ops(module: str) -> None:
    """Those of `numpy` are gdt's functions, which have more, under NumPy's names."""

    def parameters(function: Callable[..., Any]) -> list[Any]:
        own = inspect.signature(function).parameters.values()
        return [(p.name, p.kind, p.default) for p in own]

    own = vars(importlib.import_module(f"gdt.interop.keras.backend.{module}"))
    ops = vars(importlib.import_module(f"keras.src.ops.{module}"))
    compared = [
        name
        for name, op in ops.items()
        if hasattr(op, "_api_export_path") and name in own and inspect.isfunction(op)
        if name not in ("custom_gradient", "multi_hot") and f"_{name}" not in ops
    ]
    assert len(compared) > 5
    for name in compared:
        assert parameters(own[name]) == parameters(ops[name]), name


def test_keras_that_runs_on_another_backend_is_refused() -> None:
    done = python("-c", "import gdt.interop.keras", KERAS_BACKEND="jax")
    assert "the environment has KERAS_BACKEND=jax" in done.stderr
    assert "unset KERAS_BACKEND, or set it to numpy" in done.stderr


def test_keras_that_was_imported_before_is_refused() -> None:
    program = (
        "import sys, types\n"
        "sys.modules['keras.src.backend'] = module = types.ModuleType('keras.src.backend')\n"
        "module.backend = lambda: 'torch'\n"
        "import gdt.interop.keras\n"
    )
    done = python("-c", program)
    assert "keras has been imported, and runs on the backend 'torch'" in done.stderr
    assert "import gdt.interop.keras above the first import of keras" in done.stderr


def test_keras_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "version", lambda _: "3.9.2")
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(ImportError, match=r"needs keras 3\.15 or newer, and this is 3\.9\.2"):
        finder.install()


def test_keras_that_is_missing_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise finder.PackageNotFoundError("keras")

    monkeypatch.setattr(finder, "version", missing)
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'gdt\[keras\]'"):
        finder.install()


def test_keras_that_lacks_a_name_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> None:
        raise ImportError("cannot import name 'draw_seed' from 'keras.src.random'")

    monkeypatch.setattr(finder.importlib, "import_module", lacking)
    with pytest.raises(ImportError, match=r"keras \S+ lacks what gdt's backend takes from it"):
        finder.Replacing("gdt.interop.keras.backend.random").create_module(None)  # type: ignore[arg-type]


def test_a_program_of_keras_runs_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, keras\nprint(sys.argv[1:], type(keras.ops.ones(2)).__module__.split('.')[0])"
    )
    done = python("-m", "gdt.interop.keras", str(script), "--epochs", "2")
    assert done.stdout == "['--epochs', '2'] gdt\n", done.stderr
    assert "script.py [arguments]" in python("-m", "gdt.interop.keras").stderr


def test_variables_are_operands_on_both_sides() -> None:
    v, x = keras.Variable([1.0, 2.0]), gdt.asarray(np.array([3.0, 5.0], "float32"))
    assert (v + x).tolist() == (x + v).tolist() == [4.0, 7.0]
    assert (x - v).tolist() == [2.0, 3.0] and (v / x).shape == (2,)
    grad = gdt.grad(lambda y: gdt.sum(y * v))(x)
    assert grad.tolist() == [1.0, 2.0]


def test_a_variable_does_not_see_what_is_written_to_its_first_value() -> None:
    x = gdt.zeros(2, "float32")
    v = keras.Variable(x)
    x[0] = 1.0
    assert v.numpy().tolist() == [0.0, 0.0]


def test_symbolic_calls_compute_nothing() -> None:
    class Block(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.drop = keras.layers.Dense(4), keras.layers.Dropout(0.5)
            self.scale = self.add_weight((4,), initializer="ones")

        def call(self, x: gdt.DistributedArray) -> gdt.DistributedArray:
            return self.drop(self.dense(x)) * self.scale + keras.ops.arange(4, dtype="float32")

    block = Block()
    rows = keras.Input((10**6, 1000))
    assert block(rows).shape == (None, 10**6, 4)  # of arrays of 330 GB
    x = np.ones((2, 3, 1000), "float32")  # in a layer that keeps nothing of the abstract ones
    expected = x @ block.dense.kernel.numpy() + np.arange(4)
    np.testing.assert_allclose(block(x).numpy(), expected, rtol=1e-5)


def test_a_symbolic_call_may_read_values() -> None:
    class Halved(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: gdt.DistributedArray) -> gdt.DistributedArray:
            return keras.ops.while_loop(lambda y: keras.ops.max(y) > 1, lambda y: y / 2, x)

    halved = Halved()
    assert halved(keras.Input((3,))).shape == (None, 3)
    assert halved(np.full((1, 3), 6.0)).tolist() == [[0.75] * 3]


def test_both_branches_of_a_recorded_step_are_selected_with_what_they_assign() -> None:
    v = keras.Variable([0.0, 0.0])

    def step(x: gdt.DistributedArray) -> gdt.DistributedArray:
        def added() -> gdt.DistributedArray:
            v.assign_add(x)
            return x * 2

        return keras.ops.cond(gdt.sum(x) > 0, added, lambda: x * 3)

    recorded = gdt.function(step, state=[v])
    for sign in (1.0, 1.0, 1.0, -1.0):
        out = recorded(gdt.asarray(np.full(2, sign, "float32")))
        assert out.tolist() == ([2.0, 2.0] if sign > 0 else [-3.0, -3.0])
    assert v.numpy().tolist() == [3.0, 3.0]


def test_a_branch_does_not_see_what_the_other_one_writes_to_an_array() -> None:
    def step(x: gdt.DistributedArray) -> list[gdt.DistributedArray]:
        y = x * 1

        def lowered() -> gdt.DistributedArray:
            nonlocal y
            y -= 1
            return y

        return [keras.ops.cond(gdt.sum(x) > 0, lowered, lambda: y * 3), y]

    recorded = gdt.function(step)
    for value, expected in [(2.0, [1.0, 1.0]), (-2.0, [-6.0, -2.0])] * 3:
        x = gdt.asarray(np.full(2, value, "float32"))
        for call in (step, recorded):
            assert [out.tolist() for out in call(x)] == [[v, v] for v in expected]


COVERING = (
    "ops/core_test.py",
    "ops/linalg_test.py",
    "activations",
    "layers/merging",
    "layers/normalization",
    "losses",
)


def test_kerass_own_tests_pass() -> None:
    outcomes = run(COVERING, [], {"KERAS_BACKEND": "numpy"})
    for path in COVERING:
        passed = [name for name, o in outcomes.items() if o == "passed" and name.startswith(path)]
        assert len(passed) > 30, path
    assert not surprises(outcomes)

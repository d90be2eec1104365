"""A plugin of pytest for Keras' own tests: what Keras' conftest does, and other libraries out of
the way.

Tests import TensorFlow, PyTorch and others at the top of a file, mostly for one case of many. They
get a stand-in of what is not installed: a case that calls something of it is skipped. Cases that
need training run. GDT_DEVICES=8 lays out models and batches on 8 devices (DataParallel).
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

DEVICES = int(os.environ.get("GDT_DEVICES", "1"))
ORACLE = os.environ.get("GDT_KERAS_ORACLE")
"""Another environment's packages, behind our own: there JAX says what dtypes tests expect."""

if ORACLE:
    sys.path.append(ORACLE)
IS_PEER = "GDT_KERAS_PEER" in os.environ
if not IS_PEER:
    importlib.import_module("gdt.interop.keras")

import keras.src.testing  # noqa: E402
from keras.src import backend  # noqa: E402
from keras.src.utils import module_utils  # noqa: E402

for module in vars(module_utils).values():  # Keras looks for them now, and not behind stand-ins
    _ = isinstance(module, module_utils.LazyModule) and module.available

OPTIONAL = (
    "tensorflow",
    "torch",
    "jax",
    "grain",
    "orbax",
    "scipy",
    "pandas",
    "sklearn",
    "PIL",
    "torchvision",
)


def _is_missing(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return True
    return False


MISSING = frozenset(filter(_is_missing, OPTIONAL))
running: list[pytest.Item] = []  # the case that runs


class Absent(types.ModuleType):
    """A stand-in for a library, and for all that it has; a case that calls it is skipped."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if running:
            pytest.skip(f"needs {self.__name__}")
        return self

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())


imported = builtins.__import__


def import_for_tests(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    """Import a module; for a test, a stand-in of one that is missing."""
    file = str((globals or {}).get("__file__") or "")
    root = name.partition(".")[0]
    if root in MISSING and file.endswith("_test.py"):
        if running:
            pytest.skip(f"needs {root}")
        return Absent(name if fromlist else root)
    return imported(name, globals, locals, fromlist, level)


builtins.__import__ = import_for_tests


def skip_if_backend(name: str, reason: str) -> pytest.MarkDecorator:
    """Mark cases that a backend skips; tests take this from Keras' conftest."""
    return pytest.mark.skipif(backend.backend() == name, reason=reason)


conftest = types.ModuleType("conftest")
vars(conftest)["skip_if_backend"] = skip_if_backend
sys.modules["conftest"] = conftest


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "requires_trainable_backend: needs a backend that trains",
        "multi_device: needs several devices",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the cases that need training on Keras' own NumPy backend, which has none."""
    if IS_PEER and backend.backend() == "numpy":
        for item in items:
            if item.get_closest_marker("requires_trainable_backend"):
                item.add_marker(pytest.mark.skip(reason="the backend does not train"))


def _with_distribution() -> None:
    """Have every case begin on the devices, when Keras' `setUp` has cleared what was before."""
    set_up = keras.src.testing.TestCase.setUp

    def distributed(self: Any) -> None:
        set_up(self)
        devices = keras.distribution.list_devices()[:DEVICES]
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))

    keras.src.testing.TestCase.setUp = distributed


if DEVICES > 1:
    _with_distribution()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """Skip a file that needs, by way of Keras, a library that is missing."""
    report = yield
    for library in MISSING:
        if report.failed and f"No module named '{library}" in str(report.longrepr):
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f"Skipped: needs {library}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Skip a case that needs, by way of Keras, a library that is missing."""
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(ImportError):
        text = str(call.excinfo.value).lower()
        for library in MISSING:
            if library in text:
                report.outcome = "skipped"
                report.longrepr = (str(item.path), 0, f"Skipped: needs {library}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    running.append(item)
    np.random.seed(0)  # some cases fail on a few of the numbers that they draw
    try:
        return (yield)
    finally:
        running.pop()
        if DEVICES > 1:
            keras.distribution.set_distribution(None)

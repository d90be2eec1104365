"""A finder of modules, in front of Python's own, by which Keras finds the backend."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from gdt.errors import InteropError, error

BACKEND = "gdt.interop.keras.backend"
TAKEN = "keras.src.backend.numpy"
"""The package whose place `BACKEND` takes."""

PARENT, ADDED = "keras.src.backend", "distribution_lib"
"""The module of Keras that says that the numpy backend has no `distribution_lib`, and that name."""

OLDEST = (3, 15)


class BackendFinder(MetaPathFinder):
    """A finder that gives Keras the modules of `BACKEND`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module of Keras that this package replaces or completes."""
        if name == TAKEN or name.startswith(f"{TAKEN}."):
            own = BACKEND + name.removeprefix(TAKEN)
            return ModuleSpec(name, Replacing(own), origin=own, is_package=name == TAKEN)
        spec = PathFinder.find_spec(name, path) if name == PARENT else None
        if spec is not None and spec.loader is not None:
            spec.loader = Adding(spec.loader)
        return spec


class Replacing(Loader):
    """A loader that gives the module `own` in the place of another."""

    def __init__(self, own: str) -> None:
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module, which importlib then enters under the other name too.

        Raises InteropError where Keras lacks a name that the module takes from it.
        """
        try:
            module = importlib.import_module(self.own)
        except (ImportError, AttributeError) as e:
            if "keras" not in str(e) or isinstance(e, InteropError):
                raise
            problem = f"keras {version('keras')} lacks what gdt's backend takes from it: {e}"
            remedy = "Install a version that it knows: pip install 'keras==3.15.*'."
            raise error(InteropError, "gdt.interop.keras", problem, remedy=remedy) from e
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the name and the place of its own file back: it has run."""
        module.__spec__ = self.spec


class Adding(Loader):
    """A loader that runs a module of Keras, and then puts our `distribution_lib` there."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the loader of the module make it."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and add the name."""
        self.loader.exec_module(module)
        setattr(module, ADDED, importlib.import_module(f"{BACKEND}.{ADDED}"))


def install() -> None:
    """Have Keras, which must not have been imported, take this package for its numpy backend.

    Raises InteropError if Keras is too old or has been imported, or if KERAS_BACKEND names another
    backend; ModuleNotFoundError if Keras is missing.
    """
    if any(isinstance(finder, BackendFinder) for finder in sys.meta_path):
        return
    _check_version()
    if "keras.src.backend" in sys.modules:
        name = sys.modules["keras.src.backend"].backend()
        raise error(
            InteropError,
            "gdt.interop.keras",
            f"keras has been imported, and runs on the backend {name!r}",
            remedy="Write import gdt.interop.keras above the first import of keras, or run the "
            "program by python -m gdt.interop.keras script.py.",
        )
    chosen = os.environ.setdefault("KERAS_BACKEND", "numpy")
    if chosen != "numpy":
        raise error(
            InteropError,
            "gdt.interop.keras",
            f"the environment has KERAS_BACKEND={chosen}",
            remedy="gdt takes the place of Keras' backend numpy: unset KERAS_BACKEND, or set it "
            "to numpy, before import gdt.interop.keras.",
        )
    sys.meta_path.insert(0, BackendFinder())


def _check_version() -> None:
    """Raise an error where Keras is missing or too old."""
    install = "Install it with: pip install 'gdt[keras]'"
    try:
        installed = version("keras")
    except PackageNotFoundError:
        raise ModuleNotFoundError(
            f"gdt.interop.keras needs keras\n  {install}", name="keras"
        ) from None
    numbers = tuple(int(part) for part in installed.split(".")[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        problem = f"gdt.interop.keras needs keras {oldest} or newer, and this is {installed}"
        raise error(InteropError, problem, remedy=f"{install}.")

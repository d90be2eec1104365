"""Settings: the policy of implicit fetches, the kernels of matrix products, and the number of
threads.

Each setting is a context variable, so a thread or an asynchronous task has its own. It holds until
the end of a `with` block; as a statement, without `with`, from there on, as `jax.set_mesh` does.
"""

from __future__ import annotations

import os
import warnings
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar

from gdt.arguments import checked
from gdt.errors import ArgumentError, MoveError, error, frame_of_user

__all__ = ["host_threads", "implicit_fetch", "matmul_backend", "matmul_precision"]


T = TypeVar("T")


class Setting(Generic[T]):
    """A context variable that has a value from now on; the end of a `with` block brings back the
    former one."""

    def __init__(self, variable: ContextVar[Any], value: T) -> None:
        self._variable, self._value, self._before = variable, value, variable.set(value)

    def __enter__(self) -> T:
        return self._value

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._before)


POLICIES = ("allow", "warn", "raise")
_policy: ContextVar[str] = ContextVar("gdt.implicit_fetch", default="")  # np.asarray alone fetches


class ImplicitFetchWarning(UserWarning):
    """The warning that NumPy fetched a distributed array under `gdt.implicit_fetch("warn")`."""


@checked
def implicit_fetch(policy: str) -> Setting[str]:
    """Choose until the end of a `with` block, or from here on, what `np.asarray(x)` and NumPy
    functions do with a distributed array.

    policy: `"allow"` fetches it, `"warn"` does so with an ImplicitFetchWarning, `"raise"` raises
    MoveError. Where nothing is chosen `np.asarray(x)` fetches, and a NumPy function that gdt
    lacks raises DtypeError.

    Raises ArgumentError for another policy.

    >>> import numpy as np
    >>> with gdt.implicit_fetch("raise"):
    ...     np.asarray(gdt.ones(3))
    Traceback (most recent call last):
    gdt.errors.MoveError: numpy.asarray: an implicit fetch of a distributed array to the host...
    """
    if not isinstance(policy, str) or policy not in POLICIES:
        raise error(
            ArgumentError,
            f"unknown policy {policy!r}",
            remedy=f"Use one of {', '.join(POLICIES)}.",
        )
    return Setting(_policy, policy)


def allows_fetches() -> bool:
    """Whether functions of NumPy that gdt lacks run on fetched values: what a block chose."""
    return _policy.get() != ""


def on_implicit_fetch(array_type: object) -> None:
    """Apply the policy to the implicit fetch of an array of type `array_type`: warn or raise."""
    policy = _policy.get()
    if policy in ("", "allow"):
        return
    problem = error(
        MoveError,
        "numpy.asarray",
        "an implicit fetch of a distributed array to the host",
        operands={"x": array_type},
        remedy="Use x.numpy() to fetch it on purpose.",
    )
    if policy == "raise":
        raise problem
    warnings.warn(str(problem), ImplicitFetchWarning, stacklevel=frame_of_user()[1])


MATMUL_BACKENDS = ("handwritten", "cublas", "autotune")
MATMUL_BACKEND: ContextVar[str] = ContextVar("gdt.matmul_backend", default="handwritten")
MATMUL_PRECISIONS = ("float32", "tensorfloat32")
MATMUL_PRECISION: ContextVar[str] = ContextVar("gdt.matmul_precision", default="float32")


def _chosen(choice: ContextVar[str], name: object, names: tuple[str, ...]) -> Setting[str]:
    """Set the context variable `choice` to `name`, or raise ArgumentError if `names` lacks it."""
    if not isinstance(name, str) or name not in names:
        remedy = f"Use one of {', '.join(names)}."
        raise error(ArgumentError, f"unknown name {name!r}", remedy=remedy)
    return Setting(choice, name)


@checked
def matmul_backend(name: str) -> Setting[str]:
    """Choose until the end of a `with` block, or from here on, what multiplies matrices on GPUs; on
    the host NumPy's BLAS does.

    name: `"handwritten"` (the default) is gdt's own kernel, which CUDA graphs can capture;
    `"cublas"` is NVIDIA's library; `"autotune"` times both in the first call with operands of new
    types, and uses the faster one for those types from then on. Products that no kernel of gdt
    takes (of integers, of complex numbers) run in the library in any case; `gdt.explain` shows
    which kernel ran. Convolutions follow the same choice, where cuDNN, if it is installed, comes
    before gdt's kernel.

    Raises ArgumentError for another name.

    >>> with gdt.matmul_backend("cublas"):
    ...     product = gdt.ones((2, 3)) @ gdt.ones((3, 2))
    """
    return _chosen(MATMUL_BACKEND, name, MATMUL_BACKENDS)


@checked
def matmul_precision(name: str) -> Setting[str]:
    """Choose until the end of a `with` block, or from here on, how gdt's kernel multiplies float32
    matrices on GPUs.

    name: `"float32"` (the default), or `"tensorfloat32"`, on tensor cores of compute capability 8.0
    and later, where every operand is rounded to 11 significant bits before it is multiplied, and
    sums are kept in float32: with relative errors of about 1e-3 instead of 1e-6, and a speed that
    has not been measured yet. Where `gdt.matmul_backend` chooses cuBLAS, CuPy's environment
    variable CUPY_TF32 decides instead. Convolutions by cuDNN follow the same choice. On the host
    and on older GPUs products are computed in float32.

    Raises ArgumentError for another name.

    >>> with gdt.matmul_precision("tensorfloat32"):
    ...     product = gdt.ones((2, 3)) @ gdt.ones((3, 2))
    """
    return _chosen(MATMUL_PRECISION, name, MATMUL_PRECISIONS)


def matmul_choices() -> list[str]:
    """Return the settings of matrix products that are not the default, as texts."""
    choices = (MATMUL_BACKEND, MATMUL_BACKENDS), (MATMUL_PRECISION, MATMUL_PRECISIONS)
    return [
        f"{choice.name} {choice.get()}" for choice, names in choices if choice.get() != names[0]
    ]


_host_threads: ContextVar[int | None] = ContextVar("gdt.host_threads", default=None)


@partial(checked, eager=True)
def host_threads(count: int) -> Setting[int]:
    """Choose until the end of a `with` block, or from here on, how many threads of the host compute
    one op on a large block.

    count: the number of threads, at least 1. Without this setting there are as many as this process
    has cores. Element-wise functions of at least a million elements (loops of costly functions from
    some 50,000 on), and functions of whole axes (sorts, scans, Fourier transforms), are cut;
    smaller ones and sums use one thread. Results are the same bits for any number. Matrix products
    use BLAS, which has threads of its own.

    Raises ArgumentError for a count below 1.

    >>> with gdt.host_threads(1):
    ...     y = gdt.exp(gdt.ones(3))
    """
    if count < 1:
        problem = f"count is {count}"
        raise error(ArgumentError, problem, remedy="Pass 1 or more.")
    return Setting(_host_threads, count)


def host_thread_count() -> int:
    """Return the number of threads that compute one op on a large block."""
    return _host_threads.get() or CORES


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

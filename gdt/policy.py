"""Choices for a block of code: what an implicit fetch does, and what multiplies matrices."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gdt.arguments import checked
from gdt.errors import ArgumentError, MoveError, error

POLICIES = ("allow", "warn", "raise")
_policy: ContextVar[str] = ContextVar("gdt.implicit_fetch", default="allow")


class ImplicitFetchWarning(UserWarning):
    """A distributed array was fetched to the host by a NumPy function."""


@contextmanager
@checked
def implicit_fetch(policy: str) -> Iterator[None]:
    """Choose for this block what `np.asarray(x)` and NumPy functions do with a distributed array.

    policy: `"allow"` (the default) fetches it, `"warn"` does so with an ImplicitFetchWarning,
    `"raise"` raises MoveError.

    >>> import numpy as np
    >>> with gdt.implicit_fetch("raise"):
    ...     np.asarray(gdt.ones(3))
    Traceback (most recent call last):
    gdt.errors.MoveError: numpy.asarray: an implicit fetch of a distributed array to the host...
    """
    if not isinstance(policy, str) or policy not in POLICIES:
        raise error(
            ArgumentError,
            "implicit_fetch",
            f"unknown policy {policy!r}",
            remedy=f"Use one of {', '.join(POLICIES)}.",
        )
    token = _policy.set(policy)
    try:
        yield
    finally:
        _policy.reset(token)


def on_implicit_fetch(kind: object) -> None:
    """Apply the policy to an array of type `kind`."""
    policy = _policy.get()
    if policy == "allow":
        return
    problem = error(
        MoveError,
        "numpy.asarray",
        "an implicit fetch of a distributed array to the host",
        operands={"x": kind},
        remedy="Use x.numpy() to fetch it on purpose.",
    )
    if policy == "raise":
        raise problem
    warnings.warn(str(problem), ImplicitFetchWarning, stacklevel=3)


MATMUL_BACKENDS = ("handwritten", "cublas", "autotune")
MATMUL_BACKEND: ContextVar[str] = ContextVar("gdt.matmul_backend", default="handwritten")


@contextmanager
@checked
def matmul_backend(name: str) -> Iterator[None]:
    """Choose for this block what multiplies matrices on GPUs; on the host NumPy's BLAS does.

    name: `"handwritten"` (the default) is gdt's own kernel, which CUDA graphs can capture;
    `"cublas"` is NVIDIA's library; `"autotune"` times both in the first call with operands of new
    types, and keeps the faster one for those. Products that no kernel of gdt takes (of integers, of
    complex numbers) are the library's in any case; `gdt.explain` shows what ran.

    Raises ArgumentError for another name.

    >>> with gdt.matmul_backend("cublas"):
    ...     product = gdt.ones((2, 3)) @ gdt.ones((3, 2))
    """
    if not isinstance(name, str) or name not in MATMUL_BACKENDS:
        raise error(
            ArgumentError,
            "matmul_backend",
            f"unknown name {name!r}",
            remedy=f"Use one of {', '.join(MATMUL_BACKENDS)}.",
        )
    token = MATMUL_BACKEND.set(name)
    try:
        yield
    finally:
        MATMUL_BACKEND.reset(token)

"""What happens when an array is fetched to the host without being asked to: allow, warn or
raise."""

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

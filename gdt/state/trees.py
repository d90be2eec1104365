"""The values of a tree: all that is in its lists, tuples and mappings, without their places."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

from gdt.array.array import DistributedArray
from gdt.errors import NestingError, error, type_text

Tree = Any

# Most values of a tree; asking whether something is a Mapping takes longer.
LEAVES = {DistributedArray, int, float, bool, str, type(None), FunctionType}
SEQUENCES = (list, tuple)
CONTAINERS = (dict, *SEQUENCES, Mapping)  # the frequent ones first, and no union for each question


def is_container(value: Any) -> bool:
    """Whether a value is a list, tuple or mapping: part of a tree, and no leaf."""
    return type(value) not in LEAVES and isinstance(value, CONTAINERS)


def leaves(tree: Tree, *, by_name: bool = False) -> Iterator[Any]:
    """The values of a tree that are no lists, tuples or mappings, in the order of definition.

    by_name: whether those of a mapping come in the order of their keys' names.
    """
    if not is_container(tree):
        yield tree
        return
    keys: Any = range(len(tree)) if isinstance(tree, SEQUENCES) else tree
    try:
        for key in sorted(keys, key=str) if by_name and keys is tree else keys:
            yield from leaves(tree[key], by_name=by_name)
    except RecursionError:
        raise _too_deep(tree) from None


def _too_deep(container: Any) -> NestingError:
    """The error of containers nested without an end."""
    remedy = "Pass a tree: lists, tuples and mappings that hold arrays, or others of their kind."
    problem = f"{type_text(container)} holds itself, or too many in one another"
    return error(NestingError, "tree", problem, remedy=remedy)


def mapped(function: Callable[[Any], Any], tree: Tree, *, by_name: bool = False) -> Tree:
    """The tree with `function(leaf)` in the place of every leaf; its containers are new.

    by_name: whether leaves of a mapping come in the order of their keys' names.
    """
    if not is_container(tree):
        return function(tree)
    keys: Any = range(len(tree)) if isinstance(tree, SEQUENCES) else tree
    try:
        values = {
            key: function(value)
            if type(value := tree[key]) in LEAVES
            else mapped(function, value, by_name=by_name)
            for key in (sorted(keys, key=str) if by_name and keys is tree else keys)
        }
    except RecursionError:
        raise _too_deep(tree) from None
    if type(tree) is dict and not by_name:
        return values
    return with_values(tree, [values[key] for key in keys])


def with_values(like: Any, values: Iterable[Any]) -> Any:
    """Return a container of `values`, of the class of `like` and with its keys; in place of a
    mapping that is neither a dict nor a UserDict, a dict."""
    if isinstance(like, SEQUENCES):
        return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)
    pairs = zip(like, values, strict=True)
    if type(like) is dict or not isinstance(like, dict | UserDict):
        return dict(pairs)
    copied: Any = copy.copy(like)
    for key, value in pairs:  # the `update` of a Counter would add them
        copied[key] = value
    return copied


def with_leaves(tree: Tree, values: Iterable[Any]) -> Tree:
    """Return a tree with other leaves, in the order of `leaves`; its containers are new."""
    remaining = iter(values)
    return mapped(lambda _: next(remaining), tree)

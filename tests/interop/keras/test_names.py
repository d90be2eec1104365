"""Names of Keras that gdt.nn and its like lack: every one ends in a line that says where it is."""

from __future__ import annotations

import importlib

import pytest

import gdt
import gdt.interop.keras
from gdt.errors.keras_names import KERAS_NAMES

NOT_NAMES = {"serialize", "deserialize", "get", "legacy"}
MODULES = [(own, theirs) for own, modules in KERAS_NAMES.items() for theirs in modules]


def names_of(theirs: str) -> set[str]:
    module = importlib.import_module(f"keras.{theirs}")
    return {name for name in vars(module) if not name.startswith("_")} - NOT_NAMES


@pytest.mark.parametrize(("own", "theirs"), MODULES)
def test_what_keras_has_is_here_or_an_error_says_where(own: str, theirs: str) -> None:
    module = importlib.import_module(own)
    for name in sorted(names_of(theirs)):
        try:
            getattr(module, name)
        except AttributeError as e:
            assert "; write" in str(e) or f"; it is keras.{theirs}.{name}, after" in str(e), name


@pytest.mark.parametrize(("own", "theirs"), MODULES)
def test_the_table_names_what_keras_has(own: str, theirs: str) -> None:
    assert set(KERAS_NAMES[own][theirs].split()) <= names_of(theirs)


def test_a_name_that_nobody_has_is_no_word_of_keras() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'Denze'$"):
        _ = gdt.nn.Denze

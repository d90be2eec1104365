"""What gdt's backend takes from Keras' classes: of the installed version, each name is there.

What it imports is checked whenever it is imported (`gdt.interop.keras.finder`).
`make test FULL=keras` runs this on the oldest version that is supported, too.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gdt.interop.keras import keras
from gdt.interop.keras.backend import core, trainer

CLASSES = [
    "core._Assigned",
    "core._Shapes",
    "layer.NumpyLayer",
    "trainer.BatchIterator",
    "trainer.NumpyTrainer",
    "variables.Variable",
]


def example_of(name: str) -> Any:
    """An object whose class derives from one of the backend's and from Keras'."""
    if name == "layer.NumpyLayer":
        return keras.layers.Dense(2)
    if name == "trainer.NumpyTrainer":
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", metrics=["mae"])
        model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
        return model
    if name == "trainer.BatchIterator":
        return trainer.BatchIterator(np.ones((4, 3)))
    return keras.Variable(1.0) if name == "variables.Variable" else vars(core)[name[5:]]()


def class_of(name: str) -> ast.ClassDef:
    module, _, own = name.partition(".")
    path = importlib.import_module(f"gdt.interop.keras.backend.{module}").__file__
    assert path is not None
    with open(path) as file:
        body = ast.parse(file.read()).body
    return next(node for node in body if isinstance(node, ast.ClassDef) and node.name == own)


def attributes_of_self(tree: ast.AST) -> Iterator[str]:
    """The attributes that the methods of a class read of `self` and of `super()`."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("self") | ast.Call(ast.Name("super")), name, ast.Load()):
                yield name


def lacking(name: str, example: Any) -> list[str]:
    """What the version of Keras lacks, a sentence each."""
    return [
        f"keras {keras.__version__} lacks {attribute}, which {name} of gdt's backend takes from it"
        for attribute in sorted(set(attributes_of_self(class_of(name))))
        if not hasattr(example, attribute)
    ]


@pytest.mark.parametrize("name", CLASSES)
def test_keras_has_what_the_backend_takes_from_its_classes(name: str) -> None:
    assert not lacking(name, example_of(name))


def test_what_keras_lacks_is_a_sentence() -> None:
    sentences = lacking("trainer.NumpyTrainer", keras.layers.Dense(2))
    expected = "lacks _symbolic_build, which trainer.NumpyTrainer of gdt's backend takes from it"
    assert f"keras {keras.__version__} {expected}" in sentences
    assert not any("_flatten_layers" in sentence for sentence in sentences)

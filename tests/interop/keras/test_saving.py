"""Files of Keras: written and read with split variables, across layouts and backends."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from tests.interop.keras import interchange
from tests.interop.keras.interchange import PREDICTIONS, STORED, X, Y
from tests.interop.keras.layouts import COLUMNS, data_parallel, parallel

LAYOUTS = {
    "one": lambda: None,
    "data 8": lambda: data_parallel(8),
    "data 2, model 4": lambda: parallel(2, 4, COLUMNS | {".*embeddings": (None, "model")}),
}


def loaded(path: Path, layout: str) -> Any:
    keras.distribution.set_distribution(LAYOUTS[layout]())
    return keras.models.load_model(path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_that_jax_has_saved_predicts_the_same(layout: str) -> None:
    model = loaded(STORED, layout)
    np.testing.assert_allclose(model.predict(X, verbose=0), np.load(PREDICTIONS), atol=2e-6)
    assert int(model.optimizer.iterations.value) == 6  # the optimizer's state comes with it
    before = model.evaluate(X, Y, verbose=0)[0]
    model.fit(X, Y, 8, 1, verbose=0)
    assert model.evaluate(X, Y, verbose=0)[0] != before


@pytest.mark.parametrize("layout", ["one", "data 8"])
def test_a_model_saved_in_one_layout_loads_in_another(tmp_path: Path, layout: str) -> None:
    model = loaded(STORED, "data 2, model 4")
    split = [v for v in model.variables if "model" in v.value.layout.sharding_specs]
    assert len(split) > 4
    model.fit(X, Y, 8, 1, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    expected = model.predict(X, verbose=0)
    other = loaded(tmp_path / "model.keras", layout)
    variables = [*model.weights, *model.optimizer.variables]
    others = [*other.weights, *other.optimizer.variables]
    for ours, theirs in zip(variables, others, strict=True):
        assert np.array_equal(ours.numpy(), theirs.numpy())
    np.testing.assert_allclose(other.predict(X, verbose=0), expected, atol=2e-6)
    weights = interchange.built()
    weights.optimizer.build(weights.trainable_variables)
    weights.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(weights.predict(X, verbose=0), expected, atol=2e-6)


def without_identities(config: Any) -> Any:
    """Return a configuration without the addresses of objects that it shares."""
    if isinstance(config, dict):
        return {k: without_identities(v) for k, v in config.items() if k != "shared_object_id"}
    return [*map(without_identities, config)] if isinstance(config, list) else config


def contents(path: Path, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return the configuration in a .keras file, and the shapes and dtypes of its arrays."""
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
        archive.extract("model.weights.h5", folder)
    arrays: dict[str, Any] = {}
    with h5py.File(folder / "model.weights.h5") as file:
        file.visititems(
            lambda name, value: (
                arrays.update({name: (value.shape, value.dtype)})
                if isinstance(value, h5py.Dataset)
                else None
            )
        )
    return config, arrays


def test_files_have_what_those_of_jax_have(tmp_path: Path) -> None:
    loaded(STORED, "data 2, model 4").save(tmp_path / "model.keras")
    config, arrays = contents(tmp_path / "model.keras", tmp_path)
    other, others = contents(STORED, tmp_path)
    assert arrays == others
    assert without_identities(config) == without_identities(other)

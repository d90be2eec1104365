"""What Keras' users write works, or the error says what to write."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import nn
from gdt.errors import (
    ArgumentError,
    CheckpointError,
    DtypeError,
    IndexRangeError,
    ShapeError,
)

rng = np.random.default_rng(0)
X = rng.standard_normal((12, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def model() -> nn.Sequential:
    layers = [nn.Input((4,)), nn.Dense(8, activation="relu", key=0), nn.Dense(2, key=1)]
    network = nn.Sequential([*layers, nn.Activation("softmax")])
    network.compile("adam", "sparse_categorical_crossentropy", ["accuracy"])
    return network


def test_weights_are_read_and_replaced() -> None:
    one, other = model(), nn.Sequential(nn.Dense(4, 8), nn.Dense(8, 2))
    assert one.count_params() == 4 * 8 + 8 + 8 * 2 + 2
    weights = one.get_weights()
    assert [type(w) for w in weights] == [np.ndarray] * 4
    other.set_weights([w.astype(np.float64) for w in weights])
    assert all(map(np.array_equal, other.get_weights(), weights))
    assert {w.dtype.name for w in other.get_weights()} == {"float32"}
    with pytest.raises(CheckpointError, match=r"float32\[4, 8\] wanted, float32\[4\] given"):
        other.set_weights([np.zeros(4), *weights[1:]])
    with pytest.raises(ArgumentError, match=r"1 arrays for 4\n  They are layers.0.weight, "):
        other.set_weights(weights[:1])
    with pytest.raises(ArgumentError, match="call it with a batch first"):
        nn.Dense(3).set_weights(weights)


def test_layers_are_added_removed_and_found() -> None:
    network = nn.Sequential()
    network.add(nn.Input((4,)))
    network.add(nn.Dense(8))
    network.add(nn.Dense(2))
    assert [layer.weight.shape for layer in network.layers] == [(4, 8), (8, 2)]
    assert network.get_layer("layers.1") is network.get_layer(index=1) is network.pop()
    assert network(X).shape == (12, 8)
    with pytest.raises(ArgumentError, match=r"there is no 'dense'\n  There are layers.0\."):
        network.get_layer("dense")
    with pytest.raises(ArgumentError, match="an Input comes first, and there are 1 layers"):
        network.add(nn.Input((4,)))
    with pytest.raises(gdt.errors.ShapeError):
        network.add(nn.Dense(3, 1))  # which does not take 8 features
    assert len(network) == 1
    for arguments in ({}, {"name": "layers.0", "index": 0}):
        with pytest.raises(ArgumentError, match="Pass one of them"):
            network.get_layer(**arguments)
    with pytest.raises(IndexError, match="layer 1 is out of range for 1 layers"):
        network.get_layer(index=1)
    with pytest.raises(ArgumentError, match="It has no parts"):
        network.layers[0].get_layer("dense")


def test_layers_that_need_rows_are_added_in_silence() -> None:
    layers = [nn.Input((4, 4, 3)), nn.BatchNorm(3), nn.GlobalAveragePool(), nn.Dense(2)]
    network = nn.Sequential()
    for layer in layers:
        network.add(layer)
    assert network.layers[-1].weight.shape == (3, 2)
    assert nn.Sequential(layers).state().keys() == network.state().keys()


def test_a_call_may_name_its_mode() -> None:
    x = nn.Input((4,))
    for network in (nn.Sequential(nn.Dropout(0.5)), nn.Model(x, nn.Dropout(0.5)(x))):
        assert np.array_equal(network(X, training=False), X)
        assert network.training
        assert network.layers[0].training
        network.eval()
        assert (network(X, training=True).numpy() == 0).any()
        assert not network.layers[0].training


def test_a_call_of_a_subclass_is_run_once_in_either_mode() -> None:
    class Doubled(nn.Sequential):
        def __call__(self, x: Any, training: bool | None = None) -> Any:
            return super().__call__(x, training=training) * 2

    network = Doubled(nn.Dropout(0.5))
    assert np.array_equal(network(X, training=False), 2 * X)


def test_the_optimizer_of_a_compiled_model() -> None:
    network = model()
    network.optimizer.learning_rate = 0.0
    before = network.get_weights()
    network.fit(X, Y, verbose=0)
    assert all(map(np.array_equal, network.get_weights(), before))
    network.optimizer = gdt.optim.SGD(0.0)
    network.fit(X, Y, verbose=0)
    assert network.optimizer.steps == 1 and isinstance(network.compiled.optimizer, gdt.optim.SGD)
    network.optimizer = gdt.optim.SGD(0.0)
    other = nn.Sequential()
    other.optimizer = network.optimizer
    with pytest.raises(ArgumentError, match="an attribute `optimizer` of its own"):
        other.compile("sgd", "mse")
    decay = gdt.optim.schedules.ExponentialDecay(0.1, decay_steps=10, decay_rate=0.5)
    network.compile(gdt.optim.SGD(decay), "sparse_categorical_crossentropy")
    network.fit(X, Y, verbose=0)
    assert network.optimizer.learning_rate(10) == pytest.approx(0.05)


def test_lists_of_inputs_validate_and_are_one_batch() -> None:
    inputs, rows = [nn.Input((4,)), nn.Input((4,))], [0]
    counted = nn.Activation(lambda x: rows.append(len(x)) or x)
    outputs = nn.Dense(2, activation="softmax", key=0)(counted(inputs[0] + inputs[1]))
    network = nn.Model(inputs, outputs)
    network.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    held_out = [([X, X], Y), ([X, X], Y.tolist()), ([X, X], Y, np.ones(12, "float32"))]
    for data in (*held_out, [((X, X), Y)] * 2):
        history = network.fit([X, X], Y, epochs=1, verbose=0, validation_data=data)
        assert history["val_loss"] == [network.evaluate([X, X], Y, verbose=0)]
    assert network.predict_on_batch([X, X]).shape == (12, 2)
    assert network.test_on_batch([X, X], Y) == network.train_on_batch([X, X], Y)
    assert rows[-3:] == [12, 12, 12]


class Stepping(nn.Sequential):
    """A model whose own steps do what those of gdt do, and note that they were called."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, *weights = data
        with gdt.GradientTape() as tape:
            predictions = self(x)
            loss = self.compute_loss(x, y, predictions, *weights)
        self.optimizer.update(self, tape.gradient(loss, self))
        return {"loss": loss, "double": 2 * loss}

    def test_step(self, data: Any) -> dict[str, Any]:
        return {**super().test_step(data), "rows": gdt.asarray(float(len(data[0])))}


class Penalised(nn.Sequential):
    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        assert x.shape == (len(y), 4)
        loss = nn.losses.sparse_softmax_cross_entropy(y, y_pred, "none")
        penalty = sum(gdt.sum(w * w) for w in self.parameters().values())
        return gdt.mean(loss if sample_weight is None else loss * sample_weight) + penalty


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("blocks", [1, 4])
def test_steps_of_a_subclass_are_called_as_in_keras(
    blocks: int, eager: bool, tmp_path: Any
) -> None:
    def made(cls: type[nn.Sequential], loss: Any, metrics: Any = None) -> nn.Sequential:
        with gdt.MirroredStrategy(mesh=gdt.create_mesh([("rows", 4)], blocks=blocks)).scope():
            model = cls(nn.Dense(8, activation="relu", key=1), nn.Dense(2, key=2))
        model.compile("sgd", loss, metrics, run_eagerly=eager)
        return model

    fit = lambda model, **options: model.fit(
        X, Y, 5, epochs=3, shuffle=False, verbose=0, validation_data=(X[:7], Y[:7]), **options
    )
    loss, weights = "sparse_softmax_cross_entropy", np.linspace(0, 2, 12, dtype="float32")
    plain, own = made(nn.Sequential, loss), made(Stepping, loss, ["auc"])
    with pytest.raises(gdt.errors.ShapeError):
        fit(own)  # auc does not fit two outputs: test_step of gdt measures it, train_step does not
    own = made(Stepping, loss)
    history, expected = (fit(model, sample_weight=weights) for model in (own, plain))
    assert [*history.history] == ["loss", "double", "val_loss", "val_rows"]
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-6)
    np.testing.assert_allclose(history["double"], 2 * np.array(history["loss"]), rtol=1e-6)
    assert history["val_rows"] == [pytest.approx((5 * 5 + 2 * 2) / 7)] * 3
    assert own.evaluate(X, Y, verbose=0, return_dict=True)["rows"] == 12
    assert own.train_on_batch(X, Y, return_dict=True).keys() == {"loss", "double"}
    penalised = made(Penalised, None)
    first = fit(penalised, resume=tmp_path)["loss"][0]
    again = made(Penalised, None)
    assert first == pytest.approx(fit(again)["loss"][0])
    assert first > expected["loss"][0] + 1
    resumed = made(Penalised, None)
    history = resumed.fit(X, Y, 5, epochs=4, shuffle=False, verbose=0, resume=tmp_path)
    assert [*history.epoch] == [0, 1, 2, 3]
    again.fit(X, Y, 5, epochs=1, shuffle=False, verbose=0)
    assert all(map(np.array_equal, resumed.get_weights(), again.get_weights()))


def compiled_of(loss: Any = "mse", **methods: Any) -> Any:
    network = type("Own", (nn.Sequential,), methods)(nn.Dense(4, 1))
    network.compile("sgd", loss)
    return network


@pytest.mark.parametrize(
    ("methods", "problem"),
    [
        ({"train_step": lambda self, data: None}, "train_step: it returned None.*a dict of arrays"),
        ({"train_step": lambda self, data: {}}, "train_step: it returned an empty dict"),
        (
            {"train_step": lambda self, data: {"loss": 1.0}},
            "'loss', returned a float, not an array",
        ),
        ({"train_step": lambda self, data: {"val_loss": self(data[0])}}, "called 'val_loss'"),
        ({"compute_loss": lambda self, **_: 1.0}, "compute_loss returned a float"),
        ({"compute_metrics": lambda self: {}}, "Own defines compute_metrics, which nothing calls"),
        ({"predict_step": lambda self, data: data}, "Own defines predict_step"),
        ({"make_train_function": lambda self: None}, "Own defines make_train_function"),
        ({"loss": None, "train_step": lambda self, data: {"a": self(data[0])}}, "there is no loss"),
        ({"loss": None, "test_step": lambda self, data: {}}, "there is no loss"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_own_steps_that_return_no_results_are_an_error(methods: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=f"(?s){problem}"):
        network = compiled_of(**methods)
        network.fit(X, Y[:, None].astype("float32"), verbose=0)
        network.evaluate(X, Y[:, None].astype("float32"), verbose=0)


def test_a_history_is_a_mapping() -> None:
    network = model()
    history = network.fit(X, Y, epochs=2, verbose=0, validation_data=(X, Y))
    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert list(history) == names and len(history) == 4 and dict(history) == history.history
    assert "val_loss" in history and "auc" not in history and history.get("auc") is None
    assert isinstance(history, Mapping) and {**history} == history.history
    network.history = history  # which is no part of the model's state
    assert not any("history" in slot.name for slot in gdt.state.slots(network))


def test_slices_of_a_sequential_are_models_of_its_layers() -> None:
    network = model()
    part = network[:2]
    assert type(part) is nn.Sequential and part.layers == network.layers[:2]
    assert np.array_equal(part(X), network.layers[1](network.layers[0](X)))
    assert len(network[-1:]) == 1 and len(network[5:]) == 0


def test_an_optimizer_is_set_by_name_and_order_of_rows_depends_on_the_seed() -> None:
    network = model()
    network.optimizer = "adagrad"
    network.fit(X, Y, verbose=0)
    assert type(network.optimizer) is gdt.optim.Adagrad and network.optimizer.steps == 1
    network.optimizer = "adamm"
    with pytest.raises(ArgumentError, match="'adamm' is no optimizer"):
        network.fit(X, Y, verbose=0)

    rows: list[Any] = []

    class Seeing(nn.Sequential):
        def __call__(self, x: Any) -> Any:
            rows.append(x[:, 0].tolist())
            return super().__call__(x)

    orders = []
    for seed, draws in ((5, 0), (5, 1), (5, 2), (6, 0), (7, 0)):
        seeing = Seeing(nn.Dense(4, 2, key=0))
        seeing.compile("sgd", "sparse_softmax_cross_entropy", run_eagerly=True)
        gdt.random.seed(seed)
        for _ in range(draws):
            gdt.random.normal((2,))
        seeing.fit(X, Y, 12, verbose=0)
        orders.append(tuple(rows[-1]))
    assert len(set(orders)) == 5


def test_names_of_callbacks_that_nothing_calls_are_told() -> None:
    class Noting(gdt.training.Callback):
        def on_epoch_ends(self, epoch: int, logs: Any = None) -> None:
            raise AssertionError

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            raise AssertionError

    close = pytest.warns(UserWarning, match="on_epoch_ends of the callback Noting is never called")
    with (
        close,
        pytest.warns(UserWarning, match="on_test_batch_end of the callback Noting is"),
    ):
        model().fit(X, Y, verbose=0, callbacks=[Noting()])


@pytest.mark.parametrize("steps", [4, 5])
def test_data_that_end_between_epochs_end_the_training_with_a_warning(steps: int) -> None:
    network, calls = model(), []
    ending = gdt.training.LambdaCallback(on_train_end=lambda logs: calls.append(logs["loss"]))
    batches = ((X, Y) for _ in range(steps))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        history = network.fit(batches, steps_per_epoch=2, epochs=5, verbose=0, callbacks=[ending])
    texts = [str(warning.message) for warning in told]
    assert len(history.steps) == steps and history.epoch == [*range((steps + 1) // 2)]
    assert texts[-1].endswith(f"the data ended after epoch {(steps + 1) // 2} of 5; training ends")
    assert len(texts) == 1 + steps % 2 and calls == [history["loss"][-1]]
    with pytest.raises(ArgumentError, match="there is no batch"):
        network.fit(iter([]), steps_per_epoch=2, epochs=5, verbose=0)


def test_single_rows_and_lists_of_batches_are_told_apart() -> None:
    network = nn.Sequential(nn.Dense(4, 2, key=1))
    with pytest.raises(ShapeError, match=r"x has 4 rows, and the predictions .* \[2\]"):
        network.predict(X[0], verbose=0)
    network.compile("sgd", "sparse_softmax_cross_entropy")
    network.fit(X, Y, verbose=0)
    with pytest.raises(ShapeError, match=r"from an iterator, iter\(\[x1, x2\]\)"):
        network.predict([X, X], verbose=0)
    assert network.predict(iter([X, X]), verbose=0).shape == (24, 2)


def test_validation_data_of_several_inputs_and_targets_are_no_batches() -> None:
    inputs = [nn.Input((4,)), nn.Input((4,))]
    network = nn.Model(inputs, [nn.Dense(2, key=1)(inputs[0]), nn.Dense(2, key=2)(inputs[1])])
    loss = nn.losses.sparse_softmax_cross_entropy
    network.compile("sgd", lambda y, p: loss(y[0], p[0]) + 2 * loss(y[1], p[1]))
    data = ((X, 2 * X), (Y, 1 - Y))
    history = network.fit(list(data[0]), list(data[1]), verbose=0, validation_data=data)
    expected = network.evaluate(list(data[0]), list(data[1]), verbose=0)
    assert history["val_loss"] == [pytest.approx(expected)]
    with pytest.raises(ShapeError, match=r"in a list of pairs"):
        model().fit(X, Y, verbose=0, validation_data=((X, Y), (X, Y)))


def test_causal_convolutions_see_no_later_element() -> None:
    layer = nn.Conv1D(3, 3, padding="causal", dilation=2, key=0)
    x = gdt.random.normal((2, 9, 4), dtype="float32")
    y, start = layer(x), layer(x[:, :5])
    np.testing.assert_allclose(y[:, :5], start, rtol=1e-5, atol=1e-6)


def test_symbols_have_the_operators_of_arithmetic() -> None:
    x, w = nn.Input((4,)), gdt.ones((4, 2), "float32")
    network = nn.Model(x, 2 / (x**2 + 1) @ w)
    np.testing.assert_allclose(network(X), (2 / (X**2 + 1)) @ np.ones((4, 2)), rtol=1e-5)
    y, matrix, columns = nn.Input((4, 1)), np.ones((3, 4), "float32"), X[..., None]
    result = nn.Model(y, matrix @ 2.0**y)(columns)
    np.testing.assert_allclose(result, matrix @ 2**columns, rtol=1e-5)


def test_a_summary_of_ids(capsys: pytest.CaptureFixture[str]) -> None:
    nn.Sequential(nn.Embedding(10, 4), nn.Dense(3)).summary((6,))
    assert "layers.1 Dense        (None, 6, 3)" in capsys.readouterr().out


def test_weights_of_classes_in_a_step() -> None:
    one, other = model(), model()
    one.train_on_batch(X, Y, class_weight={0: 3.0})
    other.train_on_batch(X, Y, np.where(Y == 0, 3.0, 1.0).astype(np.float32))
    assert all(map(np.array_equal, one.get_weights(), other.get_weights()))


def test_callbacks_under_earlier_names_of_base_classes_and_of_predictions() -> None:
    class Noting(gdt.training.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            self.calls.append("batch")

        def on_test_end(self, logs: Any = None) -> None:
            self.calls.append(f"test {sorted(logs)}")

        def on_predict_begin(self, logs: Any = None) -> None:
            self.calls.append(type(self.model).__name__)

    class Inherited(Noting):
        pass

    network, callback = model(), Inherited()
    network.fit(X, Y, batch_size=6, verbose=0, callbacks=[callback])
    network.evaluate(X, Y, verbose=0, callbacks=[callback])
    network.predict(X, verbose=0, callbacks=callback)
    assert callback.calls == ["batch", "batch", "test ['accuracy', 'loss']", "Sequential"]


@pytest.mark.parametrize(
    ("run", "error_type", "message"),
    [
        (lambda: model().trainable_variables, AttributeError, "write model.parameters()"),
        (lambda: nn.Dense(2).optimizer, AttributeError, "compile(optimizer, loss) first"),
        (lambda: gdt.optim.Adam().iterations, AttributeError, "write optimizer.steps"),
        (lambda: nn.InputLayer, AttributeError, "write gdt.nn.Input"),
        (lambda: nn.ReLU, AttributeError, 'write gdt.nn.Activation("relu")'),
        (lambda: gdt.callbacks, AttributeError, "write gdt.training"),
        (lambda: gdt.nothing, AttributeError, "module 'gdt' has no attribute 'nothing'"),
        (lambda: nn.losses.Huber, AttributeError, "write gdt.nn.losses.huber"),
        (lambda: gdt.metrics.Accuracy, AttributeError, 'write metrics=["accuracy"]'),
        (lambda: gdt.jit, AttributeError, "write gdt.function"),
        (lambda: gdt.random.randn, AttributeError, r"write gdt.random.normal(shape)"),
        (lambda: gdt.ones(2).backward, AttributeError, "write gdt.grad(f)(x)"),
        (lambda: nn.Dense(units=3), ArgumentError, "Keras' units is output_size here."),
        (lambda: nn.Embedding(input_dim=3), ArgumentError, "Keras' input_dim is count here."),
        (lambda: nn.Dense(3, name="a"), ArgumentError, "Names are ways through the object"),
        (lambda: gdt.optim.Adam(beta_1=0.9), ArgumentError, "Keras' beta_1 is beta1 here."),
        (lambda: gdt.optim.Adam(lr=0.1), ArgumentError, "Keras' lr is learning_rate here."),
        (lambda: nn.Sequential(nn.Dense(2), 3), ArgumentError, "layer 1 is 3, neither"),
        (lambda: nn.Sequential().add(nn.Dense), ArgumentError, "layer 0 is the class Dense"),
        (lambda: nn.Input((None, 4)), ShapeError, "None in shape (None, 4) is no size"),
        (lambda: nn.Dense(3, 2)(X), ShapeError, "and the layer takes 3 features"),
        (lambda: gdt.optim.Adam(clipnorm=1.0), ArgumentError, "clip_norm=1.0"),
        (
            lambda: gdt.optim.schedules.CosineDecay(initial_learning_rate=1.0),
            ArgumentError,
            "Keras' initial_learning_rate is initial here.",
        ),
        (lambda: type("Net", (nn.Module,), {"call": 1})()(X), NotImplementedError, "rename its"),
        (
            lambda: type("Net", (nn.Module,), {"forward": 1})()(X),
            NotImplementedError,
            "rename its forward",
        ),
        (lambda: nn.Flatten("channels_first"), ArgumentError, "no arguments, and 'channels_first'"),
        (lambda: nn.GlobalMaxPool(keepdims=True), ArgumentError, "keepdims=True is given"),
        (lambda: nn.Dense(in_features=3), ArgumentError, "PyTorch's in_features is input_size"),
        (
            lambda: nn.LSTM(4)(X, initial_state=X),
            ArgumentError,
            "LSTM: got an unexpected keyword argument",
        ),
        (lambda: model().state_dict(), AttributeError, "write model.state()"),
        (lambda: model().forward(X), AttributeError, "write model(x)"),
        (lambda: nn.Concatenate()(X), ArgumentError, "arrays is an ndarray, not a list of arrays"),
        (lambda: nn.Add()([]), ArgumentError, "arrays is empty"),
        (lambda: nn.Embedding(5, 2)([0, -1]), IndexRangeError, "Embedding: index -1 is out of"),
        (lambda: nn.BatchNorm(momentum=2.0), ArgumentError, "momentum is 2.0"),
        (lambda: nn.LayerNorm(epsilon=-1), ArgumentError, "epsilon is -1"),
        (lambda: nn.GroupNorm(3, 7), ArgumentError, "3 groups do not divide 7 channels"),
        (lambda: list(nn.Input((4,))), DtypeError, "Make the function a layer"),
        (lambda: nn.Input((4,)).mean(), AttributeError, "Make the function a layer"),
        (lambda: gdt.sin(nn.Input((4,))), DtypeError, "Make the function a layer"),
        (
            lambda: nn.MultiHeadAttention(2)(gdt.ones((3, 6, 4)), mask=gdt.ones((3, 6), bool)),
            ShapeError,
            "(batch, others), is mask[:, None, :]",
        ),
        (lambda: gdt.grad(gdt.sum)(3.0), DtypeError, "Make an array of it with gdt.asarray"),
        (lambda: type("Net", (nn.Model,), {"call": 1}), ArgumentError, "class Net(gdt.nn.Module)"),
    ],
)
def test_errors_say_what_to_write(run: Any, error_type: Any, message: str) -> None:
    with pytest.raises(error_type) as caught:
        run()
    assert message in str(caught.value)


def test_an_attribute_that_a_property_lacks_is_named() -> None:
    class Net(nn.Module):
        @property
        def width(self) -> int:
            return self.hidden.width

        @property
        def weights(self) -> int:
            return self.hidden.weights

    for read in (lambda: Net().width, lambda: Net().weights):
        with pytest.raises(AttributeError, match=r"^'Net' object has no attribute 'hidden'$"):
            read()


def test_arrays_do_not_list_the_names_of_other_libraries() -> None:
    assert not hasattr(gdt.ones(2), "cpu") and not hasattr(gdt.DistributedArray, "cpu")
    assert not {*gdt.errors.foreign_names.ARRAYS} & {*dir(gdt.ones(2))}


def test_what_errors_say_to_write_is_there() -> None:
    words = gdt.errors.foreign_names
    for name in (*words.LOSSES.values(), *words.MODULES.values(), *nn.KERAS_NAMES.values()):
        place: Any = gdt
        for part in (
            name.removeprefix("gdt.").split(",")[0].split("(")[0].split(" and ")[0].split(".")
        ):
            place = (
                getattr(place, part, None) or getattr(nn, part, None) or getattr(nn.losses, part)
            )
        assert place is not None


def test_fit_draws_no_random_numbers_for_rows_that_it_leaves_in_order() -> None:
    network = model()
    before = gdt.random.generator.state
    network.fit(X, Y, 5, shuffle=False, verbose=0)
    network.fit([(X, Y)], verbose=0)  # whose batches are the program's
    assert gdt.random.generator.state == before
    network.fit(X, Y, 5, verbose=0)
    assert gdt.random.generator.state != before


def test_weights_without_targets_are_refused() -> None:
    """They would be taken for the targets."""
    for method in ("fit", "evaluate"):
        with pytest.raises(ArgumentError, match=f"{method}: there are no targets y"):
            getattr(model(), method)(X, sample_weight=np.ones(len(X)), verbose=0)

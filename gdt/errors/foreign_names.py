"""Words of Keras, JAX, PyTorch and NumPy for what has another name in gdt: errors say what to write
in their place."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Mapping
from types import ModuleType

from gdt.errors.keras_names import module_of_keras

ARGUMENTS = {
    "units": ("output_size",), "input_dim": ("input_size", "count"), "output_dim": ("size",),
    "filters": ("channels",), "kernel_size": ("size",), "pool_size": ("size",),
    "dilation_rate": ("dilation",), "num_heads": ("heads",), "key_dim": ("head_size",),
    "kernel_initializer": ("initializer",), "embeddings_initializer": ("initializer",),
    "return_sequences": ("sequences",), "return_state": ("states",), "go_backwards": ("backwards",),
    "beta_1": ("beta1",), "beta_2": ("beta2",), "initial_learning_rate": ("initial",),
    "alpha": ("final",), "lr": ("learning_rate",), "initial_state": ("state",),
    "attention_mask": ("mask",), "query": ("x",), "value": ("context",), "inputs": ("x",),
}  # fmt: skip
"""Arguments by their names in Keras: the names that they may have in gdt."""

TORCH_ARGUMENTS = {
    "in_features": ("input_size",), "out_features": ("output_size",),
    "in_channels": ("input_channels",), "out_channels": ("channels",), "stride": ("strides",),
    "num_embeddings": ("count",), "embedding_dim": ("size",), "hidden_size": ("units",),
    "num_groups": ("groups",), "eps": ("epsilon",), "bias": ("use_bias",), "p": ("rate",),
    "embed_dim": ("size",),
}  # fmt: skip
"""Arguments by their names in PyTorch."""

CLIPPING = 'Write model.compile("adam", loss, clip_norm=1.0), which clips all gradients together.'
NAMING = "Names are ways through the object, such as layers.0.weight."
SIZING = "Write gdt.nn.Input((8,)) as the first layer, or call the model with a batch."
LOADING = (
    "Leave it out. A loader of grain or PyTorch as x has workers of its own, and "
    "gdt.Trainer(...).fit(batches, prefetch=2) takes batches ahead on a thread."
)
REMEDIES = {
    "name": NAMING,
    "input_shape": SIZING, "batch_input_shape": SIZING,
    "clipnorm": CLIPPING, "clipvalue": CLIPPING, "global_clipnorm": CLIPPING,
    "weight_decay": "Write gdt.optim.AdamW(rate, decay).",
    "kernel_regularizer": "Write gdt.optim.AdamW(rate, decay), or add the term to the loss.",
    "shuffle": "Pass seed=0: rows are shuffled where there is a seed.",
    "feature_columns": "Leave it out: all columns that input_fn returns are features.",
    "model_dir": "Leave it out, and save an estimator with pickle or joblib.",
    "config": "Write strategy=gdt.MirroredStrategy(2).",
    "custom_objects": "Register classes and functions before: @gdt.saving.register.",
    "safe_mode": "Leave it out: nothing of a file is executed.",
    "workers": LOADING, "use_multiprocessing": LOADING, "max_queue_size": LOADING,
    "mask_zero": "Pass layers a mask, and losses sample weights of 0 where a token is padding.",
}  # fmt: skip
"""What to write in place of arguments that gdt's functions do not have."""

STATE = "model.state(), or model.get_weights() for NumPy arrays"
TRAINED = "model.parameters(), tape.gradient(loss, model) and optimizer.update(model, gradients)"
SYMBOLS = "gdt.nn.Model(x, layer(x)) with x = gdt.nn.Input((8,))"
SAVING = "model.save(path) and gdt.load_model(path)"
CALL = "model(x)"
PREDICTED = "model.predict(x), and its argmax(-1) for classes"
STEP = "loss, gradients = gdt.value_and_grad(f)(model) and optimizer.update(model, gradients)"
PLACED = "gdt.nn.LayoutMap(mesh).apply(model): layouts say which devices hold its arrays"
PRECISION = 'gdt.nn.mixed_precision(model, "bfloat16")'
ATTRIBUTES = {
    "weights": STATE, "variables": STATE, "non_trainable_weights": STATE,
    "trainable_weights": TRAINED, "trainable_variables": TRAINED, "apply_gradients": TRAINED,
    "save_weights": "gdt.checkpoint.save(path, model)",
    "load_weights": "gdt.checkpoint.restore(path, model)",
    "to_json": SAVING, "get_config": SAVING, "from_config": SAVING,
    "optimizer": "model.compile(optimizer, loss) first",
    "history": "history = model.fit(x, y)",
    "metrics_names": "list(model.evaluate(x, y, return_dict=True))",
    "build": "model(batch), or gdt.nn.Input((8,)) as the first layer",
    "name": "dict(model.modules()) for the names of all parts",
    "inputs": SYMBOLS, "outputs": SYMBOLS, "input": SYMBOLS, "output": SYMBOLS,
    "add_loss": "a loss (y, predictions) that adds the term",
    "add_weight": "self.weight = gdt.zeros(shape), or an initializer of gdt.nn.initializers",
    "iterations": "optimizer.steps", "lr": "optimizer.learning_rate",
    "clone_model": SAVING,
    "call": CALL, "forward": CALL, "predict_proba": PREDICTED, "predict_classes": PREDICTED,
    "fit_generator": "model.fit(batches)", "metrics": "model.compiled.metrics",
    "loss": "model.compiled.loss", "state_dict": "model.state()",
    "load_state_dict": "model.load(state), or gdt.load_weights(model, path)",
    "named_modules": "model.modules()", "children": "model.modules()",
    "named_children": "model.modules()", "requires_grad_": "model.freeze()",
    "requires_grad": "model.freeze()", "zero_grad": STEP, "backward": STEP, "step": STEP,
    "minimize": STEP,
    "to": PLACED, "cuda": PLACED, "cpu": "model.get_weights() for NumPy arrays",
    "half": PRECISION, "bfloat16": PRECISION, "float": PRECISION,
}  # fmt: skip
"""What to write in place of attributes of models, layers and optimizers."""

LOSSES = {
    "SparseCategoricalCrossentropy": "sparse_softmax_cross_entropy, which takes logits",
    "CategoricalCrossentropy": "softmax_cross_entropy, which takes logits",
    "BinaryCrossentropy": "sigmoid_cross_entropy, which takes logits",
    "MeanSquaredError": "mean_squared_error", "MeanAbsoluteError": "mean_absolute_error",
    "Huber": "huber", "KLDivergence": "kl_divergence",
    "mse": "mean_squared_error", "MSE": "mean_squared_error",
    "mae": "mean_absolute_error", "MAE": "mean_absolute_error",
    "kld": "kl_divergence", "KLD": "kl_divergence",
    "CrossEntropyLoss": "sparse_softmax_cross_entropy", "MSELoss": "mean_squared_error",
    "L1Loss": "mean_absolute_error", "HuberLoss": "huber", "KLDivLoss": "kl_divergence",
    "BCELoss": "binary_crossentropy", "BCEWithLogitsLoss": "sigmoid_cross_entropy",
}  # fmt: skip
METRICS = dict.fromkeys(
    ("Accuracy", "SparseCategoricalAccuracy", "CategoricalAccuracy", "BinaryAccuracy"),
    'metrics=["accuracy"]',
) | {
    "MeanSquaredError": 'metrics=["mse"]', "MeanAbsoluteError": 'metrics=["mae"]',
    "TopKCategoricalAccuracy": 'metrics=["top_k_accuracy"]',
    "SparseTopKCategoricalAccuracy": 'metrics=["top_k_accuracy"]',
}  # fmt: skip
"""Keras' classes of losses and metrics, and what gdt has in their place."""

MODULES = {
    "keras": "gdt.nn", "layers": "gdt.nn", "models": "gdt.nn", "losses": "gdt.nn.losses",
    "optimizers": "gdt.optim", "callbacks": "gdt.training", "Model": "gdt.nn.Model",
    "Sequential": "gdt.nn.Sequential", "utils": "gdt.one_hot and gdt.random.seed",
}  # fmt: skip
"""Keras' modules, and the modules of gdt that have what they have."""


NAMES = {
    **MODULES,
    "jit": "gdt.function, which records a step", "device_put": "gdt.asarray(x, layout=layout)",
    "estimators": "import gdt.estimators, which needs scikit-learn",
    "distribute": "gdt.MirroredStrategy", "distribution": "gdt.ModelParallel",
    "Variable": "gdt.asarray", "constant": "gdt.asarray", "no_grad": "gdt.stop_gradient",
    "device_get": "np.asarray(x)", "tensor": "gdt.asarray", "from_numpy": "gdt.asarray",
}  # fmt: skip
RANDOM = {
    "rand": "gdt.random.uniform(shape)", "randn": "gdt.random.normal(shape)",
    "randint": "gdt.random.integers(low, high, shape)",
    "RandomState": "gdt.random.default_rng(seed)", "PRNGKey": "gdt.random.key(seed)",
    "bit_generator": "rng.state, the key and the number of draws: there are no streams of bits",
    **{name: f"gdt.asarray(np.random.default_rng(seed).{name}(...), layout=layout): gdt lacks it"
       for name in ("hypergeometric", "multivariate_hypergeometric", "vonmises")},
}  # fmt: skip
MOVING = "gdt.relayout(x, layout): the layout says which devices hold the array"
ARRAYS = {
    "cpu": "np.asarray(x)", "to": MOVING, "cuda": MOVING, "detach": "gdt.stop_gradient(x)",
    "backward": "gdt.grad(f)(x), or a gdt.GradientTape",
    "requires_grad": "gdt.grad(f)(x), or a gdt.GradientTape",
}  # fmt: skip
"""What to write in place of names of JAX, PyTorch and NumPy: of modules, of random numbers, and of
arrays."""


class Absent:
    """An attribute that instances lack, whose AttributeError says what to write. (A `__getattr__`
    would make all attributes of the class slower.)"""

    def __init__(self, name: str, words: Mapping[str, str]) -> None:
        self._name, self._words = name, words

    def __get__(self, instance: object, owner: type) -> object:
        raise no_attribute(owner if instance is None else instance, self._name, self._words)


def remedy_for(arguments: Collection[str], parameters: Collection[str]) -> str:
    """Return what to write in place of the first of these arguments that is no parameter of a
    function, but Keras' name for one or for what gdt says otherwise, or like the name of one; "" if
    there is none."""
    for argument in arguments:
        if argument in parameters:
            continue
        for owner, words in (("Keras'", ARGUMENTS), ("PyTorch's", TORCH_ARGUMENTS)):
            if own := [name for name in words.get(argument, ()) if name in parameters]:
                return f"{owner} {argument} is {own[0]} here."
        if argument in REMEDIES:
            return REMEDIES[argument]
        if nearest := difflib.get_close_matches(argument, parameters, 1):
            return f"Write {nearest[0]} in place of {argument}."
    return ""


def no_attribute(
    owner: object, name: str, words: Mapping[str, str], prefix: str = ""
) -> AttributeError:
    """Return the error of an object, or a module, that has no attribute of that name.

    owner: the object, or the name of the module. words: what to write in place of Keras' names,
    after `prefix`.
    """
    if isinstance(owner, str):
        text, owner = f"module {owner!r}", sys.modules[owner]
    else:
        text = f"{type(owner).__name__!r} object"
    text += f" has no attribute {name!r}"
    if name in words:
        text += f"; write {prefix}{words[name]}"
    elif module := module_of_keras(owner.__name__, name) if isinstance(owner, ModuleType) else "":
        text += f"; it is keras.{module}.{name}, after import gdt.interop.keras"
    return AttributeError(text, name=name, obj=owner)


def missing_names(module: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a module of gdt that has no words of its own for Keras' names."""

    def __getattr__(name: str) -> object:
        raise no_attribute(module, name, {})

    return __getattr__

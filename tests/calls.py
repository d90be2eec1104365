"""One call that works of every public function, class and method: where hostile arguments start.

`CALLS` maps a dotted name below `gdt` to a function that makes fresh positional and keyword
arguments. Ops and functions of `gdt.array.registry.FUNCTIONS` take theirs from `tests/samples`.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import gdt
from gdt.array.registry import FUNCTIONS

from .compositions import COMPOSED, CREATIONS
from .samples import SAMPLES

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

MESH = gdt.create_mesh([("x", 2), ("y", 2)])
OTHER = gdt.create_mesh([("z", 3)])
ROWS = gdt.Layout(["x", None], MESH)
SPLIT = gdt.Layout(["x"], MESH)
LOGITS = gdt.asarray(np.linspace(0, 1, 12).reshape(4, 3), layout=ROWS)
LABELS = gdt.asarray([0, 1, 2, 0], layout=SPLIT)
X = gdt.ones((4, 2), layout=ROWS)
V = gdt.ones((4,), layout=SPLIT)


def _entered(manager: Callable[..., Any]) -> Callable[..., Any]:
    """A function that enters what `manager` returns, and leaves it."""

    @functools.wraps(manager)
    def call(*args: Any, **kwargs: Any) -> None:
        with manager(*args, **kwargs):
            pass

    return call


def _reset(set_mesh: Callable[..., Any]) -> Callable[..., Any]:
    """`set_mesh`, after which the default mesh is what it was."""

    def call(*args: Any, **kwargs: Any) -> None:
        try:
            set_mesh(*args, **kwargs)
        finally:
            gdt.set_default_mesh(None)

    return call


def _fresh() -> gdt.DistributedArray:
    """An array that a call may write."""
    return gdt.ones((4, 2), layout=ROWS)


def _abstract(devices: int = 2) -> gdt.DistributedArray:
    mesh = gdt.create_mesh([("a", devices)], device_type="abstract")
    return gdt.ones((4, 2), layout=gdt.Layout(["a", None], mesh))


def _make_step(plan: Any) -> Callable[[], Any]:
    with gdt.default_mesh(plan.mesh):
        model = plan.apply(gdt.nn.Dense(4, 2))
    x = gdt.ones((4, 4), "float32", layout=plan.batch_layout(2))
    return lambda: gdt.grad(lambda model: gdt.mean(model(x)))(model)


def _square(x: Any) -> Any:
    return gdt.sum(gdt.multiply(x, x))


def _tape() -> tuple[gdt.GradientTape, Any]:
    with gdt.GradientTape(persistent=True) as tape:
        loss = _square(X)
    return tape, loss


def _alike() -> list[gdt.nn.Dense]:
    """Return blocks of a pipeline."""
    return [gdt.nn.Dense(2, 2, gdt.Layout([None, None], MESH), key=n) for n in range(2)]


def _model() -> gdt.nn.Sequential:
    return gdt.nn.Sequential(gdt.nn.Dense(2, 3, gdt.Layout([None, "y"], MESH), key=0))


def _symbols() -> tuple[Any, Any]:
    x = gdt.nn.Input((2,), "float64")
    return x, gdt.nn.Dense(2, 3, key=0, dtype="float64")(x)


def _path() -> Path:
    return Path(tempfile.mkdtemp(prefix="gdt-calls-")) / "saved.safetensors"


def _saved() -> Path:
    return gdt.checkpoint.save(_path(), {"w": X})


def _binary() -> Path:
    path = _path()
    np.arange(4.0).tofile(path)
    return path


def _array_file() -> Path:
    path = _path().with_suffix(".npy")
    np.save(path, np.arange(4.0))
    return path


def _layouts() -> gdt.nn.LayoutMap:
    layouts = gdt.nn.LayoutMap(MESH)
    layouts[".*"] = [None, "x"]
    return layouts


def _trainer() -> gdt.training.Trainer:
    return gdt.training.Trainer(_model(), gdt.optim.SGD(0.1), gdt.nn.losses.mean_squared_error)


def _batches() -> list[Any]:
    return [(X, gdt.ones((4, 3), layout=ROWS))]


def _updated() -> tuple[Any, ...]:
    return {"w": X}, {"w": X}


def _of_samples(name: str) -> Callable[[], Call]:
    sample = (SAMPLES.get(name) or COMPOSED[name])[0]
    return lambda: (FUNCTIONS[name], sample.args, dict(sample.static))


def _of_numbers(name: str) -> Callable[[], Call]:
    args, static = CREATIONS[name][0]
    return lambda: (FUNCTIONS[name], args, dict(static))


losses, initializers, random, optim = gdt.nn.losses, gdt.nn.initializers, gdt.random, gdt.optim

# name: a function that makes (callable, args, kwargs)
CALLS: dict[str, Callable[[], Call]] = {
    **{name: _of_samples(name) for name in gdt.__all__ if name in SAMPLES},
    **{name: _of_samples(name) for name in gdt.__all__ if name in COMPOSED},
    **{name: _of_numbers(name) for name in CREATIONS},
    "apply_along_axis": lambda: (gdt.apply_along_axis, (lambda x: x * 2, 1, X), {}),
    "apply_over_axes": lambda: (gdt.apply_over_axes, (gdt.sum, X, 0), {}),
    "frombuffer": lambda: (gdt.frombuffer, (b"ab", "u1", 2, 0), {"layout": SPLIT}),
    "fromfile": lambda: (gdt.fromfile, (_binary(), "f8"), {"layout": SPLIT}),
    "fromiter": lambda: (gdt.fromiter, ([1, 2, 3, 4], "f8", 4), {"layout": SPLIT}),
    "fromstring": lambda: (gdt.fromstring, ("1 2", "f8", 2), {"sep": " ", "layout": SPLIT}),
    "genfromtxt": lambda: (gdt.genfromtxt, (["1", "2"], "f8"), {"layout": SPLIT}),
    "load": lambda: (gdt.load, (_array_file(),), {"layout": SPLIT}),
    "loadtxt": lambda: (gdt.loadtxt, (["1", "2"], "f8"), {"layout": SPLIT}),
    "save": lambda: (gdt.save, (_array_file(), X), {}),
    "savetxt": lambda: (gdt.savetxt, (_path(), X, "%.3f", " "), {}),
    "savez": lambda: (gdt.savez, (_path(), X), {}),
    "savez_compressed": lambda: (gdt.savez_compressed, (_path(), X), {}),
    "asarray_chkfinite": lambda: (gdt.asarray_chkfinite, ([1.0], "f4"), {}),
    "einsum_path": lambda: (gdt.einsum_path, ("ij,jk->ik", X, X.T), {"optimize": "greedy"}),
    "ix_": lambda: (gdt.ix_, ([0, 1], [0]), {}),
    # ---- meshes and layouts
    "create_mesh": lambda: (gdt.create_mesh, ([("x", 2)],), {"devices": ["cpu:0", "cpu:1"],
        "mesh_name": "m", "device_type": "CPU", "blocks": 2}),
    "default_mesh": lambda: (_entered(gdt.default_mesh), (MESH,), {}),
    "set_default_mesh": lambda: (_reset(gdt.set_default_mesh), (MESH,), {}),
    "get_default_mesh": lambda: (gdt.get_default_mesh, (), {}),
    "Mesh.axis_index": lambda: (MESH.axis_index, ("x",), {}),
    "Mesh.dim_size": lambda: (MESH.dim_size, ("x",), {}),
    "Mesh.contains_dim": lambda: (MESH.contains_dim, ("x",), {}),
    "Mesh.block_of": lambda: (MESH.block_of, ((0, 1),), {}),
    "Mesh.device_location": lambda: (MESH.device_location, (1,), {}),
    "Mesh.coords": lambda: (MESH.coords, (1,), {}),
    "Mesh.from_string": lambda: (gdt.Mesh.from_string, (MESH.to_string(),), {}),
    "Mesh.from_device": lambda: (gdt.Mesh.from_device, ("cpu:0",), {}),
    "Layout": lambda: (gdt.Layout, (["x"], MESH), {"partial": {"y": "sum"}}),
    "Layout.replicated": lambda: (gdt.Layout.replicated, (MESH, 2), {}),
    "Layout.batch_sharded": lambda: (gdt.Layout.batch_sharded, (MESH, "x", 2), {"axis": 0}),
    "Layout.inner_sharded": lambda: (gdt.Layout.inner_sharded, (MESH, "x", 2), {}),
    "Layout.num_shards": lambda: (ROWS.num_shards, (0,), {}),
    "Layout.delete": lambda: (ROWS.delete, ([0],), {}),
    "Layout.local_shape_from_global_shape": lambda: (
        ROWS.local_shape_from_global_shape, ([4, 2],), {}),
    "Layout.global_shape_from_local_shape": lambda: (
        ROWS.global_shape_from_local_shape, ([4, 2],), {}),
    "Layout.shard_index": lambda: (ROWS.shard_index, ((0, 1), 0), {}),
    "Layout.from_string": lambda: (gdt.Layout.from_string, (ROWS.to_string(),), {}),
    # ---- arrays
    "arange": lambda: (gdt.arange, (0, 4, 1), {"dtype": "f4", "layout": SPLIT}),
    "asarray": lambda: (gdt.asarray, ([1.0, 2.0],), {"dtype": "f4", "layout": SPLIT, "copy": True}),
    "array": lambda: (gdt.array, ([1.0, 2.0],), {"dtype": "f4", "layout": SPLIT, "ndmin": 1}),
    "can_cast": lambda: (gdt.can_cast, (X, "f4"), {"casting": "safe"}),
    "common_type": lambda: (gdt.common_type, (X, X), {}),
    "finfo": lambda: (gdt.finfo, ("f4",), {}),
    "iinfo": lambda: (gdt.iinfo, ("i4",), {}),
    "iscomplexobj": lambda: (gdt.iscomplexobj, (X,), {}),
    "isdtype": lambda: (gdt.isdtype, ("f4", "numeric"), {}),
    "isrealobj": lambda: (gdt.isrealobj, (X,), {}),
    "isscalar": lambda: (gdt.isscalar, (X,), {}),
    "issubdtype": lambda: (gdt.issubdtype, ("f4", np.floating), {}),
    "min_scalar_type": lambda: (gdt.min_scalar_type, (X,), {}),
    "promote_types": lambda: (gdt.promote_types, ("f4", "i4"), {}),
    "result_type": lambda: (gdt.result_type, (X, "f4"), {}),
    "from_dlpack": lambda: (gdt.from_dlpack, (np.ones(2),), {"layout": SPLIT, "copy": True}),
    "empty": lambda: (gdt.empty, ((4,),), {"dtype": "f4", "layout": SPLIT}),
    "empty_like": lambda: (gdt.empty_like, (V,), {"dtype": "f4", "layout": SPLIT}),
    "eye": lambda: (gdt.eye, (4, 2), {"k": 1, "dtype": "f4", "layout": ROWS}),
    "full": lambda: (gdt.full, ((4,), 2.0), {"dtype": "f4", "layout": SPLIT}),
    "full_like": lambda: (gdt.full_like, (V, 2.0), {"dtype": "f4", "layout": SPLIT}),
    "identity": lambda: (gdt.identity, (4,), {"dtype": "f4", "layout": ROWS}),
    "linspace": lambda: (gdt.linspace, (0, 1), {"num": 4, "endpoint": True, "dtype": "f4",
        "layout": SPLIT}),
    "ones": lambda: (gdt.ones, ((4,),), {"dtype": "f4", "layout": SPLIT}),
    "ones_like": lambda: (gdt.ones_like, (V,), {"dtype": "f4", "layout": SPLIT}),
    "tri": lambda: (gdt.tri, (4, 2), {"k": 1, "dtype": "f4", "layout": ROWS}),
    "zeros": lambda: (gdt.zeros, ((4,),), {"dtype": "f4", "layout": SPLIT}),
    "zeros_like": lambda: (gdt.zeros_like, (V,), {"dtype": "f4", "layout": SPLIT}),
    "relayout": lambda: (gdt.relayout, (V, SPLIT), {}),
    "relayout_like": lambda: (gdt.relayout_like, (V, V), {}),
    "call_with_layout": lambda: (gdt.call_with_layout, (gdt.ones, SPLIT, 4), {}),
    "check_layout": lambda: (gdt.check_layout, (V, SPLIT), {}),
    "copy_to_mesh": lambda: (gdt.copy_to_mesh, ([1.0, 2.0], SPLIT), {"source_layout": SPLIT}),
    "fetch_layout": lambda: (gdt.fetch_layout, (V,), {}),
    "is_distributed": lambda: (gdt.is_distributed, (V,), {}),
    "map_shards": lambda: (
        lambda f, ins, out: gdt.map_shards(f, ins, out)(V), (lambda x: x, [SPLIT], SPLIT), {}),
    "copyto": lambda: (gdt.copyto, (_fresh(), 2.0), {"casting": "same_kind", "where": True}),
    "fill_diagonal": lambda: (gdt.fill_diagonal, (_fresh(), 2.0), {"wrap": True}),
    "place": lambda: (gdt.place, (_fresh(), np.ones((4, 2), bool), [1.0]), {}),
    "put": lambda: (gdt.put, (_fresh(), [0, 1], [1.0]), {"mode": "wrap"}),
    "put_along_axis": lambda: (gdt.put_along_axis, (_fresh(), [[0, 1]], 1.0), {"axis": 0}),
    "putmask": lambda: (gdt.putmask, (_fresh(), np.ones((4, 2), bool), [1.0]), {}),
    "pack": lambda: (gdt.pack, ([[1.0], [1.0], [2.0], [2.0]], SPLIT), {}),
    "unpack": lambda: (gdt.unpack, (V,), {}),
    "synchronize": lambda: (gdt.synchronize, (), {}),
    "array_repr": lambda: (gdt.array_repr, (V,), {}),
    "array_str": lambda: (gdt.array_str, (V,), {}),
    "array2string": lambda: (gdt.array2string, (V, 40, 3), {"separator": ","}),
    "may_share_memory": lambda: (gdt.may_share_memory, (V, X), {}),
    "shares_memory": lambda: (gdt.shares_memory, (V, X), {}),
    "require": lambda: (gdt.require, (V, "float32"), {}),
    "store": lambda: (gdt.store, (X, np.zeros(X.shape)), {}),
    "visualize": lambda: (gdt.visualize, (V,), {}),
    "DistributedArray.item": lambda: (V.item, (0,), {}),
    "DistributedArray.reshape": lambda: (V.reshape, (2, 2), {}),
    "DistributedArray.transpose": lambda: (X.transpose, (1, 0), {}),
    "DistributedArray.relayout": lambda: (V.relayout, (SPLIT,), {}),
    "DistributedArray.__getitem__": lambda: (V.__getitem__, (0,), {}),
    "DistributedArray.__matmul__": lambda: (X.__matmul__, (X.T,), {}),
    "DistributedArray.__array__": lambda: (V.__array__, ("f4",), {"copy": True}),
    **{
        f"DistributedArray.{name}": lambda name=name: (getattr(V, name), (), {})
        for name in ("numpy", "tolist", "copy", "resolve", "block_until_ready", "flatten", "ravel")
    },
    **{
        f"DistributedArray.{name}": lambda name=name: (getattr(X, name), (0,), {})
        for name in ("sum", "mean", "prod", "max", "min", "any", "all", "argmax", "argmin", "std",
                     "var", "cumsum", "cumprod", "round")
    },
    "DistributedArray.clip": lambda: (X.clip, (0.0, 1.0), {}),
    "DistributedArray.astype": lambda: (X.astype, ("f4",), {}),
    "DistributedArray.take": lambda: (X.take, ([0, 1],), {"axis": 0}),
    # ---- looking
    "check_nans": lambda: (_entered(gdt.check_nans), (), {}),
    "no_moves": lambda: (_entered(gdt.no_moves), (), {}),
    "count_collectives": lambda: (_entered(gdt.count_collectives), (), {}),
    "sync_debug_mode": lambda: (_entered(gdt.sync_debug_mode), ("warn",), {}),
    "show_config": lambda: (gdt.show_config, (), {}),
    "matmul_backend": lambda: (_entered(gdt.matmul_backend), ("cublas",), {}),
    "free_memory": lambda: (gdt.free_memory, (), {}),
    "set_cache_limit": lambda: (gdt.set_cache_limit, (1 << 30,), {}),
    "host_threads": lambda: (_entered(gdt.host_threads), (2,), {}),
    "matmul_precision": lambda: (_entered(gdt.matmul_precision), ("tensorfloat32",), {}),
    "implicit_fetch": lambda: (_entered(gdt.implicit_fetch), ("allow",), {}),
    "explain": lambda: (gdt.explain, (_square, X), {}),
    "Link": lambda: (gdt.Link, (1e10, 1e-6), {}),
    "Machine": lambda: (gdt.Machine, ({"float32": 1e12}, 1e11, 16e9),
        {"links": {"a": gdt.Link(1e10)}, "devices_per_host": 4, "share": 0.5,
         "bandwidth_share": 0.5, "launch": 1e-6, "half": 64.0, "name": "mine"}),
    "predict": lambda: (gdt.predict, (_square, _abstract()),
        {"machine": gdt.Machine.named("a100-80gb")}),
    "predict_layers": lambda: (gdt.predict_layers, (lambda count: lambda: _square(_abstract()), 2),
        {"machine": gdt.Machine.named("a100-80gb")}),
    "predict_scaling": lambda: (gdt.predict_scaling,
        (lambda devices: lambda: _square(_abstract(devices)), [2, 4]),
        {"machine": gdt.Machine.named("a100-80gb"), "measured": {2: 0.001}}),
    "plan": lambda: (gdt.plan, (_make_step, 2),
        {"machine": gdt.Machine.named("a100-80gb"), "memory": 1e9, "time_limit": 0.0}),
    # ---- gradients
    "GradientTape": lambda: (gdt.GradientTape, (), {"persistent": True}),
    "GradientTape.watch": lambda: (gdt.GradientTape().watch, (X,), {}),
    "GradientTape.gradient": lambda: (lambda t, s, o=None, **k: _tape()[0].gradient(t, s, o, **k),
        (_tape()[1], X), {"unconnected": "zero", "together_with": []}),
    "grad": lambda: (lambda f, n, *a: gdt.grad(f, n)(*a), (_square, 0, X), {}),
    "value_and_grad": lambda: (
        lambda f, n, *a: gdt.value_and_grad(f, n)(*a), (_square, 0, X), {}),
    "vjp": lambda: (gdt.vjp, (_square, X), {}),
    "jvp": lambda: (gdt.jvp, (_square, (X,), (X,)), {}),
    "jacobian": lambda: (lambda f, n, *a: gdt.jacobian(f, n)(*a), (_square, 0, X), {}),
    "hessian": lambda: (lambda f, n, *a: gdt.hessian(f, n)(*a), (_square, 0, X), {}),
    "vmap": lambda: (lambda f, i, o, *a: gdt.vmap(f, i, o)(*a), (_square, 0, 0, X), {}),
    "scan": lambda: (gdt.scan, (lambda c, x: (c, x), gdt.asarray(0.0), gdt.ones(3), 3),
        {"reverse": True, "checkpoint": False}),
    "function": lambda: (gdt.function, (_square,), {}),
    "checkpointed": lambda: (gdt.checkpointed, (_square,), {}),
    "stop_gradient": lambda: (gdt.stop_gradient, (X,), {}),
    # ---- random numbers
    "random.Generator": lambda: (random.Generator, (1,), {}),
    "random.Generator.seed": lambda: (random.Generator().seed, (1,), {}),
    "random.Generator.next_key": lambda: (random.Generator().next_key, (), {}),
    "random.NumPyGenerator": lambda: (random.NumPyGenerator, (1,), {}),
    "random.NumPyGenerator.normal": lambda: (
        random.default_rng(1).normal, (0.0, 1.0, (4,), "f4"), {"layout": SPLIT}),
    "random.NumPyGenerator.integers": lambda: (
        random.default_rng(1).integers, (0, 5, (4,), "i4", False), {"layout": SPLIT}),
    "random.default_rng": lambda: (random.default_rng, (1,), {}),
    "random.seed": lambda: (random.seed, (0,), {}),
    "random.key": lambda: (random.key, (1,), {}),
    "random.fold_in": lambda: (random.fold_in, (random.key(1), 2), {}),
    "random.split": lambda: (random.split, (random.key(1),), {"n": 2}),
    "split_key": lambda: (FUNCTIONS["split_key"], (random.key(1),), {"n": 2}),
    "random.uniform": lambda: (random.uniform, ((4,), 0.0, 1.0, "f4"),
        {"layout": SPLIT, "key": 1}),
    "random.normal": lambda: (random.normal, ((4,), 0.0, 1.0, "f4"), {"layout": SPLIT, "key": 1}),
    "random.truncated_normal": lambda: (random.truncated_normal, ((4,), 0.0, 1.0, "f4"),
        {"layout": SPLIT, "key": 1}),
    "random.integers": lambda: (random.integers, (0, 5, (4,), "i4"), {"layout": SPLIT, "key": 1}),
    "random.bernoulli": lambda: (random.bernoulli, ((4,), 0.5), {"layout": SPLIT, "key": 1}),
    "random.permutation": lambda: (random.permutation, (4,), {"layout": SPLIT, "key": 1}),
    "random.choice": lambda: (random.choice, (V, (2,), False, None, 0),
        {"layout": gdt.Layout([None], MESH), "key": 1}),
    "random.permuted": lambda: (random.permuted, (X, 0), {"layout": ROWS, "key": 1}),
    "random.shuffle": lambda: (random.shuffle, (_fresh(), 0), {"key": 1}),
    "random.multivariate_normal": lambda: (
        random.multivariate_normal, ((4,), [0.0, 1.0], [[1.0, 0.0], [0.0, 1.0]], "f4"),
        {"layout": ROWS, "key": 1}),
    **{
        f"random.{name}": lambda name=name, args=args: (
            getattr(random, name), ((4,), *args, "f4"),
            {"layout": ROWS if name == "dirichlet" else SPLIT, "key": 1})
        for name, args in {
            "beta": (0.5, 0.5), "chisquare": (3.0,), "dirichlet": ([1.0, 2.0],),
            "exponential": (2.0,), "f": (3.0, 4.0), "gamma": (2.0, 1.0), "gumbel": (0.0, 1.0),
            "laplace": (0.0, 1.0), "logistic": (0.0, 1.0), "lognormal": (0.0, 1.0),
            "noncentral_chisquare": (3.0, 1.0),
            "noncentral_f": (2.0, 3.0, 1.0), "power": (2.0,), "wald": (1.0, 1.0),
            "pareto": (2.0,), "random": (), "rayleigh": (1.0,), "standard_cauchy": (),
            "standard_exponential": (), "standard_gamma": (2.0,), "standard_normal": (),
            "standard_t": (3.0,), "triangular": (0.0, 0.5, 1.0), "weibull": (2.0,),
        }.items()
    },
    **{
        f"random.{name}": lambda name=name, args=args: (
            getattr(random, name), ((4,), *args, "i4"),
            {"layout": ROWS if name == "multinomial" else SPLIT, "key": 1})
        for name, args in {
            "binomial": (5, 0.5), "geometric": (0.5,), "logseries": (0.5,), "zipf": (2.0,),
            "multinomial": (5, [0.5, 0.5]),
            "negative_binomial": (2, 0.5), "poisson": (3.0,),
        }.items()
    },
    # ---- layers
    **{
        f"nn.{name}": lambda name=name, rank=rank: (
            getattr(gdt.nn, name), (2, 3, 1, "same", 1, 1, "relu", True), {"input_channels": 2,
            "weight_layout": gdt.Layout([None] * (rank + 1) + ["y"], MESH), "bias_layout": None,
            "initializer": "he_normal", "bias_initializer": "zeros", "dtype": "f4", "key": 1})
        for name, rank in {"Conv1D": 1, "Conv2D": 2, "Conv3D": 3, "Conv1DTranspose": 1,
                           "Conv2DTranspose": 2}.items()
    },
    "nn.Conv2D.__call__": lambda: (gdt.nn.Conv2D(2, 3, key=1), (gdt.ones((2, 4, 4, 2)),), {}),
    "nn.DepthwiseConv2D": lambda: (gdt.nn.DepthwiseConv2D, (2, 3, 1, "same", 1),
        {"activation": "relu", "input_channels": 2, "key": 1}),
    "nn.MaxPool": lambda: (gdt.nn.MaxPool, (2, 2, "same"), {}),
    "nn.MaxPool.__call__": lambda: (gdt.nn.MaxPool(), (gdt.ones((2, 4, 4, 2)),), {}),
    "nn.AveragePool": lambda: (gdt.nn.AveragePool, (2, 2, "same"), {}),
    "nn.AveragePool.__call__": lambda: (gdt.nn.AveragePool(), (gdt.ones((2, 4, 4, 2)),), {}),
    **{
        f"nn.{name}": lambda name=name: (getattr(gdt.nn, name), (), {})
        for name in ("GlobalAveragePool", "GlobalMaxPool")
    },
    "nn.GlobalMaxPool.__call__": lambda: (gdt.nn.GlobalMaxPool(), (gdt.ones((2, 4, 2)),), {}),
    **{
        f"nn.{name}": lambda name=name: (getattr(gdt.nn, name), (3, 2), {
            "sequences": True, "states": True, "backwards": True, "use_bias": True,
            "layouts": {"weight": gdt.Layout([None, None, None], MESH)}, "dtype": "f4", "key": 1,
            "initializer": "he_normal", "recurrent_initializer": "zeros"})
        for name in ("GRU", "LSTM")
    },
    "nn.GRU.__call__": lambda: (gdt.nn.GRU(3, 2, key=1), (gdt.ones((2, 4, 2)),), {}),
    "nn.MultiHeadAttention": lambda: (gdt.nn.MultiHeadAttention, (2, 4, 2, 1), {
        "causal": True, "rotary": True, "use_bias": True, "dtype": "f4", "key": 1,
        "layouts": {"query_weight": gdt.Layout([None, "y"], MESH)}, "initializer": "he_normal"}),
    "nn.MultiHeadAttention.__call__": lambda: (
        gdt.nn.MultiHeadAttention(2, 4, key=1), (gdt.ones((2, 4, 4)),), {}),
    "nn.Pipelined": lambda: (gdt.nn.Pipelined, (_alike(), "x", 2),
        {"repeats": 1, "checkpoint": False}),
    "nn.Pipelined.__call__": lambda: (
        gdt.nn.Pipelined(_alike(), "x", 2), (gdt.ones((4, 2), layout=ROWS),), {}),
    "nn.MoE": lambda: (gdt.nn.MoE, (4, 3, 2, 1.25, 2, "relu", True), {
        "layouts": {"router_weight": gdt.Layout([None, None], MESH)},
        "initializer": "he_normal", "dtype": "f4", "key": 1}),
    "nn.MoE.__call__": lambda: (
        gdt.nn.MoE(4, 3, size=2, key=1), (gdt.ones((3, 2)),), {"routing": True}),
    "nn.rotary": lambda: (gdt.nn.rotary, (X, [0, 1, 2, 3], 100.0), {}),
    "nn.Input": lambda: (gdt.nn.Input, ((2, 3), "f4"), {}),
    "nn.Model": lambda: (gdt.nn.Model, _symbols(), {}),
    "nn.Model.__call__": lambda: (gdt.nn.Model(*_symbols()), (X,), {}),
    "nn.mixed_precision": lambda: (gdt.nn.mixed_precision, (_model(), "float16"), {}),
    "nn.Dense": lambda: (gdt.nn.Dense, (2, 3, ROWS, "relu", True, "he_normal", "zeros"),
        {"dtype": "f4", "key": 1}),
    "nn.Dense.__call__": lambda: (gdt.nn.Dense(2, 3, key=0), (gdt.ones((4, 2)),), {}),
    "nn.BatchNorm": lambda: (gdt.nn.BatchNorm, (2,), {"layout": gdt.Layout([None], MESH),
        "affine": True, "momentum": 0.9, "epsilon": 1e-5, "dtype": "f4"}),
    "nn.Dropout": lambda: (gdt.nn.Dropout, (0.5,), {"key": 1}),
    "nn.Dropout.__call__": lambda: (gdt.nn.Dropout(0.5, key=1), (X,), {"training": True}),
    "nn.Add.__call__": lambda: (gdt.nn.Add(), ([X, X],), {}),
    "nn.Concatenate": lambda: (gdt.nn.Concatenate, (0,), {}),
    "nn.Concatenate.__call__": lambda: (gdt.nn.Concatenate(), ([X, X],), {}),
    "nn.Sharded": lambda: (gdt.nn.Sharded, ("x", [None, "y"], None), {}),
    "nn.LayoutMap.gathered": lambda: (
        lambda t, n: _layouts().gathered(t, n).__enter__(),
        ({"w": gdt.relayout(X, [None, "x"])}, ""), {}),
    "nn.Residual": lambda: (gdt.nn.Residual, (gdt.nn.Flatten(),), {}),
    "nn.Embedding": lambda: (gdt.nn.Embedding, (4, 2, ROWS, "zeros"), {"dtype": "f4", "key": 1}),
    "nn.Embedding.__call__": lambda: (
        gdt.nn.Embedding(4, 2, key=1), (gdt.asarray([[0, 3]]),), {}),
    "nn.LayerNorm": lambda: (gdt.nn.LayerNorm, (2, gdt.Layout([None], MESH)), {
        "affine": True, "epsilon": 0.1, "dtype": "f4"}),
    "nn.LayerNorm.__call__": lambda: (gdt.nn.LayerNorm(2), (gdt.ones((4, 2)),), {}),
    "nn.RMSNorm": lambda: (gdt.nn.RMSNorm, (2, gdt.Layout([None], MESH)), {
        "affine": True, "epsilon": 0.1, "dtype": "f4"}),
    "nn.GroupNorm": lambda: (gdt.nn.GroupNorm, (2, 4, gdt.Layout([None], MESH)), {
        "affine": True, "epsilon": 0.1, "dtype": "f4"}),
    "nn.GroupNorm.__call__": lambda: (gdt.nn.GroupNorm(2, 4), (gdt.ones((4, 4)),), {}),
    "nn.Flatten": lambda: (gdt.nn.Flatten, (), {}),
    "nn.Flatten.__call__": lambda: (gdt.nn.Flatten(), (X,), {}),
    "nn.Activation": lambda: (gdt.nn.Activation, ("relu",), {}),
    "nn.Activation.__call__": lambda: (gdt.nn.Activation("relu"), (X,), {}),
    "nn.Sequential": lambda: (gdt.nn.Sequential, (gdt.nn.Flatten(),), {}),
    "nn.Sequential.__getitem__": lambda: (_model().__getitem__, (0,), {}),
    "nn.Module.load": lambda: (lambda s: _model().load(s), (_model().state(),), {}),
    "nn.Module.train": lambda: (lambda t: _model().train(t), (True,), {}),
    "nn.LayoutMap": lambda: (gdt.nn.LayoutMap, (MESH,), {}),
    "nn.LayoutMap.__setitem__": lambda: (
        lambda k, v: gdt.nn.LayoutMap(MESH).__setitem__(k, v), ("a", ["x"]), {}),
    "nn.LayoutMap.apply": lambda: (lambda t: _layouts().apply(t), ({"w": X},), {}),
    "nn.activations.get": lambda: (gdt.nn.activations.get, ("relu",), {}),
    "nn.activations.name_of": lambda: (gdt.nn.activations.name_of, (gdt.relu,), {}),
    "nn.initializers.get": lambda: (initializers.get, ("zeros",), {}),
    "nn.initializers.fans": lambda: (initializers.fans, ((2, 3),), {}),
    **{
        f"nn.initializers.{name}": lambda name=name: (
            getattr(initializers, name), ((4, 2),), {"dtype": "f4", "layout": ROWS, "key": 1})
        for name in initializers.INITIALIZERS
    },
    "nn.losses.sparse_softmax_cross_entropy": lambda: (
        losses.sparse_softmax_cross_entropy, (LABELS, LOGITS), {"reduction": "mean"}),
    **{
        f"nn.losses.{name}": lambda name=name: (
            getattr(losses, name), (LOGITS, LOGITS), {"reduction": "sum"})
        for name in ("softmax_cross_entropy", "sigmoid_cross_entropy", "mean_squared_error",
                     "mean_absolute_error", "huber", "kl_divergence", "binary_crossentropy",
                     "categorical_crossentropy")
    },
    "nn.losses.sparse_categorical_crossentropy": lambda: (
        losses.sparse_categorical_crossentropy, (LABELS, LOGITS), {"from_logits": True}),
    "nn.losses.get": lambda: (losses.get, ("mse",), {}),
    # ---- training
    "optim.SGD": lambda: (optim.SGD, (0.1, 0.9), {"nesterov": True}),
    "optim.Adam": lambda: (optim.Adam, (0.1, 0.9, 0.99, 1e-7), {}),
    "optim.AdamW": lambda: (optim.AdamW, (0.1, 0.1, 0.9, 0.99, 1e-7), {}),
    "optim.Optimizer": lambda: (optim.Optimizer, (0.1,), {}),
    "optim.Optimizer.init": lambda: (lambda p: optim.Adam(0.1).init(p), ({"w": X},), {}),
    "optim.Optimizer.update": lambda: (lambda p, g: optim.Adam(0.1).update(p, g), _updated(), {}),
    "optim.clip_by_global_norm": lambda: (optim.clip_by_global_norm, ({"w": X}, 1.0), {}),
    "optim.global_norm": lambda: (optim.global_norm, ({"w": X},), {}),
    "optim.cosine_decay": lambda: (
        lambda *a: optim.cosine_decay(*a)(3), (0.1, 10, 0.0), {}),
    "optim.linear_decay": lambda: (
        lambda *a: optim.linear_decay(*a)(3), (0.1, 10, 0.0), {}),
    "optim.RMSprop": lambda: (optim.RMSprop, (0.1, 0.9, 0.5, 1e-7), {}),
    "optim.Adagrad": lambda: (optim.Adagrad, (0.1, 0.1, 1e-7), {}),
    "optim.Lion": lambda: (optim.Lion, (0.1, 0.9, 0.99, 0.1), {}),
    "optim.MovingAverage": lambda: (optim.MovingAverage, (optim.SGD(0.1), 0.9), {}),
    "optim.ParameterGroups": lambda: (
        optim.ParameterGroups, ({"w": optim.SGD(0.1)}, optim.SGD(0.2)), {}),
    "optim.LossScaling": lambda: (optim.LossScaling, (optim.SGD(0.1), 4.0, 10), {}),
    "optim.exponential_decay": lambda: (
        lambda *a, **k: optim.exponential_decay(*a, **k)(3), (0.1, 10, 0.5), {"staircase": True}),
    "optim.piecewise_constant": lambda: (
        lambda *a: optim.piecewise_constant(*a)(3), ([2], [0.1, 0.01]), {}),
    "optim.with_warmup": lambda: (lambda *a: optim.with_warmup(*a)(3), (0.1, 4), {}),
    "metrics.accuracy": lambda: (gdt.metrics.accuracy, (LABELS, LOGITS), {}),
    "metrics.top_k_accuracy": lambda: (gdt.metrics.top_k_accuracy, (LABELS, LOGITS, 2), {}),
    "metrics.categorical_accuracy": lambda: (
        gdt.metrics.categorical_accuracy, (LOGITS, LOGITS), {}),
    "metrics.binary_accuracy": lambda: (gdt.metrics.binary_accuracy, (LOGITS, LOGITS, 0.5), {}),
    "metrics.AUC": lambda: (gdt.metrics.AUC, (20, "a"), {}),
    "metrics.Precision": lambda: (gdt.metrics.Precision, (0.5, "p"), {}),
    "metrics.Recall": lambda: (gdt.metrics.Recall, (0.5, "r"), {}),
    "metrics.ConfusionMatrix": lambda: (gdt.metrics.ConfusionMatrix, (3, "c"), {}),
    "metrics.MeanOf": lambda: (gdt.metrics.MeanOf, (losses.mean_squared_error, "m"), {}),
    "metrics.Perplexity": lambda: (
        gdt.metrics.Perplexity, (losses.sparse_softmax_cross_entropy, "p"), {}),
    "metrics.Mean": lambda: (gdt.metrics.Mean, (), {}),
    "metrics.Mean.update": lambda: (gdt.metrics.Mean().update, (1.0,), {"weight": 2.0}),
    "training.Trainer": lambda: (gdt.training.Trainer, (_model(), optim.SGD(0.1),
        losses.mean_squared_error), {"metrics": {"mse": losses.mean_squared_error}}),
    "MirroredStrategy": lambda: (gdt.MirroredStrategy, (2,), {"mesh": None}),
    "DataParallel": lambda: (gdt.DataParallel, (None, 2), {}),
    "ModelParallel": lambda: (gdt.ModelParallel, (),
        {"layout_map": gdt.nn.LayoutMap(MESH), "batch_dim_name": None}),
    "current_strategy": lambda: (gdt.current_strategy, (), {}),
    "load_model": lambda: (gdt.load_model, (_model().save(_path().parent / "m"),),
        {"mesh": None, "compile": True}),
    "load_weights": lambda: (gdt.load_weights, (_model(), _saved(), {}), {"strict": False}),
    "Trainer": lambda: (gdt.Trainer, (_model(), "adam", "mse"),
        {"metrics": ["mae"], "clip_norm": 1.0, "eager": True}),
    "training.BackupAndRestore": lambda: (gdt.training.BackupAndRestore, (_path(), 3), {}),
    "training.CSVLogger": lambda: (gdt.training.CSVLogger, (_path(), ";", True), {}),
    "training.EarlyStopping": lambda: (gdt.training.EarlyStopping, ("loss", 0.1, 2), {}),
    "training.LambdaCallback": lambda: (
        gdt.training.LambdaCallback, (), {"on_train_end": lambda logs: None}),
    "training.LearningRateScheduler": lambda: (
        gdt.training.LearningRateScheduler, (lambda epoch, rate: rate, 1), {}),
    "training.ModelCheckpoint": lambda: (gdt.training.ModelCheckpoint, (_path(), "loss"), {}),
    "training.ReduceLROnPlateau": lambda: (gdt.training.ReduceLROnPlateau, ("loss", 0.5, 2), {}),
    "training.Trainer.step": lambda: (lambda x, y: _trainer().step(x, y), _batches()[0], {}),
    "training.Trainer.evaluate": lambda: (lambda b: _trainer().evaluate(b), (_batches(),), {}),
    "training.Trainer.fit": lambda: (lambda b, **k: _trainer().fit(b, **k), (_batches(),),
        {"validation": _batches(), "callbacks": [], "title": "t", "show": False}),
    "training.evaluating": lambda: (
        _entered(gdt.training.evaluating), (_model(),), {}),
    # ---- files and data
    "checkpoint.save": lambda: (gdt.checkpoint.save, (_path(), {"w": X}), {}),
    "checkpoint.restore": lambda: (
        gdt.checkpoint.restore, (_saved(), {"w": X}), {"partial": True}),
    "checkpoint.contents": lambda: (gdt.checkpoint.contents, (_saved(),), {}),
    "checkpoint.verify": lambda: (gdt.checkpoint.verify, (_saved(),), {}),
    "CheckpointManager": lambda: (gdt.CheckpointManager, ({"w": X}, _path().parent),
        {"max_to_keep": 3, "name": "ckpt"}),
    "CheckpointManager.restore": lambda: (
        gdt.CheckpointManager({"w": X}, _path().parent).restore, (_saved(),), {}),
    "data.Batches": lambda: (gdt.data.Batches, (np.ones(4), np.ones(4)),
        {"batch_size": 2, "seed": 1, "drop_remainder": True, "place": lambda x, y: (x, y)}),
}  # fmt: skip


def functions() -> dict[str, Callable[..., Any]]:
    """What each call calls; files that calls start from are removed again."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(tempfile, "tempdir", folder):
        return {name: make()[0] for name, make in CALLS.items()}

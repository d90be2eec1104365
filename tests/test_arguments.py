"""Hostile arguments: every public function, class and method, given what it cannot take in the
place of each argument, works or raises an error of gdt that says where it happened, and afterwards
everything is as it was."""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import pydoc
import re
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gdt
from gdt.arguments import checked, fits
from gdt.array.registry import ALIASES
from gdt.engine.declaration import INJECTED
from gdt.engine.op import Op
from gdt.errors import ArgumentError, DeviceError, GdtError

from .calls import CALLS, OTHER, SPLIT, V, X, functions

HOSTILE: dict[str, Any] = {
    "None": None,
    "text": "bogus",
    "bytes": b"x",
    "negative": -7,
    "fraction": 1.5,
    "NaN": float("nan"),
    "complex": 1j,
    "huge": 10**30,
    "mixed": [1, "a"],
    "ragged": [[1], [1, 2]],
    "empty": [],
    "dict": {"a": 1},
    "object": object(),
    "function": lambda *args: args,
    "rank 5": np.ones((2, 1, 1, 2, 3)),
    "other mesh": gdt.ones((4, 2), layout=gdt.Layout(["z", None], OTHER)),
    "layout": gdt.Layout([None] * 3, OTHER),
}

# Functions that call what they are given, which fails with errors of its own.
USERS_FUNCTIONS = {
    ("optim.with_warmup", "function"),
    ("nn.Flatten", "unknown argument"),  # it has no constructor of its own
    ("apply_along_axis", "unknown argument"),
    # files that are not there
    *[(name, "text") for name in ("fromfile", "genfromtxt", "load", "loadtxt")],
    ("fromfile", "bytes"), ("load", "bytes"), ("genfromtxt", "dict"),
    *[("fromfunction", what) for what in ("bytes", "empty", "unknown argument")],
    ("explain", "unknown argument"), ("explain", "missing argument"), ("vjp", "missing argument"),
    ("predict", "missing argument"),
}  # fmt: skip


def variants(name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The call of that name with each argument replaced by each hostile value, with an argument too
    many, and with one too few."""
    function, args, kwargs = CALLS[name]()
    for what, value in HOSTILE.items():
        for i in range(len(args)):
            yield what, lambda i=i, value=value: _call(name, position=i, value=value)
        for key in kwargs:
            yield what, lambda key=key, value=value: _call(name, key=key, value=value)
    direct = getattr(function, "__name__", "") != "<lambda>"
    if direct and ".__" not in name:
        yield "unknown argument", lambda: _call(name, key="bogus", value=1)
        if args:
            yield "missing argument", lambda: _call(name, drop=True)


def _call(
    name: str, position: int = -1, key: str = "", value: Any = None, drop: bool = False
) -> Any:
    function, args, kwargs = CALLS[name]()
    given = list(args[:-1] if drop else args)
    if position >= 0:
        given[position] = value
    if key:
        kwargs[key] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of NaN and of overflows
        return function(*given, **kwargs)


@pytest.fixture
def older_objects_are_frozen() -> None:
    """Leave what other tests keep to none of the collections of garbage that `gdt.predict` and
    `gdt.plan` begin with, of which there are two hundred here."""
    gc.freeze()


# A folder is for files that are called "bogus".
@pytest.mark.usefixtures("older_objects_are_frozen", "temporary_folder", "capsys")
@pytest.mark.parametrize("name", CALLS)
def test_hostile_arguments(name: str) -> None:
    function, args, kwargs = CALLS[name]()
    function(*args, **kwargs)  # the call works as it stands
    mesh, wrong = gdt.get_default_mesh(), []
    for what, call in variants(name):
        if (name, what) in USERS_FUNCTIONS:
            continue
        try:
            call()
        except GdtError as e:
            if not re.match(r"[\w.\[\]]+(, \w+)?: \S", str(e)):
                wrong.append(f"{what}: no `op: problem` in {e}")
        except Exception as e:
            wrong.append(f"{what}: {type(e).__name__}: {e}")
    assert not wrong, "\n".join(wrong)
    # Nothing has changed, and nothing is poisoned.
    assert gdt.get_default_mesh() is mesh and gdt.observe.OBSERVERS.get() == ()
    assert X.tolist() == [[1.0, 1.0]] * 4 and float(gdt.sum(V)) == 4.0


def _public() -> Iterator[str]:
    """Dotted names of all that is public and can be called."""
    modules = (gdt.nn, gdt.nn.losses, gdt.nn.initializers, gdt.optim, gdt.random, gdt.checkpoint,
               gdt.metrics, gdt.training, gdt.data)  # fmt: skip
    for module in (gdt, *modules):
        prefix = module.__name__.removeprefix("gdt").lstrip(".")
        names = getattr(module, "__all__", None) or [
            n for n, v in vars(module).items()
            if n[0] != "_" and f"{getattr(v, '__module__', '')}.".startswith(f"{module.__name__}.")
        ]  # fmt: skip
        for name in names:
            value = getattr(module, name)
            if callable(value) and not isinstance(value, types.ModuleType | types.GenericAlias):
                yield f"{prefix}.{name}".lstrip(".")


# What is made by other functions, holds facts and checks nothing, declares, or reads data sets.
NOT_CALLED = {
    "ArrayType", "DistributedArray", "Mesh", "Shard", "checkpoint.Restored", "training.History",
    "Strategy", "training.Callback", "training.TensorBoard", "training.TerminateOnNaN",
    "metrics.Metric", "nn.Module", "nn.losses.Loss", "optim.Schedule",
    "nn.initializers.Initializer",
    "benchmark", "checkpoint.CheckpointManager", "Function", "RerecordedWarning",
    "op", "custom_vjp", "nn.Add", "nn.Convolution", "nn.Recurrent", "nn.Routing",
}  # fmt: skip


NOT_CALLED |= {*gdt.functions.constants.__all__, *gdt.functions.numpys.__all__, *ALIASES}


def test_every_public_name_is_called() -> None:
    missing = sorted({*_public()} - {*CALLS} - NOT_CALLED)
    assert not missing, f"no call in tests/calls.py for: {', '.join(missing)}"


# ---------------------------------------------------------------- what the errors say

SAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown argument": (
        lambda: gdt.zeros(3, bogus=1),
        r"zeros: got an unexpected keyword argument 'bogus'\n  Its arguments are \(shape, dtype"),
    "missing argument": (lambda: gdt.full(3), "full: missing a required argument: 'fill_value'"),
    "too many arguments": (lambda: gdt.moveaxis(X, 0, 1, 2), "moveaxis: too many positional"),
    "padding that is text": (lambda: gdt.pad(X, "a"), "pad"),
    "learning rate that is text": (
        lambda: gdt.optim.SGD("a"), "SGD: learning_rate is 'a', not float"),
    "size that is text": (lambda: gdt.nn.Dense("a", 3), "Dense: input_size is 'a', not int"),
    "constructor that a class inherits": (
        lambda: gdt.nn.Conv2D("a", 3), "Conv2D: channels is 'a', not int"),
    "unknown argument of a constructor that a class inherits": (
        lambda: gdt.nn.MaxPool(bogus=1), "MaxPool: got an unexpected keyword argument 'bogus'"),
    "path that is None": (
        lambda: gdt.checkpoint.save(None, {"w": X}), "save: path is None, not str"),
    "function that is None": (lambda: gdt.explain(None), "explain: f is None, not Callable"),
    "mode that is unknown": (lambda: gdt.pad(X, 1, mode="bogus"), "pad: unknown mode 'bogus'"),
    "method of a layout": (
        lambda: SPLIT.num_shards("a"), "Layout.num_shards: axis is 'a', not int"),
    "too large for its dtype": (
        lambda: gdt.asarray([1]) & 10**30, r"(?s)bitwise_and: .*too large.*\n  x: int64\[1\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", SAYS)
def test_errors_name_the_function_and_the_argument(case: str) -> None:
    call, text = SAYS[case]
    for _ in range(2):  # the second call finds what the first has cached
        with pytest.raises(ArgumentError, match=text):
            call()


def test_a_dtype_that_does_not_exist() -> None:
    for call in (gdt.asarray, gdt.zeros, gdt.zeros_like, lambda x, dtype: gdt.asarray(X, dtype)):
        with pytest.raises(gdt.errors.DtypeError, match="bogus"):
            call([1], dtype="bogus")


def test_lists_are_arrays_to_losses_and_metrics() -> None:
    assert float(gdt.metrics.accuracy([1, 0], [[0.0, 1.0], [1.0, 0.0]])) == 1.0
    assert float(gdt.nn.losses.mean_squared_error([1.0, 3.0], [1.0, 1.0])) == 2.0


def test_more_memory_than_there_is() -> None:
    with pytest.raises(DeviceError, match="empty: not enough memory"):
        gdt.empty(1 << 50)


def test_errors_of_users_functions_are_their_own() -> None:
    def broken(*args: Any) -> Any:
        raise KeyError("mine")

    for call in (
        lambda: gdt.grad(broken)(X),
        lambda: gdt.explain(broken),
        lambda: gdt.vjp(broken, X),
        lambda: gdt.call_with_layout(broken, SPLIT),
        lambda: gdt.map_shards(broken, SPLIT, SPLIT)(V),
        lambda: gdt.nn.Activation(broken)(X),
    ):
        with pytest.raises(KeyError, match="mine"):
            call()


def test_floating_point_errors_are_numpys() -> None:
    for _ in range(2):
        with np.errstate(all="raise"), pytest.raises(FloatingPointError):
            gdt.divide(gdt.asarray([1.0, 2.0, 3.0]), 0.0)


def test_a_checked_function_keeps_its_signature_and_document() -> None:
    assert str(inspect.signature(gdt.swapaxes)).startswith("(x: 'Any', axis1: 'int', axis2: 'int')")
    assert (gdt.swapaxes.__doc__ or "").strip()


# These pass arguments on, to a function of the user's or to an op's declaration.
PASSING_ON = {
    "explain", "call_with_layout", "op", "apply_along_axis", "fromfunction", "piecewise", "savez",
    "savez_compressed", "printoptions",
}  # fmt: skip


def test_functions_that_hand_arguments_on_show_and_check_those_of_another() -> None:
    assert inspect.signature(gdt.nanpercentile) == inspect.signature(gdt.quantile)
    assert inspect.signature(gdt.min) == inspect.signature(gdt.max)
    for name in ("std", "nanstd", "nanmin", "median", "zeros_like"):
        with pytest.raises(ArgumentError, match=f"{name}: got an unexpected keyword argument 'of'"):
            getattr(gdt, name)(gdt.ones(2), of=1)
    out = gdt.zeros(())
    assert gdt.std([1.0, 3.0], None, None, out) is out and float(out) == 1
    assert gdt.nanmin([3.0, np.nan], 0, None, True, 2.0).tolist() == [2.0]


def test_a_signature_is_inspected_once_while_its_function_lives() -> None:
    def redefined(value: type) -> Callable[..., Any]:
        def f(x: Any, *, n: Any = 1) -> Any:
            return x

        f.__annotations__["x"] = value
        return f

    first = redefined(int)
    inspected, reference = checked(first, eager=True), weakref.ref(first)
    inspected(1)
    with mock.patch.object(inspect, "signature", side_effect=AssertionError):
        assert inspected(2, n=2) == 2
        with pytest.raises(ArgumentError, match="x is 'one', not int"):
            inspected("one")
    assert checked(redefined(str), eager=True)("one") == "one"
    for args, kwargs in (((), {}), ((1, 2), {}), ((1,), {"x": 1}), ((1,), {"m": 1})):
        with pytest.raises(ArgumentError, match="argument"):
            inspected(*args, **kwargs)
    del first, inspected
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("name", sorted({*_public(), "distributed.initialize"} - PASSING_ON))
def test_signatures_name_every_argument(name: str) -> None:
    value = functools.reduce(getattr, name.split("."), gdt)
    if not isinstance(value, type) or "__init__" in vars(value):
        parameters = inspect.signature(value).parameters.values()
        assert not [p for p in parameters if p.kind is p.VAR_KEYWORD]


FUNCTIONS = functions()
DIRECT = [n for n, f in FUNCTIONS.items() if inspect.isroutine(f) and f.__name__ != "<lambda>"]


@pytest.mark.usefixtures("temporary_folder", "capsys")
@pytest.mark.parametrize("name", DIRECT)
def test_what_a_signature_binds_can_be_called(name: str) -> None:
    for as_keywords in (False, True):
        function, args, kwargs = CALLS[name]()
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
        kinds = {p.kind for p in signature.parameters.values()}
        if as_keywords and kinds <= {
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        }:
            function(**bound.arguments)
        else:
            function(*bound.args, **bound.kwargs)


OF_OPS = [name for name, function in FUNCTIONS.items() if isinstance(function, Op)]


@pytest.mark.parametrize("name", OF_OPS)
def test_signatures_of_ops_say_what_they_return(name: str) -> None:
    function, args, kwargs = CALLS[name]()
    out = function(*args, **kwargs)
    returned = inspect.signature(function).return_annotation
    if returned is gdt.DistributedArray:
        assert type(out) is gdt.DistributedArray
    else:
        assert tuple(map(type, out)) == returned.__args__


@pytest.mark.parametrize("name", OF_OPS)
def test_what_the_engine_injects_is_no_argument(name: str) -> None:
    function, args, kwargs = CALLS[name]()
    for injected in {*INJECTED} - {*function.declaration.extended}:
        assert injected not in inspect.signature(function).parameters
        with pytest.raises(ArgumentError, match=f"no argument '{injected}'"):
            function(*args, **kwargs, **{injected: None})


def test_signatures_are_as_calls_are_written() -> None:
    axis = "axis: int | collections.abc.Sequence[int] | None = None"
    signature = str(inspect.signature(gdt.max))
    out = "out: gdt.array.array.DistributedArray | None = None"
    assert signature.startswith(f"(x, {axis}, {out}, keepdims: bool = False, initial: ")
    assert f"max{signature}" in pydoc.plain(pydoc.render_doc(gdt.max))


def test_methods_of_arrays_show_the_signatures_of_their_functions() -> None:
    for name in ("sum", "max", "astype", "cumsum", "clip", "take", "std"):
        own, public = (inspect.signature(getattr(o, name)) for o in (gdt.DistributedArray, gdt))
        assert [*own.parameters.values()][1:] == [*public.parameters.values()][1:]
        assert own.return_annotation == public.return_annotation


@pytest.mark.parametrize(
    ("value", "hint", "fit"),
    [
        (1, int, True), (np.int64(1), int, True), (True, int, False), (1.5, int, False),
        (1, float, True), ("1", float, False), (None, int | None, True),
        ([1, 2], list[int], True), ([1, "a"], list[int], False), ("ab", tuple[str, ...], False),
        ((1, "a"), tuple[int, str], True), ((1,), tuple[int, str], False),
        ({"a": 1}, dict[str, int], True), ({"a": "b"}, dict[str, int], False),
        (len, Callable[[Any], int], True), (3, Callable[[Any], int], False), (object(), Any, True),
    ],
)  # fmt: skip
def test_values_fit_annotations(value: object, hint: Any, fit: bool) -> None:
    assert fits(value, hint) is fit


def test_an_error_that_no_argument_explains_is_passed_on() -> None:
    @checked
    def lookup(table: dict[str, int]) -> int:
        return table["absent"]

    with pytest.raises(KeyError):
        lookup({})


MODULES = [gdt.nn, gdt.optim, gdt.data]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_all_lists_what_is_public(module: types.ModuleType) -> None:
    public = {n for n, v in vars(module).items() if n[0] != "_" and n in _imported_by(module)}
    assert sorted(module.__all__) == sorted(public)


def test_families_name_their_public_functions_once() -> None:
    assert len(gdt.__all__) == len(set(gdt.__all__))
    assert gdt.__all__ == sorted(gdt.__all__)
    assert all(hasattr(gdt, name) for name in gdt.__all__)
    others = {"__array_api_version__", "__array_namespace_info__", "__version__", "errors"}
    assert {*dir(gdt)} == {*gdt.__all__, *others}


def _imported_by(module: types.ModuleType) -> set[str]:
    """The names that a package's own file imports from gdt."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    imports = [node for node in imports if (node.module or "").split(".")[0] == "gdt"]
    return {alias.asname or alias.name for node in imports for alias in node.names}

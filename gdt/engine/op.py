"""Ops: one operation, declared once, and the plans that run it on blocks.

    @op("... i k, k j -> ... i j", linear="x, w")
    def matmul(xp, x, w, /):
        return xp.matmul(x, w)

The parameters after the namespace `xp` and before `/` are the operands; the others are statics,
part of the plan's key. After `*` a body may name parameters that the engine fills in and calls do
not pass; their default is `FROM_ENGINE`, or None:

- `out`: the array(s) to write into, or None. It is recycled or donated memory, whose axes may lie
  in any order: a reshape of it may be a copy. A body that takes `out` returns no view of an
  operand;
- `block_shape`: the shape of a block of the first output;
- `shards`: where the shards of each factor begin, and how many of their elements are valid;
- `scratch`: the memory of the operand that the option `scratch=` names, if a program knows that
  nobody reads it afterwards; else None;
- `labels`: for contractions, the mesh axes and factors of the blocks of operands and output.

A body counts axes from the end, since the leading axes of a block are mesh axes. Of a reduction it
returns the result of each coordinate; the engine combines the coordinates inside a block, and the
results of several blocks stay a partial reduction.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from gdt.arguments import MISFITS, misfit_value, of_all_arguments, out_of_memory
from gdt.array.array import DistributedArray
from gdt.array.moving import move_to_layouts
from gdt.array.operands import (
    SCALARS,
    bind_arguments,
    converted,
    has_unplaced,
    hashable_statics,
)
from gdt.array.output import into
from gdt.array.registry import FUNCTIONS, register
from gdt.array.views import Step, shown
from gdt.caches import Cache
from gdt.comm.agreement import HISTORIES, origins_of
from gdt.engine.declaration import RuleOf, declaration_of, signature_of
from gdt.engine.differentiable import Differentiable
from gdt.engine.first_run import plan_of
from gdt.engine.forms import exchanged_operands
from gdt.engine.passing import resolved_operands
from gdt.engine.plan import EXACT, PLAN_BYTES, Plan, Results, value_key
from gdt.errors import ArgumentError, GdtError, error
from gdt.observe import OBSERVERS, is_recorded, observing_only, ran
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import check_meshes
from gdt.sharding.strategy import choose

__all__ = ["op"]

F = TypeVar("F", bound=Callable[..., Any])
O = TypeVar("O", bound="Op[..., Any]")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

OPS: dict[str, Op[..., Any]] = {}
OPTIONS = {
    name for name, p in inspect.signature(declaration_of).parameters.items()
    if p.kind is p.KEYWORD_ONLY
}  # fmt: skip
NEW = object.__new__


class CallSignature:
    """The signature of an op's calls, made when it is first read: making it takes longer than all
    else in declaring an op."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is None:
            raise AttributeError(
                "__signature__"
            )  # `inspect` then reads the constructor of the class
        signature: inspect.Signature = instance.signature()
        instance.__signature__ = signature
        return signature


class Op(Differentiable, Generic[P, R_co]):
    """One operation: rule, body, vjp. `op(x, y, axis=0)` runs it on distributed arrays.

    For type checkers, P are the parameters of the body after `xp`, and R_co is the type of results.
    (A call also takes operands by name, which P does not say: they stand before `/`.)
    """

    __signature__ = CallSignature()

    def __init__(
        self,
        body: Callable[..., Any],
        rule: RuleOf,
        returns: object = DistributedArray,
        **options: Any,
    ) -> None:
        self.declaration = declaration_of(body, rule, **options)
        self.returns, self.takes_namespace = returns, options.get("takes_namespace", True)
        self.name = self.__name__ = self.declaration.name
        self.__doc__, self.__module__ = body.__doc__, body.__module__
        variadic = self.declaration.variadic
        self.count = sys.maxsize if variadic else len(self.declaration.operands)  # of operands
        self.plans: Cache[Plan] = Cache(PLAN_BYTES)
        self.alternative_plan: Callable[..., Plan | None] | None = None
        self.plain = self  # the op whose results are no views: differs for one that `shows` made
        self.step: Callable[..., Step] | None = None

    def signature(self) -> inspect.Signature:
        """The signature of calls."""
        declared = self.declaration
        return signature_of(declared.body, self.returns, self.takes_namespace, declared.extended)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """The op itself: it is never bound as a method. (`help` and `inspect` take what has
        `__get__` for a routine.)"""
        return self

    def __reduce__(self) -> str | tuple[object, ...]:
        """Pickle by module and name, as functions are pickled; a copy is the op itself."""
        if self.step is not None:
            return f"{self.name}_"
        return declared_op, (self.__module__, self.name)

    def _takes(self, count: int) -> bool:
        """Whether so many gradients fit the operands."""
        return self.declaration.variadic or count == len(self.declaration.operands)

    def _operand_names(self) -> Sequence[str]:
        """The names of the operands."""
        return self.declaration.operands

    def kernel(
        self,
        function: F,
        *,
        has_library: bool = False,
        takes_bfloat16: bool = False,
        joined: Callable[..., Any] | None = None,
    ) -> F:
        """Declare a kernel: a decorator of a function like the body, with a `Launcher` in the place
        of `xp`; see `gdt.engine.launcher`.

        has_library: whether the body calls a library of GPU kernels; `gdt.matmul_backend` then
        chooses between that and the kernel.
        takes_bfloat16: whether the kernel gets operands of bfloat16 as they are. Of its results
        those are bfloat16 of which `Launcher.result_dtype` says so; where it refuses, it gets the
        operands as float32.
        joined: the kernel of another op, whose operands and results this op reads after an operand
        of its own. Called with that as `joined=`, it computes this op's result too, in the memory
        `out=`, and returns it last; see `gdt.programs.joint_launches`.
        """
        self.declaration = replace(
            self.declaration,
            kernel=function,
            has_library=has_library,
            takes_bfloat16=takes_bfloat16,
            joined=joined,
        )
        return function

    def specialize(self, function: F) -> F:
        """Declare a specialization: a decorator of `f(body, *blocks, **statics)`, which the first
        call of a plan runs on the host. It returns a function that runs in the place of the body
        from then on, or None to keep the body; see `gdt.engine.loops`."""
        self.declaration = replace(self.declaration, specialization=function)
        return function

    def alternative(self, function: F) -> F:
        """Declare another way to plan calls: a decorator of `f(plan, *types, **statics)`, which
        returns a plan to run in the place of `plan`, the rule's, or None to keep that."""
        self.alternative_plan = function
        return function

    def extend(self, function: F) -> F:
        """Declare the extension: a decorator of a function of ops, with the parameters of the body
        after `xp`, that runs calls which pass a parameter that `extended=` names."""
        self.declaration = replace(self.declaration, extension=function)
        return function

    def shows(self, step: Callable[..., Step]) -> Self:
        """Return an op that does the same and whose results are views of the operand, as NumPy's
        are. It is for users; gdt's own functions, which write to no array, call this one.

        step: `step(operand_type, result_type, **statics)` returns the step from the operand to the
            view, of a kind that `gdt.array.views.view_step` declares.
        """
        return self.variant(plain=self, step=step)

    def variant(self, **changed: Any) -> Self:
        """Return an op with other values of these attributes, and plans of its own. It is not
        registered."""
        other = NEW(type(self))
        own = {"plain": other, "plans": Cache(PLAN_BYTES)}
        vars(other).update(vars(self) | own | changed)
        return other

    def _new_plan(self, args: Sequence[Any], static: dict[str, Any]) -> Plan:
        """Make the plan of a call; its `steps` are None unless results are views."""
        plan = self.plan(args, static)
        plan.steps = None if self.step is None else ()
        return plan

    def _steps(self, plan: Plan, out: ArrayType, static: Mapping[str, Any]) -> tuple[Step, ...]:
        """The steps from an operand of the plan to a view of type `out`, kept in the plan."""
        plan.steps = (self.step(plan.types[0], out, **static),)  # type: ignore[misc]
        return plan.steps

    # ---- calling

    def _call(self, *args: Any, **static: Any) -> Any:
        """Look up the plan of the call by the types of the operands and the statics, make it if it
        is the first such call, and run it on the operands' blocks."""
        count = len(args)
        types: list[Any]
        blocks: Any  # the first block of each operand: on a mesh of one block, the only one
        if count == 1 and type(args[0]) is DistributedArray:  # as below, in less time
            (a,) = args
            types, blocks = [a.type], [a.blocks[0]]  # reading `blocks` updates an outdated view
        else:
            if count > self.count:
                args, static = self._named(args, static)
            types, blocks = [], []  # a list costs less than a comprehension below
            for a in args:
                value_type: Any = type(a)
                if value_type is DistributedArray:
                    types.append(a.type)
                    blocks.append(a.blocks[0])
                elif value_type in SCALARS:
                    types.append(value_type)
                    blocks.append(a)
                else:
                    return self._convert(args, static)
        if static:
            for name, value in static.items():  # as in `key_of`, mostly without calls
                value_type = type(value)
                if value_type is tuple:  # mostly of ints
                    for item in value:
                        if type(item) is not int:
                            types += (name, *value_key(value))
                            break
                    else:
                        types += (name, tuple, value)
                elif value_type in EXACT:
                    types += (name, value_type, value)
                else:
                    types += (name, *value_key(value))
        key = tuple(types)
        try:
            plan = self.plans.get(key)
        except TypeError:  # a static that cannot be hashed, such as a list
            plan = key = None
        observers = OBSERVERS.get()
        try:
            if plan is None:
                if key is None or not self._is_bound(args, static):
                    return self._convert(args, static)
                plan = self.plans[key] = self.plans.older.get(key) or self._new_plan(args, static)
            if plan.only is not None:
                # As `__init__` does for a mesh of one process, without the frame of its call.
                out = NEW(DistributedArray)
                out.type, out.blocks = plan.only, (plan.fast(*blocks),)  # type: ignore[misc]
                out._resolved = out._shared = None
            elif plan.passes and (
                resolved := resolved_operands(self.declaration, plan, args, static)
            ):
                # This call has told the observers.
                out, observers = self.plain._call(*resolved, **static), ()
            elif plan.moves and (forms := exchanged_operands(self.declaration, plan, args, static)):
                with observing_only(*filter(_wants_moves, observers)):
                    out = self.plain._call(*forms, **static)
                observers = [o for o in observers if not o.wants_moves]
            else:
                out = self.run_plan(plan, args, blocks)
        except GdtError:
            raise
        except MISFITS as cause:
            raise self._blamed(args, static, cause) from cause
        if observers:
            for observer in observers:
                observer.on_op(self, args, static, out)
        if plan.steps is not None:
            shown(args[0], out, plan.steps or self._steps(plan, out.type, static))
        return out

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **static: P.kwargs) -> R_co: ...

    else:
        __call__ = _call

    def _blamed(
        self, args: Sequence[Any], static: Mapping[str, Any], cause: Exception
    ) -> Exception:
        """The error of a call that raised `cause`; it names the argument to blame."""
        if isinstance(cause, MemoryError):
            return out_of_memory(self.name, cause)
        arguments = {self.declaration.operand_name(i): a for i, a in enumerate(args)} | dict(static)
        return misfit_value(self.declaration.body, self.name, static) or of_all_arguments(
            self.name, arguments, cause
        )

    def _named(
        self, args: tuple[Any, ...], static: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Operands by position, and statics by name, of a call that gave statics by position."""
        rest = args[self.count :]
        names = self.declaration.positions
        if len(rest) == 1 and names and not static:  # as most calls are
            return args[: self.count], {names[0]: rest[0]}
        if len(rest) > len(names) or static.keys() & set(names[: len(rest)]):
            return self.bind_arguments(args, static)
        return args[: self.count], dict(zip(names, rest, strict=False)) | static

    def _is_bound(self, args: tuple[Any, ...], static: dict[str, Any]) -> bool:
        """Whether a plan can be made of a call as it is: operands by position, among them an array,
        statics by name, and no array that has yet to be placed on the mesh of the others."""
        counted = len(args) == self.count or self.declaration.variadic
        named = static.keys() <= set(self.declaration.statics)
        has_array = any(type(a) is DistributedArray for a in args)
        return counted and named and has_array and not has_unplaced(args)

    def run_plan(
        self,
        plan: Plan,
        args: Sequence[Any],
        blocks: Sequence[Any] = (),
        owned: Sequence[Sequence[bool]] = (),
    ) -> Any:
        """Run a plan, and return its output, or the tuple of its outputs.

        blocks: the first block of each operand, which a plan on a mesh of one block reads. owned:
        for each donated operand, which of its blocks may be overwritten.
        """
        if plan.fast is not None and not (plan.sends and any(map(_wants_moves, OBSERVERS.get()))):
            result = plan.fast(*blocks)
            for i, array_type in plan.resolves:
                if args[i]._resolved is None:
                    args[i]._resolved = DistributedArray(array_type, args[i].blocks)
            if len(plan.outs) == 1:
                return DistributedArray(plan.outs[0], (result,))
            arrays = []
            for array_type, block in zip(plan.outs, result, strict=True):
                out = NEW(DistributedArray)  # as in `_call`
                out.type, out.blocks = array_type, (block,)
                out._resolved = out._shared = None
                arrays.append(out)
            return tuple(arrays)
        origins = origins_of(args) if plan.noted and HISTORIES else None
        if plan.moves:
            args = move_to_layouts(args, plan.target_layouts, op=self.name)
        if origins is not None:
            HISTORIES[0].begin(origins)
        operands = [a.blocks if type(a) is DistributedArray else a for a in args]
        run = plan.phase.run if plan.noted is None else plan.run  # `plan.run` is one call more
        results = run(operands, owned)
        if is_recorded():
            self._report_run(plan, operands, results)
        outs = [DistributedArray(t, tuple(b)) for t, b in zip(plan.outs, results, strict=True)]
        if origins is not None:
            HISTORIES[0].end(outs)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _report_run(self, plan: Plan, operands: Sequence[Any], results: Results) -> None:
        """Tell the observers that a plan has run, so that a recorder can repeat it."""
        if self.declaration.donated:
            for observer in OBSERVERS.get():
                observer.on_update(self.name, plan, self.declaration.donated, operands, results)
        elif plan.fast is None:
            run: Any = lambda *xs: plan.run(xs)
            # Calls that processes compare must run as calls: an expression would not be noted.
            run.expression = None if plan.noted else plan.phase.expression
            ran(self.name, run, operands, results, self)

    def _convert(self, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Bring the arguments to the form of `_is_bound`, and call again."""
        defaults = self.declaration.extended
        extended = defaults.keys() & static.keys()
        if extended:
            left = {k: v for k, v in static.items() if k not in extended}
            options = {k: static[k] for k in extended if static[k] is not defaults[k]}
            return self._extended(args, left, options)
        if not self.declaration.variadic:
            if static or len(args) != self.count:
                args, static = self.bind_arguments(args, static)
        elif not args or not static.keys() <= set(self.declaration.statics):
            names = ", ".join(static.keys() - set(self.declaration.statics)) or "no operands"
            raise error(
                ArgumentError,
                self.name,
                f"got {names}",
                remedy=f"It takes arrays and {list(self.declaration.statics)}.",
            )
        static = hashable_statics(self.name, static)
        return self._call(*converted(self.name, args, self.declaration.operand_name), **static)

    def _extended(
        self, args: tuple[Any, ...], static: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """Run a call that passes `options`, parameters that `extended=` names."""
        out = options.pop("out", None)
        run = (self.declaration.extension if options else None) or self._call
        return into(out, self.name, run(*args, **static, **options))

    def plan_of_call(self, args: Sequence[Any], static: Mapping[str, Any]) -> Plan:
        """The plan of a call that has run, for an observer."""
        types = [a.type if type(a) is DistributedArray else type(a) for a in args]
        return self.plans[(*types, *self.key_of(static))]

    def key_of(self, static: Mapping[str, Any]) -> tuple[Any, ...]:
        """The statics as the key of a plan holds them."""
        return tuple([part for k, v in static.items() for part in (k, *value_key(v))])

    def bind_arguments(
        self, args: tuple[Any, ...], static: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Operands by position, statics by name."""
        return bind_arguments(
            self.name, self.declaration.operands, self.declaration.positions, args, static
        )

    # ---- planning

    def plan(self, args: Sequence[Any], static: dict[str, Any]) -> Plan:
        """Make the plan of a call with these operands and statics."""
        types = self.types_of(args)
        rounds = self.declaration.rounds(types, static)
        rule, sizes, static = self.declaration.bound_rule(types, static)
        strategy = choose(rule, types, sizes)
        plan = plan_of(self.declaration, types, rule, sizes, static, strategy, rounds)
        if self.alternative_plan is None:
            return plan
        return self.alternative_plan(plan, *types, **static) or plan

    def types_of(self, args: Sequence[Any]) -> tuple[ArrayType | None, ...]:
        """The types of operands, None for a Python scalar; MeshError if their meshes differ."""
        types = tuple([a.type if type(a) is DistributedArray else None for a in args])
        check_meshes(types, self.name, [self.declaration.operand_name(i) for i in range(len(args))])
        return types


_wants_moves = attrgetter("wants_moves")


@overload
def op(
    rule: RuleOf, *, outputs: int, **options: Any
) -> Callable[[Callable[Concatenate[Any, P], Any]], Op[P, tuple[DistributedArray, ...]]]: ...
@overload
def op(
    rule: RuleOf, **options: Any
) -> Callable[[Callable[Concatenate[Any, P], Any]], Op[P, DistributedArray]]: ...
def op(rule: RuleOf, *, outputs: int = 1, **options: Any) -> Any:
    """Declare an op: a decorator of its body.

    rule: the sharding rule, or a function `(*types, **statics) -> rule`.
    outputs: the number of arrays that the op returns; of several it returns a tuple.
    linear: operands in which the op is linear: `"x, w"` in each alone, `"x + y"` in both together.
    reduce: `sum`, `max`, `min` or `prod`: how shards of a reduced factor combine.
    whole: factors that must not be split.
    fill: for each operand the value that padding of a reduced factor gets. It is the identity of
        `reduce` if left out; None if the body leaves padding out itself (through `shards`).
    merge, finish: for reductions other than these: the body returns statistics (an array, or a
        tuple of arrays). `merge(xp, *statistics)` is a generator of the statistics of all shards,
        which gets them reduced: `(total,) = yield "sum", (total,)`; arrays of one dtype may go
        together. `finish(xp, *statistics)` makes the outputs of what it returns. Without `merge`,
        `finish` scales the partial sum of a block, and must be linear. `merge` may name `parts`,
        the number of shards, `finish` statics, and both `count`, the number of elements reduced.
    view: operands whose memory the outputs may share, as the result of a transpose does.
    computes: whether the body does arithmetic; it then gets operands of bfloat16 as float32
        (`gdt.engine.rounded`). A body that only moves or casts elements gets them as they are, and
        so does one with `view`.
    rounded: for each output an operand: the output is bfloat16 if that is; `-` for an output that
        stays float32. If left out, outputs are bfloat16 if all floating-point operands are, or if
        `dtype=` is.
    extended: parameters that calls may pass and the body never gets: the function that `Op.extend`
        declares takes them; `out` is an array into which the result is written.
    prepare: `(*types, **statics) -> statics`: checks and normalises the statics before a body gets
        them.

    Raises ArgumentError for an unknown option, and for a body without operands.

    >>> from typing import Any
    >>> @gdt.op("..., ... -> ...")
    ... def sum_of_squares(xp: Any, x: Any, y: Any, /) -> Any:
    ...     return x * x + y * y
    >>> sum_of_squares(gdt.asarray([3.0]), 4.0).tolist()
    [25.0]
    """

    wrong = options.keys() - OPTIONS
    if wrong:
        raise error(
            ArgumentError,
            f"there is no option {', '.join(sorted(wrong))}",
            remedy=f"The options are {', '.join(sorted(OPTIONS | {'outputs'}))}.",
        )
    returns = DistributedArray if outputs == 1 else tuple[(DistributedArray,) * outputs]  # type: ignore[misc]

    def declare(body: Callable[..., Any]) -> Op[..., Any]:
        if not inspect.isroutine(body):
            raise error(
                ArgumentError,
                f"it decorates a function, not a value of type {type(body).__name__}",
                remedy='Write @gdt.op(rule), as @gdt.op("... -> ...") is, above the function.',
            )
        new: Op[..., Any] = Op(body, rule, returns, **options)
        if not new.count:
            raise error(
                ArgumentError,
                new.name,
                "its body has no operands",
                remedy="They stand between the namespace and a slash: def f(xp, x, y, /).",
            )
        return declared(new)

    return declare


def declared(new: O) -> O:
    """Register a new op by its name, and return it.

    Raises ArgumentError for an op outside of gdt that has the name of a function of gdt: it would
    replace that as a method of arrays and in NumPy's protocols.
    """
    # In either order: ops of gdt.nn are declared when it is first used, after a user's perhaps.
    namesake = FUNCTIONS.get(new.name)
    if namesake is not None and _is_of_gdt(namesake) is not _is_of_gdt(new):
        raise error(
            ArgumentError,
            "op",
            f"gdt has a function {new.name!r}, which methods of arrays and NumPy find by its name",
            remedy="Give the op another name.",
        )
    OPS[new.name] = new
    register(new.name, new, new.__call__)
    return new


def _is_of_gdt(function: Callable[..., Any]) -> bool:
    return str(function.__module__).partition(".")[0] == "gdt"


def declared_op(module: str, name: str) -> Op[..., Any]:
    """The op `name`, which importing `module` declares: what a pickled op is loaded by."""
    importlib.import_module(module)
    return OPS[name]

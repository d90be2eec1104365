"""Graphs as compiled loops of the host: LLVM writes their machine code, by way of llvmlite.

A loop is one function of C, `int loop(PyArrayObject *block, ..., const int64_t *numbers, const
int64_t *parameters)`, over three nested axes, of which the last lies in memory without gaps:
`numbers` are the three lengths, and for each block, in bytes, the place of its first element and
its steps along the first two; `parameters` have 8 bytes each. A block of one element along the last
axis is read once for each row. The text says what is computed for one element; LLVM makes vectors
of it. Machine code is kept on disk, in a file whose name is a hash of the text, the version of LLVM
and the processor with its features.

Arrays are passed as objects, since asking an array for its address takes as long as computing a
thousand elements: the address is the first field after the header of the object (`PyArrayObject` of
NumPy's C API).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from gdt.fusion.formula import ElementGraph, Node
from gdt.fusion.row_text import GraphCall, RowFunction
from gdt.machine_code import read_code, user_folder, write_code

VARIABLE = "GDT_COMPILED_LOOPS"
WANTED = os.environ.get(VARIABLE, "").strip().lower() not in ("0", "false", "no", "off")


def problem() -> str:
    """The reason why loops cannot be compiled here; empty if they can."""
    return _target()[1] if WANTED else f"turned off by {VARIABLE}"


@cache
def _target() -> tuple[Any, str]:
    """The machine for which llvmlite compiles; or None, and the reason why there is none."""
    try:
        import llvmlite.binding as llvm  # noqa: PLC0415 - takes 50 ms, and only loops need it
    except Exception as e:
        return None, f"llvmlite cannot be imported: {type(e).__name__}: {e}"
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    triple = llvm.get_process_triple()
    if triple.startswith(("x86", "i686")) and not features.get("fma"):
        return None, "the processor has no fused multiply-add"
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
    )
    return machine, ""


# ---------------------------------------------------------------- text


def text_of(graph: ElementGraph, inputs: Sequence[tuple[str, bool]], outputs: Sequence[Node],
            checked: Sequence[Node] = (), calls: Sequence[GraphCall] = (),
            places: Sequence[int] = ()) -> str:  # fmt: skip
    """The text of the function `loop` that computes the values `outputs` of a graph. It returns 1
    if an element of a value in `checked` is infinite or NaN, or if one of `calls` makes infinities
    of finite operands or NaN of numbers, as inf - inf does; else 0.

    inputs: for each block that is read its dtype, and whether it has one element along the last
        axis. places: the blocks into which the outputs go; by default new ones, after the inputs.
    """
    places = places or range(len(inputs), len(inputs) + len(outputs))
    rows = RowFunction(graph, inputs, outputs, places, checked, calls)
    count = max(len(inputs), *[n + 1 for n in places])
    objects, pointers = (", ".join(f"ptr %{c}{n}" for n in range(count)) for c in ("object", "row"))
    # Of each block, the address of its first element and its steps along the outer axes.
    loads = [
        line
        for n in range(count)
        for line in (
            f"%field{n} = getelementptr i8, ptr %object{n}, i64 {object.__basicsize__}",
            f"%array{n} = load ptr, ptr %field{n}",
            f"%number.f{n} = getelementptr i64, ptr %numbers, i64 {3 + 3 * n}",
            f"%first{n} = load i64, ptr %number.f{n}",
            f"%block{n} = getelementptr i8, ptr %array{n}, i64 %first{n}",
            f"%number.i{n} = getelementptr i64, ptr %numbers, i64 {4 + 3 * n}",
            f"%step.i{n} = load i64, ptr %number.i{n}",
            f"%number.j{n} = getelementptr i64, ptr %numbers, i64 {5 + 3 * n}",
            f"%step.j{n} = load i64, ptr %number.j{n}",
        )
    ]
    steps = [
        line
        for n in range(count)
        for line in (
            f"%offset.i{n} = mul i64 %step.i{n}, %i", f"%offset.j{n} = mul i64 %step.j{n}, %j",
            f"%rows{n} = getelementptr i8, ptr %block{n}, i64 %offset.i{n}",
            f"%row{n} = getelementptr i8, ptr %rows{n}, i64 %offset.j{n}",
        )
    ]  # fmt: skip
    body = "\n  ".join
    return f"""{rows.text()}
define i32 @loop({objects}, ptr %numbers, ptr %parameters) {{
entry:
  %length.i = load i64, ptr %numbers
  %number.j = getelementptr i64, ptr %numbers, i64 1
  %length.j = load i64, ptr %number.j
  %number.n = getelementptr i64, ptr %numbers, i64 2
  %length.n = load i64, ptr %number.n
  {body(loads)}
  br label %outer
outer:
  %i = phi i64 [0, %entry], [%i.next, %outer.next]
  %flag.i = phi i32 [0, %entry], [%flag.next, %outer.next]
  br label %inner
inner:
  %j = phi i64 [0, %outer], [%j.next, %inner]
  %flag.j = phi i32 [%flag.i, %outer], [%flag.next, %inner]
  {body(steps)}
  %flag = call i32 @row({pointers}, ptr %parameters, i64 %length.n)
  %flag.next = or i32 %flag.j, %flag
  %j.next = add i64 %j, 1
  %more.j = icmp slt i64 %j.next, %length.j
  br i1 %more.j, label %inner, label %outer.next
outer.next:
  %i.next = add i64 %i, 1
  %more.i = icmp slt i64 %i.next, %length.i
  br i1 %more.i, label %outer, label %exit
exit:
  ret i32 %flag.next
}}
"""


def kept_nbytes(graph: ElementGraph, inputs: Sequence[tuple[str, bool]], outputs: Sequence[Node],
                checked: Sequence[Node], calls: Sequence[GraphCall]) -> int:  # fmt: skip
    """The bytes of the stack that a loop with reductions takes for what it keeps of a row."""
    places = range(len(inputs), len(inputs) + len(outputs))
    return RowFunction(graph, inputs, outputs, places, checked, calls).kept_nbytes


# ---------------------------------------------------------------- machine code

Function = Callable[..., int]

_LOCK = threading.Lock()
# A fork waits for the thread that compiles, for which its child would wait without end.
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)
_COMPILED: dict[str, Function] = {}
SECONDS: list[float] = []
"""What LLVM has taken for each loop that was not on disk."""


def described() -> str:
    """The number of loops of chains in this process, and the time of their compilation."""
    made = f"{len(SECONDS)} compiled in {sum(SECONDS):.2f} s, the others from disk"
    return problem() or f"{len(_COMPILED)} in this process: {made}"


def compiled(text: str, count: int) -> Function:
    """The function `loop` of a text, which takes `count` blocks; compiled once in a process."""
    with _LOCK:  # LLVM compiles in one thread at a time
        if text not in _COMPILED:
            _COMPILED[text] = _compile(text, count)
        return _COMPILED[text]


@cache
def _engine() -> Any:
    """The holder of the machine code of all loops; it owns the target machine from now on."""
    import llvmlite.binding as llvm  # noqa: PLC0415

    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target()[0])


def _compile(text: str, count: int) -> Function:
    import llvmlite.binding as llvm  # noqa: PLC0415

    machine, engine = _target()[0], _engine()
    # A virtual machine may lack features of the processor that it names, and share the folder.
    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    digest = hashlib.sha256(f"{llvm.llvm_version_info} {processor} {text}".encode()).hexdigest()
    name, folder = f"loop_{digest}", user_folder("loops")
    path = folder and folder / f"{digest}.o"
    code = read_code(path) if path else None
    if code is None:
        begin = time.perf_counter()
        module = llvm.parse_assembly(text.replace("@loop(", f"@{name}("))
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = True
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        code = machine.emit_object(module)
        SECONDS.append(time.perf_counter() - begin)
        if path:
            with suppress(OSError):  # a folder that cannot be written: each process compiles anew
                write_code(path, code)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    blocks = (ctypes.py_object,) * count
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *blocks, ctypes.c_void_p, ctypes.c_void_p)
    return kind(engine.get_function_address(name))

"""Which code is the user's, what it looks up by name, and what of it runs in a call.

A recorded function depends on the program that calls it, and not on gdt and installed packages:
code in files of theirs is a library's.
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import os
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

LIBRARIES = [
    os.path.join(folder, "")  # so that /lib/gdt_training is none of /lib/gdt
    for folder in (
        str(Path(__file__).parents[1]),
        *{sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")},
    )
]


class Ran:
    """The functions of the user's that have run, by their code, with their global variables; and,
    in `resumed`, the name of a generator that had begun before the call and went on in it."""

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self.resumed: str | None = None
        self._functions: list[weakref.ref[types.FunctionType]] = []
        self._begun: set[types.FrameType] = set()  # generators

    @contextmanager
    def watching(self, reached: Set[types.CodeType]) -> Iterator[bool]:
        """Add what runs in this block, in this thread; `reached` are functions that are known.

        Gives whether it can be seen: not while a profiler written in C, as `cProfile`, is at work,
        which Python can neither share nor put back.
        """
        before, known = sys.getprofile(), len(self.codes)
        self.resumed, self._begun = None, {sys._getframe()}
        if before is not None and not isinstance(before, types.FunctionType | types.MethodType):
            yield False
            return
        sys.setprofile(self._note)
        try:
            yield True
        finally:
            sys.setprofile(before)
            self._begun.clear()
        # A function that another one makes works with the variables of that call.
        made = {inner for code in (*self.codes, *reached) for inner in _made_by(code)}
        new = {c for c in [*self.codes][known:] if c.co_freevars} - made - reached
        if new:  # a search of all objects, for what decorators have made, say
            self._functions += [
                weakref.ref(f)
                for f in gc.get_referrers(*new)
                if isinstance(f, types.FunctionType) and f.__code__ in new
            ]

    def _note(self, frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR:
            if frame.f_lasti <= _start_of(frame.f_code):
                self._begun.add(frame)
            elif frame not in self._begun:
                self.resumed = frame.f_code.co_name
        if event == "call" and frame.f_code not in self.codes and is_users_code(frame.f_code):
            variables = frame.f_globals
            made = str(variables.get("__name__")).startswith("namedtuple_")
            if not made and is_users_file(variables):
                self.codes[frame.f_code] = variables

    def functions(self) -> Iterator[types.FunctionType]:
        """Those of them that have variables of enclosing functions."""
        for reference in self._functions:
            if (function := reference()) is not None:
                yield function


@functools.lru_cache(maxsize=1 << 12)
def _start_of(generator: types.CodeType) -> int:
    """Where a generator begins; it goes on elsewhere."""
    found = dis.get_instructions(generator)
    return next((i.offset for i in found if i.opname == "RESUME"), 0)


class Names(NamedTuple):
    """The names that code uses: of global variables, of attributes, and of modules that it
    imports."""

    variables: set[str]
    attributes: set[str]
    modules: set[str]


OPERATIONS = {
    "LOAD_GLOBAL": 0, "STORE_GLOBAL": 0, "LOAD_NAME": 0,
    "LOAD_ATTR": 1, "LOAD_METHOD": 1, "IMPORT_FROM": 1,
    "IMPORT_NAME": 2,
}  # fmt: skip


@functools.lru_cache(maxsize=1 << 12)
def names_in(code: types.CodeType) -> Names:
    """The names that a function, or one inside it, may look up."""
    found = Names(set(), set(), set())
    for instruction in dis.get_instructions(code):
        if instruction.opname in OPERATIONS:
            found[OPERATIONS[instruction.opname]].add(instruction.argval)
    for inner in _made_by(code):
        for mine, more in zip(found, names_in(inner), strict=True):
            mine.update(more)
    return found


def imported(names: Set[str], variables: dict[str, Any]) -> Iterator[types.ModuleType]:
    """The user's modules that code with these global variables imports by these names, and the
    packages that they are in; where a name may be relative, it is looked for in each."""
    package = str(variables.get("__package__") or "").split(".")
    for name in sorted(names):
        for depth in range(len(package) + 1):
            path = ".".join([*package[:depth], name]).strip(".").split(".")
            for end in range(1, len(path) + 1):
                module = sys.modules.get(".".join(path[:end]))
                if module is not None and is_users_file(vars(module)):
                    yield module


def _made_by(code: types.CodeType) -> list[types.CodeType]:
    """The functions that a function makes while it runs."""
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def exempt(path: str) -> None:
    """Let code in files whose names begin like this be a library's, on which no recording relies:
    that of a backend which is no part of gdt."""
    LIBRARIES.append(path)
    is_of_a_user.cache_clear()
    is_users_code.cache_clear()


@functools.lru_cache(maxsize=1 << 12)
def is_of_a_user(thing: type) -> bool:
    """Whether a class is of a program, and not of gdt or a library."""
    module = str(getattr(thing, "__module__", "") or "")
    if module.split(".", maxsplit=1)[0] in ("gdt", "builtins"):
        return False
    return is_users_file(vars(sys.modules[module]) if module in sys.modules else {})


@functools.lru_cache(maxsize=1 << 12)
def is_users_code(code: types.CodeType) -> bool:
    """Whether a function is of a program, by the file that it is written in."""
    return not code.co_filename.startswith((*LIBRARIES, "<frozen", "<gdt", "<__array"))


def is_users_file(variables: dict[str, Any]) -> bool:
    """Whether a module, by its variables, is of a program; one that was typed in is."""
    file, name = variables.get("__file__") or "", variables.get("__name__")
    return name not in sys.builtin_module_names and not file.startswith(tuple(LIBRARIES))

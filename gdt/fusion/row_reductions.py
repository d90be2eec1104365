"""Reductions of rows, as functions of LLVM: the sum, the largest and the smallest of the numbers of
a row.

The order in which they are combined depends on the length of the row alone: 32 of them side by
side, then these with each other, then what is left over. float32 is added up in float64, and
rounded once. NaN is the largest and the smallest, as in NumPy.
"""

from __future__ import annotations

from functools import cache

WIDTH = 8  # numbers of a vector
VECTORS = 4  # combined side by side

NEUTRAL = {"sum": "0x8000000000000000", "max": "0xFFF0000000000000", "min": "0x7FF0000000000000"}
"""The bits of the number that changes no other: -0.0, -inf, inf."""

TYPES = {"f4": "float", "f8": "double"}


@cache
def function_of(name: str, dtype: str) -> str:
    """The text of the function `@NAME.DTYPE(ptr row, i64 length)` of a reduction."""
    own = TYPES[dtype]
    text = _Text(name, own, "double" if name == "sum" else own)
    wide, vector = text.wide, f"<{WIDTH} x {text.wide}>"
    neutral = f"<{', '.join([f'{wide} {NEUTRAL[name]}'] * WIDTH)}>"
    each, step = range(VECTORS), WIDTH * VECTORS
    text.lines = [
        f"define internal {text.wide} @{name}.{dtype}(ptr %row, i64 %length) {{",
        "entry:",
        "  br label %ahead",
        "ahead:",
        "  %i = phi i64 [0, %entry], [%i.next, %vectors]",
        *[f"  %a{k} = phi {vector} [{neutral}, %entry], [%b{k}, %vectors]" for k in each],
        f"  %i.next = add i64 %i, {step}",
        "  %more.i = icmp sle i64 %i.next, %length",
        "  br i1 %more.i, label %vectors, label %joined",
        "vectors:",
    ]
    for k in each:
        value = text.load(f"%p{k}", WIDTH, "%i", k * WIDTH)
        text.combine(f"%a{k}", value, vector, f"%b{k}")
    text.lines += ["  br label %ahead", "joined:"]
    first, second = (text.combine(f"%a{k}", f"%a{k + 1}", vector) for k in (0, 2))
    text.combine(first, second, vector, "%whole")
    text.lines += [
        "  br label %more",
        "more:",
        "  %j = phi i64 [%i, %joined], [%j.next, %vector]",
        f"  %c = phi {vector} [%whole, %joined], [%c.next, %vector]",
        f"  %j.next = add i64 %j, {WIDTH}",
        "  %more.j = icmp sle i64 %j.next, %length",
        "  br i1 %more.j, label %vector, label %halves",
        "vector:",
    ]
    text.combine("%c", text.load("%q", WIDTH, "%j"), vector, "%c.next")
    text.lines += ["  br label %more", "halves:"]
    x, width = "%c", WIDTH
    while width > 1:
        first, second = text.halves(x, width)
        x, width = text.combine(first, second, f"<{width // 2} x {wide}>"), width // 2
    text.lines += [
        f"  %first = extractelement <1 x {wide}> {x}, i64 0",
        "  br label %left",
        "left:",
        "  %k = phi i64 [%j, %halves], [%k.next, %single]",
        f"  %s = phi {wide} [%first, %halves], [%s.next, %single]",
        "  %k.next = add i64 %k, 1",
        "  %more.k = icmp sle i64 %k.next, %length",
        "  br i1 %more.k, label %single, label %exit",
        "single:",
    ]
    text.combine("%s", text.load("%r", 1, "%k"), wide, "%s.next")
    text.lines += ["  br label %left", "exit:", f"  ret {wide} %s", "}"]
    return "\n".join(text.lines)


class _Text:
    """The lines of a function. own: the type of the numbers. wide: that in which they are
    combined."""

    def __init__(self, name: str, own: str, wide: str) -> None:
        self.name, self.own, self.wide = name, own, wide
        self.lines: list[str] = []
        self.count = 0

    def add(self, line: str, result: str = "") -> str:
        """Add an instruction; return what its result is called."""
        self.count += 1
        result = result or f"%t{self.count}"
        self.lines.append(f"  {result} = {line}")
        return result

    def load(self, pointer: str, width: int, index: str, after: int = 0) -> str:
        """The numbers of the row from an index on, as many as a vector of this width has."""
        own, wide = (t if width == 1 else f"<{width} x {t}>" for t in (self.own, self.wide))
        at = self.add(f"add i64 {index}, {after}") if after else index
        self.add(f"getelementptr {self.own}, ptr %row, i64 {at}", pointer)
        value = self.add(f"load {own}, ptr {pointer}, align {4 if self.own == 'float' else 8}")
        return value if own == wide else self.add(f"fpext {own} {value} to {wide}")

    def combine(self, so_far: str, x: str, kind: str, result: str = "") -> str:
        """The result of two numbers, or of vectors of them; NaN stays NaN."""
        if self.name == "sum":
            return self.add(f"fadd {kind} {so_far}, {x}", result)
        count = kind[1:].partition(" ")[0] if kind[0] == "<" else ""
        bools = f"<{count} x i1>" if count else "i1"
        better = self.add(f"fcmp {'ogt' if self.name == 'max' else 'olt'} {kind} {x}, {so_far}")
        is_nan = self.add(f"fcmp uno {kind} {x}, {x}")
        chosen = self.add(f"or {bools} {better}, {is_nan}")
        return self.add(f"select {bools} {chosen}, {kind} {x}, {kind} {so_far}", result)

    def halves(self, x: str, width: int) -> tuple[str, str]:
        """The two halves of a vector."""
        kind, half = f"<{width} x {self.wide}>", width // 2
        first, second = (
            self.add(
                f"shufflevector {kind} {x}, {kind} poison, <{half} x i32> "
                f"<{', '.join(f'i32 {n}' for n in numbers)}>"
            )
            for numbers in (range(half), range(half, width))
        )
        return first, second

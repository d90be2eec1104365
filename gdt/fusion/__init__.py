"""Loops over elements: element-wise ops, alone or a chain of them, compiled as one loop.

**Formulas.** What an op computes for one element is its formula, text in a small language
(`formula`) that stands beside the op: `formula="x * y"` in the declaration of a ufunc,
`has_formula(...)(op)` for other ops (`op_formula`). An `ElementGraph` holds the values of one or
several formulas, equal ones once.

**Loops.** `row_text` and `llvm` write a graph as a loop for LLVM, by way of llvmlite, which the
extra `fast` brings; `loop` runs it on blocks that broadcast, in any order in memory, in threads. A
loop is compiled when it first runs, in 10 to 100 ms, and kept on disk in `~/.cache/gdt/loops` (or
below `XDG_CACHE_HOME`). Where it cannot be compiled, or with `GDT_COMPILED_LOOPS=0`, NumPy's
functions run on slices of the blocks (`gdt.programs.slices`).

**Reductions.** A formula may name the sum, the largest and the smallest number of the row that an
element is in. `reducing` runs loops of such formulas row by row, and loops that end with sums of
columns or of all elements; `row_reductions` has the functions that reduce a row. Eager reductions
of large blocks are the same loops.

**Several results.** `formula_loop` makes a loop of several formulas, which reads and writes
matrices whose rows are apart, or writes into its operands: an LSTM's step, an optimizer's update.

**Bits.** A formula of + - * /, sqrt, comparisons and choices has the bits of NumPy's functions. The
elementary functions (`elementary`: exp, log, tanh, erf, sin, powers and so on) have not;
they are within 2 units in the last place. So the op itself runs them as a loop (`loop.CompiledOp`)
wherever a block has enough elements, and a recorded step has the bits of the step as written.

**What is infinite or no number.** Loops tell whether finite operands gave such a value. Then
NumPy's functions run too: for their warnings, and for what a formula does not compute, such as the
sine of 1e9.

**GPUs.** `cuda` writes the same graph as a CUDA kernel, with the bits of CuPy's ufuncs: what has a
function of CUDA's calls that in the place of a formula.

**Recorded steps.** `gdt.programs.fusing` finds the chains, `gdt.programs.reducing` those with
reductions.
"""

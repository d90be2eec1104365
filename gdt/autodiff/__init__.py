"""Gradients: the tape, the transforms `grad`, `vjp` and `value_and_grad`, and the backward pass.

**Files.** `functional` has the transforms, which are functions of the `tape`. `backward` chooses
between a recorded backward pass and one that runs op by op, which is `reverse_mode`.

**Other derivatives** (`derivatives`) are made of backward passes: `jvp` of one and of one through
it, `jacobian` and `hessian` of one for each element of a value. `vmap` (`batching`) is a loop.

**The tape** is an observer: a list of the calls that it was told of, in order. The backward pass
(`reverse_mode`) goes through the calls that lead from the sources to the targets, last first, and
calls one gradient function per operand, only for operands that lead to a source. Gradient functions
are written with public ops, so gradients of gradients, the layouts of gradients and their
communication follow from the rules. A function of ops with a gradient of its own is one entry on
the tape.

**Layouts.** Cotangents lie as their values do (`alignment`), those of several uses are added while
they are partial, and a gradient ends in the layout of its source. The partial sums of all gradients
of a call, and of `together_with`, are resolved in one collective per (mesh axes, reduction, dtype).

**Beside computation.** What is sent for gradients (buckets of 25 MiB, reduce-scatters of FSDP, and
the rest with the loss) is a launch (`gdt.comm.launch`): packing, NCCL and unpacking run on the
communication stream of GPUs, and whoever reads a result lets computation wait for it. Gradients as
they were computed are freed when the next launch begins, for which computation waits for the last
one: those of at most two are held beside what they are reduced to. The tests' simulated GPUs keep
vector clocks of their streams and report every use of memory that no event orders; how much a GPU
does at the same time has not been measured. Between processes on hosts nothing overlaps.

**Released arrays.** An array that was gathered for the call of a layer has no blocks after that
call. A gradient function that reads it computes it again (`gdt.array.released`), and the backward
pass frees it once nothing on the way needs it (`releases`). So weights are gathered twice, and the
tape refers to weights in the layouts in which they are stored. Those that the forward pass reads
last stay until the backward pass gathers any, which are mostly these. On GPUs the next gather of
the pass is under way while the last one is used (`gdt.array.gathers`). A checkpointed function
(`checkpointed`) is one entry on the tape, whose gradient runs the function again under a tape of
its own.

**Unread arrays.** Most gradients need few values: that of `x @ w + b` reads x and w, and neither
the product nor the sum. Ops say so (`vjp(..., reads=)`), and a tape frees the memory of a large
array that no gradient reads once nobody else refers to it (`unread`).

**Replay.** A step whose calls, layouts and Python scalars were seen twice runs its backward pass as
a recorded program (see `gdt.programs`). A gradient function of a user's own op must therefore be a
function of its arguments alone, as in JAX.
"""

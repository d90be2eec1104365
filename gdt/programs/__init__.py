"""Recorded computations: a recorder notes what ran on blocks, a program runs it again, and
`gdt.function` replays whole steps; on GPUs as CUDA graphs.

**Programs.** A `Recorder` is an observer that notes which functions made which blocks out of which.
What of that is needed for some results is a `Program`: one straight Python function with a line for
each plan, which `print(program.source)` shows. A block is identified by its identity, so arrays,
types and trees leave no trace in a program. A block that no function was seen to make must be
declared as an input or a constant; otherwise recording fails.

**Two replays.** The gradients of a tape (`gdt.autodiff.backward`): calls, layouts and Python
scalars of a step are their signature. The first time a signature is seen gradients run op by op,
the second time they are recorded too, and from then on the program runs. While an observer is
active they run op by op. And whole steps (`gdt.function`): a program whose inputs are the arrays of
the arguments and of the step's state (`step_state`), which are read anew in every call and written
back. Everything else in arguments and state is part of the signature of a recording; all other
Python values are constants of it.

**What the host computes anew** in every step (learning rates, counters, streams of random numbers)
goes through `gdt.observe.from_host`, so that the program calls it again. Whether a donated operand
may be overwritten is decided in every replay, and only of parameters of which the step goes on to
use no view (`aliases`).

**Several processes.** A replay sends what the step sends as it is written, also what nobody reads;
it resolves the same partial reductions and notes the same draws and arrays. So processes may record
and replay at different times.
"""

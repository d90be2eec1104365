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
active they run op by op. And whole steps (`gdt.function`), as follows.

**Recorded steps.** A step's arrays come from its arguments and its state: the trees that `state=`
names, or all that the step refers to (`gdt.state.variables`). They are read from their places
(`gdt.state.Place`: `owner[key]`) anew in every call, and what the step puts in a place is put there
by a replay. All else in arguments and state (`step_state`) is part of the signature of a call.
The first call with a signature runs as written, which makes plans and an optimizer's state; the
second is recorded. A `Recording` is one compiled function (`replay`): guards, each the comparison
of a value of the state with what it was, as `attributes["rate"] is rate`; the program; and a line
for each place that it writes. Where a guard fails, other recordings are tried, and then the call is
recorded anew.

**What is refused.** A recorded step must not do what a replay cannot repeat. `observe.met_host`
tells the recorder of values read on the host, data taken from there, and counters and batches that
Python asks for; the error names the user's line. A write to the elements of an array of the
arguments or the state is refused in the first call already. When the step has run, what it refers
to is compared with what it was, the states of NumPy's and Python's generators too: arrays may have
taken the places of arrays, and all other changes are refused, as is an array that no place holds.
After an error in a call that runs as written or is recorded, the state is put back
(`State.attempt`), counters and random numbers too.

**Verification** proves what guards promise: in the first replay of a recording, and in every call
of number `verify`, the step runs as written, the state is put back, and a replay must leave the
same bits everywhere. The replay works on the real arrays, so that overwritten parameters and CUDA
graphs are verified as they are. Several processes must send the same: they verify the third call
with arrays of the same types, whether or not it has a recording yet in each of them.

**What the host computes anew** in every step (learning rates, counters, streams of random numbers)
goes through `gdt.observe.from_host`, so that the program calls it again. Whether a donated operand
may be overwritten is decided in every replay, and only of parameters of which the step goes on to
use no view (`aliases`).

**Several processes.** A replay sends what the step sends as it is written, also what nobody reads;
it resolves the same partial reductions and notes the same draws and arrays. So processes may record
and replay at different times.
"""

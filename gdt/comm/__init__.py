"""Collectives: inside a block, between the blocks of a process, and between processes.

**Inside a block** a collective is an axis operation (`local`): an all-reduce is a sum along a mesh
axis, an all-gather moves a mesh axis in front of the array axis that it splits.

**Between blocks** a transport moves data. This package and the mesh are the only places that know
how many processes there are; whether data has to move between blocks at all is `mesh.divided`, a
fact of the mesh. So two processes of four devices and one process of eight run the same plans and
report the same collectives. Each transport counts its calls and bytes, which must equal what the
plans announce.

    blocks are                          transport         moved by
    in this process, on the host        CopyTransport     NumPy copies
    in several processes, on hosts      ProcessTransport  messages over MPI or sockets
    on GPUs, of one process or several  NcclTransport     NCCL, all GPUs of a process in one group
    abstract                            AbstractTransport nobody: there are no values

**Relayout.** `relayout` carries out the routes of `gdt.sharding.routes`. Operands of one op that
hold partial reductions are resolved in one collective per (mesh axes, reduction, dtype), and so
are the gradients of a step with its loss and metrics. A resolved value is stored with the array, so
a second use sends nothing. How an all-reduce is carried out the mesh says (`all_reduce`). On GPUs
packing, NCCL and unpacking run on the communication stream. Computation waits for them at once, or,
if they are a `launch`, when somebody reads a result.

**Processes on hosts.** All meet at process 0 (`rendezvous`), whose `coordinator` keeps a socket to
each, also where data goes through MPI or NCCL: one that closes without a goodbye is that of a
process that has died, which MPI does not tell, and the coordinator tells all others. A host that
loses its power or network is noticed after 9 seconds of silence (TCP's keep-alive). A process that
is silent for the time-out given to `initialize`, or says goodbye with an error, ends the others as
well. Two processes open a socket when they first exchange data. Reductions are computed from
messages in coordinate order, and not by MPI: its max and min lose NaN, it has no float16, and its
order of sums is its own. So the bits do not depend on how many processes hold the blocks. Small
facts (shapes for `pack`, shown elements, numbers of checkpoints) travel along a tree, by
`Messages.gather` and `decide`, as JSON: nothing that comes from a socket is unpickled.

**Processes agree, or stop.** All processes run the same program, and each keeps its own part of
every array, so a difference need not show in the data. Each process therefore notes what it does on
meshes of several processes (`agreement.History`): every op with its types, statics and Python
numbers; which ops have made what a collective reduces; every array that is made, with a checksum of
contents that come from the host or from a mesh of the process's own; every draw of random numbers;
every step of an optimizer with its numbers and the names of its parameters. A message carries the
number and the description of its step, and the number and one running checksum of the notes. Where
they differ, both processes send each other their newest notes, and all raise an error that names
the first note that differs, with both sides' calls and lines. Between GPUs data carries no
description, so the checksums travel through the sockets of the tree, at every fetch and after every
16th collective, and nobody waits for them.

A note is made where a plan runs, so that a recorded program makes the notes of the step that it
replays: processes may record and replay at different times. Which arrays its ops were given, a
replay cannot tell; the note of the dataflow at its end can (`agreement`). Meshes of one process
have no notes, and their plans do not ask. Gradients and updates travel in the order of their names,
since processes may have filled a dict in different orders. Not compared are arrays on GPUs that are
given to `asarray`, calls in other threads than the one that has called `initialize`, the parts that
`pack` is given, and what a program does after its last exchange.

**One thread exchanges data**: the one that has called `initialize`. Steps have numbers alone, so
two threads that take turns in other orders would combine the data of one with that of the other,
and no order that a lock gives is that of the other processes. `Messages` and `Ranks` therefore
refuse every other thread.

**NCCL.** Its max and min lose NaN as well, so floating-point numbers travel as integers of the same
order (`encoding`), which also carries bools and 16-bit integers; complex products and extrema are
gathered. Communicators (`ranks`) are split from the one of all blocks (CuPy 14), or created from an
identifier for each group of blocks: CuPy 13 cannot split one, nor CuPy 14 those of several GPUs in
one process. Calls are enqueued on the communication stream of each device. A large replicated array
goes from the host to one GPU of a process, and by a broadcast from there to the others.
`Transport.wait` looks at the end of the calls, at NCCL's asynchronous errors and at the other
processes before the host reads a value. `tests/recorded_nccl.py` executes the calls in the host's
memory and refuses what would hang.
"""

from gdt.comm import nccl, transport
from gdt.comm.abstract import AbstractTransport

transport.register_transport("cuda", nccl.transport)
transport.register_transport("abstract", AbstractTransport)

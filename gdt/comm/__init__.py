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

**Relayout.** `relayout` carries out the routes of `gdt.sharding.routes`. Operands of one op that
hold partial reductions are resolved in one collective per (mesh axes, reduction, dtype), and so
are the gradients of a step with its loss and metrics. A resolved value is stored with the array, so
a second use sends nothing. On GPUs packing, NCCL and unpacking run on the communication stream.

**Processes on hosts.** Every two processes are connected by a socket (`rendezvous`), also where
data goes through MPI or NCCL: a socket that closes without a goodbye tells the others that a
process has died, which MPI does not. A host that loses its power or network is noticed after
9 seconds of silence (TCP's keep-alive). A message carries the number and the description of its
step; a message of another step means that the processes run different programs, which is an error
in both of them instead of a hang. Messages also say which random numbers were drawn, and which
arrays were created with which contents (`agreement`), for meshes of all processes. Reductions are
computed from messages in coordinate order, and not by MPI: its max and min lose NaN, it has no
float16, and its order of sums is its own. So the bits do not depend on how many processes hold the
blocks. Small facts (shapes for `pack`, shown elements, numbers of checkpoints) travel by
`Messages.gather`.

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

transport.register_transport("cuda", nccl.transport)

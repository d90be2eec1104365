"""Several processes that run one program: `initialize` connects them, before anything else.

    import gdt

    gdt.distributed.initialize()
    mesh = gdt.create_mesh([("batch", 8)])

Started as `mpiexec -n 4 python train.py`, each of four processes owns two of the eight devices; the
rest of the program is that of one process. All processes run the same lines: each call that moves,
prints or fetches an array is made by all of them.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import sys
from typing import Any

from gdt.comm import mpi
from gdt.comm.job import facts
from gdt.comm.launchers import settings
from gdt.comm.messages import Messages
from gdt.comm.notes import connect, connected
from gdt.comm.processes import ProcessTransport
from gdt.comm.rendezvous import meet
from gdt.comm.transport import CopyTransport, Transport, register_transport, wait_for_all
from gdt.errors import DistributedError, error
from gdt.sharding import processes
from gdt.sharding.mesh import Mesh

LONGEST_NAME = 200  # characters of a job's

_is_initialized = False


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: float = 300.0,
    job: str | None = None,
) -> None:
    """Connect the processes that run this program; call it once, before the first mesh is made.

    From then on only the thread that has called it exchanges data: collectives, fetches and saves
    of arrays of several processes raise DistributedError in every other thread.

    coordinator_address: `"host:port"` at which process 0 listens and which all processes can reach.
    num_processes: the number of processes. process_id: the index of this process, from 0.
    Where these three are left out, the launcher gives them: `mpiexec` (with the extra `gdt[mpi]`),
    torchrun and Ray Train by the variables `MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE` and `RANK`,
    the user by `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`, Slurm's `srun`,
    or an indexed job of Kubernetes, whose manifest sets `WORLD_SIZE`. Without any of these the
    program is one process.
    timeout: seconds to wait for other processes, here and in every later call.

    job: a name, the same in all processes of this program; processes of different jobs refuse each
    other when they meet on one port. Without a name, processes are of one job if they run the same
    file, in any folder and with any arguments, in the same run of torchrun or step of Slurm. So a
    name is needed to tell apart two runs of one file, and programs that are no file (`python -c`,
    notebooks); not under `mpiexec`, which connects its own processes.

    The network must be trusted: processes of other jobs are refused, but whoever starts a process
    of the same job could take the place of one that has not joined yet.

    Raises DistributedError if it was called before, if a mesh of several devices exists, for
    arguments that do not fit together, and for processes that cannot be reached. Follows
    `jax.distributed.initialize`.

    >>> gdt.distributed.process_count()
    1
    """
    global _is_initialized  # noqa: PLW0603  # a fact of the process
    _check_state(timeout, job)
    arguments = (coordinator_address, num_processes, process_id)
    if arguments == (None, None, None) and mpi.launched():
        _connect(_over_mpi(timeout))
    else:
        told = arguments if arguments != (None, None, None) else settings()
        if told != (None, None, None):
            address, count, index = _checked(*told)
            if count > 1:
                met = meet(address, count, index, timeout, facts(job))
                _connect(Messages(index, met, timeout))
    _is_initialized = True


def _check_state(timeout: object, job: object) -> None:
    """Raise DistributedError unless processes can be connected now, with these arguments."""
    if _is_initialized:
        problem, remedy = "the processes are connected already", "Call it once."
        raise error(DistributedError, problem, remedy=remedy)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        problem = f"timeout is {timeout!r}; it is a positive number of seconds"
        raise error(DistributedError, problem)
    if job is not None and not (isinstance(job, str) and 0 < len(job) <= LONGEST_NAME):
        problem = f"job is {job!r}; it is a name of 1 to {LONGEST_NAME} characters"
        raise error(DistributedError, problem)
    meshes = [m for m in Mesh.interned() if m.size > 1]
    if meshes:
        raise error(
            DistributedError,
            f"there is a mesh already, {meshes[0]}, which belongs to this process alone",
            remedy="Call gdt.distributed.initialize() before the first mesh is made.",
        )


def _over_mpi(timeout: float) -> Messages:
    """Return the messages of the processes that `mpiexec` has started."""
    with mpi.limited(timeout):
        started = mpi.started()
        world, host = started.world, socket.gethostname()
        index, count = world.Get_rank(), world.Get_size()
        own = "127.0.0.1" if len(set(world.allgather(host))) == 1 else host
        listener = socket.create_server((own, 0)) if index == 0 else None
        port = listener.getsockname()[1] if listener else 0
        address, job = world.bcast(((own, port), secrets.token_hex(16)))
    met = meet(address, count, index, timeout, facts(job), listener)
    messages = mpi.MpiMessages(index, met, timeout)
    messages.mpi = started
    return messages


def _checked(address: object, count: object, index: object) -> tuple[tuple[str, int], int, int]:
    """Return the address as (host, port), the number of processes and the index of this process.

    Raises DistributedError for values that are none of these, or do not fit together."""
    numbers = []
    for name, value, least in (("num_processes", count, 1), ("process_id", index, 0)):
        text = str(value)  # variables of the environment are texts
        if isinstance(value, bool) or not text.isdecimal() or int(text) < least:
            problem, remedy = f"{name} is {value!r}", f"It is an integer of at least {least}."
            raise error(DistributedError, problem, remedy=remedy)
        numbers.append(int(text))
    if numbers[1] >= numbers[0]:
        problem = f"process_id is {numbers[1]}, of {numbers[0]} processes"
        remedy = f"It is one of 0..{numbers[0] - 1}."
        raise error(DistributedError, problem, remedy=remedy)
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16):
        problem = f"coordinator_address is {address!r}"
        remedy = "It is the host and port of process 0, such as 'node0:29500'."
        raise error(DistributedError, problem, remedy=remedy)
    return (host.strip("[]"), int(port)), numbers[0], numbers[1]


def _connect(messages: Messages) -> None:
    """Make known that this process is one of several: to meshes, collectives and Python's exit."""
    connect(messages)
    hosts = tuple(peer.host for peer in messages.peers)
    processes.announce(processes.Processes(messages.index, hosts))
    register_transport("cpu", _transport)
    atexit.register(shutdown)


def _transport(mesh: Mesh) -> Transport:
    """Return what moves data between the devices of a mesh on CPUs."""
    messages = connected()
    if mesh.num_processes == 1:
        return CopyTransport(mesh)
    if messages is None:
        problem = "the processes that own the mesh are not connected any more"
        raise error(DistributedError, "transport", problem, operands={"mesh": mesh})
    return ProcessTransport(mesh, messages)


def shutdown() -> None:
    """Tell the other processes that this one leaves, and disconnect; runs when a program ends.

    Meshes of several processes cannot be used any more.

    >>> gdt.distributed.shutdown()
    """
    global _is_initialized  # noqa: PLW0603  # a fact of the process
    messages = connected()
    _is_initialized = False
    if messages is None or messages.own.pid != os.getpid():
        return  # in a forked child, the connections are the parent's
    atexit.unregister(shutdown)
    reason = messages.failure or getattr(sys, "last_value", None) or _failure_of_collectives()
    messages.close(f"{type(reason).__name__}: {reason}".split("\n")[0] if reason else "")
    connect(None)
    processes.announce(processes.Processes())
    register_transport("cpu", _transport)


def _forked() -> None:
    """Leave the connections to the parent, in a child that has been forked."""
    messages = connected()
    if messages is not None:
        messages.leave_to_parent()


if hasattr(os, "register_at_fork"):  # where processes can fork
    os.register_at_fork(after_in_child=_forked)


def _failure_of_collectives() -> DistributedError | None:
    """Wait for the collectives that are under way, to which other processes need this one's part.

    Return the error of the first that fails, None if all end well."""
    try:
        wait_for_all()
    except DistributedError as failure:
        return failure
    return None


def is_initialized() -> bool:
    """Whether `initialize` has run, and `shutdown` has not run since.

    >>> gdt.distributed.is_initialized()
    False
    """
    return _is_initialized


def process_index() -> int:
    """The index of this process, from 0.

    >>> gdt.distributed.process_index()
    0
    """
    return processes.current().index


def process_count() -> int:
    """The number of processes that run the program.

    >>> gdt.distributed.process_count()
    1
    """
    return processes.current().count


def barrier(name: str = "barrier") -> None:
    """Wait until all processes are here.

    name: a text for errors, the same in all processes. Raises DistributedError if a process has
    ended, waits in another call, or has made other calls before; the error names the first call
    that differs.

    >>> gdt.distributed.barrier("epoch")
    """
    messages = connected()
    if messages is not None:
        messages.gather(None, f"barrier {name!r}")


def broadcast(value: Any) -> Any:
    """The `value` of process 0, in every process: a seed from the clock, for example, or a name.

    value: None, numbers, text, bytes, paths, dtypes and arrays of NumPy, in lists, tuples and
    dicts; the values that other processes pass are ignored. All processes must call it. Raises
    ArgumentError for a value of another type (nothing is pickled), and DistributedError if a
    process waits in another call or has ended.
    Follows `jax.experimental.multihost_utils.broadcast_one_to_all`.

    >>> gdt.distributed.broadcast({"seed": 7})
    {'seed': 7}
    """
    messages = connected()
    return value if messages is None else messages.broadcast(value)

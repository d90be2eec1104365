"""The variables of the environment by which launchers tell processes who they are.

    torchrun, Ray Train   MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK
    the user, as for JAX  JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID
    Slurm's srun          SLURM_STEP_NODELIST, SLURM_STEP_NUM_TASKS, SLURM_PROCID, SLURM_JOB_ID
    Kubernetes            JOB_COMPLETION_INDEX and the pod's host name; WORLD_SIZE of the manifest

The first two name all three facts: where process 0 listens, how many processes there are, and which
this one is. Slurm and Kubernetes name an address only by the hosts, so MASTER_ADDR and MASTER_PORT,
where a script sets them, come first.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping

from gdt.errors import DistributedError, error

# Environment variables of (address, number of processes, index of this process).
TORCH = ("MASTER_ADDR", "WORLD_SIZE", "RANK")
JAX = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
SLURM = ("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
KUBERNETES = "JOB_COMPLETION_INDEX"
NAMES = (*TORCH, *JAX, *SLURM, KUBERNETES, "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")

PORT = 29500  # without MASTER_PORT, as of torchrun
PORTS = range(61440, 65536)  # of Slurm's jobs, above those that Linux gives to programs

Settings = tuple[str | None, str | None, str | None]  # address, number of processes, index


def settings() -> Settings:
    """Return what a launcher has told this process; None for each fact if there is no launcher.

    Raises DistributedError if a variable is missing beside others, or if two contradict each other.
    """
    env = os.environ
    torch, jax = _named(env, TORCH), _named(env, JAX)
    if torch and jax:
        for i in (1, 2):  # the addresses may have different forms
            _check_alike((TORCH[i], JAX[i]), (torch[i], jax[i]))
    if told := torch or jax:
        return told
    if SLURM[1] in env:
        return _of_slurm(env)
    return _of_kubernetes(env) if KUBERNETES in env else (None, None, None)


def run_name() -> str:
    """Return the name of the run of a launcher to which this process belongs; "" if it has none."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return os.environ["TORCHELASTIC_RUN_ID"]
    step = [os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    return ".".join(step) if all(step) else ""


def _named(env: Mapping[str, str], names: tuple[str, str, str]) -> Settings | None:
    """Return the facts that these variables hold; None if none of them tells of processes."""
    values = [env.get(name) for name in names]
    has_others = SLURM[1] in env or KUBERNETES in env  # which tell the index
    if values[1:] == [None, None] and (has_others or names is TORCH or values[0] is None):
        return None
    if names is TORCH and values[2] is None and has_others:
        return None
    missing = [n for n, v in zip(names, values, strict=True) if v is None]
    if missing:
        told = ", ".join(f"{n}={v}" for n, v in zip(names, values, strict=True) if v is not None)
        problem = f"the environment variable {missing[0]} is missing, beside {told}"
        raise error(DistributedError, "initialize", problem, remedy=f"Set {', '.join(names)}.")
    address = _given_address(env) if names is TORCH else values[0]
    return address, values[1], values[2]


def _check_alike(names: tuple[str, ...], values: tuple[str | None, ...]) -> None:
    """Raise DistributedError if two variables differ that tell one fact."""
    if values[0] != values[1]:
        problem = f"{names[0]} is {values[0]}, and {names[1]} is {values[1]}"
        remedy = "Leave the variables of one launcher alone in the environment."
        raise error(DistributedError, "initialize", problem, remedy=remedy)


def _given_address(env: Mapping[str, str], port: int = PORT) -> str | None:
    """Return the address that MASTER_ADDR and MASTER_PORT name; the next port where a store of
    torchrun or Ray listens at the latter."""
    given = env.get("MASTER_PORT", str(port))
    taken = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or "RAY_JOB_ID" in env
    if taken and given.isdecimal():
        given = str(int(given) + 1 if int(given) + 1 < 1 << 16 else int(given) - 1)
    if "MASTER_ADDR" in env:
        return f"{env['MASTER_ADDR']}:{given}"
    return env.get(JAX[0])


def _of_slurm(env: Mapping[str, str]) -> Settings:
    """Return what srun tells. Process 0 runs on the first host of the step."""
    missing = [name for name in (*SLURM, "SLURM_JOB_ID") if name not in env]
    if missing:
        problem = f"srun has started this process, but {missing[0]} is missing"
        remedy = "Pass srun's variables on to the program, or set MASTER_ADDR, WORLD_SIZE and RANK."
        raise error(DistributedError, "initialize", problem, remedy=remedy)
    _check_alike((TORCH[1], SLURM[1]), (env.get(TORCH[1], env[SLURM[1]]), env[SLURM[1]]))
    numbers = [env["SLURM_JOB_ID"], env.get("SLURM_STEP_ID", "0")]
    job, step = [int(n) if n.isdecimal() else 0 for n in numbers]
    port = PORTS[(job * 16 + step) % len(PORTS)]
    address = _given_address(env, port) or f"{first_host(env[SLURM[0]])}:{port}"
    return address, env[SLURM[1]], env[SLURM[2]]


def first_host(hosts: str) -> str:
    """Return the first of the hosts of a list of Slurm's.

    >>> first_host("gpu-a[007-010,12],login"), first_host("n1,n2"), first_host("r[1-2]c[3-4]")
    ('gpu-a007', 'n1', 'r1c3')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first.group() if first else "")


def _of_kubernetes(env: Mapping[str, str]) -> Settings:
    """Return the facts of a pod of an indexed job, whose host name is that of the job and its
    index. Where the job has a headless service as its subdomain, other pods find that name."""
    index = env[KUBERNETES]
    if "WORLD_SIZE" not in env:
        problem = f"{KUBERNETES} is {index}, and WORLD_SIZE is missing"
        remedy = (
            "Kubernetes does not tell how many pods there are: let the manifest set WORLD_SIZE "
            "to the job's completions; to 1 if its pods have nothing to do with each other."
        )
        raise error(DistributedError, "initialize", problem, remedy=remedy)
    if address := _given_address(env):
        return address, env["WORLD_SIZE"], index
    name, _, domain = socket.getfqdn().partition(".")
    if not name.endswith(f"-{index}"):
        problem = f"{KUBERNETES} is {index}, which the host name {name!r} does not end with"
        remedy = "Set MASTER_ADDR to the host name of the pod with index 0."
        raise error(DistributedError, "initialize", problem, remedy=remedy)
    first = f"{name.removesuffix(index)}0" + (f".{domain}" if domain else "")
    return f"{first}:{env.get('MASTER_PORT', PORT)}", env["WORLD_SIZE"], index

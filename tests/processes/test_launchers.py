"""What the variables of launchers mean, and which do not fit together."""

from __future__ import annotations

import sys

import pytest

from gdt.comm import launchers, mpi
from gdt.comm.job import facts
from gdt.comm.launchers import settings
from gdt.errors import DistributedError

TORCH = {"MASTER_ADDR": "a", "MASTER_PORT": "5", "WORLD_SIZE": "4", "RANK": "2"}
JAX = {"JAX_COORDINATOR_ADDRESS": "b:7", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "2"}
SLURM = {
    "SLURM_STEP_NODELIST": "gpu-[03-05,9],login",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "3",
    "SLURM_JOB_ID": "5000",
    "SLURM_STEP_ID": "2",
}
PORT = 61440 + (5000 * 16 + 2) % 4096
POD = {"JOB_COMPLETION_INDEX": "12"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without launchers, on a pod of a job."""
    stores = ("TORCHELASTIC_USE_AGENT_STORE", "RAY_JOB_ID", "TORCHELASTIC_RUN_ID")
    for name in (*launchers.NAMES, *mpi.SIZES, *stores):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.getfqdn", lambda: "train-12.net.default.svc")
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, (None, None, None)),
        ({"MASTER_ADDR": "a"}, (None, None, None)),
        (TORCH, ("a:5", "4", "2")),
        (TORCH | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, ("a:6", "4", "2")),
        (TORCH | {"RAY_JOB_ID": "01", "MASTER_PORT": "65535"}, ("a:65534", "4", "2")),
        (JAX, ("b:7", "4", "2")),
        (TORCH | JAX, ("a:5", "4", "2")),
        (SLURM, (f"gpu-03:{PORT}", "8", "3")),
        (SLURM | {"MASTER_ADDR": "x"}, (f"x:{PORT}", "8", "3")),
        (SLURM | {"MASTER_ADDR": "x", "MASTER_PORT": "9", "WORLD_SIZE": "8"}, ("x:9", "8", "3")),
        (SLURM | {"JAX_COORDINATOR_ADDRESS": "y:8"}, ("y:8", "8", "3")),
        (SLURM | TORCH, ("a:5", "4", "2")),  # torchrun, started by srun on each host
        (POD | {"WORLD_SIZE": "16"}, ("train-0.net.default.svc:29500", "16", "12")),
        (POD | {"WORLD_SIZE": "16", "MASTER_ADDR": "m"}, ("m:29500", "16", "12")),
        (POD | TORCH, ("a:5", "4", "2")),  # a job of Kubeflow's
    ],
)
def test_launchers_are_understood(
    variables: dict[str, str], told: object, environment: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    assert settings() == told


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"WORLD_SIZE": "4", "RANK": "1"}, "MASTER_ADDR is missing, beside WORLD_SIZE=4, RANK=1"),
        ({"RANK": "1", "MASTER_ADDR": "a"}, "WORLD_SIZE is missing, beside MASTER_ADDR=a, RANK=1"),
        ({"JAX_COORDINATOR_ADDRESS": "b:7"}, "JAX_NUM_PROCESSES is missing, beside JAX_COORD"),
        (TORCH | JAX | {"JAX_PROCESS_ID": "1"}, "RANK is 2, and JAX_PROCESS_ID is 1"),
        (TORCH | JAX | {"WORLD_SIZE": "3"}, "WORLD_SIZE is 3, and JAX_NUM_PROCESSES is 4"),
        (SLURM | {"WORLD_SIZE": "9"}, "WORLD_SIZE is 9, and SLURM_STEP_NUM_TASKS is 8"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, "SLURM_STEP_NODELIST is missing"),
        (POD, "JOB_COMPLETION_INDEX is 12, and WORLD_SIZE is missing"),
        ({"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4"}, "'train-12' does not end with"),
    ],
)
def test_variables_that_do_not_fit_together_are_named(
    variables: dict[str, str], says: str, environment: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    with pytest.raises(DistributedError, match=rf"^initialize: .*{says}"):
        settings()


def test_steps_of_slurm_are_jobs_of_their_own(environment: pytest.MonkeyPatch) -> None:
    for name, value in SLURM.items():
        environment.setenv(name, value)
    assert facts(None)["run"] == "5000.2"
    environment.setenv("PMI_SIZE", "8")
    assert mpi.launched()
    environment.setitem(sys.modules, "mpi4py", None)
    assert not mpi.launched()

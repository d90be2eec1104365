"""The training steps in PyTorch DTensor on 8 gloo processes, with each scheme of sharding."""

import math
import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from bench import worker
from bench.peers.torch_steps import loss_function, training
from bench.workloads import WORKLOADS, Workload

SAMPLES = 4  # few, since a step takes a hundred times as long as the other contenders'
PATIENCE = timedelta(hours=2)  # the ranks wait in a collective while other contenders run


@dataclass(frozen=True)
class Scheme:
    """A mesh, and for each array its placement along every mesh axis.

    The last placement of `parameters` stands for all that follow.
    """

    mesh_axes: dict[str, int]
    x: list[Placement]
    labels: list[Placement]
    parameters: list[list[Placement]]

    def __call__(self, workload: Workload) -> worker.Start:
        """Start the other ranks, which run the same rounds as this process, rank 0."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        context = mp.get_context("spawn")
        for rank in range(1, math.prod(self.mesh_axes.values())):
            context.Process(target=follow, args=(self, workload.name, rank), daemon=True).start()
        return self.join(workload, rank=0)

    def join(self, workload: Workload, rank: int) -> worker.Start:
        torch.set_num_threads(1)
        sizes = tuple(self.mesh_axes.values())
        dist.init_process_group("gloo", rank=rank, world_size=math.prod(sizes), timeout=PATIENCE)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=tuple(self.mesh_axes))
        batches = [
            (
                distribute_tensor(torch.from_numpy(x), mesh, self.x),
                distribute_tensor(torch.from_numpy(y), mesh, self.labels),
            )
            for x, y in workload.batches()
        ]
        weights = workload.weights()
        rest = self.parameters[-1:] * (len(weights) - len(self.parameters))

        def start() -> worker.Step:
            parameters = [
                distribute_tensor(torch.tensor(w), mesh, placement).requires_grad_()
                for w, placement in zip(weights, self.parameters + rest, strict=True)
            ]
            train = training(workload, loss_function(workload), parameters, batches)
            return lambda index: train(index).full_tensor()

        return start


def follow(scheme: Scheme, workload: str, rank: int) -> None:
    """Run rounds for ever, as a rank that is not the first."""
    start = scheme.join(WORKLOADS[workload], rank)
    while True:
        worker.run_round(start, SAMPLES)


R = Replicate()
CONTENDERS = {
    "data": Scheme({"batch": 8}, [Shard(0)], [Shard(0)], [[R]]),
    "model": Scheme(
        {"batch": 4, "model": 2},
        [Shard(0), R],
        [Shard(0), R],
        [[R, Shard(1)], [R, Shard(0)], [R, Shard(0)], [R, R]],
    ),
    "spatial": Scheme(
        {"batch": 2, "feature": 2, "model": 2},
        [Shard(0), Shard(1), R],
        [Shard(0), R, R],
        [[R, Shard(0), Shard(1)], [R, R, Shard(0)], [R, R, Shard(0)], [R, R, R]],
    ),
}

if __name__ == "__main__":
    worker.serve(CONTENDERS, {"torch": torch.__version__}, SAMPLES)

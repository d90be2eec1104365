"""The training steps in PyTorch on one process: eager, with a fused optimizer, and compiled; the
same on a GPU, where compiled steps may also be CUDA graphs."""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from bench import worker
from bench.workloads import ADAM_EPSILON, EPSILON, MNIST, Workload

Parameters = list[torch.Tensor]
Loss = Callable[[Parameters, torch.Tensor, torch.Tensor], torch.Tensor]


def mnist_loss(parameters: Parameters, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    *hidden, (w, b) = zip(parameters[::2], parameters[1::2], strict=True)
    for w_hidden, b_hidden in hidden:
        x = torch.relu(torch.addmm(b_hidden, x, w_hidden))
    return functional.cross_entropy(torch.addmm(b, x, w), labels)


def imdb_loss(parameters: Parameters, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    w0, b0, w1, b1 = parameters
    h = torch.relu(torch.addmm(b0, x, w0))
    centred = h - h.mean(dim=0)
    normal = centred * torch.rsqrt((centred * centred).mean(dim=0) + EPSILON)
    return functional.cross_entropy(torch.addmm(b1, normal, w1), labels, reduction="sum")


def loss_function(workload: Workload) -> Loss:
    return mnist_loss if workload is MNIST else imdb_loss


def training(
    workload: Workload,
    loss_of: Loss,
    parameters: Parameters,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    fused: bool = False,
    graphs: bool = False,
) -> worker.Step:
    """Return the step on `parameters`.

    fused: whether the optimizer is. graphs: whether `loss_of` runs CUDA graphs, which overwrite
    their results.
    """
    rate = workload.learning_rate
    if workload is MNIST:
        update = torch.optim.Adam(parameters, lr=rate, eps=ADAM_EPSILON, fused=fused)
    else:
        update = torch.optim.SGD(parameters, lr=rate, fused=fused)

    def step(index: int) -> torch.Tensor:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        update.zero_grad()
        loss = loss_of(parameters, *batches[index % len(batches)])
        loss.backward()
        update.step()
        return loss.detach().clone() if graphs else loss.detach()

    return step


def contender(
    fused: bool, compiled: bool = False, device: str = "cpu", graphs: bool = False
) -> Callable[[Workload], worker.Start]:
    """Return the contender on `device`, with a compiled loss if `compiled`; `graphs` compiles it to
    CUDA graphs."""

    def build(workload: Workload) -> worker.Start:
        batches = [
            (torch.from_numpy(x).to(device), torch.from_numpy(y).to(device))
            for x, y in workload.batches()
        ]
        loss_of = loss_function(workload)
        if compiled:
            loss_of = torch.compile(loss_of, mode="reduce-overhead" if graphs else "default")

        def start() -> worker.Step:
            parameters = [
                torch.tensor(w, device=device, requires_grad=True) for w in workload.weights()
            ]
            return training(workload, loss_of, parameters, batches, fused, graphs)

        return start

    return build


CONTENDERS = {
    "eager": contender(fused=False),
    "fused": contender(fused=True),
    "compile": contender(fused=True, compiled=True),
    "eager-cuda": contender(fused=True, device="cuda"),
    "compile-cuda": contender(fused=True, compiled=True, device="cuda"),
    "graphs-cuda": contender(fused=True, compiled=True, device="cuda", graphs=True),
}

if __name__ == "__main__":
    worker.serve(CONTENDERS, {"torch": torch.__version__})

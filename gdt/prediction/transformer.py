"""The closed form of a transformer's training step: what theory says of a dozen numbers.

It prices what a trace does not have, pipelines, and needs no model. Its FLOPs are those of
Narayanan et al. 2021, section 5.1, its collectives those of Megatron-LM (Shoeybi et al. 2019) and
of sequence parallelism (Korthikanti et al. 2022), its pipeline that of one forward and one backward
pass in turn, with a bubble of (stages - 1) / (micro-batches * interleaved parts).
"""

from __future__ import annotations

from dataclasses import dataclass

from gdt.arguments import checked
from gdt.errors import ArgumentError, error
from gdt.prediction.machine import Machine

__all__ = ["TransformerStep"]

ATTENTION_SHARE = 0.7  # of the rate of other products: an assumption
BYTES = 2  # of an activation or a weight, in bfloat16
UPDATE_BYTES = 20  # read and written by Adam for a parameter, with a float32 copy
ELEMENTWISE = 10, 14  # arrays that a layer reads and writes whole, and in shares
RECOMPUTATIONS = ("none", "selective", "full")


@dataclass(frozen=True)
class TransformerStep:
    """A training step of a transformer, and how it lies on the devices.

    layers, size, heads, vocabulary, tokens: of the model. batch: sequences of all devices.
    hidden: the hidden features of a layer, as a multiple of `size`; gated: whether there are two
    such products (SwiGLU). key_share: the heads of keys, as a share of all.
    devices: how many; tensor, stages, context: over how many of them features, layers and tokens
    are split; the rest split the batch. micro_batch: sequences of a micro-batch. interleaved: the
    parts of the layers that a stage has. recomputed: "none", "selective" (attention) or "full".
    fused_attention: whether the scores of attention stay in the cache. fsdp: whether weights are
    kept split. overlap: the share of the communication of gradients that is hidden.

    Raises ArgumentError for devices and batches that do not divide.

    >>> step = gdt.prediction.transformer.TransformerStep(
    ...     layers=96, size=12288, heads=96, vocabulary=51200, tokens=2048, batch=1536,
    ...     devices=1024, tensor=8, stages=8, interleaved=2, recomputed="full",
    ... )
    >>> round(step.seconds(gdt.Machine.named("a100-80gb")))
    29
    """

    layers: int
    size: int
    heads: int
    vocabulary: int
    tokens: int
    batch: int
    devices: int
    tensor: int = 1
    stages: int = 1
    context: int = 1
    micro_batch: int = 1
    interleaved: int = 1
    recomputed: str = "none"
    hidden: float = 4.0
    gated: bool = False
    key_share: float = 1.0
    fused_attention: bool = False
    fsdp: bool = False
    overlap: float = 0.0

    def __post_init__(self) -> None:
        if self.recomputed not in RECOMPUTATIONS:
            remedy = f"It is one of {', '.join(map(repr, RECOMPUTATIONS))}."
            raise error(ArgumentError, f"recomputed is {self.recomputed!r}", remedy=remedy)
        split = self.tensor * self.stages * self.context
        if self.devices % split:
            problem = f"{self.devices} devices do not divide by {split}, tensor x stages x context"
            raise error(ArgumentError, problem)

    # ---- counts

    @property
    def data(self) -> int:
        """The number of groups of devices that split the batch."""
        return self.devices // (self.tensor * self.stages * self.context)

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of a group."""
        return max(1, round(self.batch / (self.data * self.micro_batch)))

    @property
    def weights_of_layer(self) -> float:
        """The numbers in the matrices of a layer."""
        dense = (3 if self.gated else 2) * self.hidden
        return (2 + 2 * self.key_share + dense) * self.size**2

    @property
    def weights(self) -> float:
        """The numbers in the matrices of a device."""
        layers = self.layers * self.weights_of_layer / (self.tensor * self.stages)
        return layers + self.vocabulary * self.size / self.tensor

    @checked
    def flops(self, *, recomputed: bool = False) -> float:
        """Return the floating-point operations of the products of a step, of all devices.

        recomputed: whether the forward pass counts twice, as hardware FLOPs do.

        >>> from gdt.prediction.transformer import TransformerStep
        >>> step = TransformerStep(2, 64, 4, 128, 32, 16, devices=8)
        >>> step.flops(recomputed=True) > step.flops()
        True
        """
        count = self.batch * self.tokens
        layer = 2 * self.weights_of_layer * count + 4 * count * self.tokens * self.size
        passes = 4 if recomputed else 3
        return passes * self.layers * layer + 6 * count * self.size * self.vocabulary

    @property
    def memory(self) -> float:
        """The bytes of a device: weights, gradients and Adam's state in mixed precision, and what
        the backward pass reads (Korthikanti et al. 2022, equations 2, 4 and 6)."""
        per_weight = 18.0 if not self.fsdp else 18.0 / self.data
        rows = self.micro_batch * self.tokens // self.context * self.size
        kept = {"full": 2.0, "selective": 34 / self.tensor, "none": 10 + 24 / self.tensor}
        activations = kept[self.recomputed]
        if self.recomputed == "none" and not self.fused_attention:
            activations += 5 * self.heads * self.tokens / (self.size * self.tensor)
        in_flight = min(self.stages, self.micro_batches)
        held = activations * rows * self.layers / self.stages * in_flight
        return self.weights * per_weight + held

    # ---- seconds

    @checked
    def seconds(self, machine: Machine) -> float:
        """Return the seconds of a step.

        machine: with links `"host"`, over which features are split, and `"network"`.

        >>> from gdt.prediction.transformer import TransformerStep
        >>> step = TransformerStep(2, 64, 4, 128, 32, 16, devices=8)
        >>> step.seconds(gdt.Machine.named("h100-80gb")) < 1.0
        True
        """
        return sum(self.parts(machine).values())

    @checked
    def parts(self, machine: Machine) -> dict[str, float]:
        """Return the seconds of the layers and the head, of the bubble, of sending activations
        between stages, of gradients, and of the update.

        >>> from gdt.prediction.transformer import TransformerStep
        >>> step = TransformerStep(2, 64, 4, 128, 32, 16, devices=8)
        >>> list(step.parts(gdt.Machine.named("h100-80gb")))
        ['layers', 'bubble', 'stages', 'gradients', 'update']
        """
        network = machine.links["network"].bandwidth * machine.bandwidth_share
        layer, head = self._layer(machine), 3 * self._columns(machine, self.vocabulary)
        own_layers, count = self.layers / self.stages, self.micro_batches
        sent = 2 * count * self.interleaved * BYTES * self._rows * self.size / self.tensor
        gathers = (3 if self.fsdp else 2) * (self.data - 1) / self.data
        split = self.data if self.fsdp else 1
        return {
            "layers": count * (own_layers * layer + head),
            "bubble": (self.stages - 1) / self.interleaved * own_layers * layer,
            "stages": sent / network if self.stages > 1 else 0.0,
            "gradients": gathers * BYTES * self.weights / network * (1 - self.overlap),
            "update": self.weights * UPDATE_BYTES / split / machine.memory_rate,
        }

    @property
    def _rows(self) -> int:
        """The tokens of a micro-batch on a device."""
        return self.micro_batch * self.tokens // self.context

    def _layer(self, machine: Machine) -> float:
        """The seconds of a layer: forward, backward, and again where it is recomputed."""
        size, hidden = self.size, self.hidden * self.size
        products = (
            self._columns(machine, size * (1 + 2 * self.key_share))
            + self._inner(machine, size)
            + (2 if self.gated else 1) * self._columns(machine, hidden)
            + self._inner(machine, hidden)
        )
        attention, elementwise = self._attention(machine), self._elementwise(machine)
        reduced = self._all_reduces(machine)
        forward = products + attention + elementwise + reduced
        backward = 2 * (products + attention + elementwise) + reduced
        again = {"full": forward, "selective": 0.5 * attention + 0.3 * elementwise, "none": 0.0}
        return forward + backward + again[self.recomputed]

    def _columns(self, machine: Machine, columns: float) -> float:
        """A product whose columns are split."""
        m, k, n = self._rows, self.size, columns / self.tensor
        return self._matmul(machine, m, k, n)

    def _inner(self, machine: Machine, inner: float) -> float:
        """A product whose inner length is split."""
        return self._matmul(machine, self._rows, inner / self.tensor, self.size)

    def _matmul(self, machine: Machine, m: float, k: float, n: float) -> float:
        nbytes = BYTES * (m * k + k * n + m * n)
        sizes = 1, int(m), int(n), int(k)
        return machine.launch + machine.product_seconds(sizes, "bfloat16", nbytes)

    def _attention(self, machine: Machine) -> float:
        """The products of scores and values; half of them where a fused kernel skips the mask."""
        flops = 4 * self._rows * self.tokens * self.size / self.tensor
        rate = machine.rate("bfloat16") * machine.share * ATTENTION_SHARE
        return flops / rate * (0.5 if self.fused_attention else 1.0)

    def _elementwise(self, machine: Machine) -> float:
        """Normalisations, activations and residuals, and the softmax of scores."""
        whole, shared = ELEMENTWISE
        nbytes = BYTES * self._rows * self.size * (whole + (shared + 2 * self.hidden) / self.tensor)
        if not self.fused_attention:
            nbytes += BYTES * 5 * self._rows * self.heads / self.tensor * self.tokens
        return nbytes / machine.memory_rate

    def _all_reduces(self, machine: Machine) -> float:
        """Two all-reduces of activations, or as many gathers and scatters of their shares."""
        if self.tensor == 1:
            return 0.0
        link, count = machine.links["host"], self.tensor - 1
        nbytes = 2 * count / self.tensor * BYTES * self._rows * self.size
        bandwidth = link.bandwidth * machine.bandwidth_share
        return 2 * (nbytes / bandwidth + 2 * count * link.latency)

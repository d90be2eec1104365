"""The tables of docs/prediction.md: large models at full depth, and published runs.

    python -m bench.predictions [published | NAME ...]

prints what steps take by `gdt.predict_layers`, and how far the closed form lies from published
runs; with names those parts alone. The steps are of a GPT of 175 billion parameters under four
schemes on 1,024 A100, of Llama 3 with 405 billion on 16,384 H100, and of GLaM with 1.2 trillion on
512 H100. `predicted` is the time of a processor for the prediction, `a step` that for the model of
all layers and a step of it, and `memory` what this process then takes beyond its imports: the most
of all names so far. A name in a process of its own measures that model alone.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import gdt
from bench import large_models
from bench.large_models import Step
from bench.launch import launch
from bench.schemes import WIDE, Scheme, training
from gdt.prediction import TransformerStep
from gdt.prediction import machine as machines
from gdt.prediction.pricing import size_text

PUBLISHED = Path(machines.__file__).parent / "published.json"
A100 = gdt.Machine.named("a100-80gb", flops={"float32": 156e12})  # in TF32
H100 = gdt.Machine.named("h100-80gb", flops={"float32": 494e12})
SIZE = WIDE._replace(layers=96, batch=1024)
SCHEMES = {
    "data 128 x tensor 8": Scheme(128, tensor=8, is_checkpointed=True),
    "FSDP 128 x tensor 8": Scheme(shards=128, tensor=8, is_checkpointed=True),
    "FSDP 128 x sequence 8": Scheme(shards=128, tensor=8, is_sequence=True, is_checkpointed=True),
    "FSDP 1,024": Scheme(shards=1024, is_checkpointed=True),
}


# By the number of layers that repeat, and that number; GLaM's are pairs.
MODELS = {
    "Llama 3 405B": (large_models.llama, 126),
    "GLaM 1.2T": (lambda pairs: large_models.glam(2 * pairs), 32),
}


def model_of(name: str) -> tuple[Callable[[int], Step], int, gdt.Machine]:
    """Return the function that makes a step of so many layers, their number, and the machine."""
    if name in MODELS:
        return *MODELS[name], H100
    make_step = lambda layers: training(SCHEMES[name], SIZE._replace(layers=layers), "abstract")[0]
    return make_step, SIZE.layers, A100


def print_steps(names: list[str]) -> None:
    """Print the predictions of steps, in Markdown."""
    print(
        "| | seconds | MFU | sent by a device | peak | fits | predicted, s | a step, s | memory |"
    )
    print("|---|---:|---:|---:|---:|---|---:|---:|---:|")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in names:
        make_step, layers, machine = model_of(name)
        began = time.process_time()
        p = gdt.predict_layers(make_step, layers, machine=machine)
        predicted = time.process_time() - began
        make_step(layers)()
        whole = time.process_time() - began - predicted
        sent, fits = size_text(sum(p.bytes.values())), "yes" if p.fits else "no"
        memory = size_text(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
        print(
            f"| {name} | {p.seconds:.3g} | {p.mfu:.1%} | {sent} | {size_text(p.peak)} | {fits} "
            f"| {predicted:.1f} | {whole:.1f} | {memory} |",
            flush=True,
        )


def figure_of(run: dict[str, Any], **changes: Any) -> float:
    """Return the predicted figure of a published run, in the unit of its source.

    changes: of the machine.
    """
    machine = gdt.Machine.named(run["machine"], **changes)
    step = TransformerStep(**run["step"])
    seconds = step.seconds(machine)
    rates = {
        "seconds": seconds,
        "hardware TFLOP/s of a device": step.flops(recomputed=True) / seconds / step.devices / 1e12,
        "MFU in %": 100 * step.flops() / seconds / step.devices / machine.rate("bfloat16"),
    }
    return rates[run["unit"]]


def print_published() -> None:
    """Print how far the closed form lies from published runs, by source, in Markdown."""
    by_source: dict[str, list[float]] = {}
    for run in json.loads(PUBLISHED.read_text())["runs"]:
        if not run["fitted"]:
            errors = by_source.setdefault(run["source"], [])
            errors.append(abs(figure_of(run) / run["measured"] - 1))
    print("| source | runs | largest error | mean |\n|---|---:|---:|---:|")
    for source, errors in by_source.items():
        print(f"| {source} | {len(errors)} | {max(errors):.1%} | {mean(errors):.1%} |")


def main() -> None:
    known = [*SCHEMES, *MODELS, "published"]
    names = sys.argv[1:] or known
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"Nothing is named {', '.join(unknown)}; the names are {', '.join(known)}.")
    if steps := [name for name in names if name != "published"]:
        print_steps(steps)
    if "published" in names:
        print_published()


if __name__ == "__main__":
    launch(main)

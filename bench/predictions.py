"""The tables of docs/prediction.md: a GPT of 175 billion parameters, and published runs.

    python -m bench.predictions [published | SCHEME ...]

prints what four schemes of parallel training take on 1,024 A100 by `gdt.predict`, and how far the
closed form lies from published runs; with a name that part alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import gdt
from bench.launch import launch
from bench.schemes import WIDE, Scheme, training
from gdt.prediction import Prediction, TransformerStep
from gdt.prediction import machine as machines
from gdt.prediction.pricing import size_text

PUBLISHED = Path(machines.__file__).parent / "published.json"
TF32 = {"float32": 156e12}  # FLOP/s of an A100
SIZE = WIDE._replace(layers=96, batch=1024)
SCHEMES = {
    "data 128 x tensor 8": Scheme(128, tensor=8, is_checkpointed=True),
    "FSDP 128 x tensor 8": Scheme(shards=128, tensor=8, is_checkpointed=True),
    "FSDP 128 x sequence 8": Scheme(shards=128, tensor=8, is_sequence=True, is_checkpointed=True),
    "FSDP 1,024": Scheme(shards=1024, is_checkpointed=True),
}


def prediction(name: str) -> Prediction:
    """Return the prediction of a scheme."""
    machine = gdt.Machine.named("a100-80gb", flops=TF32)
    step, _model, _optimizer = training(SCHEMES[name], SIZE, "abstract")
    return gdt.predict(step, machine=machine)


def print_schemes(names: list[str]) -> None:
    """Print the predictions of schemes, in Markdown."""
    print("| | seconds | MFU | sent by a device | peak of a device | fits |")
    print("|---|---:|---:|---:|---:|---|")
    for name in names:
        p = prediction(name)
        sent, fits = size_text(sum(p.bytes.values())), "yes" if p.fits else "no"
        peak = size_text(p.peak)
        print(f"| {name} | {p.seconds:.3g} | {p.mfu:.1%} | {sent} | {peak} | {fits} |", flush=True)


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
    names = sys.argv[1:] or [*SCHEMES, "published"]
    if unknown := [name for name in names if name not in {*SCHEMES, "published"}]:
        known = ", ".join([*SCHEMES, "published"])
        sys.exit(f"Nothing is named {', '.join(unknown)}; the names are {known}.")
    if schemes := [name for name in names if name in SCHEMES]:
        print_schemes(schemes)
    if "published" in names:
        print_published()


if __name__ == "__main__":
    launch(main)

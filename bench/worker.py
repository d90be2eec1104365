"""The process of a contender: for each line on standard input it trains a round and prints JSON.

    echo | python -m bench.baselines imdb numpy

A round starts from the workload's initial weights, so its loss is the same for every contender in
every round. It trains `WARM_STEPS` steps, and then times `SAMPLES` runs of `SAMPLE_STEPS` each.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from bench.workloads import WORKLOADS, Workload

WARM_STEPS, SAMPLES, SAMPLE_STEPS = 20, 20, 5

Step = Callable[[int], Any]
"""A function that trains on batch number `index` and returns the loss, for which `float` waits."""

Start = Callable[[], Step]
"""A function that resets the weights to the initial ones and returns a step."""


def run_round(
    start: Start, samples: int = SAMPLES, sample_steps: int = SAMPLE_STEPS
) -> dict[str, Any]:
    """Train one round; return the `loss` of the last warm-up step and the `ms` per step of each
    sample."""
    step = start()
    for index in range(WARM_STEPS):
        loss = step(index)
    final = float(loss)
    ms = []
    for sample in range(samples):
        begin = time.perf_counter()
        for index in range(sample_steps):
            loss = step(WARM_STEPS + sample_steps * sample + index)
        float(loss)
        ms.append((time.perf_counter() - begin) * 1e3 / sample_steps)
    return {"loss": final, "ms": ms}


def serve(
    contenders: Mapping[str, Callable[[Workload], Start]],
    versions: Mapping[str, str],
    samples: int = SAMPLES,
) -> None:
    """Run a contender's command line: print the versions, then answer each line with a round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("contender", choices=contenders)
    parser.add_argument("--sample-steps", type=int, default=SAMPLE_STEPS)
    options = parser.parse_args()
    start = contenders[options.contender](WORKLOADS[options.workload])
    run_round(start, samples, options.sample_steps)
    print(json.dumps({"versions": versions}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(run_round(start, samples, options.sample_steps)), flush=True)

"""Both examples one after the other, their pictures, and a table of what they reached.

python -m examples.demo [--imdb-dir aclImdb] [--mnist-dir MNIST] [--output outputs]
"""

from __future__ import annotations

import time

from examples import imdb, mnist
from examples.reporting import Run, console, launch, only_run_in, options, table


def main() -> list[Run]:
    began, chosen = time.perf_counter(), options(__doc__, "imdb", "mnist")
    with only_run_in(chosen.output):
        runs = imdb.run(chosen.imdb_dir, chosen.output)
        runs += mnist.run(chosen.mnist_dir, chosen.output, chosen.full)
    console.print(table(runs))
    console.print(f"Pictures and checkpoints: {chosen.output.resolve()}", soft_wrap=True)
    console.print(f"Everything took {time.perf_counter() - began:.0f} seconds.")
    return runs


if __name__ == "__main__":
    launch(main)

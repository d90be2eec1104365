"""Run both examples, draw their pictures, and print a table of their results.

python -m examples.demo [--imdb-dir aclImdb] [--mnist-dir MNIST] [--output outputs]
"""

from __future__ import annotations

import time

from examples import imdb, mnist
from examples.reporting import Run, console, launch, only_run_in, options, table


def main() -> list[Run]:
    began, arguments = time.perf_counter(), options(__doc__, "imdb", "mnist")
    with only_run_in(arguments.output):
        runs = imdb.run(arguments.imdb_dir, arguments.output)
        runs += mnist.run(arguments.mnist_dir, arguments.output, arguments.full)
    console.print(table(runs))
    console.print(f"Pictures and checkpoints: {arguments.output.resolve()}", soft_wrap=True)
    console.print(f"Everything took {time.perf_counter() - began:.0f} seconds.")
    return runs


if __name__ == "__main__":
    launch(main)

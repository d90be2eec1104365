"""Trainings on real data: `python -m examples.demo` runs them all."""

import os

# Matrix products of these sizes are fastest on one thread of OpenBLAS, which reads this when NumPy
# is loaded; two threads on a busy machine are several times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

"""Trainings on real data: `python -m examples.demo` runs them all."""

import importlib.util
import os
import sys

for _name, _package in {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}.items():
    if importlib.util.find_spec(_name) is None:
        sys.exit(f"The examples need {_package}.\n  Install it with: pip install '.[examples]'")

# Matrix products of these sizes are fastest on one thread of OpenBLAS, which reads this when NumPy
# is loaded; two threads on a busy machine are several times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

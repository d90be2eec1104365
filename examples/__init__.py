"""Trainings on real data: `python -m examples.demo` runs them all."""

import os
import sys
from importlib.util import find_spec


def _is_missing(name: str) -> bool:
    return sys.modules[name] is None if name in sys.modules else find_spec(name) is None


for _name, _package in {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}.items():
    if _is_missing(_name):
        sys.exit(f"The examples need {_package}.\n  Install it with: pip install '.[examples]'")

# Matrix products of these sizes are fastest on one thread of OpenBLAS, which reads this when NumPy
# is loaded; two threads on a busy machine are several times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

"""Predict what a step takes on a machine that nobody here has: seconds, bytes, memory.

**A trace** (`trace`) is what one device does in a step on abstract devices: the products and other
work of every op, the collectives, and the memory that is held. It is what gdt runs, so bytes and
memory are exact for a device that runs the bodies of ops.

**A machine** (`machine`) has the rates of a device and of the links along mesh axes; published ones
are in `machines.json`, each figure with its source. `predict` prices a trace: an op is a kernel,
which takes the time of its products or of its bytes; collectives are rings or trees; what gdt sends
beside computation is hidden as far as computation lasts.

**Closed forms** (`transformer`) price a training step of a transformer by a dozen numbers, with
pipelines, which a trace does not have. Published runs (`published.json`) hold them to account.

**Plans** (`plans`) are layouts of a step: mesh, layouts of arrays, blocks that are run again,
micro-batches, stages. `planning` compares all of them by formulas (`estimates`), and traces the
best, of deep models a few blocks (`depth`).
"""

from gdt.prediction.depth import predict_layers
from gdt.prediction.machine import Link, Machine
from gdt.prediction.planning import plan
from gdt.prediction.plans import ParallelPlan
from gdt.prediction.pricing import Prediction, predict
from gdt.prediction.ranked_plans import RankedPlans
from gdt.prediction.scaling import PredictedScaling, predict_scaling
from gdt.prediction.transformer import TransformerStep

__all__ = [
    "Link",
    "Machine",
    "ParallelPlan",
    "PredictedScaling",
    "Prediction",
    "RankedPlans",
    "TransformerStep",
    "plan",
    "predict",
    "predict_layers",
    "predict_scaling",
]

"""Training: `Trainer` with fit, evaluate and predict, and callbacks as in Keras.

`Trainer` has the loop's words in gdt's terms: batches, epochs, a history. `model.compile` and
`model.fit` say the same in Keras' words (`gdt.training.keras`). A call of `fit` is a `Fit`; its
state is saved as one file, so that a training that ended goes on bitwise as if it had not.
"""

from typing import TYPE_CHECKING

from gdt.errors.foreign_names import missing_names as _missing_names
from gdt.training import keras as keras
from gdt.training.batches import evaluating
from gdt.training.callback import Callback, LambdaCallback
from gdt.training.callbacks import (
    EarlyStopping,
    LearningRateScheduler,
    ReduceLROnPlateau,
    TerminateOnNaN,
)
from gdt.training.file_callbacks import (
    BackupAndRestore,
    CSVLogger,
    ModelCheckpoint,
    TensorBoard,
)
from gdt.training.history import History
from gdt.training.trainer import Trainer

__all__ = [
    "BackupAndRestore",
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ReduceLROnPlateau",
    "TensorBoard",
    "TerminateOnNaN",
    "Trainer",
    "evaluating",
]

if not TYPE_CHECKING:  # a type checker would take every name for one of the module
    __getattr__ = _missing_names(__name__)

"""Training, evaluation and prediction of Keras' models."""

from keras.src.trainers import trainer as base_trainer


class NumpyTrainer(base_trainer.Trainer):  # type: ignore[misc]
    """The base of Keras' `Model`."""

"""Estimators: linear models and multilayer perceptrons as scikit-learn's, trained on a mesh.

They have scikit-learn's methods, and those of TensorFlow's estimators beside them: `train`,
`evaluate` and `predict` take an `input_fn`, a function without arguments that returns batches
`(features, targets)`.

scikit-learn is imported when this module is, with the extra `gdt[estimators]`.
"""

from gdt.estimators import base as base  # first, since its error says what to install
from gdt.estimators.classifiers import LinearClassifier, MLPClassifier
from gdt.estimators.regressors import LinearRegressor, MLPRegressor

__all__ = ["LinearClassifier", "LinearRegressor", "MLPClassifier", "MLPRegressor"]

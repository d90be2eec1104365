"""Calls of other libraries on split arrays, as `tests/test_clients.py` runs them in a process of
their own: `SCIPY_ARRAY_API` must be set before SciPy is imported.

Prints a line of JSON: for every call what went wrong, or an empty text.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import einops
import einops.array_api
import numpy as np
import opt_einsum
import scipy.cluster
import scipy.constants
import scipy.differentiate
import scipy.fft
import scipy.integrate
import scipy.optimize
import scipy.signal
import scipy.special
import scipy.stats
import xarray as xr
from scipy.spatial.transform import Rotation
from sklearn import config_context
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, mean_squared_error, r2_score
from sklearn.metrics.pairwise import (
    cosine_similarity,
    euclidean_distances,
    linear_kernel,
    manhattan_distances,
    rbf_kernel,
)
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import gdt
import gdt.interop.einops
from gdt.observe import Observer, observing
from gdt.state.trees import leaves

Call = Callable[[Any, Any], Any]

rng = np.random.default_rng(0)
X = rng.standard_normal((41, 5))
LABELS = (X[:, 0] > 0).astype(np.int64)
MESH = gdt.create_mesh([("x", 4)], device_type="CPU", blocks=4)


def split(value: np.ndarray) -> gdt.DistributedArray:
    return gdt.asarray(value, layout=gdt.Layout(["x", *[None] * (value.ndim - 1)], MESH))


def named(value: Any) -> Any:
    return xr.DataArray(value, dims=("t", "c"))


def mixture(x: Any, init_params: str = "random") -> GaussianMixture:
    """A mixture whose covariances are regularized through views of them, visibly."""
    options = {"init_params": init_params, "random_state": 0, "reg_covar": 1e-2}
    return GaussianMixture(2, **options).fit(x)


# Two numbers of one factorization differ in sign alone.
SKLEARN: dict[str, Call] = {
    "StandardScaler": lambda x, y: StandardScaler().fit_transform(x),
    "MinMaxScaler": lambda x, y: MinMaxScaler().fit_transform(x),
    "PCA": lambda x, y: abs(PCA(2, svd_solver="full").fit_transform(x)),
    "PCA by covariances": lambda x, y: PCA(2, svd_solver="covariance_eigh").fit(x).components_ ** 2,
    "Ridge": lambda x, y: Ridge(solver="svd").fit(x, x[:, 0] * 2 + x[:, 1]).predict(x),
    "LogisticRegression": lambda x, y: LogisticRegression().fit(x, y).predict_proba(x),
    "GaussianMixture": lambda x, y: mixture(x).lower_bound_,
    "GaussianMixture means": lambda x, y: mixture(x, init_params="random_from_data").means_,
    "accuracy": lambda x, y: accuracy_score(y, y),
    "r2": lambda x, y: r2_score(x[:, 0], x[:, 1]),
    "mean squared error": lambda x, y: mean_squared_error(x[:, 0], x[:, 1]),
    "distances": lambda x, y: euclidean_distances(x, x[:5]),
    "manhattan distances": lambda x, y: manhattan_distances(x, x[:5]),
    "cosine similarity": lambda x, y: cosine_similarity(x, x[:5]),
    "rbf kernel": lambda x, y: rbf_kernel(x, x[:5]),
    "linear kernel": lambda x, y: linear_kernel(x, x[:5]),
}
OTHERS: dict[str, Call] = {
    "scipy zscore": lambda x, y: scipy.stats.zscore(x),
    "scipy skew": lambda x, y: scipy.stats.skew(x),
    "scipy kurtosis": lambda x, y: scipy.stats.kurtosis(x),
    "scipy gmean": lambda x, y: scipy.stats.gmean(x * x),
    "scipy moment": lambda x, y: scipy.stats.moment(x, order=3),
    "scipy variation": lambda x, y: scipy.stats.variation(x),
    "scipy tmean": lambda x, y: scipy.stats.tmean(x, (-1, 1)),
    "scipy describe": lambda x, y: scipy.stats.describe(x).variance,
    "scipy logsumexp": lambda x, y: scipy.special.logsumexp(x, axis=0),
    "scipy softmax": lambda x, y: scipy.special.softmax(x, axis=1),
    "scipy fft": lambda x, y: scipy.fft.fft(x, axis=0),
    "scipy rfftn": lambda x, y: scipy.fft.rfftn(x),
    "scipy fftconvolve": lambda x, y: scipy.signal.fftconvolve(x[:, 0], x[:5, 1]),
    "scipy oaconvolve": lambda x, y: scipy.signal.oaconvolve(x[:, 0], x[:5, 1]),
    "scipy oaconvolve of columns": lambda x, y: scipy.signal.oaconvolve(x, x[:3], axes=0),
    "scipy hilbert": lambda x, y: scipy.signal.hilbert(x[:, 0]),
    "scipy trapezoid": lambda x, y: scipy.integrate.trapezoid(x, axis=0),
    "scipy whiten": lambda x, y: scipy.cluster.vq.whiten(x),
    "scipy hmean": lambda x, y: scipy.stats.hmean(x * x + 0.1),
    "scipy pmean": lambda x, y: scipy.stats.pmean(x * x + 0.1, 2),
    "scipy tvar": lambda x, y: scipy.stats.tvar(x, (-1, 1)),
    "scipy quantile": lambda x, y: scipy.stats.quantile(x, 0.3, axis=0),
    "scipy sem": lambda x, y: scipy.stats.sem(x),
    "scipy zmap": lambda x, y: scipy.stats.zmap(x, x),
    "scipy gstd": lambda x, y: scipy.stats.gstd(x * x + 0.1),
    "scipy iqr": lambda x, y: scipy.stats.iqr(x, axis=0),
    "scipy kstat": lambda x, y: scipy.stats.kstat(x[:, 0], 3),
    "scipy circmean": lambda x, y: scipy.stats.circmean(x, axis=0),
    "scipy rankdata": lambda x, y: scipy.stats.rankdata(x, axis=0),
    "scipy mode": lambda x, y: scipy.stats.mode(np.round(x), axis=0).mode,
    "scipy log_softmax": lambda x, y: scipy.special.log_softmax(x, axis=1),
    "scipy xlogy": lambda x, y: scipy.special.xlogy(x * x, x * x),
    "scipy rel_entr": lambda x, y: scipy.special.rel_entr(x * x, x * x + 1),
    "scipy fft2": lambda x, y: scipy.fft.fft2(x),
    "scipy irfft": lambda x, y: scipy.fft.irfft(x, axis=0),
    "scipy hfft": lambda x, y: scipy.fft.hfft(x, axis=0),
    "scipy resample": lambda x, y: scipy.signal.resample(x, 20, axis=0),
    "scipy cumulative_trapezoid": lambda x, y: scipy.integrate.cumulative_trapezoid(x, axis=0),
    "scipy derivative": lambda x, y: scipy.differentiate.derivative(np.exp, x[:4]).df,
    "scipy rosen": lambda x, y: scipy.optimize.rosen(x),
    "scipy Rotation": lambda x, y: Rotation.from_rotvec(x[:, :3]).as_matrix(),
    "scipy convert_temperature": lambda x, y: scipy.constants.convert_temperature(x, "C", "K"),
    "einops rearrange": lambda x, y: einops.rearrange(x, "a b -> (b a)"),
    "einops reduce": lambda x, y: einops.reduce(x[:40], "(a c) b -> a b", "mean", c=2),
    "einops repeat": lambda x, y: einops.repeat(x, "a b -> a k b", k=2),
    "einops einsum": lambda x, y: einops.einsum(x, x, "a b, a c -> b c"),
    "einops.array_api": lambda x, y: einops.array_api.rearrange(x, "a b -> b a"),
    "opt_einsum": lambda x, y: opt_einsum.contract("ij,ik,kl->jl", x, x, x[:5]),
    "xarray mean": lambda x, y: named(x).mean("t").data,
    "xarray std": lambda x, y: named(x).std("t").data,
    "xarray where": lambda x, y: named(x).where(named(x) > 0).fillna(0.0).data,
    "xarray cumsum": lambda x, y: named(x).cumsum("t").data,
    "xarray concat": lambda x, y: xr.concat([named(x), named(x)], "t").data,
    "xarray diff": lambda x, y: named(x).diff("t").data,
    "xarray shift": lambda x, y: named(x).shift(t=2, fill_value=0.0).data,
    "xarray sin": lambda x, y: np.sin(named(x)).data,
    "xarray dot": lambda x, y: xr.dot(named(x), named(x)).data,
    "xarray argmax": lambda x, y: named(x).argmax("t").data,
    "xarray coarsen": lambda x, y: named(x[:40]).coarsen(t=2).mean().data,
    "xarray rolling": lambda x, y: named(x).rolling(t=3).mean().data[2:],
}


UNSPLIT = {"manhattan distances"}  # which scikit-learn writes into an array that it creates itself


class Fetches(Observer):
    """The number of arrays that a library has fetched."""

    count = 0

    def on_implicit_fetch(self, array: Any) -> None:
        self.count += 1


def is_split(result: gdt.DistributedArray) -> bool:
    """Whether a result with a row for each of the samples is split, or a partial sum."""
    layout = result.layout
    return any(layout.dims) or any(layout.reductions) or len(X) not in result.shape


def problem_of(name: str, call: Call) -> str:
    """What is wrong with a call on split arrays; nothing if it is as with NumPy's, and results with
    a row for each of the samples are split."""
    fetches = Fetches()
    try:
        with observing(fetches):
            results = [*leaves([call(split(X), split(LABELS))])]
        expected = [*leaves([call(X, LABELS)])]
        for got, want in zip(results, expected, strict=True):
            if isinstance(want, np.ndarray) and not isinstance(got, gdt.DistributedArray):
                return f"returns {type(got).__name__}"
            if isinstance(got, gdt.DistributedArray) and is_split(got) == (name in UNSPLIT):
                return f"returns {got.type}"
            value = got.numpy() if isinstance(got, gdt.DistributedArray) else got
            np.testing.assert_allclose(value, want, atol=1e-6)
    except Exception:
        return traceback.format_exc()
    return f"{fetches.count} fetches" if fetches.count else ""


def main() -> None:
    warnings.simplefilter("ignore")
    problems = {}
    for calls, context in (
        (SKLEARN, config_context(array_api_dispatch=True)), (OTHERS, nullcontext()),
    ):  # fmt: skip
        with context:
            problems |= {name: problem_of(name, call) for name, call in calls.items()}
    print(json.dumps(problems), file=sys.stdout)


if __name__ == "__main__":
    main()

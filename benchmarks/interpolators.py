"""The interpolators that `benchmarks.probe` compares, all behind one function: a fit.

A fit takes memories and returns a prediction: states [T, d_s] -> values [T, d_v]. States are
normalised, values have unit deviation. A class of the user's own has the methods

    fit(states, values)      arrays [N, d_s] and [N, d_v]
    predict(states)          array [T, d_s] -> [T, d_v]

as estimators of scikit-learn have, and is named by its dotted path.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imel.data.experience import Context
from imel.errors import SettingsError, nearest_name
from imel.policies import (
    MkiPolicy,
    NearestPolicy,
    NpPolicy,
    PaperPolicy,
    RegressorPolicy,
    RidgePolicy,
)
from imel.policies.paper.fit import fit_leave_one_out
from imel.policies.paper.interpolator import Interpolator
from imel.policies.paper.paper_policy import FitSettings
from imel.policies.ridge.features import RandomFeatures, damped_inverse

Predict = Callable[[Tensor], Tensor]
Fit = Callable[[Context, torch.Generator], Predict]

_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Of ridge regressions, in units of the features' mean eigenvalue."""
_ROUNDS = 15
"""A network is fitted so often as it is in so many iterations of a policy."""
_SEEN = 1024
"""Memories in the context of a gradient step. Those that answer in the end are all."""
_LIKELIHOOD_ROWS, _PROCESS_ROWS = 400, 4000
"""Memories that a Gaussian process chooses its kernel by, and answers from: its cost is cubic."""
_CHUNK = 512
"""States asked at a time."""


def _constant(context: Context, generator: torch.Generator) -> Predict:
    """Predict the mean of all values."""
    del generator
    mean = context.values.mean(dim=0)
    return lambda states: mean.expand(len(states), -1)


def _ridge(context: Context, generator: torch.Generator, features: int) -> Predict:
    """Regress on random features, or on the state alone where there are none.

    The penalty is the one with the least error on half of the episodes, fitted to the others.
    """
    phi = _seeded(generator, lambda: RandomFeatures(context.states.shape[1], features))
    names = torch.unique(context.episodes)
    chosen = names[torch.randperm(len(names), generator=generator)[: len(names) // 2]]
    left_out = torch.isin(context.episodes, chosen)
    fitted, asked = context.rows(~left_out), context.rows(left_out)

    def coefficients(rows: Context, penalty: float) -> Tensor:
        design: Tensor = phi(rows.states).double()
        return damped_inverse(design.T @ design, penalty) @ (design.T @ rows.values.double())

    def error(penalty: float) -> float:
        predicted = phi(asked.states).double() @ coefficients(fitted, penalty)
        return float((predicted - asked.values).square().mean())

    penalty = min(_PENALTIES, key=error) if len(fitted) and len(asked) else _PENALTIES[-1]
    theta = coefficients(context, penalty)
    return lambda states: (phi(states).double() @ theta).float()


def _of_policy(context: Context, generator: torch.Generator, policy: type[PaperPolicy]) -> Predict:
    """Fit the interpolator of a policy from the start (Alg. 4)."""
    shape = context.states.shape[1], context.values.shape[1]
    model: Interpolator = _seeded(
        generator, lambda: policy.interpolator_class(*shape, policy.Settings())
    )
    if model.learns:
        settings = policy.Settings()
        assert isinstance(settings, FitSettings)
        assert isinstance(settings.learning_rate, float)
        optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate)
        for _ in range(_ROUNDS):
            rows = torch.randperm(len(context), generator=generator)[:_SEEN]
            fit_leave_one_out(model, optimizer, context.rows(rows), settings, generator)
    conditioned = model.eval().condition(context)
    return lambda states: torch.cat(
        [conditioned(part).mean for part in torch.split(states, _CHUNK)]
    )


def _seeded(generator: torch.Generator, make: Callable[[], Any]) -> Any:
    """Make a module whose first weights come from a generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        return make()


def _gaussian_process(context: Context, generator: torch.Generator) -> Predict:
    """Fit a squared exponential kernel and noise by marginal likelihood."""
    from sklearn.gaussian_process import GaussianProcessRegressor  # which takes long to import
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    width = context.states.shape[1] ** 0.5
    kernel = ConstantKernel() * RBF(width, (0.1 * width, 100.0 * width))
    kernel += WhiteKernel(1.0, (1e-4, 10.0))
    order = torch.randperm(len(context), generator=generator)
    chosen = GaussianProcessRegressor(kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a parameter at its bound: improvements are mostly noise
        _of_estimator(context.rows(order[:_LIKELIHOOD_ROWS]), chosen)
    whole = GaussianProcessRegressor(chosen.kernel_, optimizer=None)
    return _of_estimator(context.rows(order[:_PROCESS_ROWS]), whole)


def _of_estimator(context: Context, model: Any) -> Predict:
    """Fit a model with the methods of scikit-learn's estimators."""
    model.fit(context.states.double().numpy(), context.values.double().numpy())
    width = context.values.shape[1]

    def predict(states: Tensor) -> Tensor:
        values = np.asarray(model.predict(states.double().numpy()), dtype=np.float32)
        return torch.from_numpy(values.reshape(len(states), width))

    return predict


INTERPOLATORS: dict[str, Fit] = {
    "constant": _constant,
    "linear": partial(_ridge, features=0),
    "ridge": partial(_ridge, features=RidgePolicy.Settings().features),
    "nearest": partial(_of_policy, policy=NearestPolicy),
    "mki": partial(_of_policy, policy=MkiPolicy),
    "np": partial(_of_policy, policy=NpPolicy),
    "regressor": partial(_of_policy, policy=RegressorPolicy),
    "gp": _gaussian_process,
}
"""Interpolators by name."""


def find_interpolator(name: str) -> Fit:
    """Return the interpolator of this name, or the user's class of this dotted path."""
    if name in INTERPOLATORS:
        return INTERPOLATORS[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        raise SettingsError(
            f"unknown interpolator '{name}'; {nearest_name(name, INTERPOLATORS)}; a class of your "
            "own is named package.module.Class"
        )
    try:
        own = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"there is no interpolator '{name}': {error}") from None
    if not all(callable(getattr(own, method, None)) for method in ("fit", "predict")):
        raise SettingsError(f"'{name}' has no methods fit(states, values) and predict(states)")
    return lambda context, generator: _of_estimator(context, own())

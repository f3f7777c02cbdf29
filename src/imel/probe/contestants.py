"""The interpolators that `imel probe` compares, all behind one function: a fit.

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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imel.data.experience import Context
from imel.errors import SettingsError, nearest_name
from imel.extras import require
from imel.policies import MkiPolicy, NearestPolicy, NpPolicy, PaperPolicy, RegressorPolicy
from imel.policies.paper.fit import fit_leave_one_out
from imel.policies.paper.interpolator import Interpolator
from imel.policies.paper.paper_policy import FitSettings
from imel.policies.ridge.features import RandomFeatures
from imel.policies.ridge.ridge_policy import RidgePolicy

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
    """The mean of all values."""
    del generator
    mean = context.values.mean(dim=0)
    return lambda states: mean.expand(len(states), -1)


def _ridge(context: Context, generator: torch.Generator, features: int) -> Predict:
    """Ridge regression on random features, or on the state alone where there are none.

    Its penalty is the one with the least error on half of the episodes, fitted to the others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        phi = RandomFeatures(context.states.shape[1], features)
    names = torch.unique(context.episodes)
    chosen = names[torch.randperm(len(names), generator=generator)[: len(names) // 2]]
    left_out = torch.isin(context.episodes, chosen)
    fitted, asked = context.rows(~left_out), context.rows(left_out)
    penalty = _PENALTIES[-1]
    if len(fitted) and len(asked):
        errors = [
            float((phi(asked.states).double() @ theta - asked.values).square().mean())
            for theta in _coefficients(phi, fitted, _PENALTIES)
        ]
        penalty = _PENALTIES[int(np.argmin(errors))]
    (theta,) = _coefficients(phi, context, (penalty,))
    return lambda states: (phi(states).double() @ theta).float()


def _coefficients(
    phi: RandomFeatures, context: Context, penalties: tuple[float, ...]
) -> list[Tensor]:
    """Return (Phi^T Phi + lambda I)^{-1} Phi^T y for each penalty; the constant is not shrunk."""
    features = phi(context.states).double()
    gram, products = features.T @ features, features.T @ context.values.double()
    scale = features[:, 1:].var(dim=0).sum() * len(context) / features.shape[1] + 1e-9
    damping = torch.ones(len(gram), dtype=torch.float64)
    damping[0] = 0.0
    return [
        torch.linalg.solve(gram + torch.diag(penalty * scale * damping), products)
        for penalty in penalties
    ]


def _of_policy(context: Context, generator: torch.Generator, policy: type[PaperPolicy]) -> Predict:
    """The interpolator of a policy, fitted from the start by Alg. 4."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        model: Interpolator = policy.interpolator_class(
            context.states.shape[1], context.values.shape[1], policy.Settings()
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


def _gaussian_process(context: Context, generator: torch.Generator) -> Predict:
    """A Gaussian process with a squared exponential kernel and noise, by marginal likelihood."""
    process = require("sklearn.gaussian_process", "probe")
    kernels = require("sklearn.gaussian_process.kernels", "probe")
    width = context.states.shape[1] ** 0.5
    kernel = kernels.ConstantKernel() * kernels.RBF(width, (0.1 * width, 100.0 * width))
    kernel += kernels.WhiteKernel(1.0, (1e-4, 10.0))
    order = torch.randperm(len(context), generator=generator)
    chosen = process.GaussianProcessRegressor(kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a parameter at its bound: improvements are mostly noise
        _fitted(chosen, context.rows(order[:_LIKELIHOOD_ROWS]))
    whole = process.GaussianProcessRegressor(chosen.kernel_, optimizer=None)
    return _fitted(whole, context.rows(order[:_PROCESS_ROWS]))


def _fitted(model: Any, context: Context) -> Predict:
    """Fit a model with the methods of scikit-learn's estimators."""
    model.fit(context.states.double().numpy(), context.values.double().numpy())
    width = context.values.shape[1]

    def predict(states: Tensor) -> Tensor:
        values = np.asarray(model.predict(states.double().numpy()), dtype=np.float64)
        if values.size != len(states) * width:
            raise ValueError(f"{values.shape} predicted instead of {(len(states), width)}")
        return torch.as_tensor(values.reshape(-1, width)).float()

    return predict


CONTESTANTS: dict[str, Fit] = {
    "constant": _constant,
    "linear": lambda context, generator: _ridge(context, generator, 0),
    "ridge": lambda context, generator: _ridge(context, generator, RidgePolicy.Settings().features),
    "nearest": lambda context, generator: _of_policy(context, generator, NearestPolicy),
    "mki": lambda context, generator: _of_policy(context, generator, MkiPolicy),
    "np": lambda context, generator: _of_policy(context, generator, NpPolicy),
    "regressor": lambda context, generator: _of_policy(context, generator, RegressorPolicy),
    "gp": _gaussian_process,
}
"""Interpolators by name."""


def find_contestant(name: str) -> Fit:
    """Return the interpolator of this name, or the user's class of this dotted path."""
    if name in CONTESTANTS:
        return CONTESTANTS[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        raise SettingsError(
            f"unknown interpolator '{name}'; {nearest_name(name, CONTESTANTS)}; a class of your "
            "own is named package.module.Class"
        )
    try:
        own = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"there is no interpolator '{name}': {error}") from None
    if not all(callable(getattr(own, method, None)) for method in ("fit", "predict")):
        raise SettingsError(f"'{name}' has no methods fit(states, values) and predict(states)")

    def fit(context: Context, generator: torch.Generator) -> Predict:
        del generator
        return _fitted(own(), context)

    return fit

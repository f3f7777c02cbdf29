"""A `RidgePolicy` as arrays: what acting with its mean needs, in one .npz file without pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from imel.distributions import Categorical
from imel.errors import ImelError
from imel.files import write_atomically
from imel.policies import Policy, RidgePolicy
from imel.policies.ridge.features import REACH

Arrays = dict[str, NDArray[Any]]


def write_numpy(policy: Policy, path: Path, document: Mapping[str, Any] | None = None) -> None:
    """Write a `RidgePolicy` to an .npz file; `document` says what made it."""
    if policy.lessons is None:
        raise ImelError(f"only RidgePolicy is a few arrays; export {type(policy).__name__} as onnx")
    require_vectors(policy)
    content = io.BytesIO()
    about = np.array(json.dumps(document or {}))
    np.savez(content, allow_pickle=False, imel=about, **ridge_arrays(policy), **actions(policy))
    write_atomically(path, content.getvalue())


def ridge_arrays(policy: RidgePolicy) -> Arrays:
    """Return what the mean is computed from, in single precision."""
    return {
        "centre": policy.normaliser.centre.numpy(force=True),  # [d_s]
        "scale": policy.normaliser.scale.numpy(force=True),  # [d_s]
        "reach": np.array(min(REACH, policy.normaliser.clip), np.float32),
        "directions": policy.features.directions.numpy(force=True),  # [d_s, m]
        "offsets": policy.features.offsets.numpy(force=True),  # [m]
        "coefficients": policy.coefficients.float().numpy(force=True),  # [1 + d_s + m, d_a]
    }


def actions(policy: Policy) -> Arrays:
    """Return the bounds of continuous actions, or the choices of discrete ones."""
    space = policy.action_space
    if isinstance(space, spaces.Box):
        return {"low": space.low.astype(np.float32), "high": space.high.astype(np.float32)}
    distribution = policy.distribution
    assert isinstance(distribution, Categorical)
    assert space.shape is not None
    return {
        "sizes": np.array(distribution.sizes, np.int64),
        "starts": distribution.starts.astype(np.int64),
        "shape": np.array(space.shape, np.int64),
    }


def require_vectors(policy: Policy) -> None:
    """Refuse a policy with a features extractor, which is not exported."""
    if policy.features_extractor is not None:
        space = policy.observation_space
        raise ImelError(f"only policies that observe vectors are exported to act, not {space}")

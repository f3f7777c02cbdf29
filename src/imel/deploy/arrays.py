"""A policy as arrays: what acting with its mean needs, in one .npz file without pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from imel.errors import ImelError
from imel.files import write_atomically
from imel.policies import Policy
from imel.policies.ridge.features import REACH, RandomFeatures

Arrays = dict[str, NDArray[Any]]


def write_numpy(policy: Policy, path: Path, document: Mapping[str, Any] | None = None) -> None:
    """Write a policy to an .npz file if it is a few arrays; `document` says what made it."""
    require_vectors(policy)
    content, about = io.BytesIO(), np.array(json.dumps(document or {}))
    arrays = mean_arrays(policy) | action_arrays(policy)
    np.savez(content, allow_pickle=False, imel=about, **arrays)
    write_atomically(path, content.getvalue())


def mean_arrays(policy: Any) -> Arrays:
    """Return what the mean is computed from, in single precision."""
    features, normaliser = getattr(policy, "features", None), policy.normaliser
    if type(features) is not RandomFeatures:  # of which a subclass may compute something else
        arrays: Arrays = policy.arrays()
        return arrays
    return {
        "centre": normaliser.centre.numpy(force=True),  # [d_s]
        "scale": normaliser.scale.numpy(force=True),  # [d_s]
        "reach": np.array(min(REACH, normaliser.clip), np.float32),
        "directions": features.directions.numpy(force=True),  # [d_s, m]
        "offsets": features.offsets.numpy(force=True),  # [m]
        "coefficients": policy.coefficients.float().numpy(force=True),  # [1 + d_s + m, d_a]
    }


def action_arrays(policy: Policy) -> Arrays:
    """Return the bounds of continuous actions, or the choices of discrete ones."""
    space, distribution = policy.action_space, policy.distribution
    if isinstance(space, spaces.Box):
        return {"low": space.low.astype(np.float32), "high": space.high.astype(np.float32)}
    return {
        "sizes": np.array(distribution.sizes, np.int64),
        "starts": np.array(distribution.starts, np.int64),
        "shape": np.array(space.shape, np.int64),
    }


def require_vectors(policy: Policy) -> None:
    """Refuse a policy with a features extractor, which is not exported."""
    if policy.features_extractor is not None:
        space = policy.observation_space
        raise ImelError(f"only policies that observe vectors are exported to act, not {space}")

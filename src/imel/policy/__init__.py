"""Policies by name: `RidgePolicy`, the default, and the paper's."""

from imel.policy.base import ImelPolicy
from imel.policy.paper import (
    AnpPolicy,
    MkiPolicy,
    NearestPolicy,
    NpPolicy,
    PaperPolicy,
    RegressorPolicy,
)
from imel.policy.ridge import RidgePolicy
from imel.policy.spaces import check_spaces

POLICIES: dict[str, type[ImelPolicy]] = {
    policy.__name__: policy
    for policy in (RidgePolicy, MkiPolicy, NpPolicy, AnpPolicy, NearestPolicy, RegressorPolicy)
}

__all__ = [
    "POLICIES",
    "AnpPolicy",
    "ImelPolicy",
    "MkiPolicy",
    "NearestPolicy",
    "NpPolicy",
    "PaperPolicy",
    "RegressorPolicy",
    "RidgePolicy",
    "check_spaces",
]

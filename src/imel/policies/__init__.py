"""Policies by name: `RidgePolicy`, the default, and the paper's."""

from imel.policies.base import ImelPolicy
from imel.policies.paper.paper_policy import (
    AnpPolicy,
    MkiPolicy,
    NearestPolicy,
    NpPolicy,
    PaperPolicy,
    RegressorPolicy,
)
from imel.policies.ridge.ridge_policy import RidgePolicy
from imel.policies.spaces import check_spaces

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

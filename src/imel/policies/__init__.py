"""Policies: what computes an action from a state, and how it learns from experience."""

from imel.policies.base import Policy
from imel.policies.paper.attentive import AnpPolicy
from imel.policies.paper.mki import MkiPolicy
from imel.policies.paper.nearest import NearestPolicy
from imel.policies.paper.neural_process import NpPolicy
from imel.policies.paper.paper_policy import PaperPolicy
from imel.policies.paper.regressor import RegressorPolicy
from imel.policies.ridge.ridge_policy import RidgePolicy

__all__ = [
    "AnpPolicy",
    "MkiPolicy",
    "NearestPolicy",
    "NpPolicy",
    "PaperPolicy",
    "Policy",
    "RegressorPolicy",
    "RidgePolicy",
]

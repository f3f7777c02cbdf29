"""imel's own policies keep the contract that is shipped for those of others."""

from imel import AnpPolicy, MkiPolicy, NearestPolicy, NpPolicy, RegressorPolicy, RidgePolicy
from imel.testing import PolicyContract


class TestRidge(PolicyContract):
    policy_class = RidgePolicy


class TestMki(PolicyContract):
    policy_class = MkiPolicy


class TestNp(PolicyContract):
    policy_class = NpPolicy


class TestAnp(PolicyContract):
    policy_class = AnpPolicy


class TestNearest(PolicyContract):
    policy_class = NearestPolicy


class TestRegressor(PolicyContract):
    policy_class = RegressorPolicy

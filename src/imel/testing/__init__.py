"""Contract suites: what a user's own interpolator, policy or update is put through by pytest.

    from imel.testing import PolicyContract

    class TestMine(PolicyContract):
        policy_class = MyPolicy

Assertions are shown in full with `pytest.register_assert_rewrite("imel.testing")` in conftest.py.
"""

from imel.testing.contracts import (
    ExactContract,
    InterpolatorContract,
    LearnerContract,
    PolicyContract,
)

__all__ = ["ExactContract", "InterpolatorContract", "LearnerContract", "PolicyContract"]

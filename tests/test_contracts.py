"""imel's own policies keep the contract that is shipped for those of others."""

from imel.testing import PolicyContract
from small import POLICIES

for _name, _kind in POLICIES.items():
    globals()[f"Test{_name}"] = type(f"Test{_name}", (PolicyContract,), {"policy_class": _kind})

"""What every test shares: reproducible draws, and one thread for each process."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")
torch.set_num_threads(1)
pytest.register_assert_rewrite("contract")


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Torch's layers draw their first weights from the global generator."""
    torch.manual_seed(0)

"""What every test shares: reproducible draws, and one thread for each process."""

import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")
torch.set_num_threads(1)
pytest.register_assert_rewrite("imel.testing")


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Torch's layers draw their first weights from the global generator."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> Iterator[None]:
    """A shell that starts the tests in the background has them, and what they start, ignore SIGINT.

    What is tested is a command in the foreground, whatever the tests themselves run in.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

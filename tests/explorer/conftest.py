"""A small trained run, and a page's view of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from numpy.typing import NDArray
from starlette.testclient import TestClient

import explorer.drawn  # noqa: F401  # registers the environment
from benchmarks.explorer import unpack
from imel.cli.main import main
from imel.explorer.server import make_app
from imel.explorer.session import Session
from imel.runs.stored import find_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOST = "127.0.0.1:8642"
Arrays = dict[str, NDArray[Any]]


def train(folder: Path, *flags: str, policy: str = "mki", env: str = "Drawn-v0") -> Path:
    """Train for some thousand steps on the environment that draws itself."""
    size = "--n-envs 4 --rollout-size 192 --memory-size 384 --total-timesteps 2304"
    rest = "--eval-episodes 2 --checkpoint-every 3 --checkpoints-kept 9 --run-dir"
    own = ["--policy", policy, *(["--gradient-steps", "4"] if policy == "mki" else [])]
    words = [*size.split(), *own, *rest.split(), str(folder), *flags]
    assert main(["train", f"explorer.drawn:{env}", *words]) == 0
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("explored") / "run")


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with lessons."""
    return train(tmp_path_factory.mktemp("explored") / "taught", policy="ridge")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on this machine")
    flags = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=chromium, args=flags)
        yield opened
        opened.close()


class Page:
    """Asks what the page asks."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.client = TestClient(make_app(session, "127.0.0.1"), base_url=f"http://{HOST}")
        self.newest = f"m{len(session.run.models) - 1}"

    def ask(self, path: str, status: int = 200, **query: Any) -> Any:
        answer = self.client.get(f"/api/{path}", params=query)
        assert answer.status_code == status, answer.text
        return answer

    def get(self, path: str, **query: Any) -> Any:
        return self.ask(path, **query).json()

    def arrays(self, path: str, **query: Any) -> tuple[dict[str, Any], Arrays]:
        return unpack(self.ask(path, **query).content)

    def refusal(self, path: str, **query: Any) -> str:
        return str(self.ask(path, 400, **query).json()["error"])

    def forget(self, rows: Any, model: str | None = None, status: int = 200) -> dict[str, Any]:
        body = {"model": model or self.newest, "rows": [int(row) for row in rows]}
        answer = self.client.post("/api/forget", json=body)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def played(self, model: str, seed: int = 0, kind: str = "mean") -> str:
        """Watch an episode until it has ended."""
        name = f"{model}-{kind}-{seed}"
        while self.arrays("episode", episode=name)[0]["ended"] is None:
            pass
        return name

    def evaluated(self, model: str, episodes: int) -> list[float]:
        """Watch an evaluation until it is over."""
        returns: list[float] = []
        while len(returns) < episodes:
            returns = self.get("evaluation", model=model, episodes=episodes)["returns"]
        return returns

    def step(
        self, episode: str, step: int, model: str, projection: str = "states"
    ) -> tuple[dict[str, Any], Arrays]:
        on = {"frame": self.newest, "projection": projection}
        return self.arrays("step", episode=episode, step=step, model=model, **on)


def opened(place: Path, env: str | None = None) -> Iterator[Page]:
    """The page of a run, as a fixture."""
    session = Session(find_run(place, env))
    yield Page(session)
    session.close()


@pytest.fixture
def page(run: Path) -> Iterator[Page]:
    yield from opened(run)


@pytest.fixture
def session(page: Page) -> Session:
    return page.session

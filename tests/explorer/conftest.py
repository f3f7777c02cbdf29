"""A small trained run, and a page's view of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray

import explorer.drawn  # noqa: F401  # registers the environment
from imel.cli.main import main
from imel.explorer.answers import unpack
from imel.explorer.server import make_app
from imel.explorer.session import Session
from imel.runs.stored import find_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOST = "127.0.0.1:8642"
OWN = {"X-Imel-Explorer": "1"}


def train(folder: Path, *flags: str, policy: str = "mki", env: str = "Drawn-v0") -> Path:
    """Train for some thousand steps on the environment that draws itself."""
    size = ["--n-envs", "4", "--rollout-size", "192", "--memory-size", "384", "--policy", policy]
    length = ["--total-timesteps", "2304", "--eval-episodes", "2"]
    if policy == "mki":
        length += ["--gradient-steps", "4"]
    kept = ["--checkpoint-every", "3", "--checkpoints-kept", "9"]
    where = ["--run-dir", str(folder)]
    assert main(["train", f"explorer.drawn:{env}", *size, *length, *kept, *where, *flags]) == 0
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


@pytest.fixture
def session(run: Path) -> Iterator[Session]:
    opened = Session(find_run(run))
    yield opened
    opened.close()


class Page:
    """Asks what the page asks."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.client = TestClient(make_app(session, {HOST}), base_url=f"http://{HOST}")
        self.newest = f"m{len(session.run.models) - 1}"

    def get(self, path: str, **query: Any) -> Any:
        answer = self.client.get(f"/api/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def arrays(self, path: str, **query: Any) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        answer = self.client.get(f"/api/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return unpack(answer.content)

    def post(self, path: str, **body: Any) -> Any:
        answer = self.client.post(f"/api/{path}", json=body, headers=OWN)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refusal(self, path: str, **query: Any) -> str:
        answer = self.client.get(f"/api/{path}", params=query)
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"])

    def refused_post(self, path: str, **body: Any) -> str:
        answer = self.client.post(f"/api/{path}", json=body, headers=OWN)
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"])

    def finish(self, job: str) -> dict[str, Any]:
        for _ in range(1200):
            found: dict[str, Any] = self.get("job", job=job)
            if found["state"] not in ("waiting", "running"):
                return found
            time.sleep(0.05)
        raise AssertionError(f"{job} did not end")

    def played(self, model: str, **options: Any) -> str:
        started = self.post("play", model=model, **options)
        assert self.finish(started["job"])["state"] == "done"
        return str(started["episode"])

    def step(
        self, episode: str, step: int, model: str
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        return self.arrays(
            "step", episode=episode, step=step, model=model, frame=self.newest, projection="states"
        )


@pytest.fixture
def page(session: Session) -> Page:
    return Page(session)

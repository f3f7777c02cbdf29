"""Time the explorer with a large memory.

    python -m benchmarks.explorer --memories 100000

A made-up MKI policy with 100,000 memories is saved, opened and served on this machine. Given a
Chromium and playwright, the time until its map is painted in a browser is measured too.
"""

from __future__ import annotations

import json
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.common import fill_memory, flags, milliseconds, run
from imel.explorer.server import make_server, open_port
from imel.explorer.session import Session
from imel.policies import MkiPolicy
from imel.runs.stored import find_run

_EPISODE = 1000


def made_up_policy(memories: int, state_dim: int = 17, action_dim: int = 6) -> MkiPolicy:
    """A policy with a memory of random walks; it has learned nothing."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    policy = MkiPolicy(
        spaces.Box(-np.inf, np.inf, (state_dim,), np.float32),
        spaces.Box(-1.0, 1.0, (action_dim,), np.float32),
        memory_size=memories,
    )

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    number = torch.arange(memories)
    states = draw(memories, state_dim).cumsum(0) * 0.05
    means = 0.3 * draw(memories, action_dim)
    fill_memory(
        policy,
        states=states,
        actions=means + 0.2 * draw(memories, action_dim),
        means=means,
        improved_means=means + 0.1 * draw(memories, action_dim),
        stds=torch.full((memories, action_dim), 0.3),
        rewards=draw(memories),
        advantages=draw(memories),
        episodes=number // _EPISODE,
        steps=number % _EPISODE,
    )
    policy.normaliser.update(states)
    policy.normaliser.refresh()
    return policy


class Served:
    """A session behind a port of this machine, for as long as the block lasts."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._listener = open_port("127.0.0.1", None)
        self.port = self._listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._server = make_server(session, "127.0.0.1", self._listener)
        arguments = {"sockets": [self._listener]}
        self._thread = threading.Thread(target=self._server.run, kwargs=arguments)

    def __enter__(self) -> Served:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    def get(self, path: str) -> bytes:
        """What the server answers."""
        content: bytes = urlopen(self.address + path).read()
        return content

    def post(self, path: str, body: bytes) -> bytes:
        """The same for what starts something."""
        headers = {"Content-Type": "application/json"}
        content: bytes = urlopen(Request(self.address + path, body, headers)).read()
        return content


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read an answer with arrays, as the page does."""
    (length,) = struct.unpack_from("<I", content)
    document: dict[str, Any] = json.loads(content[4 : 4 + length])
    arrays, offset = {}, 4 + length
    for name, shape, size in document.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(content, f"<f{size}", count, offset).reshape(shape)
        offset += size * count
    return document, arrays


def measure(served: Served, memories: int) -> None:
    """Ask what the page asks, and print how long each answer took."""
    plane = "frame=m0&projection=features"

    def first_paint() -> None:
        for path in ("/", "/explorer.css", "/explorer.js", "/api/run", "/api/model?model=m0"):
            served.get(path)
        served.get(f"/api/map?model=m0&{plane}")
        served.get("/api/colour?model=m0&frame=m0&by=advantage")

    print(f"{memories:,} memories, {torch.get_num_threads()} threads")
    print(f"all answers before the first paint  {milliseconds(first_paint):8.1f} ms (cold)")
    print(f"the same again                      {milliseconds(first_paint):8.1f} ms")
    episode = "episode=m0-remembered-3"
    served.get(f"/api/episode?{episode}")
    steps = [f"/api/step?{episode}&step={t}&model=m0&{plane}" for t in range(0, 200, 4)]
    taken = [milliseconds(served.get, path) for path in steps]
    document, _ = unpack(served.get(steps[0]))
    assert document["memories"]
    print(
        f"one step: median {statistics.median(taken):.1f} ms, slowest of {len(taken)} "
        f"{max(taken):.1f} ms"
    )
    body = b'{"model": "m0", "rows": [' + b",".join(b"%d" % i for i in range(5000)) + b"]}"
    forgetting = milliseconds(served.post, "/api/forget", body)
    print(f"forgetting 5,000 memories: {forgetting:.1f} ms")


def measure_paint(address: str, chromium: str) -> None:
    """Print how long a browser takes from the request to the painted map."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        for kind in ("first", "second"):
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(address, wait_until="commit")
            page.wait_for_selector("body[data-ready=map]")
            painted = page.evaluate("performance.now()")
            print(f"map painted in the browser, {kind} visit: {painted:.0f} ms")
            page.close()
        browser.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = flags(__doc__)
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chromium", help="path of a Chromium, to measure the first paint as well")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        made_up_policy(arguments.memories).save(str(path))
        session = Session(find_run(path))
        print(f"starting: {milliseconds(session.prepare):.1f} ms")
        with Served(session) as served:
            measure(served, arguments.memories)
            if arguments.chromium:
                measure_paint(served.address, arguments.chromium)


if __name__ == "__main__":
    run(main)

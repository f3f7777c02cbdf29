"""`imel explore`: a local web page on which a run's memory and every action are taken apart."""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass

from imel.cli.arguments import Flag, Number, StoredRunArguments, parse
from imel.errors import SettingsError
from imel.explorer import DEMO
from imel.extras import require
from imel.pictures.rendering import prepare_drawing


@dataclass(frozen=True)
class ExploreArguments(StoredRunArguments):
    """Open a local web page over a run that takes every action of an episode apart.

    It shows the lessons that taught the action, or of a policy without lessons the memories that
    made it. Forget some, and see what the policy does without them. Nothing on disk is changed.

    examples:
      imel explore --demo
      imel explore runs/mountaincar
      imel explore runs/cheetah --port 9000 --no-browser
      imel explore model.safetensors --env Pendulum-v1
    """

    demo: Flag = False
    """Open a small trained run that comes with imel, in the place of RUN."""
    port: Number = None
    """Port to listen on. By default the first free one from 8642 on."""
    host: str = "127.0.0.1"
    """Address to listen on. Other machines cannot reach the default."""
    allow_remote: Flag = False
    """Allow a --host that other machines can reach. Whoever can, may use the page."""
    browser: bool = True
    """Open the page in the default browser."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if "--demo" in argv:
        argv = [str(DEMO), *argv]
    given: ExploreArguments = parse(ExploreArguments, argv, "imel explore")
    if given.port is not None and not 1 <= given.port < 1 << 16:
        raise SettingsError(f"port={given.port} is not between 1 and {(1 << 16) - 1}")
    for name in ("starlette", "pydantic", "uvicorn"):
        require(name, "explorer")
    prepare_drawing()

    from imel.explorer.server import check_host, make_server, open_port
    from imel.explorer.session import Session

    check_host(given.host, given.allow_remote)
    with contextlib.closing(Session(given.open())) as session:
        insight = session.prepare()  # a damaged model is refused here
        with open_port(given.host, given.port) as listener:
            name = f"[{given.host}]" if ":" in given.host else given.host
            address = f"http://{name}:{listener.getsockname()[1]}/"
            print(f"{session.run.title}: {insight.rows:,} {insight.kind}")
            print(f"{address}  (Ctrl+C ends it)", flush=True)
            if given.browser:
                webbrowser.open(address)
            with contextlib.suppress(KeyboardInterrupt):  # which is how it is meant to end
                make_server(session, given.host, listener).run([listener])
    return 0

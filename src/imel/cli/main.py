"""The `imel` command: finds the subcommand, runs it, and turns errors into one line."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence

from imel import __version__
from imel.errors import ImelError, SettingsError, nearest_name

COMMANDS = {
    # name of a module here with a function run(argv) -> exit code: one line of help
    "train": "learn a policy, evaluate it, draw it; all in a run directory",
    "resume": "go on with a run that was stopped or killed, bit for bit",
    "eval": "play episodes with a trained policy and report its returns",
    "bench": "run tasks x algorithms x seeds side by side, and tabulate them",
    "tune": "search settings that learn a task better than the default ones",
    "report": "tables and figures of a store that bench has filled",
    "explore": "open a web page over a run: what taught each action",
    "why": "play an episode and say what made one of its actions",
    "lessons": "which episodes taught a policy most, and what it is without",
    "export": "write the policy for ONNX or NumPy, the memory for Minari, pandas",
    "push": "publish a run with a model card on the Hugging Face hub",
    "pull": "get a published run into a run directory",
    "plot": "draw a run's learning curve and policy, an update, an animation",
}

USAGE_ERROR, INTERRUPTED = 2, 130

_HELP = """\
usage: imel COMMAND [options]

Improved Memories Learning: reinforcement learning by interpolating improved memories.

commands:
{commands}

`imel COMMAND --help` lists the options of a command; `imel --version` the version.

examples:
  imel train Pendulum-v1                         learn with the defaults, into runs/
  imel train --policy np --help                  every setting, with this policy's defaults
  imel resume runs/Pendulum-v1-ridge-seed0       go on after a kill, bit for bit
  imel eval runs/Pendulum-v1-ridge-seed0         returns over 20 episodes
  imel explore runs/Pendulum-v1-ridge-seed0      take each action apart, in a browser"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, that of this process by default; return its exit code."""
    if argv is None:  # warnings and failures of other threads are a line, in a process of our own
        warnings.formatwarning = lambda message, *_: f"imel: warning: {message}\n"
        threading.excepthook = lambda failed: print(f"imel: {failed.exc_value}", file=sys.stderr)
    try:
        return _dispatch(*(sys.argv[1:] if argv is None else argv))
    except (ImelError, OSError) as error:  # also a full disk, a missing file
        line = " ".join(str(error).split()) or type(error).__name__
        print(f"imel: error: {line}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("imel: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as leaving:  # the argument parser has shown its help
        return leaving.code if isinstance(leaving.code, int) else 0
    finally:
        if argv is None:  # Python waits for threads when it ends: one more Ctrl-C ends that, too
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def _dispatch(name: str = "--help", *arguments: str) -> int:
    if name in ("-h", "--help", "--version"):
        commands = "\n".join(f"  {command:<8} {line}" for command, line in COMMANDS.items())
        print(f"imel {__version__}" if name == "--version" else _HELP.format(commands=commands))
        return 0
    if name not in COMMANDS:
        raise SettingsError(f"unknown command '{name}'; {nearest_name(name, COMMANDS)}")
    code: int = importlib.import_module(f"imel.cli.{name}").run(arguments)
    return code

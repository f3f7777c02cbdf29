"""`python -m imel.zoo SCRIPT ...`: a script of RL Baselines3 Zoo that knows IMeL."""

from __future__ import annotations

import argparse
import runpy
import sys
import warnings
from collections.abc import Sequence

from imel.errors import ImelError, SettingsError, nearest_name
from imel.extras import require
from imel.zoo import ALGORITHM, HYPERPARAMETERS, IMeL

_PLOTS = ("plot_train", "all_plots", "plot_from_file")
SCRIPTS = ("train", "enjoy", "record_video", *_PLOTS)
_HELP = f"""\
usage: python -m imel.zoo SCRIPT [options of the script]

The scripts of RL Baselines3 Zoo, with `--algo {ALGORITHM}` among their algorithms:
  {", ".join(SCRIPTS)}

examples:
  python -m imel.zoo train --algo {ALGORITHM} --env Pendulum-v1
  python -m imel.zoo enjoy --algo {ALGORITHM} --env Pendulum-v1 -f logs --no-render
  python -m imel.zoo plot_train -a {ALGORITHM} -e Pendulum-v1 -f logs"""


def with_hyperparameters(arguments: Sequence[str]) -> list[str]:
    """The arguments of `train`, with IMeL's hyperparameters unless others are named."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--algo")
    # Before the user's own arguments: of a flag given twice the last one holds
    own = parser.parse_known_args(arguments)[0].algo == ALGORITHM
    return [*(["--conf-file", str(HYPERPARAMETERS)] if own else []), *arguments]


def run(arguments: Sequence[str]) -> None:
    """Run a script of the zoo as `python -m rl_zoo3.SCRIPT` would."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP)
        return
    name, rest = arguments[0], list(arguments[1:])
    if name not in SCRIPTS:
        raise SettingsError(f"unknown script '{name}'; {nearest_name(name, SCRIPTS)}")
    require("rl_zoo3", "zoo").ALGOS[ALGORITHM] = IMeL
    if name in _PLOTS:
        require("seaborn", "zoo")
    sys.argv[:] = [f"imel.zoo {name}", *(with_hyperparameters(rest) if name == "train" else rest)]
    with warnings.catch_warnings():
        # The zoo's plots are imported by their package before they are run
        warnings.filterwarnings("ignore", "'rl_zoo3.plots", RuntimeWarning)
        package = "rl_zoo3.plots" if name in _PLOTS else "rl_zoo3"
        runpy.run_module(f"{package}.{name}", run_name="__main__", alter_sys=True)


def main() -> int:
    """Run the command and return its exit code."""
    try:
        run(sys.argv[1:])
    except ImelError as error:
        print(f"imel.zoo: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

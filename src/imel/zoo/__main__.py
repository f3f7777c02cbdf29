"""`python -m imel.zoo SCRIPT ...`: a script of RL Baselines3 Zoo that knows IMeL."""

from __future__ import annotations

import argparse
import runpy
import sys
import warnings
from collections.abc import Sequence

from imel.errors import ImelError, SettingsError, nearest_name
from imel.extras import require
from imel.zoo import HYPERPARAMETERS, IMeL

_PLOTS = ("plot_train", "all_plots", "plot_from_file")
SCRIPTS = ("train", "enjoy", "record_video", *_PLOTS)


def with_hyperparameters(arguments: Sequence[str]) -> list[str]:
    """The arguments of `train`, with IMeL's hyperparameters unless others are named."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--algo")
    # Before the user's own arguments: of a flag given twice the last one holds
    own = parser.parse_known_args(arguments)[0].algo == "imel"
    return [*(["--conf-file", str(HYPERPARAMETERS)] if own else []), *arguments]


def run(name: str = "", *arguments: str) -> None:
    """Run a script of the zoo as `python -m rl_zoo3.SCRIPT` would."""
    if name not in SCRIPTS:
        raise SettingsError(f"unknown script '{name}'; {nearest_name(name, SCRIPTS)}")
    require("rl_zoo3", "zoo").ALGOS["imel"] = IMeL
    if name in _PLOTS:
        require("seaborn", "zoo")
    words = with_hyperparameters(arguments) if name == "train" else arguments
    sys.argv[:] = [f"imel.zoo {name}", *words]
    with warnings.catch_warnings():
        # The zoo's plots are imported by their package before they are run
        warnings.filterwarnings("ignore", "'rl_zoo3.plots", RuntimeWarning)
        package = "rl_zoo3.plots" if name in _PLOTS else "rl_zoo3"
        runpy.run_module(f"{package}.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    try:
        run(*sys.argv[1:])
    except ImelError as error:
        print(f"imel.zoo: error: {error}", file=sys.stderr)
        sys.exit(2)

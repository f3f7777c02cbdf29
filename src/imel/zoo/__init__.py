"""IMeL in RL Baselines3 Zoo: `python -m imel.zoo train --algo imel --env Pendulum-v1`.

The zoo's scripts know the algorithms of one dictionary. They look at it before they import what
`--gym-packages` names, so IMeL is put there first and the script is run then; nothing else of the
zoo is changed.
"""

from __future__ import annotations

from pathlib import Path

from imel.extras import require

ALGORITHM = "imel"
HYPERPARAMETERS = Path(__file__).with_name("imel.yml")
"""What the zoo reads of IMeL's settings, for `--conf-file`."""


def register() -> None:
    """Make `--algo imel` known to RL Baselines3 Zoo in this process."""
    zoo = require("rl_zoo3", "zoo")
    # It imports the zoo
    from imel.zoo.algorithm import IMeL

    zoo.ALGOS[ALGORITHM] = IMeL

"""Watch training by a callback of your own, and send what is logged elsewhere.

python examples/callback_and_tracker.py
"""

import os

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger

from imel import IMeL

STEPS = 2_048 if os.environ.get("IMEL_SHORT") else 10_000


class StopWhenSolved(BaseCallback):
    """Callbacks are those of Stable-Baselines3."""

    def _on_step(self):
        episodes = self.model.ep_info_buffer
        return len(episodes) < 20 or sum(e["r"] for e in episodes) / len(episodes) < -200.0


class Printed(KVWriter):
    """A tracker is a writer of Stable-Baselines3's logger. Weights & Biases and trackio come
    with imel: `imel train Pendulum-v1 --track wandb`."""

    def write(self, key_values, key_excluded, step=0):
        print(step, {name: key_values.get(name) for name in ("rollout/ep_rew_mean", "rollout/std")})

    def close(self):
        pass


model = IMeL("RidgePolicy", "Pendulum-v1", seed=0)
model.set_logger(Logger(None, [Printed()]))
model.learn(STEPS, callback=StopWhenSolved())

"""Learn in an environment of your own: python examples/own_environment.py"""

import os

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from imel import IMeL

STEPS = 2_048 if os.environ.get("IMEL_SHORT") else 20_000


class Tank(gymnasium.Env):
    """Keep the level of a leaking tank at one half."""

    observation_space = spaces.Box(0.0, 2.0, (1,), np.float32)
    action_space = spaces.Box(0.0, 1.0, (1,), np.float32)  # any finite range
    state_names, action_names = ("level",), ("valve",)  # explanations use them

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level = self.np_random.uniform(0.0, 1.0)
        return np.array([self.level], np.float32), {}

    def step(self, action):
        self.level = float(np.clip(0.9 * self.level + 0.2 * action[0], 0.0, 2.0))
        reward = -abs(self.level - 0.5)
        return np.array([self.level], np.float32), reward, False, False, {}


model = IMeL("RidgePolicy", TimeLimit(Tank(), 50), seed=0)
model.learn(STEPS)
for level in (0.0, 0.5, 1.0):
    valve, _ = model.predict(np.array([level], np.float32), deterministic=True)
    print(f"level {level}: valve {valve[0]:.2f}")
print(model.explain(np.array([0.2], np.float32)).sensitivity_sentence())

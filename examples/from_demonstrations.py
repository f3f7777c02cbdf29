"""Start from a controller of ten lines, then improve on it.

python examples/from_demonstrations.py
"""

import os

import numpy as np
from stable_baselines3.common.evaluation import evaluate_policy

from imel import IMeL
from imel.datasets import record_episodes

STEPS = 1_024 if os.environ.get("IMEL_SHORT") else 10_000


def swing_up(observation):
    """Pump energy into a pendulum, then hold it up by a PD controller."""
    cosine, sine, speed = observation
    if cosine > 0.9:
        return -12.0 * np.arctan2(sine, cosine) - 3.0 * speed
    energy = speed**2 / 6.0 + 5.0 * (cosine - 1.0)  # zero when it stands upright
    return -2.0 * energy * np.sign(speed) if abs(speed) > 1e-3 else 2.0


demonstrations = record_episodes("Pendulum-v1", swing_up, episodes=20)
print("the controller:", np.mean([episode.rewards.sum() for episode in demonstrations]))

model = IMeL("RidgePolicy", "Pendulum-v1", seed=0, std=0.2)  # little noise: it is good already
model.warm_start(demonstrations)
print("imitated:", evaluate_policy(model, model.get_env(), 16)[0])
model.learn(STEPS)
print("improved:", evaluate_policy(model, model.get_env(), 16)[0])
print(model.explain(np.array([-1.0, 0.0, 1.0], np.float32)))  # lessons name demonstrations

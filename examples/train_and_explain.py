"""Train a policy, and ask it why it acts as it does.

python examples/train_and_explain.py
"""

import os

import gymnasium

from imel import IMeL

STEPS = 2_048 if os.environ.get("IMEL_SHORT") else 20_000  # the tests take the short form

# Like any algorithm of Stable-Baselines3. An id is copied eight times.
model = IMeL("RidgePolicy", "MountainCarContinuous-v0", seed=0)
model.learn(STEPS)
print(model)

# Every action is a sum of what each episode taught: a lesson.
observation, _ = gymnasium.make("MountainCarContinuous-v0").reset(seed=0)
why = model.explain(observation)
print(why)

# The sum is exact. It is the computation, not an account of it.
print("mean:", why.mean, " sum of all lessons:", why.lessons.contributions.sum(axis=0))

model.save("mountaincar")  # mountaincar.safetensors: no pickle

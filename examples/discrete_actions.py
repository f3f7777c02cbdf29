"""Learn CartPole, whose actions are discrete.

python examples/discrete_actions.py
"""

import os

import numpy as np
from stable_baselines3.common.evaluation import evaluate_policy

from imel import IMeL

STEPS = 2_048 if os.environ.get("IMEL_SHORT") else 30_000

# Nothing to set: the policy is a categorical one, improved by steps in its logits.
model = IMeL("RidgePolicy", "CartPole-v1", seed=0)
model.learn(STEPS)
print("return:", evaluate_policy(model, model.get_env(), 16)[0])  # 500 is the most

# The pole falls to the right. Lessons add up to the logits of both options.
why = model.explain(np.array([0.0, 0.0, 0.1, 0.5], np.float32))
print(why)

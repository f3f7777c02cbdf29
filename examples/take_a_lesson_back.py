"""Take back what some episodes have taught, and see what is left.

python examples/take_a_lesson_back.py
"""

import os

import numpy as np
from stable_baselines3.common.evaluation import evaluate_policy

from imel import IMeL
from imel.explain.reduced import largest_lessons, random_lessons

STEPS = 2_048 if os.environ.get("IMEL_SHORT") else 20_000

model = IMeL("RidgePolicy", "MountainCarContinuous-v0", seed=0)
model.learn(STEPS)
env = model.get_env()
print("with all lessons:", evaluate_policy(model, env, 16)[0])

# Subtraction, no retraining: what this policy does without what it was taught there.
# It is not what a run that never saw these episodes would have become.
count = len(model.policy.lessons) // 20 + 1
for name, lessons in {
    "largest": largest_lessons(model.policy, count),
    "random": random_lessons(model.policy, count, seed=0),
}.items():
    reduced = model.policy_without(lessons=lessons)
    print(f"without {count} {name} lessons:", evaluate_policy(reduced, env, 16)[0])
    state = np.array([-0.5, 0.0], np.float32)
    print("  action:", reduced.predict(state, deterministic=True)[0])

reduced.save("reduced")  # a policy like any other

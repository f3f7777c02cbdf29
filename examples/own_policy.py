"""A policy of your own in one file: random Fourier features, and advantages by their rank.

    python examples/own_policy.py

The same from a shell, in this folder; the settings of the policy are flags:
    imel train Pendulum-v1 --policy own_policy:FourierPolicy --bandwidth 1.5
"""

import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from stable_baselines3.common.evaluation import evaluate_policy

from imel import IMeL
from imel.policies import RidgePolicy
from imel.policies.ridge.features import Features
from imel.policies.ridge.ridge_update import RidgeUpdate
from imel.settings import Range, setting

STEPS = 2_048 if os.environ.get("IMEL_SHORT") else 20_000


class FourierFeatures(Features):
    """A constant and cosines of random frequencies: those of a Gaussian kernel."""

    def __init__(self, state_dim, count, bandwidth):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(state_dim, count) / bandwidth)
        self.register_buffer("phases", 2.0 * math.pi * torch.rand(count))

    @property
    def width(self):
        return 1 + len(self.phases)

    def forward(self, states):  # normalised [N, d_s] -> [N, width]
        waves = torch.cos(states @ self.frequencies + self.phases)
        return torch.cat([torch.ones_like(waves[:, :1]), waves], dim=1)

    def write_graph(self, graph, state, coefficients):  # only needed by `imel export --format onnx`
        inside = graph.affine(state, self.frequencies, self.phases)
        return graph.affine(graph.add("Cos", inside), coefficients[1:], coefficients[0])


class RankedUpdate(RidgeUpdate):
    """How good an action was by its place among all, so that no single reward stands out."""

    def shape_advantages(self, advantages):
        return advantages.argsort().argsort().to(advantages.dtype)


class FourierPolicy(RidgePolicy):
    @dataclass(frozen=True)
    class Settings(RidgePolicy.Settings):
        bandwidth: float = setting(2.0, low=1e-3, search=Range(0.5, 8.0))
        """Distance of normalised states over which the policy changes."""

    def make_features(self):
        return FourierFeatures(self.state_dim, self.settings.features, self.settings.bandwidth)

    def make_update(self, learner):
        return RankedUpdate(learner)


if __name__ == "__main__":
    model = IMeL(FourierPolicy, "Pendulum-v1", seed=0, bandwidth=1.5)
    model.learn(STEPS)
    print("return:", evaluate_policy(model, model.get_env(), 16)[0])
    print(model.explain(np.array([-1.0, 0.0, 1.0], np.float32)))  # lessons, as ever
    model.save("fourier")
    print(IMeL.load("fourier").policy.settings)

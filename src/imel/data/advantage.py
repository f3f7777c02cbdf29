"""Advantage estimates from a rollout's rewards and values: pure functions (Alg. 3).

All arguments are [T, E], time-major. `terminated` marks true ends (no value beyond);
`ended` marks every place where a trajectory stops in this batch: terminations, time limits
and the batch's edge. At an end that is no termination the critic's value of the successor
stands in for the rest of the return (paper note 12).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["gae", "monte-carlo", "paper"]


def discounted_returns(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, gamma: float
) -> Tensor:
    """q_t = r_t + gamma q_{t+1}, bootstrapped with the next value where a trajectory is cut."""
    beyond = gamma * next_values * (ended & ~terminated)  # [T, E]
    return _accumulated(rewards + beyond, gamma * ~ended)


def generalised_advantages(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """GAE(gamma, lambda): A_t = delta_t + gamma lambda A_{t+1} within a trajectory.

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t), with V(s_{t+1}) = 0 after a termination.
    """
    deltas = rewards + gamma * next_values * ~terminated - values
    return _accumulated(deltas, gamma * gae_lambda * ~ended)


def _accumulated(terms: Tensor, decays: Tensor) -> Tensor:
    """Return x_t = term_t + decay_t x_{t+1}, from the last one back."""  # [T, E]
    sums, ahead = torch.empty_like(terms), torch.zeros_like(terms[0])
    for t in reversed(range(terms.shape[0])):
        ahead = terms[t] + decays[t] * ahead
        sums[t] = ahead
    return sums


def estimate_advantages(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: float,
    gae_lambda: float,
    estimator: Estimator,
) -> tuple[Tensor, Tensor]:
    """Alg. 3: the advantages A_{0:T} and the returns the critic is to learn, both [T, E]."""
    if estimator == "gae":  # Paper note 4: rewards, not returns, go into GAE
        advantages = generalised_advantages(
            rewards, values, next_values, terminated, ended, gamma, gae_lambda
        )
        return advantages, advantages + values
    if estimator == "monte-carlo":  # Alg. 3, the branch without gae
        returns = discounted_returns(rewards, next_values, terminated, ended, gamma)
        return returns - values, returns
    # Alg. 3 to the letter: q_t = sum_{l>=1} gamma^l r_{t+l}, and q_t in the reward's place. The
    # critic learns q, which is gamma times the usual return
    ahead = next_values / gamma if gamma > 0 else next_values
    returns = gamma * discounted_returns(rewards, ahead, terminated, ended, gamma)
    advantages = generalised_advantages(
        returns, values, next_values, terminated, ended, gamma, gae_lambda
    )
    return advantages, returns


def replayed_advantages(
    deltas: Tensor, follows: Tensor, ratios: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Advantages of remembered transitions under another policy, and v - V, the critic's error.

        A_t = delta_t + gamma lambda c_{t+1} A_{t+1},    v_t - V(s_t) = c_t A_t      (all [N])

    Rows are in the order of time; `follows` marks those whose successor is the next one. Ratios, at
    most one, cut the trace where the policy would hardly have gone, as in V-trace (Espeholt et al.
    2018) and Retrace (Munos et al. 2016). With all ratios one it is GAE.
    """
    decay = (gamma * gae_lambda * follows.double()).tolist()
    differences, traces = deltas.double().tolist(), ratios.double().tolist()
    advantages = [0.0] * len(differences)
    corrections = [0.0] * len(differences)
    beyond = 0.0
    for t in reversed(range(len(differences))):
        advantages[t] = differences[t] + decay[t] * beyond
        corrections[t] = beyond = traces[t] * advantages[t]
    return deltas.new_tensor(advantages), deltas.new_tensor(corrections)


def standardise(advantages: Tensor, clip: float) -> Tensor:
    """Centre, scale to unit deviation and clip. Zero where all advantages agree.

    Scale does not move the improved means (paper note 1); centring and clipping do.
    """
    centred = advantages.double() - advantages.double().mean()
    largest = centred.abs().max()
    if not torch.isfinite(largest) or largest == 0:
        return torch.zeros_like(advantages)
    centred = centred / largest  # before squaring: rewards of 1e30 must not overflow
    deviation = centred.square().mean().sqrt()
    if deviation * largest < 1e-8:
        return torch.zeros_like(advantages)
    return (centred / deviation).clamp(-clip, clip).to(advantages.dtype)

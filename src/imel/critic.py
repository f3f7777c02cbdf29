"""The critic V^w and its fit: what return a state promises (Alg. 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from imel.interpolators.base import mlp


@dataclass(frozen=True)
class CriticSettings:
    """How the value of states is learned."""

    critic_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of V^w."""
    critic_learning_rate: float = 1e-3
    """Adam's rate for V^w."""
    critic_epochs: int = 5
    """Passes per iteration: over the memory if the update is anchored, else over the batch."""
    critic_batch_size: int = 128
    """Transitions per gradient step."""


class Critic(nn.Module):
    """V^w: normalised states to scaled returns."""

    def __init__(self, state_dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.network = mlp(state_dim, hidden, 1)

    def forward(self, states: Tensor) -> Tensor:
        """v = V^w(s)."""  # [..., d_s] -> [...]
        values: Tensor = self.network(states).squeeze(-1)
        return values


def fit_critic(
    critic: Critic,
    optimizer: Optimizer,
    states: Tensor,
    returns: Tensor,
    settings: CriticSettings,
    generator: torch.Generator,
) -> float:
    """Regress V^w on the returns; the mean squared error over the last epoch."""
    size = settings.critic_batch_size
    losses: list[Tensor] = []
    for _ in range(settings.critic_epochs):
        losses = []
        order = torch.randperm(states.shape[0], generator=generator).to(states.device)
        for rows in torch.split(order, size):
            loss: Tensor = (critic(states[rows]) - returns[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
    return float(torch.stack(losses).mean()) if losses else 0.0


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 no better than a constant."""
    variance = returns.double().var()
    if not variance > 0:
        return float("nan")
    return float(1.0 - (returns - values).double().var() / variance)

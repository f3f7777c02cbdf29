"""The critic V^w and its fit: what return a state promises (Alg. 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from imel.data.arithmetic import mlp, tanh_
from imel.settings import Settings


class Critic(nn.Module):
    """V^w: normalised states to scaled returns."""

    def __init__(self, state_dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.network = mlp(state_dim, hidden, 1)

    def forward(self, states: Tensor) -> Tensor:
        """v = V^w(s)."""  # [..., d_s] -> [...]
        if torch.is_grad_enabled():
            values: Tensor = self.network(states)
        else:
            last = self.layers[-1]
            values = nn.functional.linear(_inputs(self.layers, states)[-1], last.weight, last.bias)
        return values.squeeze(-1)

    @property
    def layers(self) -> list[nn.Linear]:
        """The layers that have weights, first to last."""
        return [layer for layer in self.network if isinstance(layer, nn.Linear)]


def _inputs(layers: list[nn.Linear], states: Tensor) -> list[Tensor]:
    """Return what each layer is given, without a graph."""
    inputs = [states]
    for layer in layers[:-1]:
        inputs.append(tanh_(nn.functional.linear(inputs[-1], layer.weight, layer.bias)))
    return inputs


def fit_critic(
    critic: Critic,
    optimizer: Optimizer,
    states: Tensor,
    returns: Tensor,
    settings: Settings,
    generator: torch.Generator,
) -> float:
    """Regress V^w on the returns; the mean squared error over the last epoch."""
    for parameter in critic.parameters():
        parameter.grad = torch.zeros_like(parameter)
    errors: list[Tensor] = []
    for _ in range(settings.critic_epochs):
        order = torch.randperm(states.shape[0], generator=generator).to(states.device)
        errors = []
        for rows in torch.split(order, settings.batch_size):
            errors.append(differentiate(critic.layers, states[rows], returns[rows]))
            optimizer.step()
    return float(torch.cat(errors).square().mean()) if errors else 0.0


@torch.no_grad()
def differentiate(layers: list[nn.Linear], states: Tensor, returns: Tensor) -> Tensor:
    """Put the gradient of the mean squared error where the optimizer looks for it; the errors.

    By hand, because on a batch this small autograd's bookkeeping takes longer than the arithmetic.
    """
    inputs = _inputs(layers, states)
    error = torch.addmm(layers[-1].bias, inputs[-1], layers[-1].weight.T) - returns[:, None]
    gradient = error * (2.0 / error.shape[0])  # [T, 1]
    for layer, given in zip(reversed(layers), reversed(inputs), strict=True):
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None
        torch.mm(gradient.T, given, out=layer.weight.grad)
        torch.sum(gradient, dim=0, out=layer.bias.grad)
        if given is not states:
            gradient = torch.ops.aten.tanh_backward(gradient @ layer.weight, given)
    return error  # [T, 1]

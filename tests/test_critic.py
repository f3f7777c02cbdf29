"""The critic learns returns, by a gradient made by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from imel.data import critic as critic_module
from imel.data.critic import Critic, differentiate, fit_critic
from imel.settings import Settings


def fit(epochs: int, seed: int = 0) -> tuple[Critic, Tensor, Tensor, float]:
    """A critic after some epochs on a smooth field of returns."""
    torch.manual_seed(0)
    critic = Critic(2, (16,))
    states = torch.randn(200, 2, generator=torch.Generator().manual_seed(1))
    returns = torch.sin(states[:, 0]) + 0.5 * states[:, 1]
    settings = Settings(critic_epochs=epochs, batch_size=64)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(seed)
    loss = fit_critic(critic, optimizer, states, returns, settings, generator)
    return critic, states, returns, loss


@pytest.mark.parametrize("hidden", [(), (5,), (6, 4)])
def test_value_is_the_same_with_and_without_gradients(hidden: tuple[int, ...]) -> None:
    critic = Critic(3, hidden)
    states = 2.0 * torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    before, expected = states.clone(), critic(states).detach()
    assert expected.shape == (4, 5)
    with torch.no_grad():
        torch.testing.assert_close(critic(states), expected, rtol=0.0, atol=1e-6)
    assert torch.equal(states, before)


def test_fit_learns_the_returns_and_reports_the_error_of_its_last_epoch() -> None:
    critic, states, returns, loss = fit(epochs=60)
    with torch.no_grad():
        error = float((critic(states) - returns).square().mean())
    assert error < 0.02 < float(returns.var())
    assert loss == pytest.approx(error, rel=0.5)
    assert loss < fit(epochs=1)[3]
    assert loss == fit(epochs=60)[3] != fit(epochs=60, seed=1)[3]


def test_fit_visits_every_row_once_in_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    original = critic_module.differentiate

    def note(layers: list[nn.Linear], states: Tensor, returns: Tensor) -> Tensor:
        assert torch.equal(returns, 2.0 * states.flatten())  # each state with its own return
        seen.append(states)
        return original(layers, states, returns)

    monkeypatch.setattr(critic_module, "differentiate", note)
    critic = Critic(1, (4,))
    states = torch.arange(10.0)[:, None]
    settings = Settings(critic_epochs=2, batch_size=4)
    optimizer = torch.optim.SGD(critic.parameters(), lr=1e-3)
    fit_critic(critic, optimizer, states, 2.0 * states[:, 0], settings, torch.Generator())
    assert [len(rows) for rows in seen] == [4, 4, 2, 4, 4, 2]
    for epoch in (seen[:3], seen[3:]):
        assert sorted(torch.cat(epoch).flatten().tolist()) == states.flatten().tolist()


@pytest.mark.parametrize("hidden", [(), (5,), (6, 4)])
def test_gradients_are_those_of_autograd(hidden: tuple[int, ...]) -> None:
    critic = Critic(3, hidden).double()
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    returns = torch.randn(7, generator=generator, dtype=torch.float64)
    loss = (critic(states) - returns).square().mean()
    expected = torch.autograd.grad(loss, list(critic.parameters()))
    for parameter in critic.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)  # what was there must not matter
    errors = differentiate(critic.layers, states, returns)
    torch.testing.assert_close(errors.square().mean(), loss.detach())
    torch.testing.assert_close([p.grad for p in critic.parameters()], list(expected))

"""Leave-one-episode-out training of an interpolator (Alg. 4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from imel.data.experience import Context
from imel.policies.paper.interpolator import Interpolator

if TYPE_CHECKING:
    from imel.policies.paper.paper_policy import FitSettings


class Fit(NamedTuple):
    """The result of a fit."""

    loss: float  # mean over the gradient steps
    gradient_steps: int


def fit_leave_one_out(
    interpolator: Interpolator,
    optimizer: Optimizer,
    context: Context,
    settings: FitSettings,
    generator: torch.Generator,
) -> Fit | None:
    """train(model, C), or None where there is nothing to fit, or one episode only."""
    alone = torch.unique(context.episodes).numel() < 2
    if alone or not interpolator.learns or not settings.gradient_steps:
        return None
    losses, parameters = [], list(interpolator.parameters())
    for rows in _target_rows(context, settings, generator):
        loss = interpolator.loss(context, context.rows(rows), generator)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm, foreach=True)
        optimizer.step()  # w' = w - alpha dL/dw
        losses.append(loss.detach())
    return Fit(float(torch.stack(losses).mean()), len(losses))


def leave_one_out_error(interpolator: Interpolator, context: Context, rows: Tensor) -> float | None:
    """Mean squared error at some rows, each predicted without its episode; None if impossible."""
    if torch.unique(context.episodes).numel() < 2:
        return None
    targets = context.rows(rows)
    with torch.no_grad():
        prediction = interpolator.leave_one_out(context, targets)
    return float((prediction.mean - targets.values).square().mean())


def _target_rows(
    context: Context, settings: FitSettings, generator: torch.Generator
) -> Iterator[Tensor]:
    """The rows T^m that each gradient step is to predict."""
    for _ in range(settings.gradient_steps):
        if settings.leave_out == "each-episode":  # Alg. 4 to the letter: epochs, then episodes
            for episode in torch.unique(context.episodes):
                yield torch.nonzero(context.episodes == episode).flatten()
        else:  # Paper note 11: episodes are left out together, each masked from its own targets
            rows = torch.randperm(len(context), generator=generator)[: settings.targets_per_step]
            yield rows.to(context.states.device)

"""Neural Process: a latent variable inferred from the whole context, decoded at each state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gaussian_nll_loss, softplus

from imel.data.arithmetic import mlp
from imel.data.experience import Context
from imel.policies.paper.interpolator import Conditioned, Interpolator, Prediction
from imel.policies.paper.paper_policy import KL_BUDGETS, InterpolatorSettings, PaperPolicy
from imel.registry import register
from imel.settings import Choice, Range, setting


@dataclass(frozen=True)
class LatentSettings(InterpolatorSettings):
    """Settings of every Neural Process: the latent path."""

    hidden: tuple[int, ...] = (128, 128)
    """Hidden layers of encoder and decoder."""
    latent: int = setting(64, search=Range(8, 128))
    """Dimensions of the latent variable z."""
    min_value_std: float = 0.05
    """The decoder's sigma never falls below this."""


@dataclass(frozen=True)
class NpSettings(LatentSettings):
    """Settings of `NpPolicy`: a second path, shorter steps at first."""

    kl_budget: float | str = setting("2:1", scheduled=True, search=KL_BUDGETS)
    deterministic: Literal["none", "mean"] = setting("none", search=Choice("none", "mean"))
    """A second, deterministic path from context to decoder beside the latent one: the mean of the
    encoded memories."""


class Latent(NamedTuple):
    """q(z | C): a diagonal normal."""

    mean: Tensor  # [..., d_z]
    std: Tensor  # [..., d_z]

    def kl(self, other: Latent) -> Tensor:
        """KL(self || other), summed over latent dimensions."""
        ratio = (self.std / other.std).square()
        shift = ((self.mean - other.mean) / other.std).square()
        return 0.5 * (ratio + shift - 1.0 - ratio.log()).sum(dim=-1)


class NeuralProcess(Interpolator):
    """p(y | s, C) = N(g^w(s, z)), z ~ q(z | C) = N(h^w(C)), trained by the paper's ELBO.

    Acting uses the mean of z. The encoder h^w averages over memories, so the context without an
    episode is the total less that episode's part: all episodes are left out in one pass.
    """

    predicts_std: ClassVar[bool] = True

    def __init__(self, state_dim: int, value_dim: int, settings: LatentSettings) -> None:
        super().__init__()
        self.settings = settings
        width = settings.hidden[-1]
        self.encoder = mlp(state_dim + value_dim, settings.hidden, width)  # h^w
        self.to_latent = nn.Linear(width, 2 * settings.latent)
        self.path = self.make_path(state_dim, value_dim)
        summary = settings.latent + (width if self.path is not None else 0)
        self.decoder = mlp(state_dim + summary, settings.hidden, 2 * value_dim)  # g^w

    def make_path(self, state_dim: int, value_dim: int) -> DeterministicPath | None:
        """What reaches the decoder beside z, if anything."""
        assert isinstance(self.settings, NpSettings)
        if self.settings.deterministic == "none":
            return None
        return DeterministicPath(state_dim, value_dim, self.settings.hidden)

    def latent(self, encoded: Tensor) -> Latent:
        """q(z | C) from the mean of the encoded memories."""
        mean, raw = self.to_latent(encoded).chunk(2, dim=-1)
        return Latent(mean, 0.1 + 0.9 * raw.sigmoid())

    def decode(self, states: Tensor, summary: Tensor) -> Prediction:
        """g^w(s, z): mean and sigma of the values at the states."""
        mean, raw = self.decoder(torch.cat([states, summary], dim=1)).chunk(2, dim=1)
        return Prediction(mean, self.settings.min_value_std + softplus(raw))

    @torch.no_grad()
    def condition(self, context: Context) -> Conditioned:
        """Precompute the summary of the memories, in which they have no weights."""
        z = self.latent(self.encoder(pairs(context)).mean(dim=0)).mean
        read = None if self.path is None else self.path.condition(context)

        def answer(states: Tensor) -> Prediction:
            parts = [z.expand(len(states), -1), *([] if read is None else [read(states)])]
            return self.decode(states, torch.cat(parts, dim=1))

        return Conditioned(answer)

    def leave_one_out(self, context: Context, targets: Context) -> Prediction:
        """The answer with z at its mean given the other episodes."""
        _, without, _, member = self._posteriors(context, targets)
        return self._answer(context, targets, without.mean[member])

    def loss(self, context: Context, targets: Context, generator: torch.Generator) -> Tensor:
        """The paper's ELBO for each left-out episode, averaged over targets.

        L = E_{q(z|x_1:n)} [ sum_{i in T^m} -log p(y_i | x_i, z) + log q(z|x_1:n) / q(z|C^-m) ]
        """
        whole, without, sizes, member = self._posteriors(context, targets)
        shape = (sizes.numel(), self.settings.latent)  # one z for each episode
        noise = torch.randn(shape, generator=generator, device=generator.device)
        z = whole.mean + whole.std * noise.to(whole.mean.device)
        answer = self._answer(context, targets, z[member])
        assert answer.std is not None
        known = (answer.mean, targets.values, answer.std.square())
        misfit = gaussian_nll_loss(*known, full=True, reduction="none")
        return misfit.sum(dim=1).mean() + whole.kl(without).sum() / sizes.sum()

    def _posteriors(
        self, context: Context, targets: Context
    ) -> tuple[Latent, Latent, Tensor, Tensor]:
        """q(z | all), q(z | C^-m) and the size of each left-out episode m; each target's m."""
        encoded = self.encoder(pairs(context))  # [N, h]
        without, sizes, member = left_out_means(encoded, context, targets)
        return self.latent(encoded.mean(dim=0)), self.latent(without), sizes, member

    def _answer(self, context: Context, targets: Context, z: Tensor) -> Prediction:
        if self.path is not None:
            z = torch.cat([z, self.path.leave_one_out(context, targets)], dim=1)
        return self.decode(targets.states, z)


class DeterministicPath(nn.Module):
    """From the encoded memories to the decoder without a random variable: their mean."""

    def __init__(self, state_dim: int, value_dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = mlp(state_dim + value_dim, hidden, hidden[-1])

    def condition(self, context: Context) -> Callable[[Tensor], Tensor]:
        """Return what the decoder is to read at given states."""
        mean = self.encoder(pairs(context)).mean(dim=0)
        return lambda states: mean.expand(states.shape[0], -1)

    def leave_one_out(self, context: Context, targets: Context) -> Tensor:
        """Return what it is to read at each target without that target's episode."""  # [T, h]
        without, _, member = left_out_means(self.encoder(pairs(context)), context, targets)
        return without[member]


def left_out_means(
    encoded: Tensor, context: Context, targets: Context
) -> tuple[Tensor, Tensor, Tensor]:
    """For each episode m among the targets the mean [M, h] of the context's rows without it and
    the number [M] of its rows there, and for each target its episode's place [T]."""
    episodes, member = torch.unique(targets.episodes, return_inverse=True)
    place = torch.searchsorted(episodes, context.episodes).clamp_max(episodes.numel() - 1)
    own = (episodes[place] == context.episodes).to(encoded.dtype)  # [N]
    sums = encoded.new_zeros(episodes.numel(), encoded.shape[1])
    sums = sums.index_add(0, place, encoded * own[:, None])
    sizes = encoded.new_zeros(episodes.numel()).index_add(0, place, own)
    return (encoded.sum(dim=0) - sums) / (len(context) - sizes)[:, None], sizes, member


def pairs(context: Context) -> Tensor:
    """(s, y)_i side by side, as the encoders take them."""
    return torch.cat([context.states, context.values], dim=1)  # [N, d_s + d_v]


@register("np", label="IMeL, NP")
class NpPolicy(PaperPolicy):
    """Neural Process."""

    Settings = NpSettings
    interpolator_class = NeuralProcess

"""The paper's update: the new rollout is improved, and the policy interpolates improved means.

Advantages (Alg. 3), improvement and memory (Alg. 1 l. 8-12), then the fit (l. 3).
"""

from __future__ import annotations

import torch
from torch import Tensor

from imel.data.advantage import estimate_advantages, standardise
from imel.data.critic import explained_variance, fit_critic
from imel.data.experience import Rollout, flatten_time
from imel.distributions.gaussian import improved_stds, next_std
from imel.policies.paper.fit import fit_leave_one_out, leave_one_out_error
from imel.policies.paper.interpolator import Weighted, effective_neighbours
from imel.policies.paper.paper_policy import PaperPolicy
from imel.policies.update import Learner, Logged
from imel.settings import ContextSettings, FitSettings, PaperSettings, parse_schedule

_ROWS = 256
"""Memories or states on which the costlier diagnostics are estimated."""
_MOST_FITS, _PATIENCE, _GAIN = 50, 3, 0.01
"""A warm start fits so often at most, until three in a row have not lowered the loss by 1 %."""


class PaperUpdate:
    """Improves a rollout and fits the interpolator of a `PaperPolicy`."""

    def __init__(self, settings: PaperSettings, policy: PaperPolicy) -> None:
        self.settings, self.policy = settings, policy
        self._schedules = {
            name: parse_schedule(name, getattr(settings, name)) for name in settings.scheduled
        }

    def _at(self, name: str, model: Learner) -> float:
        """Return a scheduled setting's value at the present progress."""
        return self._schedules[name](model._current_progress_remaining)

    def start(self, model: Learner) -> None:
        """Set sigma and the prior context C^0 (Alg. 1 l. 1) before the first step.

        Normalised states are drawn from N(0, 1), means from N(0, prior_std^2).
        """
        self._set_std(1.0)
        settings = self.settings
        if not isinstance(settings, ContextSettings):
            return
        # Paper note 5: U(S) does not exist for unbounded states
        memory, device = self.policy.memory, self.policy.device
        count = min(settings.prior_size, memory.capacity)
        states = torch.randn(count, self.policy.state_dim, generator=model.generator)
        means = torch.randn(count, self.policy.action_dim, generator=model.generator)
        states = self.policy.normaliser.inverse(states.to(device))
        memory.set_prior(states, settings.prior_std * means.to(device))
        self.policy.invalidate()

    def _set_std(self, progress: float) -> None:
        """Set sigma of each dimension as it is when this share of the run remains."""
        if self.policy.distribution.scaled:
            std = self._schedules["std"](progress) / float(self.policy.action_dim) ** 0.5
            self.policy.std.fill_(float(max(std, self.settings.min_std)))

    def before_rollout(self, model: Learner) -> None:
        """Let scheduled sigma and learning rate follow the progress of the run."""
        if self.settings.std_mode == "schedule":
            self._set_std(model._current_progress_remaining)
        if model.interpolator_optimizer is not None:
            rate = self._at("learning_rate", model)
            for group in model.interpolator_optimizer.param_groups:
                group["lr"] = rate
            model.logger.record("train/learning_rate", rate)

    def __call__(self, model: Learner, rollout: Rollout) -> None:
        """Improve and remember the rollout (Alg. 1 l. 8-12), then train the model (l. 3).

        Line 3 stands at the end of an iteration, not at its start: the model is then whole between
        iterations, and the first fit is to experience rather than to the prior.
        """
        policy, record = self.policy, model.logger.record
        rows = rollout.rows(policy.device)
        advantages = self._advantages(model, rollout)  # l. 8
        step = (advantages, rows["actions"], rows["means"], rows["stds"])
        budget = self._at("kl_budget", model)
        improved, eta = self._improve(step, budget)  # l. 9 and 11
        self._move_std(step, eta)
        rows |= {"improved_means": improved, "advantages": advantages}
        policy.memory.add(rows, model.iteration)  # l. 12
        loss = self.fit(model)  # l. 3
        if loss is not None:
            record("train/loss", loss)
        record("improve/kl_budget", budget)
        record("improve/step_size", eta)
        shifts = rows["means"] - improved
        record("improve/target_kl", self._mean_kl(shifts, improved, rows["stds"]))
        self._diagnose(model, rollout)

    def _improve(
        self, step: tuple[Tensor, Tensor, Tensor, Tensor], budget: float
    ) -> tuple[Tensor, float]:
        improved, eta = self.policy.distribution.improve(*step, budget)
        if self.settings.clip_means and self.policy.distribution.scaled:
            improved = improved.clamp(-1.0, 1.0)
        return improved, eta

    def _mean_kl(self, shifts: Tensor, means: Tensor, stds: Tensor) -> float:
        return float(self.policy.distribution.kls(shifts, means, stds).mean())

    def _move_std(self, step: tuple[Tensor, Tensor, Tensor, Tensor], eta: float) -> None:
        """Set sigma^{k+1}, where it is learned (Alg. 2 l. 12-13)."""
        mode, policy = self.settings.std_mode, self.policy
        if mode in ("advantage", "paper") and policy.distribution.scaled:
            stars = improved_stds(*step, eta, mode)
            policy.std.copy_(next_std(stars, policy.std, self.settings.min_std))

    def _advantages(self, model: Learner, rollout: Rollout) -> Tensor:
        """Return A_{0:T} (Alg. 3), and fit V^w to the returns."""  # [E * T]
        settings, normaliser, device = self.settings, self.policy.normaliser, self.policy.device
        normaliser.update(rollout.states.flatten(0, 1).to(device))
        normaliser.refresh()
        model.return_scale.update_from(rollout.rewards, rollout.terminated | rollout.truncated)
        states = normaliser(rollout.states.to(device))
        with torch.no_grad():
            values = model.critic(states).cpu()
            next_values = model.critic(normaliser(rollout.next_states.to(device))).cpu()
        advantages, returns = estimate_advantages(
            model.return_scale.scale(rollout.rewards),
            values,
            next_values,
            rollout.terminated,
            rollout.ended,
            settings.gamma,
            settings.gae_lambda,
            settings.advantage,
        )
        model.logger.record("train/explained_variance", explained_variance(values, returns))
        loss = fit_critic(
            model.critic,
            model.critic_optimizer,
            states.flatten(0, 1),
            returns.flatten().to(device),
            settings,
            model.generator,
        )
        model.logger.record("train/value_loss", loss)
        return standardise(flatten_time(advantages), settings.advantage_clip).to(device)

    def fit(self, model: Learner) -> float | None:
        """Run train(model, C) (Alg. 4); return its loss, or None where nothing is learned."""
        policy, settings = self.policy, self.settings
        policy.invalidate()
        if not isinstance(settings, FitSettings) or model.interpolator_optimizer is None:
            return None
        policy.interpolator.train()
        fit = fit_leave_one_out(
            policy.interpolator,
            model.interpolator_optimizer,
            policy.context(),
            settings,
            model.generator,
        )
        policy.interpolator.eval()
        policy.invalidate()
        if fit is None:
            return None
        model._n_updates += fit.gradient_steps
        return fit.loss

    def warm_start(self, model: Learner, logged: Logged) -> None:
        """Improve logged memories that are not yet, and fit until the loss no longer falls."""
        column = self.policy.memory.column
        if logged.kind == "acted":
            step = (
                column("advantages"),
                column("actions"),
                column("behaviour_means"),
                column("stds"),
            )
            improved, _ = self._improve(step, self._schedules["kl_budget"](1.0))
            column("improved_means").copy_(improved)
        best, waited = float("inf"), 0
        for _ in range(_MOST_FITS):
            loss = self.fit(model)
            if loss is None:
                break
            # A kernel needs few fits, a Neural Process many, whose loss may be negative
            waited = 0 if loss < best - _GAIN * abs(best) else waited + 1
            best = min(best, loss)
            if waited == _PATIENCE:
                break

    def _diagnose(self, model: Learner, rollout: Rollout) -> None:
        """Log what the new policy looks like from outside."""
        policy, memory, record = self.policy, self.policy.memory, model.logger.record
        context, device = policy.context(), policy.device
        if policy.interpolator.learns:
            rows = torch.randperm(len(context), generator=model.generator)[:_ROWS].to(device)
            error = leave_one_out_error(policy.interpolator, context, rows)
            if error is not None:
                record("train/loo_error", error)
        improvements = memory.column("improved_means") - memory.column("means")
        record("train/old_mean_error", float(improvements.square().mean()))
        some = torch.randperm(len(rollout), generator=model.generator)[:_ROWS]
        states, means, stds = (
            column.flatten(0, 1)[some].to(device)
            for column in (rollout.states, rollout.means, rollout.stds)
        )
        record("improve/policy_kl", self._mean_kl(policy.act(states)[0] - means, means, stds))
        conditioned = policy.conditioned
        if isinstance(conditioned, Weighted):
            weights = conditioned.weights(policy.normaliser(states))
            record("memory/effective_neighbours", float(effective_neighbours(weights).mean()))
        record("memory/age", float((model.iteration - memory.column("iterations").double()).mean()))
        record("memory/size", len(memory))
        record("memory/episodes", torch.unique(memory.column("episodes")).numel())

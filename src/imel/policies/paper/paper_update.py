"""The paper's update: the new rollout is improved, and the policy interpolates improved means.

Advantages (Alg. 3), improvement and memory (Alg. 1 l. 8-12), then the fit (l. 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from imel.data.advantage import estimate_advantages
from imel.data.experience import Rollout, flatten_time
from imel.distributions.gaussian import improved_stds, next_std
from imel.policies.base import Stats, Update
from imel.policies.paper.fit import fit_leave_one_out, leave_one_out_error
from imel.policies.paper.interpolator import Weighted, effective_neighbours
from imel.settings import marked, parse_schedule, setting_names

if TYPE_CHECKING:
    from imel.learner import LearnerState
    from imel.policies.paper.paper_policy import PaperPolicy

_ROWS = 256
"""Memories or states on which the costlier diagnostics are estimated."""
_MOST_FITS, _PATIENCE, _GAIN = 50, 3, 0.01
"""A warm start fits so often at most, until three in a row have not lowered the loss by 1 %."""

Step = tuple[Tensor, Tensor, Tensor, Tensor]
"""Weights [N], actions, means and stds [N, d_a] of experiences that are to be improved."""


class PaperUpdate(Update):
    """Improves a rollout and fits the interpolator of a `PaperPolicy`.

    A subclass may also replace the improvement (`improve`) and sigma's rule (`next_std`).
    """

    policy: PaperPolicy

    def __init__(self, learner: LearnerState) -> None:
        super().__init__(learner)
        self._schedules = {
            name: parse_schedule(name, getattr(self.settings, name))
            for name in marked(self.settings, "scheduled")
        }
        self._fitting: Optimizer | None = None  # where nothing is learned
        if "learning_rate" in self._schedules:
            parameters = self.policy.interpolator.parameters()
            self._fitting = torch.optim.Adam(parameters, fused=True)
            self.optimizers["interpolator_optimizer"] = self._fitting

    # --- what a subclass may replace ---

    def improve(self, step: Step, budget: float) -> tuple[Tensor, float]:
        """Return improved means (Alg. 1 l. 9 and 11), and the step size eta."""
        improved, eta = self.policy.distribution.improve(*step, budget)
        if self.settings.clip_means and self.policy.distribution.has_std:
            improved = improved.clamp(-1.0, 1.0)
        return improved, eta

    def next_std(self, std: Tensor, step: Step, eta: float) -> Tensor:
        """Return sigma^{k+1}, which moves only where it is learned (Alg. 2 l. 12-13)."""
        mode = self.settings.std_mode
        if mode not in ("advantage", "paper"):
            return std
        return next_std(improved_stds(*step, eta, mode), std, self.settings.min_std)

    def start(self) -> None:
        """Set sigma and the prior context C^0 (Alg. 1 l. 1): states of N(0, 1) and small means."""
        self._schedule_std(1.0)
        settings = self.settings
        if "prior_size" not in setting_names(settings):
            return
        # Paper note 5: U(S) does not exist for unbounded states
        memory, device, generator = self.policy.memory, self.policy.device, self.learner.generator
        count = min(settings.prior_size, memory.capacity)
        states = torch.randn(count, self.policy.state_dim, generator=generator)
        means = torch.randn(count, self.policy.action_dim, generator=generator)
        states = self.policy.normaliser.inverse(states.to(device))
        memory.set_prior(states, settings.prior_std * means.to(device))
        self.policy.invalidate()

    def _schedule_std(self, progress: float) -> None:
        """Set sigma of each dimension as it is when this share of the run remains."""
        if self.policy.distribution.has_std:
            std = self._schedules["std"](progress) / float(self.policy.action_dim) ** 0.5
            self.policy.std.fill_(float(max(std, self.settings.min_std)))

    def before_rollout(self) -> Stats:
        """Let scheduled sigma and learning rate follow the progress of the run."""
        if self.settings.std_mode == "schedule":
            self._schedule_std(self.learner.progress_remaining)
        if self._fitting is None:
            return {}
        rate = self._schedules["learning_rate"](self.learner.progress_remaining)
        for group in self._fitting.param_groups:
            group["lr"] = rate
        return {"train/learning_rate": rate}

    def __call__(self, rollout: Rollout) -> Stats:
        """Improve and remember the rollout (Alg. 1 l. 8-12), then train the model (l. 3).

        Line 3 is last: the model is then whole, and first fitted to experience, not to the prior.
        """
        policy, distribution = self.policy, self.policy.distribution
        rows = rollout.rows(policy.device)
        weights, stats = self._advantages(rollout)  # l. 8
        step = (weights, rows["actions"], rows["means"], rows["stds"])
        budget = self._schedules["kl_budget"](self.learner.progress_remaining)
        improved, eta = self.improve(step, budget)  # l. 9 and 11
        if distribution.has_std:
            policy.std.copy_(self.next_std(policy.std, step, eta))
        rows |= {"improved_means": improved, "advantages": weights}
        policy.memory.add(rows, self.learner.iteration)  # l. 12
        loss = self.fit()  # l. 3
        kls = distribution.kls(rows["means"] - improved, improved, rows["stds"])
        stats |= {} if loss is None else {"train/loss": loss}
        stats |= {"improve/kl_budget": budget, "improve/step_size": eta}
        return stats | {"improve/target_kl": float(kls.mean())} | self._diagnose(rollout)

    def _advantages(self, rollout: Rollout) -> tuple[Tensor, Stats]:
        """Return A_{0:T} (Alg. 3), and fit V^w to the returns."""  # [E * T]
        settings, normaliser, device = self.settings, self.policy.normaliser, self.policy.device
        critic, return_scale = self.learner.critic, self.learner.return_scale
        normaliser.update(rollout.states.flatten(0, 1).to(device))
        normaliser.refresh()
        return_scale.update_from(rollout.rewards, rollout.terminated | rollout.truncated)
        states = normaliser(rollout.states.to(device))
        with torch.no_grad():
            values = critic(states).cpu()
            next_values = critic(normaliser(rollout.next_states.to(device))).cpu()
        advantages, returns = estimate_advantages(
            return_scale.scale(rollout.rewards),
            values,
            next_values,
            rollout.terminated,
            rollout.ended,
            settings.gamma,
            settings.gae_lambda,
            settings.advantage,
        )
        stats = self.fit_critic(states.flatten(0, 1), values, returns)
        return self.standardised(flatten_time(advantages)).to(device), stats

    def fit(self) -> float | None:
        """Run train(model, C) (Alg. 4); return its loss, or None where nothing is learned."""
        policy, generator, fit = self.policy, self.learner.generator, None
        if self._fitting is not None:
            parts = (policy.interpolator.train(), self._fitting, policy.context())
            fit = fit_leave_one_out(*parts, self.settings, generator)
            policy.interpolator.eval()
        policy.invalidate()
        if fit is None:
            return None
        self.learner.n_updates += fit.gradient_steps
        return fit.loss

    def warm_start(self, logged: Any) -> None:
        """Improve logged memories that are not yet, and fit until the loss no longer falls."""
        column = self.policy.memory.column
        if logged.kind == "acted":
            weights, actions = column("advantages"), column("actions")
            step = (weights, actions, column("behaviour_means"), column("stds"))
            column("improved_means").copy_(self.improve(step, self._schedules["kl_budget"](1.0))[0])
        best, waited = float("inf"), 0
        for _ in range(_MOST_FITS):
            loss = self.fit()
            if loss is None:
                break
            # A kernel needs few fits, a Neural Process many, whose loss may be negative
            waited = 0 if loss < best - _GAIN * abs(best) else waited + 1
            best = min(best, loss)
            if waited == _PATIENCE:
                break

    def _diagnose(self, rollout: Rollout) -> Stats:
        """Return what the new policy looks like from outside."""
        policy, memory, generator = self.policy, self.policy.memory, self.learner.generator
        context, conditioned, stats = policy.context(), policy.conditioned, Stats()
        if policy.interpolator.learns:
            rows = torch.randperm(len(context), generator=generator)[:_ROWS].to(policy.device)
            error = leave_one_out_error(policy.interpolator, context, rows)
            stats |= {} if error is None else {"train/loo_error": error}
        some = torch.randperm(len(rollout), generator=generator)[:_ROWS]
        columns = (rollout.states, rollout.means, rollout.stds)
        states, means, stds = (part.flatten(0, 1)[some].to(policy.device) for part in columns)
        kls = policy.distribution.kls(policy.act(states)[0] - means, means, stds)
        if isinstance(conditioned, Weighted):
            about = effective_neighbours(conditioned.weights(policy.normaliser(states)))
            stats["memory/effective_neighbours"] = float(about.mean())
        improvements = memory.column("improved_means") - memory.column("means")
        ages = self.learner.iteration - memory.column("iterations").double()
        return stats | {
            "train/old_mean_error": float(improvements.square().mean()),
            "improve/policy_kl": float(kls.mean()),
            "memory/age": float(ages.mean()),
            "memory/size": len(memory),
            "memory/episodes": torch.unique(memory.column("episodes")).numel(),
        }

"""What a model says of itself: what it has learned so far, and why it acts as it does."""

from __future__ import annotations

from abc import ABC
from typing import Any

from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import safe_mean

from imel.explain import Rows, explain, policy_without
from imel.policies import ImelPolicy, RidgePolicy
from imel.policies.names import DimensionNames, names_of


class ExplainedAlgorithm(BaseAlgorithm, ABC):
    """An algorithm whose policy can be explained, and can do without some of its lessons."""

    policy: ImelPolicy
    iteration: int
    _dimension_names: DimensionNames | None = None

    def explain(
        self,
        observation: NDArray[Any],
        without: Rows | None = None,
        without_episodes: Rows | None = None,
        without_lessons: Rows | None = None,
    ) -> Any:
        """Why this action: what is behind the policy's mean at one or several observations.

        A `RidgePolicy` gives an `imel.LessonExplanation`, one of the paper's policies an
        `imel.Explanation`; several observations [T, d_s] give a list of them.

        :param without: rows of the memory, or a mask, that one of the paper's policies is to do
            without
        :param without_episodes: episodes whose memories one of the paper's is to do without
        :param without_lessons: episodes whose lessons a `RidgePolicy` is to do without
        """
        names = self.dimension_names
        return explain(self.policy, observation, without, without_episodes, without_lessons, names)

    def policy_without(self, lessons: Rows) -> ImelPolicy:
        """Return a copy of a `RidgePolicy` without the lessons of some episodes.

        It is what this policy would do without what it was taught there, to be played, evaluated
        and saved; not what a run that never saw those episodes would have become. An episode that
        was merged into a period is taken back with the whole of it. Of the paper's policies,
        `imel.explain.policy_without` leaves out memories.
        """
        return policy_without(self.policy, lessons=lessons)

    @property
    def dimension_names(self) -> DimensionNames:
        """Names of the state's and the action's dimensions, for explanations.

        Unless set, those of the environment (its attributes `state_names` and `action_names`),
        those built in for Gymnasium's tasks, or numbers.
        """
        if self._dimension_names is not None:
            return self._dimension_names
        env = None if self.env is None else getattr(self.env, "envs", [self.env])[0]
        return names_of(env, self.policy.dimensions)

    @dimension_names.setter
    def dimension_names(self, names: DimensionNames) -> None:
        widths = (self.policy.state_dim, self.policy.action_dim)
        self._dimension_names = DimensionNames.checked(names.state, names.action, widths)

    def __repr__(self) -> str:
        policy = self.policy_class.__name__
        if getattr(self, "policy", None) is None:
            return f"<IMeL with {policy}, not set up>"
        memory, spec = self.policy.memory, getattr(self.get_env(), "get_attr", None)
        (named,) = ("no environment",) if spec is None else map(_name_of, spec("spec", [0]))
        lines = [
            f"IMeL with {policy} on {named}, {self.n_envs} environments",
            f"  observations {self.observation_space}, actions {self.action_space}",
            f"  learned {self.num_timesteps:,} steps in {self.iteration:,} iterations",
            f"  {0 if memory.holds_prior else len(memory):,} of {memory.capacity:,} memories",
        ]
        if isinstance(self.policy, RidgePolicy):
            lines[-1] += f", {len(self.policy.lessons):,} lessons"
        if self.policy.distribution.scaled:
            lines[-1] += f", sigma {float(self.policy.std.mean()):.2f}"
        if self.ep_info_buffer:
            returns = [episode["r"] for episode in self.ep_info_buffer]
            lines[2] += (
                f"; mean return of the last {len(returns)} episodes {safe_mean(returns):.1f}"
            )
        return "\n".join(lines)


def _name_of(spec: Any) -> str:
    return str(getattr(spec, "id", None) or "an unregistered environment")

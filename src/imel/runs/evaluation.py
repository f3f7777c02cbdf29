"""Evaluating a policy: returns over episodes, the best model while it trains, and videos."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.wrappers import RecordVideo
from rich.console import Console
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import check_for_correct_spaces

from imel.algorithm import IMeL
from imel.environments.making import make, make_environments
from imel.environments.playing import play_policy
from imel.environments.replay import LONGEST
from imel.errors import ImelError
from imel.policies import Policy
from imel.runs import layout
from imel.runs.plan import Plan
from imel.runs.stored import describe

EVALUATION_SEED = 10_000
"""Episodes of an evaluation start from here, whatever the run's own seed."""
_TRAINING_SEED, _TRAINING_EPISODES = 20_000, 5
"""Of the evaluations during training. The one at the end has other starts, so it tells what is
chosen here from what was lucky here."""
_SIDE_BY_SIDE = 8


@dataclass(frozen=True)
class Returns:
    """The returns and lengths of some episodes."""

    returns: list[float]
    lengths: list[int]

    def as_json(self) -> dict[str, Any]:
        """Return the summary and the raw numbers."""
        mean, std = float(np.mean(self.returns)), float(np.std(self.returns))
        summary = {"mean": mean, "std": std, "min": min(self.returns), "max": max(self.returns)}
        return {**summary, "returns": self.returns, "lengths": self.lengths}

    def __str__(self) -> str:
        return "{mean:.2f} ± {std:.2f}  (min {min:.2f}, max {max:.2f})".format(**self.as_json())


def evaluate(
    policy: Policy,
    env_id: str,
    episodes: int,
    seed: int = EVALUATION_SEED,
    deterministic: bool = True,
    progress: Callable[[float], None] = lambda share: None,
    workers: bool = False,
) -> Returns:
    """Play episodes, the same for the same seed; the policy's own random state stays as it is.

    `progress` is told after each step.
    """

    def tell(played: dict[str, Any], _: dict[str, Any]) -> None:
        steps = played["current_lengths"].sum() / limit
        progress(min(1.0, (len(played["episode_rewards"]) + steps) / episodes))

    made = make_environments(env_id, min(episodes, _SIDE_BY_SIDE), workers)
    with closing(BaseAlgorithm._wrap_env(made, monitor_wrapper=False)) as env:
        try:
            check_for_correct_spaces(env, policy.observation_space, policy.action_space)
        except ValueError as error:
            raise ImelError(f"the model was not made for {env_id}: {error}") from None
        spec = env.get_attr("spec", [0])[0]
        limit = getattr(spec, "max_episode_steps", None) or LONGEST
        env.seed(seed)
        before = policy.generator.get_state()
        policy.generator.manual_seed(seed)
        try:
            played: Any = evaluate_policy(
                policy,  # which predicts as its algorithm does
                env,
                episodes,
                deterministic=deterministic,
                callback=tell,
                return_episode_rewards=True,
            )
        finally:
            policy.generator.set_state(before)
    returns, lengths = played
    return Returns([float(value) for value in returns], [int(value) for value in lengths])


def evaluate_run(model: IMeL, plan: Plan, folder: Path, console: Console) -> None:
    """Play the deterministic evaluation of a trained model and write `evaluation.json`."""
    if episodes := plan.run.eval_episodes:
        played = evaluate(model.policy, plan.env, episodes)
        console.out(f"deterministic return over {episodes} episodes: {played}", highlight=False)
        document = {"env": plan.env, **_document(model, played, EVALUATION_SEED)}
        layout.write_json(folder / layout.EVALUATION, document)


def _document(model: IMeL, played: Returns, seed: int) -> dict[str, Any]:
    of = {"timesteps": model.num_timesteps, "seed": seed, "episodes": len(played.returns)}
    return {**of, "deterministic": played.as_json()}


# --- while training ---


class Evaluations(BaseCallback):
    """Evaluates the policy now and then; keeps the best model beside the last one.

    Writes `evaluations.json` and `best.safetensors`. Of equally good models the latest is kept.
    Nothing about the run changes: environments, starts and draws are others. When one is due
    follows from the steps alone, so a resumed run takes the same.
    """

    model: IMeL

    def __init__(self, folder: Path, plan: Plan, resumed_at: int | None) -> None:
        super().__init__()
        self._folder, self._plan = folder, plan
        self._rows, self._best = list[dict[str, Any]](), -np.inf
        if resumed_at is not None:
            rows = layout.read_evaluations(folder / layout.EVALUATIONS)
            self._rows = [row for row in rows if row["timesteps"] < resumed_at]
            steps, mean = best_of(folder) or (resumed_at, -np.inf)
            # The best file may be of a step that this run has not reached again
            self._best = mean if steps < resumed_at else -np.inf

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        model, count = self.model, self._plan.run.evaluations
        before = max(0, model.num_timesteps - model.n_envs * model.n_steps)
        total = model._total_timesteps
        if model.num_timesteps * count // total > before * count // total:
            self._evaluate()

    def _on_training_end(self) -> None:
        model = self.model
        if self._plan.run.evaluations and model.learned_timesteps >= model._total_timesteps:
            self._evaluate()

    def _evaluate(self) -> None:
        model, plan, seed = self.model, self._plan, _TRAINING_SEED
        try:
            played = evaluate(
                model.policy, plan.env, _TRAINING_EPISODES, seed, workers=plan.settings.workers
            )
        except ImelError as error:
            warnings.warn(f"no evaluation: {error}", RuntimeWarning, stacklevel=2)
            return
        mean = float(np.mean(played.returns))
        self._rows.append(_document(model, played, seed))
        self.logger.record("eval/mean_reward", mean)
        self.logger.record("eval/mean_ep_length", float(np.mean(played.lengths)))
        try:
            if mean >= self._best:
                model.save(self._folder / layout.BEST)
                self._best = mean
            layout.write_json(self._folder / layout.EVALUATIONS, self._rows)
        except OSError as error:
            if not plan.run.go_on_if_full:
                raise
            warnings.warn(f"no best model: {error}", RuntimeWarning, stacklevel=2)


def best_of(folder: Path) -> tuple[int, float] | None:
    """Return after how many steps the best model of a run was kept, and its mean return."""
    steps = describe(folder / layout.BEST).timesteps
    rows = layout.read_evaluations(folder / layout.EVALUATIONS)
    means = {row["timesteps"]: float(row["deterministic"]["mean"]) for row in rows}
    return None if steps is None or steps not in means else (steps, means[steps])


# --- videos ---


def record_video(policy: Policy, env_id: str, folder: Path, seed: int) -> Path:
    """Play one deterministic episode into a video file in a folder."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".video-") as place:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what matters among them becomes an error
                env = RecordVideo(
                    make(env_id, render_mode="rgb_array"),
                    place,
                    name_prefix=layout.VIDEO,
                    episode_trigger=lambda _: True,
                    disable_logger=True,
                )
                with closing(env):
                    for _ in play_policy(env, policy, seed):
                        pass
            (video,) = Path(place).glob("*.mp4")
        except Exception as error:  # whatever a driver or a renderer may raise
            raise ImelError(
                f"cannot render {env_id}: {error} (MuJoCo needs a display, or MUJOCO_GL=egl or "
                "osmesa; classic control needs pygame)"
            ) from None
        return video.replace(folder / video.name)

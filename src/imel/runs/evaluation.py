"""Playing a policy: its returns, while it trains too, videos, and what it is without lessons."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.wrappers import RecordVideo
from numpy.typing import NDArray
from rich.console import Console
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy

from imel.algorithm import IMeL
from imel.environments import playing
from imel.environments.making import make_environments
from imel.environments.replay import LONGEST
from imel.errors import ImelError
from imel.explain.reduced import largest_lessons, random_lessons, similar_lessons
from imel.explain.worth import PlayedEpisode
from imel.policies import Policy, RidgePolicy
from imel.runs import layout
from imel.runs.stored import Plan, describe

Array = NDArray[Any]

EVALUATION_SEED = 10_000
"""Episodes of an evaluation start from here, whatever the run's own seed."""
_TRAINING_SEED, _TRAINING_EPISODES = 20_000, 5
"""Of the evaluations during training. The one at the end has other starts, so it tells what is
chosen here from what was lucky here."""
_SIDE_BY_SIDE = 8
SHARES = (0.01, 0.05, 0.2)
"""Of the lessons, that are taken back to see what they are worth."""


@dataclass(frozen=True)
class Returns:
    """The returns and lengths of some episodes."""

    returns: list[float]
    lengths: list[int]

    def as_json(self) -> dict[str, Any]:
        """Return the summary and the raw numbers."""
        raw = {"returns": self.returns, "lengths": self.lengths}
        return {**layout.summary_of(self.returns), **raw}

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
    """Play episodes, the same for the same seed; `progress` is told after each step.

    No random state is changed, neither the policy's own nor the global ones.
    """

    def tell(played: dict[str, Any], _: dict[str, Any]) -> None:
        steps = played["current_lengths"].sum() / limit
        progress(min(1.0, (len(played["episode_rewards"]) + steps) / episodes))

    with (
        _random_states_kept(policy),
        contextlib.closing(
            make_environments(env_id, min(episodes, _SIDE_BY_SIDE), workers)
        ) as made,
    ):
        env = BaseAlgorithm._wrap_env(made, monitor_wrapper=False)
        playing.require_spaces(policy, env, env_id)
        limit = getattr(env.get_attr("spec", [0])[0], "max_episode_steps", None) or LONGEST
        env.seed(seed)
        policy.generator.manual_seed(seed)
        played: Any = evaluate_policy(
            policy,  # which predicts as its algorithm does
            env,
            episodes,
            deterministic=deterministic,
            callback=tell,
            return_episode_rewards=True,
        )
    returns, lengths = played
    return Returns([float(value) for value in returns], [int(value) for value in lengths])


@contextlib.contextmanager
def _random_states_kept(policy: Policy) -> Iterator[None]:
    """Put the policy's generator back, and those of Python, NumPy and torch that all share."""
    own, torchs = policy.generator.get_state(), torch.get_rng_state()
    pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        policy.generator.set_state(own)
        torch.set_rng_state(torchs)
        random.setstate(pythons)
        np.random.set_state(numpys)  # noqa: NPY002


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
    """Evaluates the policy now and then, and keeps the best model; of equally good ones the latest.

    Nothing about the run changes: environments, starts and draws are others. When one is due
    follows from the steps alone, so a resumed run takes the same.
    """

    model: IMeL

    def __init__(self, folder: Path, plan: Plan, resumed_at: int | None) -> None:
        super().__init__()
        self._folder, self._plan, reached = folder, plan, resumed_at or 0
        rows = layout.read_evaluations(folder / layout.EVALUATIONS)
        self._rows = [row for row in rows if row["timesteps"] < reached]
        steps, mean = best_of(folder) or (0, -np.inf)
        # The best file may be of a step that this run has not reached again
        self._best = mean if steps < reached else -np.inf

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
        model, plan, workers = self.model, self._plan, self._plan.settings.workers
        starts = _TRAINING_EPISODES, _TRAINING_SEED
        try:
            played = evaluate(model.policy, plan.env, *starts, workers=workers)
            self._rows.append(_document(model, played, _TRAINING_SEED))
            mean = float(np.mean(played.returns))
            self.logger.record("eval/mean_reward", mean)
            self.logger.record("eval/mean_ep_length", float(np.mean(played.lengths)))
            if mean >= self._best:
                model.save(self._folder / layout.BEST)
                self._best = mean
            layout.write_json(self._folder / layout.EVALUATIONS, self._rows)
        except (ImelError, OSError) as error:
            if isinstance(error, OSError) and not plan.run.go_on_if_full:
                raise
            warnings.warn(f"no evaluation: {error}", RuntimeWarning, stacklevel=2)


def best_of(folder: Path) -> tuple[int, float] | None:
    """Return after how many steps the best model of a run was kept, and its mean return."""
    steps = describe(folder / layout.BEST).timesteps
    rows = layout.read_evaluations(folder / layout.EVALUATIONS)
    means = {row["timesteps"]: float(row["deterministic"]["mean"]) for row in rows}
    return None if steps is None or steps not in means else (steps, means[steps])


# --- single episodes ---


def record_video(policy: Policy, env_id: str, folder: Path, seed: int) -> Path:
    """Play one deterministic episode into a video file in a folder."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters among them becomes an error
            made, place = playing.make_environment(env_id, rendered=True), str(folder)
            recorded = RecordVideo(made, place, lambda _: True, name_prefix=layout.VIDEO)
            with contextlib.closing(recorded) as env:
                for _ in playing.play_policy(env, policy, seed):
                    pass
        return next(folder.glob(f"{layout.VIDEO}-episode-0.mp4"))
    except Exception as error:  # whatever a driver or a renderer may raise
        reason = f"{error} (MuJoCo needs a display, or MUJOCO_GL=egl or osmesa)"
        raise ImelError(f"cannot render {env_id}: {reason}") from None


def play_sampled(
    policy: RidgePolicy,
    env_id: str,
    seeds: Sequence[int],
    progress: Callable[[float], None] = lambda share: None,
) -> list[PlayedEpisode]:
    """Play an episode with sampled actions for each seed."""
    played = []
    with playing.environment_of(policy, env_id) as env:
        for number, seed in enumerate(seeds, start=1):
            episode = playing.play_policy(env, policy, seed, sampled=True)
            steps = [(each.state, each.action, step.reward) for each, step in episode]
            played.append(PlayedEpisode(*map(np.array, zip(*steps, strict=True))))
            progress(number / len(seeds))
    return played


def visited_states(policy: Policy, env_id: str, seed: int) -> Array:
    """Return the raw states of a deterministic episode."""  # [T, d_s]
    with playing.environment_of(policy, env_id) as env:
        return np.array([decision.state for decision, _ in playing.play_policy(env, policy, seed)])


# --- without some lessons ---


@dataclass(frozen=True, eq=False)
class Removal:
    """The policy without some lessons: its returns, and how far its action has moved."""

    returns: Array  # [episodes], or [draws] means over episodes
    shift: float
    """Root mean square of the change of the mean over the states that the whole policy visits."""


@dataclass(frozen=True, eq=False)
class Deletion:
    """The policy without a share of its lessons, chosen in three ways."""

    share: float
    count: int
    largest: Removal
    similar: Removal
    random: Removal


def delete_lessons(
    policy: RidgePolicy,
    env_id: str,
    episodes: int,
    draws: int,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
) -> tuple[Array, list[Deletion]]:
    """Evaluate a policy without the lessons that carry most of it, similar ones and random ones.

    Return the returns of the whole policy and one `Deletion` for each of the `SHARES`.
    """
    visited = torch.from_numpy(visited_states(policy, env_id, seed))
    means = policy.act(visited)[0]
    done, all_of_it = 1, 1 + len(SHARES) * (2 + draws)

    def without(lessons: Array) -> Removal:
        nonlocal done
        reduced = policy.without(lessons=lessons)
        shift = float((reduced.act(visited)[0] - means).square().sum(dim=1).mean().sqrt())
        returns = np.array(evaluate(reduced, env_id, episodes, seed).returns)
        done += 1
        progress(done / all_of_it)
        return Removal(returns, shift)

    whole, deletions = np.array(evaluate(policy, env_id, episodes, seed).returns), []
    for share in SHARES:
        count = max(1, round(share * len(policy.lessons)))
        drawn = [without(random_lessons(policy, count, seed + draw)) for draw in range(draws)]
        returns = np.array([each.returns.mean() for each in drawn])
        random = Removal(returns, float(np.mean([each.shift for each in drawn])))
        largest = without(largest_lessons(policy, count))
        similar = without(similar_lessons(policy, visited.numpy(), count))
        deletions.append(Deletion(share, count, largest, similar, random))
    return whole, deletions

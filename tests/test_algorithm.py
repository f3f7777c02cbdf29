"""The loop: what settings do to sigma, to the budget and to the memory, and that it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from torch import Tensor

from imel import IMeL, NpPolicy
from imel.data.memory import PRIOR
from small import BATCH, STATES, LogBook, answers, points, small_model
from toy import FloatArray, ScriptedEnv


def logged(
    key: str, iterations: int = 4, policy: str = "MkiPolicy", **arguments: Any
) -> list[float]:
    """What a small model logs under a key."""
    model = small_model(policy, **arguments)
    book = LogBook.of(model)
    model.learn(iterations * BATCH)
    return [float(page[key]) for page in book.pages]


class Dimensions(ScriptedEnv):
    """A scripted environment with some dimensions of the action."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (dimensions,), np.float32)


# --- sigma ---


def test_sigma_follows_its_schedule() -> None:
    stds = logged("rollout/std", std="0.4:0.2")
    np.testing.assert_allclose(stds, [0.4, 0.35, 0.3, 0.25], rtol=1e-6)


def test_a_schedule_of_sigma_stops_at_the_floor() -> None:
    stds = logged("rollout/std", std="0.4:0.2", min_std=0.32)
    np.testing.assert_allclose(stds, [0.4, 0.35, 0.32, 0.32], rtol=1e-6)


def test_a_constant_sigma_stays_where_its_schedule_starts() -> None:
    stds = logged("rollout/std", std="0.4:0.2", std_mode="constant")
    np.testing.assert_allclose(stds, [0.4] * 4, rtol=1e-6)


@pytest.mark.parametrize("mode", ["schedule", "constant", "advantage", "paper"])
def test_sigma_never_falls_below_the_floor(mode: str) -> None:
    stds = logged("rollout/std", iterations=6, std=0.01, min_std=0.3, std_mode=mode)
    assert min(stds) >= 0.3 - 1e-6


def sigma_after_one_iteration(model: IMeL, eta: float, mode: str) -> Tensor:
    """Alg. 2 l. 12-13 from the memory's columns, in plain words."""
    memory = model.policy.memory
    actions, means, stds = (memory.column(n).double() for n in ("actions", "means", "stds"))
    gradient = ((actions - means) ** 2 - stds**2) / stds**3
    if mode == "advantage":
        gradient = gradient * memory.column("advantages").double()[:, None]
    return (stds + eta * gradient).mean(dim=0).clamp(min=0.02).minimum(2 * stds[0])


@pytest.mark.parametrize("mode", ["advantage", "paper"])
def test_a_learned_sigma_moves_as_algorithm_2_says(mode: str) -> None:
    model = small_model("MkiPolicy", std=0.4, std_mode=mode, kl_budget=0.1)
    book = LogBook.of(model)
    model.learn(BATCH)

    expected = sigma_after_one_iteration(model, book.pages[0]["improve/step_size"], mode)

    assert abs(float(expected) - 0.4) > 1e-3
    torch.testing.assert_close(model.policy.std.double(), expected, rtol=1e-4, atol=1e-5)
    model.learn(BATCH, reset_num_timesteps=False)
    np.testing.assert_allclose(book.pages[1]["rollout/std"], float(expected), rtol=1e-4)


def test_the_papers_sigma_shrinks_with_the_root_of_the_action_dimensions() -> None:
    for dimensions in (1, 4):
        model = small_model("NearestPolicy", env=Dimensions(dimensions), std=0.6)
        expected = torch.full((dimensions,), 0.6 / dimensions**0.5)
        torch.testing.assert_close(model.policy.std, expected)


def test_the_ridge_policys_sigma_is_shared_by_the_action_dimensions_and_at_most_one() -> None:
    for dimensions, std, expected in ((1, 3.0, 1.0), (4, 3.0, 0.75), (4, 0.4, 0.1), (4, 0.1, 0.05)):
        model = small_model(env=Dimensions(dimensions), std=std, min_std=0.05)
        torch.testing.assert_close(model.policy.std, torch.full((dimensions,), expected))


def test_the_ridge_policys_sigma_is_adapted_within_its_bounds() -> None:
    stds = logged("rollout/std", 6, "RidgePolicy", std=0.5, std_rate=5.0)
    assert stds[0] == pytest.approx(0.5)
    assert len(set(stds)) > 2
    assert max(stds) <= 0.5 + 1e-6
    narrow = logged("rollout/std", 6, "RidgePolicy", std=0.5, std_rate=5.0, min_std=0.49)
    assert min(narrow) >= 0.49 - 1e-6
    still = logged("rollout/std", 3, "RidgePolicy", std=0.5, std_rate=0.0)
    np.testing.assert_allclose(still, 0.5)


def test_rollouts_use_the_neural_processs_own_sigma() -> None:
    model = small_model("NpPolicy", std_mode="model", min_std=0.05)
    prior_states = torch.from_numpy(STATES)
    assert isinstance(model.policy, NpPolicy)
    own = model.policy.conditioned(model.policy.normaliser(prior_states)).std
    assert own is not None
    torch.testing.assert_close(model.policy.act(prior_states)[1], own.clamp_min(0.05))

    model.learn(BATCH)

    stds = model.policy.memory.column("stds")
    assert stds.std() > 0, "it depends on the state"
    assert stds.min() >= 0.05


# --- the budget ---


def test_budget_and_rate_follow_their_schedules() -> None:
    budgets = logged("improve/kl_budget", kl_budget="4:2")
    rates = logged("train/learning_rate", learning_rate="4e-3:2e-3")

    np.testing.assert_allclose(budgets, [4.0, 3.5, 3.0, 2.5])
    np.testing.assert_allclose(rates, [4e-3, 3.5e-3, 3e-3, 2.5e-3])


def test_a_function_can_be_a_schedule() -> None:
    budgets = logged("improve/kl_budget", kl_budget=lambda progress: 1.0 + progress**2)
    np.testing.assert_allclose(budgets, [2.0, 1.5625, 1.25, 1.0625])


def test_targets_use_the_budget_up() -> None:
    kls = logged("improve/target_kl", kl_budget="4:2", std_mode="advantage")
    np.testing.assert_allclose(kls, [4.0, 3.5, 3.0, 2.5], rtol=1e-4)


def test_clipped_means_stay_in_range_and_below_the_budget() -> None:
    model = small_model("MkiPolicy", kl_budget=20.0, clip_means=True)
    book = LogBook.of(model)
    model.learn(BATCH)

    assert float(model.policy.memory.column("improved_means").abs().max()) == 1.0
    assert book.pages[0]["improve/target_kl"] < 0.9 * 20.0


# --- the memory ---


@pytest.mark.parametrize(("n_envs", "n_steps"), [(1, 64), (3, 21), (4, 16), (64, 1), (100, 1)])
def test_a_rollout_is_shared_among_the_environments(n_envs: int, n_steps: int) -> None:
    model = small_model(env=points(n_envs)).learn(1)

    assert model.n_steps == n_steps
    assert model.num_timesteps == len(model.policy.memory) == n_steps * n_envs


def test_an_environment_id_becomes_several_environments() -> None:
    assert small_model(env="Pendulum-v1", n_envs=3).n_envs == 3


def test_the_prior_context_is_gone_after_the_first_iteration() -> None:
    model = small_model("MkiPolicy", prior_size=24)
    memory = model.policy.memory
    assert len(memory) == 24
    assert (memory.column("iterations") == PRIOR).all()

    model.learn(BATCH)

    assert len(memory) == BATCH
    assert (memory.column("iterations") == 0).all()
    assert (memory.column("episodes") >= 0).all()


def test_a_prior_without_spread_does_nothing() -> None:
    assert np.abs(answers(small_model("MkiPolicy", prior_std=0.0))).max() == 0.0
    assert np.abs(answers(small_model("MkiPolicy", prior_std=0.5))).max() > 0.05


def remembered_iterations(model: IMeL) -> list[int]:
    return sorted(set(model.policy.memory.column("iterations").tolist()))


@pytest.mark.parametrize("policy", ["RidgePolicy", "NearestPolicy"])
def test_the_oldest_rollout_is_forgotten_first(policy: str) -> None:
    assert remembered_iterations(small_model(policy).learn(4 * BATCH)) == [2, 3]


def test_age_is_counted_in_iterations() -> None:
    ages = logged("memory/age", iterations=3, memory_size=3 * BATCH)
    np.testing.assert_allclose(ages, [0.0, 0.5, 1.0])


# --- the loop ---


def test_logs_are_written_every_so_many_iterations() -> None:
    model = small_model()
    book = LogBook.of(model)
    model.learn(5 * BATCH, log_interval=2)
    assert [page["time/iterations"] for page in book.pages] == [2, 4]


def test_successes_are_logged_where_an_environment_reports_them() -> None:
    class Sometimes(ScriptedEnv):
        def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
            observation, reward, terminated, truncated, info = super().step(action)
            info["is_success"] = self._episode % 4 == 0
            return observation, reward, terminated, truncated, info

    # 64 steps are 16 episodes of four
    assert logged("rollout/success_rate", 1, env=Sometimes(episode_length=4)) == [0.25]


@pytest.mark.parametrize(
    ("steps", "leave_out", "updates"),
    [(0, "sampled", 0), (3, "sampled", 2 * 3), (3, "each-episode", (4 + 8) * 3)],
)
def test_gradient_steps_are_counted_as_adam_counts_them(
    steps: int, leave_out: str, updates: int
) -> None:
    model = small_model("MkiPolicy", gradient_steps=steps, leave_out=leave_out)
    book = LogBook.of(model)
    model.learn(2 * BATCH)

    moments = list(model.optimizers.interpolator_optimizer.state.values())
    taken = int(moments[0]["step"]) if moments else 0
    assert taken == updates
    assert book.pages[-1]["train/n_updates"] == taken


def mean_return(model: IMeL) -> float:
    returns, _ = evaluate_policy(
        model, points(seed=1), n_eval_episodes=20, return_episode_rewards=True
    )
    return float(np.mean(returns))


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        ("RidgePolicy", 12288),
        ("MkiPolicy", 4096),
        ("RegressorPolicy", 2048),
        ("NearestPolicy", 4096),
    ],
)
def test_the_return_improves(policy: str, steps: int) -> None:
    told: dict[str, Any] = {"rollout_size": 128, "memory_size": 1024}
    if policy != "RidgePolicy":  # a task of one dimension that needs little exploration
        told |= {"kl_budget": 1.0, "std": "0.4:0.2"}
    if policy in ("MkiPolicy", "RegressorPolicy"):
        told["gradient_steps"] = 5
    model = IMeL(policy, points(), seed=0, **told)
    before = mean_return(model)

    model.learn(steps)

    assert before < -0.7
    assert mean_return(model) > before / 3

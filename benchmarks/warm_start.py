"""Measure warm starts: imitate a controller or a policy, then improve, against from scratch.

    python -m benchmarks.warm_start --tasks pendulum hopper --seeds 400 401 402 403 404
    python -m benchmarks.warm_start --picture docs/images/warm-start.png

Rows are appended to results/warm-start, a file for each task; table and picture are made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common import Row, append, flags, mean_over_seeds, read_rows, run
from imel import IMeL
from imel.datasets import Episode, record_episodes
from imel.report.markdown import table
from imel.runs.evaluation import evaluate

STORE = Path("results/warm-start")
EPISODES = 20
ENVIRONMENTS = {
    "pendulum": ("Pendulum-v1", 10_000),
    "balance": ("InvertedPendulum-v5", 10_000),
    "hopper": ("Hopper-v5", 50_000),
}
"""Environment and steps of learning after the warm start."""
POINTS = 5
"""Evaluations of a run, beside the one before its first step."""


def swing_up(observation: Any) -> Any:
    """Pump energy into a pendulum, then hold it up by a PD controller."""
    cosine, sine, speed = observation
    if cosine > 0.9:
        return -12.0 * np.arctan2(sine, cosine) - 3.0 * speed
    energy = speed**2 / 6.0 + 5.0 * (cosine - 1.0)
    return -2.0 * energy * np.sign(speed) if abs(speed) > 1e-3 else 2.0


def balance(noise: float, seed: int) -> Callable[[Any], Any]:
    """Return a PD controller of InvertedPendulum, with noise on its action."""
    draws = np.random.default_rng(seed)

    def act(observation: Any) -> Any:
        return observation @ [1.0, 15.0, 1.0, 2.0] + noise * draws.normal()

    return act


def demonstrations(task: str, seed: int) -> dict[str, list[Episode]]:
    """Return what is imitated, by name."""
    env, _ = ENVIRONMENTS[task]
    if task == "pendulum":
        return {"demonstrations": record_episodes(env, swing_up, EPISODES)}
    if task == "balance":
        kinds = {"demonstrations": 0.0, "noisy demonstrations": 1.0}
        return {
            name: record_episodes(env, balance(noise, seed), 8) for name, noise in kinds.items()
        }
    teacher = IMeL("RidgePolicy", env, seed=seed).learn(100_000)
    act = lambda seen: teacher.predict(seen, deterministic=True)[0]  # noqa: E731
    return {"demonstrations": record_episodes(env, act, 8)}


def measure(task: str, seed: int, steps: int) -> Iterator[Row]:
    """Measure a run from each kind of demonstrations, and one from scratch."""
    env = ENVIRONMENTS[task][0]
    for name, shown in {**demonstrations(task, seed), "scratch": []}.items():
        model = IMeL("RidgePolicy", env, seed=seed + 10)
        if shown:
            model.warm_start(shown)
        returns = [_return(model, env)]
        for _ in range(POINTS):
            model.learn(steps // POINTS, reset_num_timesteps=False)
            returns.append(_return(model, env))
        rewards = [float(np.sum(each.rewards)) for each in shown if each.rewards is not None]
        yield {
            "task": task,
            "start": name,
            "seed": seed,
            "steps": steps,
            "shown": float(np.mean(rewards)) if rewards else None,
            "returns": returns,
        }


def _return(model: IMeL, env: str) -> float:
    return float(np.mean(evaluate(model.policy, env, 10).returns))


def interval(values: Sequence[float]) -> str:
    """Return the mean and its 95 % bootstrap interval."""
    if not values:
        return ""
    found = mean_over_seeds(values)
    return f"{found.value:.0f} [{found.low:.0f}, {found.high:.0f}]"


def summary(rows: Sequence[Row]) -> list[str]:
    """Return a line for each task and start: demonstrated, at 0 steps, at the end."""
    lines = []
    for task, start in dict.fromkeys((row["task"], row["start"]) for row in rows):
        mine = [row for row in rows if (row["task"], row["start"]) == (task, start)]
        shown = [row["shown"] for row in mine if row["shown"] is not None]
        first, last = (interval([row["returns"][i] for row in mine]) for i in (0, -1))
        lines.append([f"{task}, from {start}", str(len(mine)), interval(shown), first, last])
    return table(["task and start", "seeds", "shown", "0 steps", "end"], lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the returns of every seed, a panel for each task."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure = Figure(figsize=(4.6 * len(tasks), 3.4), layout="constrained")
    for axes, task in zip(np.atleast_1d(figure.subplots(1, len(tasks))), tasks, strict=True):
        mine = [row for row in rows if row["task"] == task]
        for colour, start in enumerate(dict.fromkeys(row["start"] for row in mine)):
            curves = np.array([row["returns"] for row in mine if row["start"] == start])
            steps = np.linspace(0, mine[0]["steps"], curves.shape[1])
            axes.plot(steps, curves.T, color=f"C{colour}", alpha=0.3, linewidth=1)
            axes.plot(steps, curves.mean(axis=0), "o-", color=f"C{colour}", label=f"from {start}")
        shown = [row["shown"] for row in mine if row["shown"] is not None]
        axes.axhline(float(np.mean(shown)), color="0.4", linestyle=":", label="what was shown")
        axes.set(title=ENVIRONMENTS[task][0], xlabel="environment steps", ylabel="return")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=90)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and show what was measured now and before."""
    parser = flags(__doc__)
    parser.add_argument("--tasks", nargs="+", default=[], choices=ENVIRONMENTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[400], metavar="SEED")
    parser.add_argument("--steps", type=int, help="of learning, if not those of the task")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of the rows")
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args(argv)
    arguments.store.mkdir(parents=True, exist_ok=True)
    for task in arguments.tasks:
        for seed in arguments.seeds:
            for row in measure(task, seed, arguments.steps or ENVIRONMENTS[task][1]):
                append(row, arguments.store / f"{task}.jsonl")
    rows = read_rows(sorted(arguments.store.glob("*.jsonl")))
    print("\n".join(summary(rows)))
    if arguments.picture is not None:
        draw(rows, arguments.picture)


if __name__ == "__main__":
    run(main)

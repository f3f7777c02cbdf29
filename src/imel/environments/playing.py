"""Playing an environment: one copy of it, and an episode step by step, by a policy or another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import gymnasium
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from imel.environments.making import is_mujoco, make, refused_in_one_line
from imel.environments.replay import LONGEST
from imel.errors import ImelError
from imel.policies import Policy
from imel.policies.names import DimensionNames, Dimensions, names_for, names_of

Array = NDArray[Any]
Environment = gymnasium.Env[Any, Any]

_DRAWN = 360
"""Pixels of a picture that MuJoCo draws."""


class Step(NamedTuple):
    """One step of an episode."""

    observation: Any  # as the environment gives it, before the action
    action: Array  # [d_a] in the environment's units
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool


class Decision(NamedTuple):
    """What a policy makes of an observation."""

    state: Array  # [d_s] raw
    mean: Array  # [d_a]
    std: Array  # [d_a]
    action: Array  # [d_a] in policy units


def play(env: Environment, act: Callable[[Any], Array], seed: int) -> Iterator[Step]:
    """Play one episode. `act` maps an observation to an action in the environment's units."""
    observation = env.reset(seed=seed)[0]
    for _ in range(LONGEST):
        action = act(observation)
        following, reward, terminated, truncated, _ = env.step(action)
        yield Step(observation, action, float(reward), following, terminated, truncated)
        if terminated or truncated:
            return
        observation = following


def play_policy(
    env: Environment,
    policy: Policy,
    seed: int,
    sampled: bool = False,
    look: Callable[[int], None] = lambda number: None,
) -> Iterator[tuple[Decision, Step]]:
    """Play one episode with mean actions, or some sampled by the seed.

    `look` gets the number of each step while the environment is still in the observed state.
    """
    generator, distribution = torch.Generator().manual_seed(seed), policy.distribution
    decided = list[Decision]()

    def act(observation: Any) -> Array:
        look(len(decided))
        state = policy.observe(observation)
        mean, std = (part.numpy(force=True) for part in policy.act(torch.tensor(state)))
        noise = distribution.noise((1,), generator).numpy()
        action = distribution.sample(mean, std, noise) if sampled else distribution.mode(mean)
        decided.append(Decision(*(part[0] for part in (state, mean, std, action))))
        return policy.to_environment(decided[-1].action)

    for step in play(env, act, seed):
        yield decided[-1], step


@contextmanager
def environment_of(model: Any, env_id: str, rendered: bool = False) -> Iterator[Environment]:
    """Make an environment for a model or policy, refuse other spaces, and close it in the end."""
    with closing(make_environment(env_id, rendered)) as env:
        require_spaces(model, env, env_id)
        yield env


def require_spaces(model: Any, env: Any, env_id: str) -> None:
    """Refuse an environment whose observations or actions are not those of a model or policy."""
    for name, verb in (("observation_space", "observes"), ("action_space", "has actions")):
        mine, theirs = getattr(model, name), getattr(env, name)
        if not _alike(mine, theirs):
            both = [s.shape if isinstance(s, spaces.Box) else s for s in (mine, theirs)]
            found = f"it {verb} {both[0]}, not {both[1]}"
            raise ImelError(f"the model was not made for {env_id}: {found}")


def _alike(mine: Any, theirs: Any) -> bool:
    """Whether spaces are the same but for bounds, and for where an image has its channels."""
    if isinstance(mine, spaces.Dict) and isinstance(theirs, spaces.Dict):
        return mine.keys() == theirs.keys() and all(_alike(mine[k], theirs[k]) for k in mine)
    if isinstance(mine, spaces.Box) and isinstance(theirs, spaces.Box):
        shape = theirs.shape
        return mine.shape == shape or (len(shape) == 3 and mine.shape == (shape[2], *shape[:2]))
    return bool(mine == theirs)


def make_environment(env_id: str, rendered: bool) -> Environment:
    """Make one copy of an environment; say in one line whatever keeps it from being made."""
    options: dict[str, Any] = {"render_mode": "rgb_array"} if rendered else {}
    if rendered and is_mujoco(env_id):
        # The camera follows what moves, where a model has one for it. No larger than is shown:
        # without a GPU that saves half the time
        options |= {"width": _DRAWN, "height": _DRAWN, "camera_name": "track"}
    with refused_in_one_line(env_id), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what matters among them becomes an error
        return make(env_id, **options)


def names_in(env_id: str | None, dimensions: Dimensions) -> DimensionNames:
    """Return the names an environment gives a policy's dimensions; those of its id, or numbers."""
    if env_id is not None:
        with suppress(ImelError), closing(make_environment(env_id, rendered=False)) as env:
            return names_of(env, dimensions)
    return names_for(env_id, dimensions)

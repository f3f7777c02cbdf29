"""Names of state and action dimensions, for explanations, tables and pictures.

Built in for Gymnasium's MuJoCo tasks, classic control and LunarLander, and for the actions of its
grids. Any other environment may name its own by the attributes `state_names` and `action_names`;
what has no name has a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from imel.errors import ImelError


class Dimensions(NamedTuple):
    """What names are given to; of discrete actions each option, those of the first choice first."""

    state: int
    action: int
    choices: Sequence[range] = ()  # the numbers of the options of each discrete choice
    observed: Sequence[str] = ()  # names that the observation space gives to the state


@dataclass(frozen=True)
class DimensionNames:
    """A name for each dimension of the state and of the action."""

    state: tuple[str, ...]
    action: tuple[str, ...]

    @classmethod
    def checked(
        cls, state: Sequence[str], action: Sequence[str], widths: tuple[int, int]
    ) -> DimensionNames:
        """Return names; refuse too many or too few."""
        for kind, names, width in zip(("state", "action"), (state, action), widths, strict=True):
            if len(names) != width:
                raise ImelError(f"the {kind} has {width} dimensions, not {len(names)} names")
        return cls(tuple(map(str, state)), tuple(map(str, action)))


def names_of(env: Any, dimensions: Dimensions) -> DimensionNames:
    """Return the names an environment gives its dimensions, those built in for it, or numbers."""
    bare, spec = getattr(env, "unwrapped", env), getattr(env, "spec", None)
    known = names_for(getattr(spec, "id", None), dimensions)
    state, action = (getattr(bare, f"{kind}_names", None) for kind in ("state", "action"))
    named = (known.state if state is None else state, known.action if action is None else action)
    return DimensionNames.checked(*named, dimensions[:2])


def names_for(env_id: str | None, dimensions: Dimensions) -> DimensionNames:
    """Return the names built in for an environment's id and widths, or numbers."""
    task = (env_id or "").rpartition("/")[2].partition("-v")[0]
    actions, *states = _TASKS.get(task, ((),))
    state_dim, action_dim, choices, observed = dimensions
    found = next((names for names in states if len(names) == state_dim), tuple(observed))
    if len(actions) != action_dim:
        actions = _each(["action"], *map(str, choices[0] if choices else range(action_dim)))
        if len(choices) > 1:
            actions = tuple(f"choice {i}: {k}" for i, part in enumerate(choices) for k in part)
    return DimensionNames(found or _each(["state"], *map(str, range(state_dim))), actions)


# --- the observation tables of Gymnasium, version 4 and 5 ---

Names = tuple[str, ...]


def _each(things: Iterable[str], *endings: str) -> Names:
    return tuple(f"{thing} {ending}" for thing in things for ending in endings)


def _planar(*joints: str) -> tuple[Names, Names]:
    """A body that moves in a plane: positions without x, then velocities."""
    torques, angles, speeds = (_each(joints, word) for word in ("torque", "angle", "velocity"))
    root = ("height", "torso angle"), ("forward velocity", "vertical velocity", "torso velocity")
    return torques, (*root[0], *angles, *root[1], *speeds)


_ORIENTATION = ("height", *_each(["orientation"], "w", "x", "y", "z"))
_SPATIAL = ("x", "y", "z")
_MOTION = _each(["velocity", "angular velocity"], *_SPATIAL)


def _free(joints: Sequence[str]) -> Names:
    """A body that moves freely: positions without x and y, then velocities."""
    return (*_ORIENTATION, *_each(joints, "angle"), *_MOTION, *_each(joints, "velocity"))


def _spatial(bodies: Sequence[str], angular: str, linear: str) -> Names:
    """MuJoCo's spatial vectors: the rotational part first."""
    return _each(bodies, *_each([angular, linear], *_SPATIAL))


_LEGS = ("front left", "front right", "back left", "back right")
_ANT = _each(_LEGS, "hip", "ankle")
_ANT_BODIES = ("torso", *_each(_LEGS, "leg", "thigh", "shin"))
_ANT_FORCES = _spatial(_ANT_BODIES, "contact torque", "contact force")
_SIDES = ("right", "left")
_ARMS = _each(_SIDES, "shoulder 1", "shoulder 2", "elbow")
_HUMANOID_LEGS = _each(_SIDES, "hip x", "hip z", "hip y", "knee")
_HUMANOID = (*_each(["abdomen"], "z", "y", "x"), *_HUMANOID_LEGS, *_ARMS)
_HUMANOID_BODIES = (
    *("torso", "lower waist", "pelvis"),
    *_each(_SIDES, "thigh", "shin", "foot"),
    *_each(_SIDES, "upper arm", "lower arm"),
)
_INERTIA = _each(["inertia"], "xx", "yy", "zz", "xy", "xz", "yz")
_INERTIAS = (*_INERTIA, *_each(["mass offset"], *_SPATIAL), "mass")


def _humanoid(bodies: Sequence[str], forces: Sequence[str]) -> Names:
    return (
        *_free(_HUMANOID),
        *_each(bodies, *_INERTIAS),
        *_spatial(bodies, "angular velocity", "velocity"),
        *_each(forces, "actuator force"),
        *_spatial(bodies, "contact torque", "contact force"),
    )


_ROOT = _each(["root"], *_SPATIAL, "roll", "pitch", "yaw")
_HUMANOID_TASK = (
    _each((*_each(["abdomen"], "y", "z", "x"), *_HUMANOID_LEGS, *_ARMS), "torque"),
    _humanoid(_HUMANOID_BODIES, _HUMANOID),  # version 5
    _humanoid(("world", *_HUMANOID_BODIES), (*_ROOT, *_HUMANOID)),  # version 4
)
_ARM = (
    *("shoulder pan", "shoulder lift", "upper arm roll", "elbow flex"),
    *("forearm roll", "wrist flex", "wrist roll"),
)
_REACHER = (
    *_each(["cos", "sin"], "arm 1", "arm 2"),
    *_each(["target"], "x", "y"),
    *_each(["arm 1", "arm 2"], "velocity"),
    *_each(["fingertip - target"], *_SPATIAL),
)
_POLES = (
    *("cart position", *_each(["sin", "cos"], "pole 1", "pole 2"), "cart velocity"),
    *_each(["pole 1", "pole 2"], "velocity"),
    *_each(["constraint force"], *_SPATIAL),
)
_SWIMMER = ("tip", "rotor 1", "rotor 2")

# Actions, then states: the one of the right width is taken
_TASKS: dict[str, tuple[Names, ...]] = {
    "Pendulum": (("torque",), ("cos angle", "sin angle", "angular velocity")),
    "MountainCarContinuous": (("force",), ("position", "velocity")),
    "MountainCar": (("push left", "coast", "push right"), ("position", "velocity")),
    "CartPole": (
        ("push left", "push right"),
        ("cart position", "cart velocity", "pole angle", "pole velocity"),
    ),
    "Acrobot": (
        ("torque -1", "no torque", "torque +1"),
        (
            *("cos arm 1", "sin arm 1", "cos arm 2", "sin arm 2"),
            *_each(["arm 1", "arm 2"], "velocity"),
        ),
    ),
    "LunarLander": (
        ("coast", "left engine", "main engine", "right engine"),
        (
            *("x", "y", "velocity x", "velocity y", "angle", "angular velocity"),
            *("left leg touches", "right leg touches"),
        ),
    ),
    **dict.fromkeys(("FrozenLake", "FrozenLake8x8"), (("left", "down", "right", "up"),)),
    "CliffWalking": (("up", "right", "down", "left"),),
    "Taxi": (("south", "north", "east", "west", "pick up", "drop off"),),
    "InvertedPendulum": (
        ("cart force",),
        ("cart position", "pole angle", "cart velocity", "pole velocity"),
    ),
    "InvertedDoublePendulum": (("cart force",), _POLES[:9], _POLES),
    "Hopper": _planar("thigh", "leg", "foot"),
    "Walker2d": _planar("thigh", "leg", "foot", "left thigh", "left leg", "left foot"),
    "HalfCheetah": _planar(*_each(("back", "front"), "thigh", "shin", "foot")),
    "Ant": (
        _each((*_ANT[6:], *_ANT[:6]), "torque"),  # the back right leg is moved first
        _free(_ANT),
        (*_free(_ANT), *_ANT_FORCES),
        (*_free(_ANT), *_spatial(["world"], "contact torque", "contact force"), *_ANT_FORCES),
    ),
    **dict.fromkeys(("Humanoid", "HumanoidStandup"), _HUMANOID_TASK),
    "Swimmer": (
        _each(_SWIMMER[1:], "torque"),
        (*_each(_SWIMMER, "angle"), "velocity x", "velocity y", *_each(_SWIMMER, "velocity")),
    ),
    "Reacher": (_each(["joint 1", "joint 2"], "torque"), _REACHER[:10], _REACHER),
    "Pusher": (
        _each(_ARM, "torque"),
        (
            *_each(_ARM, "angle"),
            *_each(_ARM, "velocity"),
            *_each(["fingertip", "object", "goal"], *_SPATIAL),
        ),
    ),
}

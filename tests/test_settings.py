"""Settings: documented, checked, immutable, plain data, and each of them used or refused."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import mypy.api
import numpy as np
import pytest

import imel
from imel import IMeL
from imel.errors import NonFiniteError, SettingsError
from imel.keywords import Keywords
from imel.policies.paper.paper_policy import FitSettings, InterpolatorSettings
from imel.policies.ridge.ridge_policy import RidgePolicy
from imel.settings import Settings, marked
from small import POLICIES, LogBook, answers, points, small_model
from toy import ScriptedEnv

CLASSES = sorted({cls.Settings for cls in POLICIES.values()}, key=lambda cls: cls.__name__)
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
every_policy = pytest.mark.parametrize("policy", POLICIES)


def names_of(cls: type[Any]) -> list[str]:
    return [field.name for field in fields(cls)]


def documented() -> list[type[Any]]:
    """Every class that declares settings."""
    bases = {base for cls in CLASSES for base in cls.__mro__ if issubclass(base, Settings)}
    return sorted(bases, key=lambda cls: cls.__qualname__)


def undocumented(cls: type[Any]) -> list[str]:
    """The fields a class's own body declares without a docstring under them."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    body = [*definition.body, ast.Pass()]
    names = []
    for node, below in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if not (isinstance(text, ast.Constant) and str(text.value).strip()):
                names.append(node.target.id)
    return names


@pytest.mark.parametrize("cls", documented(), ids=lambda cls: cls.__name__)
def test_every_field_has_a_docstring(cls: type[Any]) -> None:
    assert cls.__doc__
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__annotations__", {})}
    assert set(undocumented(cls)) - inherited == set()


def test_the_check_for_docstrings_notices_a_missing_one() -> None:
    class Sample:
        first: int = 1
        """Said."""
        second: int = 2
        third: int = 3
        """Said."""
        fourth: int = 4

    assert undocumented(Sample) == ["second", "fourth"]


# --- values ---


@every_class
def test_defaults_pass_their_own_checks(cls: type[Settings]) -> None:
    defaults = {name: getattr(cls(), name) for name in names_of(cls)}
    assert cls().updated(defaults) == cls()


@every_class
def test_each_choice_is_accepted_and_nothing_else(cls: type[Settings]) -> None:
    hints = typing.get_type_hints(cls)
    choices = {n: typing.get_args(hints[n]) for n in names_of(cls)}
    chosen = {n: c for n, c in choices.items() if typing.get_origin(hints[n]) is typing.Literal}
    assert chosen
    for name, valid in chosen.items():
        for choice in valid:
            assert getattr(cls().updated({name: choice}), name) == choice
        for wrong in ("nonsense", None, 1, valid[0].upper()):
            with pytest.raises(SettingsError, match=f"{name}=.*{valid[-1]}"):
                cls().updated({name: wrong})


@every_class
def test_no_number_may_be_negative(cls: type[Settings]) -> None:
    hints = typing.get_type_hints(cls)
    numbers = [
        n for n in names_of(cls) if hints[n] in (int, float) or n in marked(cls, "scheduled")
    ]
    assert len(numbers) > 10
    for name in numbers:
        with pytest.raises(SettingsError, match=name):
            cls().updated({name: -1})


def test_updating_makes_a_new_object() -> None:
    settings = RidgePolicy.Settings()
    changed = settings.updated({"gamma": 0.5, "critic_hidden": [3, 4]})

    assert (changed.gamma, changed.critic_hidden) == (0.5, (3, 4))
    assert settings == RidgePolicy.Settings()
    assert changed.updated({}) == changed
    with pytest.raises(FrozenInstanceError):
        settings.gamma = 0.5  # type: ignore[misc]


def test_a_refused_update_changes_nothing() -> None:
    settings = RidgePolicy.Settings()
    with pytest.raises(SettingsError):
        settings.updated({"gamma": 0.5, "gae_lambda": 7.0})
    assert settings == RidgePolicy.Settings()


def test_settings_survive_json() -> None:
    told = {"gamma": 0.5, "std": "1:0.2", "critic_hidden": (5,), "clip_means": True, "kl_budget": 3}
    settings = InterpolatorSettings().updated(told)

    document = json.loads(json.dumps(settings.as_json()))

    assert list(document) == names_of(InterpolatorSettings)
    assert InterpolatorSettings().updated(document) == settings


@pytest.mark.parametrize(
    "cls", [cls for cls in CLASSES if marked(cls, "scheduled")], ids=lambda c: c.__name__
)
def test_a_function_is_a_schedule_but_no_plain_data(cls: type[Settings]) -> None:
    for name in marked(cls, "scheduled"):
        settings = cls().updated({name: lambda progress: 1.0 + progress})
        with pytest.raises(SettingsError, match=f"{name} is a function and cannot be saved"):
            settings.as_json()


@every_policy
def test_a_policy_has_the_defaults_of_its_settings(policy: str) -> None:
    model = IMeL(policy, None, _init_setup_model=False)
    assert model.settings == POLICIES[policy].Settings()
    assert (model.gamma, model.gae_lambda) == (model.settings.gamma, model.settings.gae_lambda)


# --- refused ---


@every_policy
def test_a_setting_of_other_policies_is_refused_naming_them(policy: str) -> None:
    own = set(names_of(POLICIES[policy].Settings))
    users: dict[str, list[str]] = {}
    for other, cls in POLICIES.items():
        for name in set(names_of(cls.Settings)) - own:
            users.setdefault(name, []).append(other)
    assert users
    for name, policies in users.items():
        arguments: Any = {name: 1}
        with pytest.raises(SettingsError, match=f"^{policy} does not use '{name}'; ") as refusal:
            IMeL(policy, "Pendulum-v1", **arguments)
        assert re.findall(r"(\w+Policy)", str(refusal.value))[1:] == policies
        assert "\n" not in str(refusal.value)


# --- used ---

TINY: dict[str, Any] = {"rollout_size": 32, "n_envs": 2, "memory_size": 64, "critic_epochs": 2}
"""The second of three rollouts fills the memory."""
OTHER: dict[str, Any] = {
    "rollout_size": 16,
    "memory_size": 96,
    "prior_size": 16,
    "gae_lambda": 0.5,
    "gamma": 0.9,
    "advantage_clip": 0.5,
    "min_std": 0.9,
    "batch_size": 8,
    "kl_budget": 0.5,
    "trust_region": 0.5,
    "std": 0.3,
    "std_mode": "constant",
    "targets_per_step": 8,
    "max_grad_norm": 1e-4,
    "peak_kl": 1.0,
    "full_step_gain": 100.0,
    "features": 5,
}
"""Values that matter in so short a run; the others are made from the defaults."""
TESTED_APART = {"workers", "worker_timeout", "backend", "env_threads", "max_faults"}
"""Settings without which an undisturbed run is the same, bit for bit."""


def another(name: str, default: Any, hint: Any) -> Any:
    """A valid value that is not the default."""
    if name in OTHER:
        return OTHER[name]
    if typing.get_origin(hint) is typing.Literal:
        return next(choice for choice in typing.get_args(hint) if choice != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, tuple):
        return (5,)
    if isinstance(default, int):
        return default + 1
    return 0.5 * default


def outcome(policy: str, **arguments: Any) -> dict[str, Any]:
    """What three iterations come to: actions, logs and the number of environments."""
    learned = issubclass(POLICIES[policy].Settings, FitSettings)
    told = {**TINY, **({"gradient_steps": 2} if learned else {}), **arguments}
    model = IMeL(policy, "ImelTinyPoint-v0", seed=0, **told)
    book = LogBook.of(model)
    model.learn(96)
    pages = [
        {key: value for key, value in page.items() if not key.startswith("time/")}
        for page in book.pages
    ]
    return {
        "environments": model.n_envs,
        "logs": str(pages),
        "actions": answers(model).tobytes(),
        "exploration": model.predict(np.zeros((5, 2), np.float32))[0].tobytes(),
    }


@pytest.fixture(scope="module", autouse=True)
def _environments() -> Iterator[None]:
    gym.register("ImelTinyPoint-v0", "toy:PointEnv", kwargs={"episode_length": 8})
    yield
    del gym.registry["ImelTinyPoint-v0"]


@every_policy
def test_every_setting_of_a_policy_changes_the_outcome(policy: str) -> None:
    cls = POLICIES[policy].Settings
    hints = typing.get_type_hints(cls)
    default = outcome(policy)
    assert outcome(policy) == default
    unused = []
    for field in fields(cls):
        if field.name in TESTED_APART:
            continue
        usual = TINY.get(field.name, field.default)
        value = another(field.name, usual, hints[field.name])
        assert value != usual
        if outcome(policy, **{field.name: value}) == default:
            unused.append(field.name)
    assert unused == []


@every_policy
def test_workers_backend_and_threads_reach_the_environments(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def make(*arguments: Any) -> Any:
        asked.append(arguments)
        return points(2)

    monkeypatch.setattr("imel.environments.making.make_environments", make)
    IMeL(policy, "Some-v0", n_envs=2, workers=True, worker_timeout=7.0)
    IMeL(policy, "Some-v0", backend="envpool", env_threads=3)
    assert asked == [
        ("Some-v0", 2, True, 7.0, "gymnasium", 0),
        ("Some-v0", 8, False, 60.0, "envpool", 3),
    ]


@every_policy
def test_max_faults_is_the_number_of_faults_survived(policy: str) -> None:
    with pytest.raises(NonFiniteError):
        small_model(policy, env=ScriptedEnv(bad_step=100), max_faults=0).learn(192)
    model = small_model(policy, env=ScriptedEnv(bad_step=100), max_faults=1)
    with pytest.warns(RuntimeWarning, match="fault 1 of 1"):
        model.learn(192)
    assert model.learner.faults == 1


# --- what an editor, a type checker and help know ---


def test_keywords_are_the_fields_of_all_settings_with_their_types() -> None:
    typed = typing.get_type_hints(Keywords)
    assert set(typed) == {name for cls in CLASSES for name in names_of(cls)}
    assert Keywords.__required_keys__ == frozenset()
    for cls in CLASSES:
        hints = typing.get_type_hints(cls)
        for name in names_of(cls):
            accepted, declared = alternatives(typed[name]), alternatives(hints[name])
            assert declared <= accepted, f"{name} of {cls.__name__}"
            # Beyond what some policy declares, only a function may be given, as a schedule
            declared = {
                kind
                for other in CLASSES
                if name in names_of(other)
                for kind in alternatives(typing.get_type_hints(other)[name])
            }
            functions = {kind for kind in accepted if "Callable" in str(kind)}
            assert accepted - functions == declared, name
            assert bool(functions) == any(
                name in marked(other, "scheduled") for other in CLASSES
            ), name


def alternatives(hint: Any) -> set[Any]:
    """The members of a union or a choice, or the type itself."""
    if typing.get_origin(hint) in (tuple, None) or not typing.get_args(hint):
        return {hint}
    return set(typing.get_args(hint))


def test_mypy_refuses_a_misspelt_keyword(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is read of libraries whose types do not matter here: seconds in place of minutes
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\nfollow_imports = silent\nignore_missing_imports = true\n"
        "[mypy-torch.*,stable_baselines3.*,gymnasium.*,numpy.*,safetensors.*]\n"
        "follow_imports = skip\n"
    )
    for name, keyword in (("misspelt.py", "trust_regoin"), ("right.py", "trust_region")):
        (tmp_path / name).write_text(
            f'from imel import IMeL\n\nmodel = IMeL("RidgePolicy", "Pendulum-v1", {keyword}=0.1)\n'
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MYPYPATH", str(Path(imel.__file__).parents[1]))
    arguments = ["--config-file=mypy.ini", "--hide-error-context", "misspelt.py", "right.py"]
    output, complaints, code = mypy.api.run(arguments)

    assert (code, complaints) == (1, "")
    (error,) = [line for line in output.splitlines() if ": error: " in line]
    assert error.startswith("misspelt.py:3: ")
    assert 'Unexpected keyword argument "trust_regoin" for "IMeL"' in error
    assert 'did you mean "trust_region"' in error


@every_policy
def test_help_shows_every_setting_with_its_default(policy: str) -> None:
    text = " ".join((inspect.getdoc(IMeL) or "").split())
    shared, part = text.split(f"Settings of {policy}, with their defaults:")
    shared = shared.split("Settings of every policy")[1]
    part = part.split("Settings of")[0]
    for field in fields(POLICIES[policy].Settings):
        assert f" {field.name} = {field.default!r}: " in shared + part

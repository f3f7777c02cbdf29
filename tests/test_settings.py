"""Settings: documented, checked, immutable, and plain data."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
import typing
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import pytest
from imel.presets import ANCHORED, PLAIN, PRESETS

from imel import IMeL
from imel.errors import SettingsError
from imel.policy import POLICIES
from imel.settings import SCHEDULED, Settings, preset
from small import small_model

HINTS = typing.get_type_hints(Settings)
CHOICES = {
    name: typing.get_args(hint)
    for name, hint in HINTS.items()
    if typing.get_origin(hint) is typing.Literal
}
DOCUMENTED = [cls for cls in Settings.__mro__ if is_dataclass(cls)]
DOCUMENTED += [policy.options_class for policy in POLICIES.values()]


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


@pytest.mark.parametrize("cls", DOCUMENTED, ids=lambda cls: cls.__name__)
def test_every_field_has_a_docstring(cls: type[Any]) -> None:
    assert cls.__doc__
    assert undocumented(cls) == []


def test_the_check_for_docstrings_notices_a_missing_one() -> None:
    class Sample:
        first: int = 1
        """Said."""
        second: int = 2
        third: int = 3
        """Said."""
        fourth: int = 4

    assert undocumented(Sample) == ["second", "fourth"]


def test_defaults_pass_their_own_checks() -> None:
    defaults = {field.name: getattr(Settings(), field.name) for field in fields(Settings)}

    assert defaults.keys() == HINTS.keys()
    assert Settings().updated(defaults) == Settings()


def test_each_choice_is_accepted_and_nothing_else() -> None:
    assert {"advantage", "std_mode", "forgetting", "leave_out"} <= CHOICES.keys()
    for name, choices in CHOICES.items():
        for choice in choices:
            assert getattr(Settings().updated({name: choice}), name) == choice
        for wrong in ("nonsense", None, 1, choices[0].upper()):
            with pytest.raises(SettingsError, match=f"{name}=.*{choices[-1]}"):
                Settings().updated({name: wrong})


@pytest.mark.parametrize(
    "name", [name for name, hint in HINTS.items() if hint in (int, float) or name in SCHEDULED]
)
def test_no_number_may_be_negative(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings().updated({name: -1})


def test_updating_makes_a_new_object() -> None:
    settings = Settings()
    changed = settings.updated({"gamma": 0.5, "critic_hidden": [3, 4]})

    assert (changed.gamma, changed.critic_hidden) == (0.5, (3, 4))
    assert settings == Settings()
    assert changed.updated({}) == changed
    with pytest.raises(FrozenInstanceError):
        settings.gamma = 0.5  # type: ignore[misc]


def test_a_refused_update_changes_nothing() -> None:
    settings = Settings()
    with pytest.raises(SettingsError):
        settings.updated({"gamma": 0.5, "gae_lambda": 7.0})
    assert settings == Settings()


def test_settings_survive_json() -> None:
    settings = Settings().updated(
        {"gamma": 0.5, "std": "1:0.2", "critic_hidden": (5,), "clip_means": True, "kl_budget": 3}
    )

    document = json.loads(json.dumps(settings.as_json()))

    assert document.keys() == HINTS.keys()
    assert Settings().updated(document) == settings


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_function_is_a_schedule_but_no_plain_data(name: str) -> None:
    settings = Settings().updated({name: lambda progress: 1.0 + progress})

    with pytest.raises(SettingsError, match=f"{name} is a function and cannot be saved"):
        settings.as_json()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_change_something(name: str) -> None:
    settings = Settings().updated(preset(name))
    if name == "plain":  # what it changes are recommendations of policies
        assert settings == Settings()
        assert IMeL("MkiPolicy", None, _init_setup_model=False).settings != settings
    else:
        assert settings != Settings()


def test_what_a_plain_update_learns_with_are_the_general_defaults() -> None:
    assert {name: getattr(Settings(), name) for name in PLAIN} == PLAIN
    # All that the anchored preset changes, the plain one changes back
    assert PLAIN.keys() == ANCHORED.keys()


def settings_of(policy: str, **arguments: Any) -> Settings:
    return IMeL(policy, None, _init_setup_model=False, **arguments).settings


@pytest.mark.parametrize("policy", ["MkiPolicy", "RidgePolicy"])
def test_a_plain_update_brings_its_settings_along(policy: str) -> None:
    assert settings_of(policy) == Settings().updated(ANCHORED)
    assert settings_of(policy, update="plain") == Settings()
    assert settings_of(policy, preset="plain") == Settings()
    given = settings_of(policy, update="plain", std=0.3)
    assert given == Settings().updated({"std": 0.3})


def test_an_anchored_update_brings_its_settings_along() -> None:
    recommended = POLICIES["NpPolicy"].recommended
    expected = Settings().updated({**recommended, **ANCHORED})
    assert settings_of("NpPolicy", update="anchored") == expected
    assert expected.min_std == recommended["min_std"]


def test_an_update_that_is_recommended_anyhow_or_beside_a_preset_brings_nothing() -> None:
    assert settings_of("MkiPolicy", update="anchored") == settings_of("MkiPolicy")
    assert settings_of("NpPolicy", update="plain") == settings_of("NpPolicy")
    given = settings_of("MkiPolicy", preset="exploration", update="plain")
    assert given == Settings().updated({**PRESETS["exploration"], "update": "plain"})


def test_the_papers_preset_leaves_nothing_of_an_anchored_recommendation() -> None:
    settings = settings_of("MkiPolicy", preset="paper")
    assert settings == Settings().updated(PRESETS["paper"])
    changed = {"std", "std_mode", "min_std"}
    assert {name for name in HINTS if getattr(settings, name) != getattr(Settings(), name)} == (
        changed
    )


def test_no_preset_is_no_change() -> None:
    assert preset(None) == {}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_policys_recommendation_is_valid_and_is_followed(policy: str) -> None:
    recommended = POLICIES[policy].recommended
    expected = Settings().updated(recommended)

    assert IMeL(policy, "Pendulum-v1").settings == expected


def test_what_is_given_wins_over_preset_and_recommendation(monkeypatch: pytest.MonkeyPatch) -> None:
    recommended = {"std": "0.9:0.8", "min_std": 0.07, "kl_budget": 5.0}
    monkeypatch.setattr(POLICIES["MkiPolicy"], "recommended", recommended)

    settings = small_model(preset="exploration", kl_budget=2.0).settings

    assert settings.kl_budget == 2.0
    assert settings.std == PRESETS["exploration"]["std"]
    assert settings.min_std == 0.07


def test_the_signature_shows_every_setting_with_its_default() -> None:
    parameters = inspect.signature(IMeL).parameters

    assert list(parameters)[:2] == ["policy", "env"]
    for field in fields(Settings):
        assert parameters[field.name].default == field.default

"""The model card of a run: what it was trained on, how well it does, how to load it again.

Its head is the metadata that the Hugging Face hub reads; with the `model-index` in it, the hub
shows the return beside the model.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from imel.checkpoints import checkpoint
from imel.errors import ImelError
from imel.extras import require
from imel.registry import loaded_policy
from imel.runs.layout import (
    CONFIG,
    CURVE,
    EVALUATION,
    MODEL,
    POLICY,
    PROVENANCE,
    read_evaluation,
    read_table,
)

_LEVEL = 0.95
_SEED = 20_200_810
_ENVIRONMENT = re.compile(r"[\w.:/-]{1,200}")
"""What an id consists of: nothing that a card would take for its own text."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ABOUT = """\
A policy trained by Improved Memories Learning ([IMeL, arXiv 2008.10433](https://arxiv.org/abs/2008.10433)).
Each of its experiences was annotated with an improved action, and the policy is computed from those
experiences."""


def model_card(folder: Path, repo_id: str, licence: str | None = None) -> str:
    """The card of the run in a folder, as it would be published under a name."""
    _, manifest = checkpoint.read(folder / MODEL)
    config, evaluation = read_table(folder / CONFIG), read_evaluation(folder / EVALUATION)
    if not manifest["policy"].isidentifier():
        raise ImelError(f"{folder} names no class of policies: {reprlib.repr(manifest['policy'])}")
    env = config.get("env") or evaluation.get("env")
    if env is not None and not (isinstance(env, str) and _ENVIRONMENT.fullmatch(env)):
        raise ImelError(f"{folder} names no environment that could be made: {reprlib.repr(env)}")
    parts = [
        f"---\n{_metadata(manifest, env, evaluation, licence)}\n---",
        f"# {manifest['policy']} on {env or 'an unnamed environment'}",
        _ABOUT,
        *_results(folder, evaluation),
        _use(repo_id, env),
        _training(manifest, env, config),
        _origin(manifest, read_table(folder / PROVENANCE)),
        _licence(licence),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(
    manifest: Mapping[str, Any], env: str | None, evaluation: Mapping[str, Any], licence: str | None
) -> str:
    """The card's head in YAML."""
    hub = require("huggingface_hub", "hub")
    results = None
    if env is not None and "deterministic" in evaluation:
        played = evaluation["deterministic"]
        results = [
            hub.EvalResult(
                task_type="reinforcement-learning",
                task_name="reinforcement-learning",
                dataset_type=env,
                dataset_name=env,
                metric_type="mean_reward",
                metric_name="mean_reward",
                metric_value=f"{played['mean']:.2f} +/- {played['std']:.2f}",
                verified=False,
            )
        ]
    data = hub.ModelCardData(
        library_name="imel",
        license=licence,
        pipeline_tag="reinforcement-learning",
        tags=[*([env] if env else []), "deep-reinforcement-learning", "reinforcement-learning"],
        model_name=f"IMeL, {manifest['policy']}",
        eval_results=results,
    )
    text: str = data.to_yaml()
    return text


def interval(returns: list[float]) -> tuple[float, float] | None:
    """The ends of the bootstrap interval of the mean; None of a single episode."""
    if len(returns) < 2:
        return None
    if min(returns) == max(returns):  # of which a bootstrap is undefined
        return returns[0], returns[0]
    drawn = bootstrap(
        (returns,), np.mean, confidence_level=_LEVEL, rng=np.random.default_rng(_SEED)
    )
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


def _results(folder: Path, evaluation: Mapping[str, Any]) -> list[str]:
    parts = []
    if "deterministic" in evaluation:
        played = evaluation["deterministic"]
        ends = interval(played["returns"])
        rows = {
            "mean return": f"{played['mean']:.2f}",
            "95 % interval of the mean": "unknown"
            if ends is None
            else f"{ends[0]:.2f} to {ends[1]:.2f}",
            "deviation between episodes": f"{played['std']:.2f}",
            "worst and best episode": f"{played['min']:.2f}, {played['max']:.2f}",
            "environment steps": f"{evaluation['timesteps']:,}",
        }
        parts.append(
            f"## Results\n\nDeterministic actions, {evaluation['episodes']} episodes (seed "
            f"{evaluation['seed']}). One training run: its interval is over episodes, and says "
            f"nothing of other training seeds.\n\n{_table('', 'return', rows)}"
        )
    pictures = {CURVE: "Return of the training episodes", POLICY: "The policy and its memories"}
    parts += [f"![{text}]({name})" for name, text in pictures.items() if (folder / name).is_file()]
    return parts


def _use(repo_id: str, env: str | None) -> str:
    made = "" if env is None else f', env="{env}"'
    play = "" if env is None else f"\nimel eval runs/{repo_id.rpartition('/')[2]}"
    return f"""\
## Use

```console
pip install 'imel[hub]'
imel pull {repo_id}{play}
```

```python
from imel.hub import load_from_hub

model = load_from_hub("{repo_id}"{made})
action, _ = model.predict(observation, deterministic=True)
print(model.explain(observation))  # what taught this action
```

The model is a safetensors file with a checksum for every tensor. Loading it runs no code."""


def _training(manifest: Mapping[str, Any], env: str | None, config: Mapping[str, Any]) -> str:
    """The settings that are not those of a plain `imel train`."""
    policy_class = loaded_policy(manifest["policy"])
    usual = {} if policy_class is None else policy_class.Settings().as_json()
    settings = {n: v for n, v in manifest["settings"].items() if usual.get(n) != v}
    rows = {
        "environment": env or "unknown",
        "seed": manifest["seed"],
        "environment steps": f"{manifest['progress']['num_timesteps']:,}",
        **{f"`{name}`": f"`{value}`" for name, value in sorted(settings.items())},
    }
    again = (
        f"`{CONFIG}` has all settings; `imel train --config {CONFIG}` trains it again."
        if config
        else "All settings are in the model file."
    )
    table = _table("setting", "value", rows)
    return f"## Training\n\n{table}\n\nWhat is not named has imel's default. {again}"


def _origin(manifest: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    commit = provenance.get("commit")
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        commit = "unknown"
    changed = ", with local changes" if provenance.get("dirty") else ""
    rows = {**manifest["versions"], "commit of imel": f"{commit}{changed}"}
    return f"## Versions\n\n{_table('library', 'version', rows)}"


def _licence(licence: str | None) -> str:
    of_model = (
        "No licence was chosen for this model." if licence is None else f"The model: {licence}."
    )
    return f"## Licence\n\n{of_model} The code, imel: MIT."


def _table(first: str, second: str, rows: Mapping[str, Any]) -> str:
    lines = [f"| {first} | {second} |", "|---|---|"]
    lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    """Return a value as text that ends no cell and holds no markup."""
    text = " ".join(str(value).split())[:200]
    return text.replace("<", "&lt;").replace("|", "&#124;").replace("[", "&#91;")

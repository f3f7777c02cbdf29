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

from imel.checkpoints import Checkpoint
from imel.errors import ImelError
from imel.extras import require
from imel.registry import loaded_policy
from imel.runs import layout
from imel.runs.layout import read_evaluation, read_table

_SEED = 20_200_810
_NAME = re.compile(r"[\w.:/-]{1,200}")
"""What names of environments and policies consist of: nothing that a card takes for its own."""
_PICTURES = {
    layout.CURVE: "Return of the training episodes",
    layout.POLICY: "The policy and its memories",
}
_CARD = """\
---
{metadata}
---

# {policy} on {env}

A policy trained by Improved Memories Learning ([IMeL, arXiv 2008.10433](https://arxiv.org/abs/2008.10433)).
Each of its experiences was annotated with an improved action, and the policy is computed from those
experiences.

{results}## Use

```console
pip install 'imel[hub]'
imel pull {repo_id}{played}
```

```python
from imel.hub import load_from_hub

model = load_from_hub({loaded})
action, _ = model.predict(observation, deterministic=True)
print(model.explain(observation))  # what taught this action
```

The model is a safetensors file with checksums. Loading it runs no code.

## Training

{training}

What is not named has imel's default. `imel train --config config.json` trains it again.

## Versions

{versions}

## Licence

{licence} The code, imel: MIT.
"""


def model_card(folder: Path, repo_id: str, licence: str | None = None) -> str:
    """The card of the run in a folder, as it would be published under a name."""
    manifest = Checkpoint.read(folder / layout.MODEL).document
    config, provenance = (read_table(folder / n) for n in (layout.CONFIG, layout.PROVENANCE))
    evaluation, policy = read_evaluation(folder / layout.EVALUATION), manifest["policy"]
    env = config.get("env") or evaluation.get("env")
    for name in (policy, *([env] if env else [])):
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ImelError(f"{folder} names no policy or environment: {reprlib.repr(name)}")
    known = loaded_policy(policy)
    usual = known.Settings().as_json() if known else {}
    settings = {n: v for n, v in sorted(manifest["settings"].items()) if usual.get(n) != v}
    training = {
        "environment": env or "unknown",
        "seed": manifest["seed"],
        "environment steps": f"{manifest['progress']['num_timesteps']:,}",
        **{f"`{name}`": f"`{value}`" for name, value in settings.items()},
    }
    changed = ", with local changes" if provenance.get("dirty") else ""
    commit = f"{provenance.get('commit', 'unknown')}{changed}"
    return _CARD.format(
        metadata=_metadata(policy, env, evaluation, licence),
        policy=policy,
        env=env or "an unnamed environment",
        results="".join(f"{part}\n\n" for part in _results(folder, evaluation)),
        repo_id=repo_id,
        loaded=f'"{repo_id}"' + (f', env="{env}"' if env else ""),
        played=f"\nimel eval runs/{Path(repo_id).name}" if env else "",
        training=_table("setting", "value", training),
        versions=_table("library", "version", {**manifest["versions"], "commit of imel": commit}),
        licence=f"The model: {licence}." if licence else "No licence was chosen for this model.",
    )


def _metadata(
    policy: str, env: str | None, evaluation: Mapping[str, Any], licence: str | None
) -> str:
    """The card's head in YAML."""
    hub = require("huggingface_hub", "hub")
    results = None
    if env and evaluation:
        played, task = evaluation["deterministic"], "reinforcement-learning"
        returned = f"{played['mean']:.2f} +/- {played['std']:.2f}"
        measure = {"metric_type": "mean_reward", "metric_name": "mean_reward"}
        about = {"task_type": task, "task_name": task, "dataset_type": env, "dataset_name": env}
        results = [hub.EvalResult(**about, **measure, metric_value=returned, verified=False)]
    data = hub.ModelCardData(
        library_name="imel",
        license=licence,
        pipeline_tag="reinforcement-learning",
        tags=[*([env] if env else []), "deep-reinforcement-learning", "reinforcement-learning"],
        model_name=f"IMeL, {policy}",
        eval_results=results,
    )
    return str(data.to_yaml())


def _results(folder: Path, evaluation: Mapping[str, Any]) -> list[str]:
    """The returns with the interval of their mean, and the pictures."""
    parts = []
    if evaluation:
        played = evaluation["deterministic"]
        rows = {
            "mean return": f"{played['mean']:.2f}",
            "95 % interval of the mean": interval(played["returns"]),
            "deviation between episodes": f"{played['std']:.2f}",
            "worst and best episode": f"{played['min']:.2f}, {played['max']:.2f}",
            "environment steps": f"{evaluation['timesteps']:,}",
        }
        parts.append(
            f"## Results\n\nDeterministic actions, {evaluation['episodes']} episodes (seed "
            f"{evaluation['seed']}). One training run: its interval is over episodes, and says "
            f"nothing of other training seeds.\n\n{_table('', 'return', rows)}"
        )
    pictures = (name for name in _PICTURES if (folder / name).is_file())
    return parts + [f"![{_PICTURES[name]}]({name})" for name in pictures]


def interval(returns: list[float]) -> str:
    """The bootstrap interval of the mean, which is undefined for a single value."""
    if min(returns) == max(returns):
        return "unknown"
    drawn = bootstrap((returns,), np.mean, rng=np.random.default_rng(_SEED)).confidence_interval
    return f"{drawn.low:.2f} to {drawn.high:.2f}"


def _table(first: str, second: str, rows: Mapping[str, Any]) -> str:
    lines = [f"| {first} | {second} |", "|---|---|"]
    lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    """Return a value as text that ends no cell and holds no markup."""
    text = " ".join(str(value).split())[:200]
    return text.replace("<", "&lt;").replace("|", "&#124;").replace("[", "&#91;")

"""The model card of a run: what it was trained on, how well it does, how to load it again.

Its head is the metadata that the Hugging Face hub reads; with the `model-index` in it, the hub
shows the return beside the model.
"""

from __future__ import annotations

import re
import reprlib
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

_NAME = re.compile(r"[\w.:/-]{1,200}")
"""What names of environments and policies consist of: nothing that a card takes for its own."""
_PICTURES = {layout.CURVE: "Training returns", layout.POLICY: "The policy and its memories"}
_CARD = """\
---
{metadata}
---

# {policy} on {env}

A policy trained by Improved Memories Learning ([IMeL, arXiv 2008.10433](https://arxiv.org/abs/2008.10433)).
Each of its experiences was annotated with an improved action, and the policy is computed from those
experiences. {licence}

{results}

## Use

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

Trained for {steps:,} environment steps, seed {seed}, with imel's defaults{settings}.
`imel train --config config.json` trains it again.

Versions: {versions}; imel at commit {commit}.
"""


def model_card(folder: Path, repo_id: str, licence: str | None = None) -> str:
    """The card of the run in a folder, as it would be published under a name."""
    manifest = Checkpoint.read(folder / layout.MODEL).document
    evaluation = read_evaluation(folder / layout.EVALUATION)
    env = read_table(folder / layout.CONFIG).get("env") or evaluation.get("env")
    policy, origin = manifest["policy"], read_table(folder / layout.PROVENANCE)
    for name in (policy, *([env] if env else [])):
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ImelError(f"{folder} names no policy or environment: {reprlib.repr(name)}")
    known = loaded_policy(policy)
    usual = known.Settings().as_json() if known else {}
    changed = {n: v for n, v in sorted(manifest["settings"].items()) if usual.get(n) != v}
    pictures = [f"![{_PICTURES[n]}]({n})" for n in _PICTURES if (folder / n).is_file()]
    return _CARD.format(
        metadata=_metadata(policy, env, evaluation, licence),
        policy=policy,
        env=env or "an unnamed environment",
        licence=f"The model's licence: {licence}." if licence else "No licence was chosen for it.",
        results="\n\n".join([*([_results(evaluation)] if evaluation else []), *pictures]),
        repo_id=repo_id,
        played=f"\nimel eval runs/{Path(repo_id).name}" if env else "",
        loaded=f'"{repo_id}"' + (f', env="{env}"' if env else ""),
        steps=manifest["progress"]["num_timesteps"],
        seed=manifest["seed"],
        settings="".join(f", `{_plain(n)}={_plain(v)}`" for n, v in changed.items()),
        versions=", ".join(f"{_plain(n)} {_plain(v)}" for n, v in manifest["versions"].items()),
        commit=_plain(origin.get("commit")) + (", changed" if origin.get("dirty") else ""),
    )


def _metadata(policy: str, env: str | None, evaluation: dict[str, Any], licence: str | None) -> str:
    """The card's head in YAML."""
    hub = require("huggingface_hub", "hub")
    results, task = None, "reinforcement-learning"
    if env and evaluation:
        played = evaluation["deterministic"]
        returned = f"{played['mean']:.2f} +/- {played['std']:.2f}"
        measure = {"metric_type": "mean_reward", "metric_name": "mean_reward"}
        about = {"task_type": task, "task_name": task, "dataset_type": env, "dataset_name": env}
        results = [hub.EvalResult(**about, **measure, metric_value=returned, verified=False)]
    data = hub.ModelCardData(
        library_name="imel",
        license=licence,
        pipeline_tag=task,
        tags=[*([env] if env else []), "deep-reinforcement-learning", task],
        model_name=f"IMeL, {policy}",
        eval_results=results,
    )
    return str(data.to_yaml())


def _results(evaluation: dict[str, Any]) -> str:
    """The returns, and the interval of their mean."""
    played = evaluation["deterministic"]
    return (
        f"Mean return of {evaluation['episodes']} episodes with deterministic actions, after "
        f"{evaluation['timesteps']:,} environment steps: **{played['mean']:.2f}** (95 % interval "
        f"{interval(played['returns'])}; worst {played['min']:.2f}, best {played['max']:.2f}). It "
        "is one training run: the interval is over episodes and says nothing of other seeds."
    )


def interval(returns: list[float]) -> str:
    """The bootstrap interval of the mean, which is unknown where all values are the same."""
    if min(returns) == max(returns):
        return "unknown"
    drawn = bootstrap((returns,), np.mean, rng=np.random.default_rng(0)).confidence_interval
    return f"{drawn.low:.2f} to {drawn.high:.2f}"


def _plain(value: Any) -> str:
    """Return a stranger's value as text of one line without markup."""
    text = " ".join(str(value).split())[:200]
    return text.replace("<", "&lt;").replace("[", "&#91;").replace("`", "'")

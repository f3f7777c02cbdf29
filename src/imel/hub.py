"""Publishing a run with its model card, and getting one back: the Hugging Face hub, or a folder.

run directory -> checked files of known kinds + card -> repository -> the same files -> model

A place that begins with `.`, `/` or `~` is a folder, else a hub's; HF_ENDPOINT names another hub.
The token is the one of `hf auth login` or HF_TOKEN; no message contains it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stable_baselines3.common.type_aliases import GymEnv

from imel.algorithm import IMeL
from imel.checkpoints import read_document
from imel.checkpoints.checkpoint import LARGEST_FILE
from imel.errors import ImelError
from imel.extras import require
from imel.registry import loaded_policy
from imel.runs import layout
from imel.runs.layout import CONFIG, EVALUATION, MODEL, read_evaluation, read_table, write_json
from imel.runs.stored import StoredRun, differences_to, outcome_of

_PICTURES = {layout.CURVE: "Training returns", layout.POLICY: "The policy and its memories"}
_TABLES = (layout.PROVENANCE, layout.PROGRESS, layout.MONITOR)
KNOWN = ("README.md", MODEL, CONFIG, EVALUATION, *_TABLES, *_PICTURES)
"""What is sent and fetched, and holds no code; anything else, a pickle above all, is not."""


def push_to_hub(
    run: str | os.PathLike[str], repo_id: str, *, private: bool = True, licence: str | None = None
) -> str:
    """Publish a run directory with its card, as one commit; where it is now.

    A new repository is private unless said otherwise; one that exists stays as it is.

    :param repo_id: `user/name`, or a folder such as `./shared/name`, which must not exist
    :param licence: the hub's name of a licence for the model, such as `mit`
    """
    run, place = Path(run), _as_folder(repo_id)
    with _new_folder(place) as made:
        _copy(run, made, KNOWN)
        _check(run)
        config = read_table(run / CONFIG)
        if config.get("warm_start"):  # where on this machine a dataset lay is nobody's business
            write_json(made / CONFIG, config | {"warm_start": outcome_of(config)["warm_start"]})
        (made / "README.md").write_text(model_card(run, repo_id, licence))
        if place is not None:
            return str(place)
        with _talking(repo_id) as api:
            url = api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(repo_id=repo_id, folder_path=made, commit_message="A run of imel")
            return str(url)


def pull_from_hub(repo_id: str, run: str | os.PathLike[str], revision: str | None = None) -> None:
    """Get a published run into a new run directory, checked; only what `push_to_hub` publishes."""
    with _new_folder(Path(run)) as made:
        _fetch(repo_id, made, revision, KNOWN)
        _check(made)


def load_from_hub(
    repo_id: str, env: GymEnv | str | None = None, *, revision: str | None = None
) -> IMeL:
    """A published model; from a hub, it is fetched anew each time."""
    with _new_folder(None) as made:
        _fetch(repo_id, made, revision, [MODEL])
        return IMeL.load(made / MODEL, env)


def _as_folder(place: str) -> Path | None:
    return Path(place).expanduser() if place.startswith((".", "/", "~")) else None


@contextlib.contextmanager
def _new_folder(target: Path | None) -> Iterator[Path]:
    """A folder that appears under its name when the block has ended well; of None it never does."""
    if target is not None:
        if target.exists():
            raise ImelError(f"{target} exists already and is not overwritten")
        target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target and target.parent, prefix=".imel-") as scratch:
        made = Path(scratch, "run")
        made.mkdir()
        yield made
        if target is not None:
            made.rename(target)


@contextlib.contextmanager
def _talking(repo_id: str) -> Iterator[Any]:
    """The hub's client; whatever goes wrong with it is said in one line without the token."""
    hub = require("huggingface_hub", "hub")
    try:
        yield hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    except Exception as error:  # a network, a proxy, a server: it may raise anything
        message = str(error) or type(error).__name__
        if token := hub.get_token():
            message = message.replace(token, "***")
        raise ImelError(f"{repo_id}: {_one_line(message)}") from None


def _one_line(text: str) -> str:
    """Return a stranger's text as one line of bounded length, without control characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())[:500]


# --- which files ---


def _fetch(repo_id: str, made: Path, revision: str | None, names: Iterable[str]) -> None:
    """Put the files of one commit that have these names into a folder."""
    source = _as_folder(repo_id)
    if source is not None:
        if revision is not None:
            raise ImelError("a folder has no revisions")
        _copy(source, made, names)
    else:
        with _talking(repo_id) as api:
            info = api.model_info(repo_id, revision=revision, files_metadata=True)
            for file in info.siblings or ():
                if file.rfilename in names:
                    _require_small(Path(file.rfilename), file.size or 0)
            # By the commit, not by the branch: what is fetched belongs together
            places = {"local_dir": made, "cache_dir": made / ".cache"}
            api.snapshot_download(repo_id, revision=info.sha, allow_patterns=[*names], **places)
            shutil.rmtree(made / ".cache")
    if not (made / MODEL).is_file():
        raise ImelError(f"{repo_id} holds no model of imel ({MODEL})")


def _copy(source: Path, made: Path, names: Iterable[str]) -> None:
    """Copy files; refuse links, which may stand for any file of this machine, and sizes."""
    for path in (source / name for name in names):
        if path.is_symlink():
            raise ImelError(f"{path} is a link; only files are published and fetched")
        if path.is_file():
            _require_small(path, path.stat().st_size)
            shutil.copyfile(path, made / path.name)


def _require_small(path: Path, size: int) -> None:
    limit = LARGEST_FILE if path.name == MODEL else 64 << 20
    if size > limit:
        raise ImelError(f"{path} is larger than {limit >> 20} MiB")


def _check(folder: Path) -> None:
    """Refuse a damaged model, that of another run, and tables that are none."""
    stored = StoredRun.of(folder)
    model = stored.own(folder / MODEL)
    if loaded_policy(model.document["policy"]):  # somebody's own cannot be asked
        IMeL.load(model)
    read_evaluation(folder / EVALUATION)
    if found := differences_to(model.document, stored.config):
        raise ImelError(f"{folder / CONFIG} is not that of the model: {'; '.join(found)}")


# --- the card ---

_NAME = re.compile(r"[\w.:/-]{1,200}")
"""What names of environments and policies consist of: nothing that a card takes for its own."""
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
_RESULTS = """\
Mean return of {episodes} episodes with deterministic actions, after {timesteps:,} steps:
**{mean:.2f}** (standard error {error:.2f}; worst {min:.2f}, best {max:.2f}).
The error is over episodes of one training run and says nothing of other seeds."""


def model_card(folder: Path, repo_id: str, licence: str | None = None) -> str:
    """The card of the run in a folder, as it would be published under a name."""
    manifest, origin = read_document(folder / MODEL), read_table(folder / layout.PROVENANCE)
    evaluation = read_evaluation(folder / EVALUATION)
    policy, env = manifest["policy"], StoredRun.of(folder).env or evaluation.get("env")
    for name in (policy, env or "none"):
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ImelError(f"{folder} names its policy or environment by no name")
    shown = [f"![{text}]({name})" for name, text in _PICTURES.items() if (folder / name).is_file()]
    if evaluation:
        played = evaluation["deterministic"]
        error = {"error": played["std"] / len(played["returns"]) ** 0.5}
        shown.insert(0, _RESULTS.format_map(evaluation | played | error))
    known = loaded_policy(policy)
    usual = known.Settings().as_json() if known else {}
    changed = {n: v for n, v in sorted(manifest["settings"].items()) if usual.get(n) != v}
    return _CARD.format(
        metadata=_metadata(policy, env, evaluation, licence),
        policy=policy,
        env=env or "an unnamed environment",
        licence=f"The model's licence: {licence}." if licence else "No licence was chosen for it.",
        results="\n\n".join(shown),
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
    """The card's head in YAML, which the hub reads; with it the hub shows the return."""
    hub, task = require("huggingface_hub", "hub"), "reinforcement-learning"
    about: dict[str, Any] = {"license": licence, "library_name": "imel", "pipeline_tag": task}
    if env and evaluation:
        returned = "{mean:.2f} +/- {std:.2f}".format_map(evaluation["deterministic"])
        about["eval_results"] = [hub.EvalResult(task, env, env, "mean_reward", returned)]
    tags = [*([env] if env else []), "deep-reinforcement-learning", task]
    return str(hub.ModelCardData(model_name=f"IMeL, {policy}", tags=tags, **about).to_yaml())


def _plain(value: Any) -> str:
    """Return a stranger's value as text of one line without markup."""
    return _one_line(str(value)).replace("<", "&lt;").replace("[", "&#91;").replace("`", "'")

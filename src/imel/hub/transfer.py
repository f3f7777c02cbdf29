"""To a repository and back. A place that begins with `.`, `/` or `~` is a folder, else a hub's.

The token is the one of `hf auth login` or HF_TOKEN unless it is given; no message contains it.
HF_ENDPOINT names another hub. Files of known kinds are sent and fetched, none of which holds code;
everything else, a pickle above all, is not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.type_aliases import GymEnv

from imel.algorithm import IMeL
from imel.checkpoints.checkpoint import LARGEST_FILE
from imel.errors import ImelError
from imel.extras import require
from imel.hub.card import model_card
from imel.registry import loaded_policy
from imel.runs import layout
from imel.runs.layout import CONFIG, EVALUATION, MODEL, read_evaluation, read_table, write_json
from imel.runs.stored import StoredRun, differences_to, outcome_of

CARD = "README.md"
PICTURES = (layout.CURVE, layout.POLICY)
KNOWN = (
    *(CARD, MODEL, CONFIG, EVALUATION, layout.PROVENANCE, *PICTURES),
    *(layout.PROGRESS, layout.MONITOR),
)
LARGEST = 64 << 20
"""Bytes of any file but the model's."""


def push_to_hub(
    run: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool = True,
    licence: str | None = None,
    token: str | None = None,
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
        (made / CARD).write_text(model_card(run, repo_id, licence))
        if place is None:
            with _talking(repo_id, token) as api:
                url = api.create_repo(repo_id, private=private, exist_ok=True)
                add = require("huggingface_hub", "hub").CommitOperationAdd
                files = [add(file.name, file) for file in made.iterdir()]
                api.create_commit(repo_id, files, commit_message="A run of imel")
    return str(url if place is None else place)


def pull_from_hub(
    repo_id: str,
    run: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | None = None,
) -> list[str]:
    """Get a published run into a new run directory, checked; the names of files left out.

    Only files of the kinds that `push_to_hub` publishes are fetched.
    """
    with _new_folder(Path(run)) as made:
        present = _fetch(repo_id, made, revision, token, KNOWN)
        _check(made)
    return sorted({printable(name) for name in present} - set(KNOWN))


def load_from_hub(
    repo_id: str,
    env: GymEnv | str | None = None,
    *,
    revision: str | None = None,
    device: torch.device | str = "cpu",
    token: str | None = None,
) -> IMeL:
    """A published model; from a hub, it is fetched anew each time."""
    with _new_folder(None) as made:
        _fetch(repo_id, made, revision, token, [MODEL])
        return IMeL.load(made / MODEL, env, device)


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
def _talking(repo_id: str, token: str | None) -> Iterator[Any]:
    """The hub's client; whatever goes wrong with it is said in one line without the token."""
    hub = require("huggingface_hub", "hub")
    try:
        yield hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    except ImelError:
        raise
    except Exception as error:  # a network, a proxy, a server: it may raise anything
        message = printable(str(error)) or type(error).__name__
        for secret in (token, hub.get_token()):
            message = message.replace(secret, "***") if secret else message
        raise ImelError(f"{repo_id}: {message}") from None


def printable(text: str) -> str:
    """Return a stranger's text as one line of bounded length, without control characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())[:500]


def _fetch(
    repo_id: str, made: Path, revision: str | None, token: str | None, names: Iterable[str]
) -> list[str]:
    """Put the files of one commit that have these names into a folder; list all that there are."""
    source = _as_folder(repo_id)
    if source is not None:
        if revision is not None:
            raise ImelError("a folder has no revisions")
        present = [str(file.relative_to(source)) for file in source.rglob("*") if file.is_file()]
        _copy(source, made, names)
    else:
        with _talking(repo_id, token) as api:
            info = api.model_info(repo_id, revision=revision, files_metadata=True)
            sizes = {str(file.rfilename): file.size or 0 for file in info.siblings or ()}
            present = list(sizes)
            for name in names:
                _require_small(Path(name), sizes.get(name, 0))
            # By the commit, not by the branch: what is fetched belongs together
            places = {"local_dir": made, "cache_dir": made / ".cache"}
            api.snapshot_download(repo_id, revision=info.sha, allow_patterns=[*names], **places)
            shutil.rmtree(made / ".cache")
    if not (made / MODEL).is_file():
        raise ImelError(f"{repo_id} holds no model of imel ({MODEL})")
    return present


# --- which files: those of known kinds, none of which holds code ---


def _copy(source: Path, made: Path, names: Iterable[str]) -> None:
    """Copy files; refuse links, which may stand for any file of this machine, and sizes."""
    for path in (source / name for name in names):
        if path.is_symlink():
            raise ImelError(f"{path} is a link; only files are published and fetched")
        if path.is_file():
            _require_small(path, path.stat().st_size)
            shutil.copyfile(path, made / path.name)


def _require_small(path: Path, size: int) -> None:
    limit = LARGEST_FILE if path.name == MODEL else LARGEST
    if size > limit:
        raise ImelError(f"{path} is larger than {limit >> 20} MiB")


def _check(folder: Path) -> None:
    """Refuse a damaged model, and files that are not what their names say."""
    manifest = StoredRun.of(folder).own(folder / MODEL).document
    if loaded_policy(manifest["policy"]) is not None:  # somebody's own cannot be asked
        IMeL.load(folder / MODEL)
    config, evaluation = read_table(folder / CONFIG), read_evaluation(folder / EVALUATION)
    claimed = {"env": config.get("env"), "timesteps": manifest["progress"]["num_timesteps"]}
    for name, value in claimed.items():
        if evaluation and value is not None and evaluation.get(name) != value:
            raise ImelError(f"{folder / EVALUATION} is not that of the model: another {name}")
    if found := differences_to(manifest, config):
        raise ImelError(f"{folder / CONFIG} is not that of the model: {'; '.join(found)}")
    for path in (folder / name for name in PICTURES):
        if path.is_file() and not path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n"):
            raise ImelError(f"{path} is no PNG file")

"""To a repository and back. A place that begins with `.`, `/` or `~` is a folder, else a hub's.

The token is the one of `hf auth login` or HF_TOKEN unless it is given; no message contains it.
HF_ENDPOINT names another hub. Files of known kinds are sent and fetched, none of which holds code;
everything else, a pickle above all, is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.type_aliases import GymEnv

from imel.algorithm import IMeL
from imel.checkpoints.checkpoint import LARGEST_FILE
from imel.errors import ImelError
from imel.extras import require
from imel.files import write_atomically
from imel.hub.card import model_card
from imel.registry import loaded_policy
from imel.runs.layout import (
    CONFIG,
    CURVE,
    EVALUATION,
    MODEL,
    MONITOR,
    POLICY,
    PROGRESS,
    PROVENANCE,
    read_evaluation,
    read_table,
)
from imel.runs.stored import differences_to_config, outcome_of, read_own

CARD = "README.md"
KNOWN = (
    *(CARD, MODEL, CONFIG, EVALUATION, PROVENANCE, CURVE, POLICY),
    *(PROGRESS, MONITOR),
)
_LARGEST = 64 << 20
"""Bytes of any file but the model's."""
_PNG = b"\x89PNG\r\n\x1a\n"


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
    folder = Path(run)
    files = run_files(folder)
    files[CARD] = model_card(folder, repo_id, licence).encode()
    place = _as_folder(repo_id)
    if place is not None:
        with _new_folder(place) as made:
            for name, content in files.items():
                write_atomically(made / name, content)
        return str(place)
    with _talking(repo_id, token) as api:
        hub = require("huggingface_hub", "hub")
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        additions = [hub.CommitOperationAdd(name, content) for name, content in files.items()]
        api.create_commit(repo_id, additions, commit_message="A run of imel")
        return str(url)


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
    source = _as_folder(repo_id)
    with _new_folder(Path(run)) as made:
        if source is not None:
            present = _names_in(source, revision)
            for name in _wanted(present, repo_id):
                _require_plain(source / name)
                shutil.copyfile(source / name, made / name, follow_symlinks=False)
        else:
            present = _download(repo_id, made, revision, token, KNOWN)
        check_files(made)
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
    source = _as_folder(repo_id)
    if source is not None:
        _wanted(_names_in(source, revision), repo_id)
        _require_plain(source / MODEL)
        return IMeL.load(source / MODEL, env, device)
    # Not by the client's cache: names of files in it are the server's to choose
    with tempfile.TemporaryDirectory(prefix="imel-") as made:
        _download(repo_id, Path(made), revision, token, (MODEL,))
        return IMeL.load(Path(made, MODEL), env, device)


def _download(
    repo_id: str, made: Path, revision: str | None, token: str | None, names: Sequence[str]
) -> list[str]:
    """Fetch files of one commit, none larger than it may be; the names of all that are there."""
    with _talking(repo_id, token) as api, tempfile.TemporaryDirectory(prefix="imel-") as scratch:
        info = api.model_info(repo_id, revision=revision)
        present = [str(file.rfilename) for file in info.siblings or ()]
        for name in _wanted(present, repo_id, names):
            # By the commit, not by the branch: what is fetched belongs together
            path = api.hf_hub_download(
                repo_id, name, revision=info.sha, local_dir=scratch, tqdm_class=_bounded(name)
            )
            _require_plain(Path(path))
            shutil.copyfile(path, made / name)
    return present


def _bounded(name: str) -> type[Any]:
    """Return a progress bar that shows nothing, and refuses more bytes than a file may have."""
    bar: type[Any] = require("huggingface_hub.utils", "hub").tqdm

    class Bounded(bar):  # type: ignore[misc]
        received = 0

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, count: float | None = 1) -> bool | None:
            self.received += int(count or 0)
            if self.received > _limit(name):
                raise ImelError(f"{name} is larger than {_limit(name) >> 20} MiB")
            return None

    return Bounded


def _wanted(present: Sequence[str], repo_id: str, names: Sequence[str] = KNOWN) -> list[str]:
    if MODEL not in present:
        raise ImelError(f"{repo_id} holds no model of imel ({MODEL})")
    return [name for name in names if name in present]


def _names_in(folder: Path, revision: str | None) -> list[str]:
    if revision is not None:
        raise ImelError("a folder has no revisions")
    if not folder.is_dir():
        raise ImelError(f"there is no folder {folder}")
    return [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]


def _as_folder(place: str) -> Path | None:
    return Path(place).expanduser() if place.startswith((".", "/", "~")) else None


@contextlib.contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder that appears under its name when the block has ended well, and not before."""
    if target.exists():
        raise ImelError(f"{target} exists already and is not overwritten")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".imel-") as scratch:
        made = Path(scratch, "run")
        made.mkdir()
        yield made
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
            if secret:
                message = message.replace(secret, "***")
        raise ImelError(f"{repo_id}: {message}") from None


def printable(text: str) -> str:
    """Return a stranger's text as one line of bounded length, without control characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())[:500]


# --- which files: those of known kinds, none of which holds code ---


def run_files(folder: Path) -> dict[str, bytes]:
    """What is published of a run directory beside the card, checked."""
    if not (folder / MODEL).is_file():
        raise ImelError(f"{folder} holds no model ({MODEL})")
    names = [name for name in KNOWN if name != CARD and (folder / name).is_file()]
    for name in names:
        _require_plain(folder / name)
    check_files(folder)
    files = {name: (folder / name).read_bytes() for name in names}
    if CONFIG in files:
        files[CONFIG] = _without_paths(files[CONFIG])
    return files


def _require_plain(path: Path) -> None:
    """Refuse a link, which may stand for any file of this machine, and what fills the memory."""
    if path.is_symlink():
        raise ImelError(f"{path} is a link; only files are published and fetched")
    if path.stat().st_size > _limit(path.name):
        raise ImelError(f"{path} is larger than {_limit(path.name) >> 20} MiB")


def _limit(name: str) -> int:
    """Return the bytes that a file may have."""
    return LARGEST_FILE if name == MODEL else _LARGEST


def check_files(folder: Path) -> None:
    """Refuse a damaged model, and files that are not what their names say."""
    manifest = read_own(folder / MODEL, folder)
    if loaded_policy(manifest["policy"]) is not None:  # somebody's own cannot be asked
        IMeL.load(folder / MODEL)
    config, evaluation = read_table(folder / CONFIG), read_evaluation(folder / EVALUATION)
    claimed = {"env": config.get("env"), "timesteps": manifest["progress"]["num_timesteps"]}
    for name, value in claimed.items():
        if evaluation and value is not None and evaluation.get(name) != value:
            raise ImelError(f"{folder / EVALUATION} is not that of the model: another {name}")
    found = differences_to_config(manifest, config)
    if found:
        raise ImelError(f"{folder / CONFIG} is not that of the model: {'; '.join(found)}")
    for name in (CURVE, POLICY):
        path = folder / name
        if path.is_file() and not path.read_bytes().startswith(_PNG):
            raise ImelError(f"{path} is no PNG file")


def _without_paths(config: bytes) -> bytes:
    """Where on this machine a dataset lay is nobody's business."""
    document = json.loads(config)
    document |= {name: v for name, v in outcome_of(document).items() if name == "warm_start"}
    return (json.dumps(document, indent=2) + "\n").encode()

"""Checkpoints: one safetensors file with a manifest in its metadata. No pickle, ever.

Everything saved is a tensor or plain JSON. The manifest names the format, the schema, the library
versions, the configuration, and the sha256 of every tensor; its own sha256 stands beside it. Files
are written under a temporary name in the same folder, flushed to disk and renamed, so that a name
always holds a whole file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes
from torch import Tensor
from torch.optim import Optimizer

from imel.errors import CheckpointError
from imel.persistence.contents import check_values
from imel.persistence.files import write_atomically

SUFFIX = ".safetensors"
SCHEMA = 3
"""Counts the changes after which files of before can no longer be read."""
_LARGEST_FILE, _LONGEST_MANIFEST = 8 << 30, 16 << 20
"""Bytes of a file and characters of a manifest that are read at all."""
_UNBUILDABLE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What making a model of absurd values may raise."""
_LIBRARIES = ("imel", "torch", "numpy", "gymnasium", "stable_baselines3", "mujoco")


def path_for(path: str | os.PathLike[str]) -> Path:
    """Return the file of a name: `.safetensors` is added, or replaces a `.zip`."""
    path = Path(path)
    if path.suffix == ".zip":
        return path.with_suffix(SUFFIX)
    return path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], document: Mapping[str, Any]
) -> Path:
    """Write tensors and a JSON document atomically; return the path with its suffix.

    What no reader would accept, a NaN above all, is refused here.
    """
    target = path_for(path)
    check_values(tensors, f"{target} is not written")
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    manifest = json.dumps(
        {
            "format": "imel",
            "schema": SCHEMA,
            "versions": library_versions(),
            "circumstances": circumstances(),
            "sha256": {name: _digest(tensor) for name, tensor in plain.items()},
            **document,
        },
        sort_keys=True,
    )
    metadata = {"manifest": manifest, "manifest_sha256": _sha256(manifest.encode())}
    write_atomically(target, safetensors_bytes(plain, metadata))
    return target


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the manifest of a checkpoint; refuse anything else."""
    # What `write` would have made of this name goes before the name itself
    source = next((file for file in (path_for(path), Path(path)) if file.is_file()), None)
    if source is None:
        raise CheckpointError(f"no such checkpoint: {path_for(path)}")
    if source.stat().st_size > _LARGEST_FILE:
        raise CheckpointError(f"{source} is larger than {_LARGEST_FILE >> 30} GiB")
    try:
        with safe_open(source, framework="pt") as file:
            manifest = _manifest(source, file.metadata() or {})
            if set(manifest["sha256"]) != set(file.keys()):
                raise CheckpointError(f"{source} is damaged: its manifest names other tensors")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{source} is not an imel checkpoint, or is damaged: {error}"
        ) from None
    expected = manifest["sha256"]
    for name, tensor in tensors.items():
        if _digest(tensor) != expected[name]:
            raise CheckpointError(f"{source} is damaged: checksum of '{name}' differs")
    return tensors, manifest


def _manifest(source: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get("manifest")
    if text is None:
        raise CheckpointError(f"{source} is a safetensors file, but no imel checkpoint")
    if len(text) > _LONGEST_MANIFEST:
        raise CheckpointError(f"{source} has a manifest of {len(text)} characters")
    if _sha256(text.encode()) != metadata.get("manifest_sha256"):
        raise CheckpointError(f"{source} is damaged: checksum of the manifest differs")
    try:
        manifest: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError):  # also numbers of many digits, and nesting without end
        raise CheckpointError(f"{source} has a manifest that is no JSON") from None
    required: dict[str, type] = {
        **dict.fromkeys(("format", "kind", "policy"), str),
        **dict.fromkeys(("sha256", "versions", "circumstances", "policy_arguments"), dict),
    }
    require_entries(manifest, required, source)
    schema = manifest.get("schema")
    if manifest["format"] != "imel" or schema != SCHEMA:
        if schema in range(1, SCHEMA):
            raise CheckpointError(
                f"{source} was made by an earlier version of imel (checkpoint schema {schema}), "
                "whose policies and settings no longer exist as they were; train the model again"
            )
        raise CheckpointError(f"{source} has schema {schema}; this version reads {SCHEMA}")
    return manifest


def require_entries(
    document: Any, required: Mapping[str, type | tuple[type, ...]], source: str | os.PathLike[str]
) -> None:
    """Refuse a document that lacks an entry, or has one of another type."""
    if not isinstance(document, dict):
        raise CheckpointError(f"{source} has a manifest that is no table")
    for name, kind in required.items():
        if name not in document or not isinstance(document[name], kind):
            raise CheckpointError(f"{source} has a manifest without a valid '{name}'")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(tensor: Tensor) -> str:
    header = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    raw = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0)
    return _sha256(header + raw.numpy().tobytes())


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the versions of the libraries in use."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def circumstances() -> dict[str, Any]:
    """Return what else decides the last bits of a sum: threads, the processor's instructions."""
    return {"threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability()}


# --- what is saved, as flat names ---


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put `prefix/` before the names of tensors."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that `prefixed` put under a prefix."""
    start = f"{prefix}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


@contextlib.contextmanager
def building(path: str | os.PathLike[str]) -> Iterator[None]:
    """Refuse a file whose description of a model cannot be built inside this block."""
    try:
        yield
    except CheckpointError:
        raise
    except _UNBUILDABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{path} describes no model that can be built: {reason}") from None


def optimizer_to_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return Adam's moments and step counts by parameter number."""
    state = optimizer.state_dict()["state"]
    return {f"{i}/{key}": value for i, entry in state.items() for key, value in entry.items()}


def adam_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return tensors with the names, shapes and types of Adam's state after a step."""
    state: dict[str, Tensor] = {}
    for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
        state |= {
            f"{i}/step": torch.zeros(()),
            f"{i}/exp_avg": parameter,
            f"{i}/exp_avg_sq": parameter,
        }
    return state


def load_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load what `optimizer_to_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split("/")
        state.setdefault(int(number), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})

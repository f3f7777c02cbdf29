"""Checkpoints: one safetensors file with a manifest in its metadata. No pickle, ever.

Everything saved is a tensor or plain JSON. The manifest names the format, the schema, the library
versions, the configuration, and a sha256 of all tensors; its own sha256 stands beside it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.numpy
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from imel.checkpoints.contents import check_values, under
from imel.errors import CheckpointError, one_line
from imel.files import write_atomically

Contents = tuple[Mapping[str, Tensor], Mapping[str, Any]]
"""The tensors of a file, and its JSON document."""
SUFFIX = ".safetensors"
SCHEMA = 1
"""Counts the changes after which older files can no longer be read."""
LARGEST_FILE, _LONGEST_MANIFEST = 8 << 30, 16 << 20
"""Bytes of a file and characters of a manifest that are read at all."""
_LIBRARIES = ("imel", "torch", "numpy", "gymnasium", "stable_baselines3", "mujoco")


@dataclass(frozen=True)
class Checkpoint:
    """A file that has been read and verified: what a command hands on instead of a path."""

    path: Path
    tensors: Mapping[str, Tensor]
    document: Mapping[str, Any]

    @classmethod
    def read(cls, source: Source) -> Checkpoint:
        """Read a file and verify it; refuse anything else. A checkpoint is returned as it is."""
        if isinstance(source, Checkpoint):
            return source
        with _opened(source) as (path, file):
            manifest = _manifest(path, file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _digest(tensors) != manifest.pop("tensors_sha256"):
            raise CheckpointError(f"{path} is damaged: checksum of its tensors differs")
        return cls(path, tensors, manifest)

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with `prefix/`, without it."""
        return under(prefix, self.tensors)


Source = str | os.PathLike[str] | Checkpoint
"""A file's name, or what has been read of it."""


def read_document(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a file's manifest says, without its tensors."""
    with _opened(source) as (path, file):
        return _manifest(path, file.metadata() or {})


def path_for(path: str | os.PathLike[str]) -> Path:
    """Return the file of a name: `.safetensors` is added, or replaces a `.zip`."""
    path = Path(path)
    if path.suffix == ".zip":
        return path.with_suffix(SUFFIX)
    return path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], document: Mapping[str, Any]
) -> Path:
    """Write tensors and a JSON document atomically; return the path with its suffix."""
    return prepare(path, tensors, document)()


def prepare(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], document: Mapping[str, Any]
) -> Callable[[], Path]:
    """Check and copy what a file is to hold; return the function that writes it.

    What no reader would accept, a NaN above all, is refused here. The function may run in another
    thread while the model learns on.
    """
    target = path_for(path)
    check_values(tensors, f"{target} is not written")
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    whole = {"format": "imel", "schema": SCHEMA, "versions": library_versions()}
    whole |= {"circumstances": circumstances(), **document}

    def write_it() -> Path:
        manifest = json.dumps({**whole, "tensors_sha256": _digest(copies)}, sort_keys=True)
        metadata = {"manifest": manifest, "manifest_sha256": _sha256(manifest.encode())}
        # Not the writer for torch, which keeps a ctypes type for each size that it ever met
        arrays = {name: tensor.numpy() for name, tensor in copies.items()}
        write_atomically(target, safetensors.numpy.save(arrays, metadata))
        return target

    return write_it


@contextlib.contextmanager
def _opened(source: str | os.PathLike[str]) -> Iterator[tuple[Path, Any]]:
    # What `write` would have made of this name goes before the name itself
    path = next((p for p in (path_for(source), Path(source)) if p.is_file()), None)
    if path is None:
        raise CheckpointError(f"no such checkpoint: {path_for(source)}")
    if path.stat().st_size > LARGEST_FILE:
        raise CheckpointError(f"{path} is larger than {LARGEST_FILE >> 30} GiB")
    try:
        with safe_open(path, framework="pt") as file:
            yield path, file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not an imel checkpoint, or is damaged: {error}") from None


def _manifest(source: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get("manifest", "")
    if not 0 < len(text) <= _LONGEST_MANIFEST:
        raise CheckpointError(f"{source} is a safetensors file, but no imel checkpoint")
    if _sha256(text.encode()) != metadata.get("manifest_sha256"):
        raise CheckpointError(f"{source} is damaged: checksum of the manifest differs")
    manifest: Any = None
    with contextlib.suppress(ValueError, RecursionError):  # many digits, nesting without end
        manifest = json.loads(text)
    required: dict[str, type] = dict.fromkeys(("format", "kind", "policy", "tensors_sha256"), str)
    required |= dict.fromkeys(("versions", "circumstances", "settings"), dict)
    require_entries(manifest, required, source)
    schema = manifest.get("schema")
    if manifest["format"] != "imel" or schema != SCHEMA:
        raise CheckpointError(f"{source} has schema {schema}; this version reads {SCHEMA}")
    return dict(manifest)


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


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat: Any = tensor.view(-1).view(torch.uint8).numpy()  # the bytes, without copying them
        digest.update(flat)
    return digest.hexdigest()


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the versions of the libraries in use."""
    versions = {"python": platform.python_version(), **dict.fromkeys(_LIBRARIES, "absent")}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def circumstances() -> dict[str, Any]:
    """Return what else decides the last bits of a sum: threads, the processor's instructions."""
    return {"threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability()}


@contextlib.contextmanager
def building(path: str | os.PathLike[str]) -> Iterator[None]:
    """Refuse a file whose description of a model cannot be built inside this block."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # whatever an invalid configuration leads to
        reason = one_line(error)
        raise CheckpointError(f"{path} describes no model that can be built: {reason}") from None

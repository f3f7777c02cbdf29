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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from imel.checkpoints.contents import check_values
from imel.errors import CheckpointError
from imel.files import write_atomically

Contents = tuple[Mapping[str, Tensor], Mapping[str, Any]]
"""The tensors of a file, and its JSON document."""
_Copy = tuple[torch.dtype, tuple[int, ...], bytes]
SUFFIX = ".safetensors"
SCHEMA = 3
"""Counts the changes after which files of before can no longer be read."""
LARGEST_FILE, _LONGEST_MANIFEST = 8 << 30, 16 << 20
"""Bytes of a file and characters of a manifest that are read at all."""
_UNBUILDABLE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What making a model of absurd values may raise."""
_TYPES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8"},
    **{torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8"},
    torch.bool: "BOOL",
}
"""What safetensors calls the types of numbers."""
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
    copies: dict[str, _Copy] = {}
    for name, tensor in tensors.items():
        raw = bytes(_raw(tensor.detach().cpu().contiguous()))
        copies[name] = tensor.dtype, tuple(tensor.shape), raw
    whole = {
        "format": "imel",
        "schema": SCHEMA,
        "versions": library_versions(),
        "circumstances": circumstances(),
        **document,
    }

    def write_it() -> Path:
        write_atomically(target, *_parts(copies, whole))
        return target

    return write_it


def _parts(copies: Mapping[str, _Copy], document: Mapping[str, Any]) -> list[bytes]:
    """Return a safetensors file: its header, and the bytes of its tensors as they are.

    The package's own writers copy those bytes twice, or leave traces when killed; the one for torch
    also keeps a ctypes type for each size that it ever met.
    """
    sums = {name: _checksum(*copy) for name, copy in copies.items()}
    manifest = json.dumps({**document, "sha256": sums}, sort_keys=True)
    metadata = {"manifest": manifest, "manifest_sha256": _sha256(manifest.encode())}
    header: dict[str, Any] = {"__metadata__": metadata}
    # By size of element, so that each tensor begins at a multiple of its own
    ordered = sorted(copies.items(), key=lambda item: -item[1][0].itemsize)
    place = 0
    for name, (dtype, shape, raw) in ordered:
        end = place + len(raw)
        header[name] = {"dtype": _TYPES[dtype], "shape": shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(raw for _, (_, _, raw) in ordered)]


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the manifest of a checkpoint; refuse anything else."""
    # What `write` would have made of this name goes before the name itself
    source = next((file for file in (path_for(path), Path(path)) if file.is_file()), None)
    if source is None:
        raise CheckpointError(f"no such checkpoint: {path_for(path)}")
    if source.stat().st_size > LARGEST_FILE:
        raise CheckpointError(f"{source} is larger than {LARGEST_FILE >> 30} GiB")
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
    return _checksum(tensor.dtype, tuple(tensor.shape), _raw(tensor))


def _checksum(dtype: torch.dtype, shape: tuple[int, ...], raw: bytes | memoryview) -> str:
    digest = hashlib.sha256(f"{dtype}{shape}".encode())
    digest.update(raw)
    return digest.hexdigest()


def _raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor, without copying them."""
    flat: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(flat)


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

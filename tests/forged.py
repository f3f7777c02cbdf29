"""Taking checkpoints apart and putting them together again, with checksums that fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from imel.checkpoints import checkpoint


def taken_apart(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The manifest and the tensors of a file."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["manifest"]), tensors


def put_together(
    path: Path, manifest: str, tensors: Mapping[str, Tensor], digest: str | None = None
) -> None:
    """A file whose manifest has a checksum that fits; those of tensors are the manifest's."""
    digest = digest or hashlib.sha256(manifest.encode()).hexdigest()
    metadata = {"manifest": manifest, "manifest_sha256": digest}
    path.write_bytes(safetensors_bytes(dict(tensors), metadata))


def forge(path: Path, manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """A file in which every checksum fits, whatever it holds."""
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    document = {**manifest, "tensors_sha256": checkpoint._digest(plain)}
    put_together(path, json.dumps(document), plain)

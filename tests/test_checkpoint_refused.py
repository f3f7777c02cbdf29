"""What is no whole checkpoint of ours is refused in one line: never executed, never half used."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as safetensors_bytes

import imel
from forged import forge, put_together, taken_apart
from imel import IMeL, MkiPolicy
from imel.errors import CheckpointError
from imel.policies import Policy
from small import BATCH, differing, read_checkpoint, small_model, tensors_of
from toy import ScriptedEnv

Loader = Callable[[str], Any]
LOADERS: dict[str, Loader] = {
    "IMeL.load": IMeL.load,
    "set_parameters": lambda path: small_model("MkiPolicy").set_parameters(path),
    "MkiPolicy.load": MkiPolicy.load,
    "Policy.load": Policy.load,
}
every_loader = pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS.keys())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model's file, not to be changed."""
    path = tmp_path_factory.mktemp("whole") / "model"
    options = {"features": 2, "hidden": (4,)}
    small_model("MkiPolicy", policy_kwargs=options, critic_hidden=(4,)).learn(BATCH).save(path)
    return path.with_suffix(".safetensors")


class Canary:
    """Unpickling this makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.folder,)


@every_loader
@pytest.mark.parametrize("name", ["model.zip", "model.safetensors", "model.pkl"])
def test_a_pickle_is_refused_and_not_executed(load: Loader, name: str, tmp_path: Path) -> None:
    folder, path = tmp_path / "canary", tmp_path / name
    path.write_bytes(pickle.dumps(Canary(folder)))
    with pytest.raises(CheckpointError):
        load(str(path))
    torch.save({"policy": Canary(folder)}, path)
    with pytest.raises(CheckpointError):
        load(str(path))

    assert not folder.exists()
    torch.load(io.BytesIO(path.read_bytes()), weights_only=False)
    assert folder.exists(), "the canary must be alive for this test to mean anything"


def test_the_source_has_no_way_to_a_pickle() -> None:
    ways = re.compile(
        r"^\s*(import|from) (pickle|cloudpickle|dill|joblib|marshal|shelve)\b"
        r"|\b(torch|th)\.(load|save)\b|from torch import .*\b(load|save)\b"
        r"|(load_from|save_to)_(zip_file|pkl)|allow_pickle(?!=False)",
        re.MULTILINE,
    )
    assert ways.search("    import pickle")
    assert ways.search("x = torch.load(path)")
    sources = {path.name: path.read_text() for path in Path(imel.__file__).parent.rglob("*.py")}
    assert [name for name, text in sources.items() if ways.search(text)] == []


def test_one_wrong_byte_anywhere_is_noticed(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    expected, _ = read_checkpoint(whole)
    header = 8 + int.from_bytes(content[:8], "little")
    draw = random.Random(0)
    places = [*range(8), *draw.sample(range(8, header), 120)]
    places += draw.sample(range(header, len(content)), 120)
    refused = 0
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= draw.randrange(1, 256)
        (tmp_path / "model.safetensors").write_bytes(damaged)
        try:
            tensors, _ = read_checkpoint(tmp_path / "model")
        except CheckpointError:
            refused += 1
        else:  # a byte that carries nothing, such as a space of the header
            assert differing(expected, tensors) == []
    assert refused >= 0.9 * len(places)


def cut_at(part: float) -> Callable[[Path, Path], None]:
    """Keep a part of the file."""

    def spoil(whole: Path, path: Path) -> None:
        content = whole.read_bytes()
        path.write_bytes(content[: int(part * len(content))])

    return spoil


def foreign(metadata: dict[str, str] | None) -> Callable[[Path, Path], None]:
    """Write a file of another program."""

    def spoil(_: Path, path: Path) -> None:
        path.write_bytes(safetensors_bytes({"weight": torch.zeros(3)}, metadata))

    return spoil


def manifest_with(changes: dict[str, Any], fitting: bool) -> Callable[[Path, Path], None]:
    """Change a manifest, whose checksum fits or is still the old one."""

    def spoil(whole: Path, path: Path) -> None:
        manifest, tensors = taken_apart(whole)
        text = json.dumps({**manifest, **changes})
        digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
        put_together(path, text, tensors, None if fitting else digest)

    return spoil


@every_loader
@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        *((cut_at(part), "damaged") for part in (0.0, 0.0001, 0.1, 0.5, 0.999)),
        *((foreign(metadata), "no imel checkpoint") for metadata in (None, {"format": "pt"})),
        (manifest_with({"settings": {"kl_budget": 1e6}}, False), "manifest differs"),
        (manifest_with({"schema": 99}, True), "schema 99; this version reads 1"),
        (lambda *_: None, r"no such checkpoint: .*model\.safetensors"),
    ],
)
def test_what_is_no_whole_file_of_ours_is_refused(
    load: Loader, spoil: Callable[[Path, Path], None], complaint: str, whole: Path, tmp_path: Path
) -> None:
    spoil(whole, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=complaint):
        load(str(tmp_path / "model"))


@pytest.mark.parametrize("manifest", ["{", "[]", "3", "{}", '{"format": "imel", "schema": 1}'])
def test_a_manifest_that_is_none_is_refused(manifest: str, tmp_path: Path) -> None:
    put_together(tmp_path / "model.safetensors", manifest, {})
    for load in LOADERS.values():
        with pytest.raises(CheckpointError):
            load(str(tmp_path / "model"))


@pytest.mark.parametrize(
    "name",
    [
        *("kind", "policy", "settings", "progress", "tensors_sha256"),
        *("spaces/action/low", "generators/policy", "policy/memory.steps"),
        "interpolator_optimizer/0/exp_avg",
    ],
)
def test_a_file_that_lacks_an_entry_or_a_tensor_is_refused(
    name: str, whole: Path, tmp_path: Path
) -> None:
    manifest, tensors = taken_apart(whole)
    if "/" in name:
        del tensors[name]
        forge(tmp_path / "model.safetensors", manifest, tensors)
    else:
        del manifest[name]
        put_together(tmp_path / "model.safetensors", json.dumps(manifest), tensors)
    with pytest.raises(CheckpointError):
        IMeL.load(tmp_path / "model")


@pytest.mark.parametrize("other", ["shapes", "policy", "interpolator"])
def test_refused_parameters_leave_the_model_as_it_was(other: str, tmp_path: Path) -> None:
    path = str(tmp_path / "other")
    if other == "shapes":
        small_model(env=ScriptedEnv(), critic_hidden=(4,)).learn(BATCH).save(path)
    elif other == "policy":
        small_model(seed=1).learn(BATCH).policy.save(path)
    else:
        small_model("NearestPolicy").learn(BATCH).save(path)
    model = small_model().learn(BATCH)
    before = tensors_of(model)

    with pytest.raises(CheckpointError) as refusal:
        model.set_parameters(path)

    assert "\n" not in str(refusal.value)
    assert differing(before, tensors_of(model)) == []


def test_a_policy_is_no_model(tmp_path: Path) -> None:
    small_model().policy.save(str(tmp_path / "policy"))

    with pytest.raises(CheckpointError, match="holds a policy, not a whole model") as refusal:
        IMeL.load(tmp_path / "policy")
    assert "\n" not in str(refusal.value)

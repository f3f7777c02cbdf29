"""Rows 25 to 27, 30 and 31: files that are well-formed, with checksums that fit, and mean harm."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import driver
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from harness import CONTEXT
from torch import Tensor

from forged import forge, taken_apart
from imel import IMeL
from imel.checkpoints.run_checkpoints import RunCheckpoints, checkpoints_in
from imel.cli.main import main
from imel.datasets import read_dataset
from imel.errors import ImelError
from imel.hub import load_from_hub, pull_from_hub, push_to_hub
from imel.policies import Policy
from small import BATCH, small_model

ROOM = 2**29
ENV = "Pendulum-v1"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run's checkpoint of each family, environments included; not to be changed."""
    found = []
    for policy, options in (
        ("RidgePolicy", {"features": 4}),
        ("MkiPolicy", {"features": 2, "hidden": (4,)}),
    ):
        folder = tmp_path_factory.mktemp(policy)
        model = small_model(policy, ENV, policy_kwargs=options, critic_hidden=(4,), n_envs=2)
        model.learn(2 * BATCH, RunCheckpoints(folder, every=1))
        found += checkpoints_in(folder)
    return found


# --- row 26, and the fuzz ---

Table = dict[str, Any]
Tensors = dict[str, Tensor]
NUMBERS = [float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e300, -1.0, 0.0, 1e-45, 2.0**40]
VALUES: list[Any] = [
    *(None, True, "", "x", [], {}, [1], {"a": 1}, -1, 0, 1, 2**40, 2**70, 10**400, 1.5, -0.5),
    *(float("nan"), float("inf"), "\x00", "../../etc/passwd", "9" * 5000, [[]] * 50, 2**31, 2**62),
]
TYPES = [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool]
TYPES += [torch.complex64, torch.float8_e4m3fn]


def spoil_value(draw: random.Random, _: Table, tensors: Tensors) -> None:
    tensor = tensors[draw.choice(sorted(tensors))]
    if tensor.numel() and tensor.dtype != torch.uint8:
        value = draw.choice(NUMBERS)
        flat = tensor.view(-1)
        if not tensor.is_floating_point():
            value = draw.choice([-(2**63), -1, 2**31, 2**40, 2**63 - 1, 0])
        flat[draw.randrange(flat.numel())] = torch.tensor(value).to(tensor.dtype)


def spoil_all_values(draw: random.Random, _: Table, tensors: Tensors) -> None:
    tensor = tensors[draw.choice(sorted(tensors))]
    if tensor.is_floating_point():
        tensor.fill_(torch.tensor(draw.choice(NUMBERS)).to(tensor.dtype))
    else:
        tensor.fill_(draw.choice([0, 1, 127] if tensor.dtype == torch.uint8 else [-1, 0, 2**40]))


def spoil_type(draw: random.Random, _: Table, tensors: Tensors) -> None:
    name = draw.choice(sorted(tensors))
    tensors[name] = tensors[name].to(draw.choice(TYPES))


def spoil_shape(draw: random.Random, _: Table, tensors: Tensors) -> None:
    name = draw.choice(sorted(tensors))
    tensor = tensors[name]
    shapes: list[Callable[[], Tensor]] = [
        lambda: tensor.reshape(-1)[:0],
        lambda: tensor[None],
        lambda: torch.cat([tensor.reshape(-1)] * 2),
        lambda: tensor.reshape(-1)[:1].reshape(()) if tensor.numel() else tensor[None],
    ]
    tensors[name] = draw.choice(shapes)().clone()


def swap_names(draw: random.Random, _: Table, tensors: Tensors) -> None:
    one, other = draw.sample(sorted(tensors), 2)
    tensors[one], tensors[other] = tensors[other], tensors[one]


def lose_or_add(draw: random.Random, _: Table, tensors: Tensors) -> None:
    name = draw.choice(sorted(tensors))
    if draw.random() < 0.5:
        del tensors[name]
    else:
        tensors[name + draw.choice(("x", "/0", ".y"))] = torch.zeros(3)


def spoil_entry(draw: random.Random, manifest: Table, _: Tensors) -> None:
    table: Any = manifest
    while True:
        key = draw.choice(sorted(table)) if isinstance(table, dict) else draw.randrange(len(table))
        if isinstance(table[key], dict | list) and table[key] and draw.random() < 0.8:
            table = table[key]
            continue
        break
    if isinstance(table, dict) and draw.random() < 0.2:
        del table[key]
    elif isinstance(table, dict) and draw.random() < 0.2:
        table[draw.choice(("sampler", "env", "device", "policy", "x", "_init_setup_model"))] = 1
    else:
        table[key] = draw.choice(VALUES)


SPOILERS = (
    *(spoil_value, spoil_all_values, spoil_type, spoil_shape, swap_names, lose_or_add),
    *(spoil_entry,) * 5,
)


def parameters_into_another(path: Path) -> IMeL:
    model = small_model(env=ENV, policy_kwargs={"features": 4}, critic_hidden=(4,), n_envs=2)
    model.set_parameters(str(path))
    return model


LOADERS: dict[str, Callable[[Path], Any]] = {
    "IMeL.load": IMeL.load,
    "IMeL.resume": lambda path: IMeL.resume(path, ENV),
    "Policy.load": lambda path: Policy.load(str(path)),
    "set_parameters": parameters_into_another,
}


def outcome(load: Callable[[Path], Any], path: Path) -> str:
    """Whether a file is refused in one line that names it, or gives something sound."""
    try:
        loaded = load(path)
    except ImelError as refusal:
        text = str(refusal)
        assert "\n" not in text, text
        assert str(path) in text, text
        return "refused"
    policy = getattr(loaded, "policy", loaded)
    assert len(policy.memory) <= policy.memory.capacity
    states = np.random.default_rng(0).normal(size=(16, policy.state_dim), scale=3.0)
    for deterministic in (True, False):
        actions, _ = loaded.predict(states.astype(np.float32), deterministic=deterministic)
        assert np.isfinite(actions).all()
    return "sound"


def fuzz(files: list[Path], folder: Path, count: int, seed: int) -> Counter[str]:
    """Offer well-formed hostile files to every loader; any exception of another kind fails."""
    draw = random.Random(seed)
    originals = [taken_apart(file) for file in files]
    names = list(LOADERS)
    counts: Counter[str] = Counter()
    for number in range(count):
        manifest, tensors = copy.deepcopy(originals[number % len(originals)])
        for _ in range(draw.choice((1, 1, 2))):
            draw.choice(SPOILERS)(draw, manifest, tensors)
        path = folder / "iteration-00000001.safetensors"
        forge(path, manifest, tensors)
        name = names[number // len(originals) % len(names)]
        counts[outcome(LOADERS[name], path)] += 1
    return counts


def test_fault_26_well_formed_hostile_files_are_refused_in_one_line_or_sound(
    files: list[Path], tmp_path: Path
) -> None:
    counts = fuzz(files, tmp_path, 150, seed=0)
    assert counts["refused"] > 90


@pytest.mark.slow
def test_fault_26_a_thousand_well_formed_hostile_files(files: list[Path], tmp_path: Path) -> None:
    counts = fuzz(files, tmp_path, 1200, seed=1)
    print(f"\nwell-formed hostile files: {dict(counts)}")
    assert counts["refused"] > 720


HOSTILE: dict[str, Callable[[Tensors], object]] = {
    "NaN in improved means": lambda t: t["policy/memory.improved_means"][0].fill_(float("nan")),
    "infinite sigma": lambda t: t["policy/std"].fill_(float("inf")),
    "sigma of zero": lambda t: t["policy/std"].fill_(0.0),
    "NaN in the normaliser": lambda t: t["policy/normaliser.centre"].fill_(float("nan")),
    "a scale of zero": lambda t: t["policy/normaliser.scale"].fill_(0.0),
    "negative variance": lambda t: t["policy/normaliser.variance"].fill_(-1.0),
    "negative second moments": lambda t: t["critic_optimizer/0/exp_avg_sq"].fill_(-1.0),
    "an invalid random state": lambda t: t["generators/algorithm"].fill_(255),
    "bounds the wrong way round": lambda t: t["spaces/action/low"].fill_(9.0),
    "bounds that are NaN": lambda t: t["spaces/observation/high"].fill_(float("nan")),
    "infinite action bounds": lambda t: t["spaces/action/high"].fill_(float("inf")),
    "bounds of an odd type": lambda t: t.update(
        {n: t[n].to(torch.bfloat16) for n in t if n.startswith("spaces/")}
    ),
    "weights that overflow": lambda t: t["critic/network.0.weight"].fill_(3e38),
}


@pytest.mark.parametrize("spoil", HOSTILE.values(), ids=HOSTILE.keys())
def test_fault_26_a_value_that_cannot_be_is_refused_by_every_loader(
    spoil: Callable[[Tensors], object], files: list[Path], tmp_path: Path
) -> None:
    manifest, tensors = taken_apart(files[1])
    spoil(tensors)
    path = tmp_path / "iteration-00000001.safetensors"
    forge(path, manifest, tensors)
    for name in ("IMeL.load", "IMeL.resume"):
        assert outcome(LOADERS[name], path) == "refused"


def test_fault_26_what_no_reader_would_accept_is_not_written(tmp_path: Path) -> None:
    model = small_model().learn(BATCH)
    model.policy.normaliser.centre[0] = float("nan")
    with pytest.raises(ImelError, match=r"is not written: 'policy/normaliser\.centre' has values"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


# --- row 25 ---


def claimed_sizes() -> dict[str, Callable[[Table, Tensors], object]]:
    def size(value: int) -> Callable[[Table, Tensors], object]:
        return lambda _, tensors: tensors["policy/memory._size"].fill_(value)

    def entry(name: str, value: Any) -> Callable[[Table, Tensors], object]:
        return lambda manifest, _: manifest.update({name: value})

    def setting(name: str, value: Any) -> Callable[[Table, Tensors], object]:
        return lambda manifest, _: manifest["settings"].update({name: value})

    return {
        "memory of 2**40 rows in use": size(2**40),
        "memory of -1 rows in use": size(-1),
        "2**30 environments": entry("n_envs", 2**30),
        "memory_size 2**40": setting("memory_size", 2**40),
        "layers of 2**31": setting("critic_hidden", [2**31, 2**31]),
        "features 2**40": setting("features", 2**40),
        "episodes of 2**40 steps": lambda _, tensors: tensors["environments/lengths"].fill_(2**40),
    }


def test_fault_25_sizes_that_are_claimed_take_no_memory(files: list[Path], tmp_path: Path) -> None:
    paths = []
    for number, spoil in enumerate(claimed_sizes().values()):
        manifest, tensors = taken_apart(files[0])
        spoil(manifest, tensors)
        paths.append(tmp_path / f"{number}.safetensors")
        forge(paths[-1], manifest, tensors)
    process = CONTEXT.Process(
        target=driver.load_within, args=(ROOM, [*paths, files[0]], tmp_path / "outcomes.txt")
    )
    process.start()
    process.join(120)
    process.kill()
    *outcomes, honest = (tmp_path / "outcomes.txt").read_text().splitlines()
    assert honest == "loaded", "there must be room for an honest file"
    for path, found in zip(paths, outcomes, strict=True):
        assert found.startswith(f"refused: {path}"), found


# --- row 27 ---


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"seed": ' + "9" * 5000 + "}", "\x00", '{"env": ["x"]}', "[]", '"x"'],
    ids=["200,000 brackets", "5,000 digits", "zero byte", "a list for a name", "a list", "a text"],
)
@pytest.mark.parametrize("argv", [("train", "--config"), ("resume",), ("eval",), ("explore",)])
def test_fault_27_a_config_made_to_break_its_reader_is_refused_in_one_line(
    argv: tuple[str, ...],
    text: str,
    files: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text(text)
    shutil.copy(files[0], tmp_path / "model.safetensors")
    place = tmp_path / "config.json" if "--config" in argv else tmp_path
    flags = ["--no-browser"] if argv == ("explore",) else []
    assert main([*argv, str(place), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("imel: error: ")


# --- row 30, and what is published ---


@pytest.fixture
def run(files: list[Path], tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    IMeL.load(files[0]).save(folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", ["config.json", "monitor.csv", "model.safetensors"])
def test_fault_30_a_link_is_neither_fetched_nor_published(
    name: str, run: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}")
    if name == "model.safetensors":
        shutil.move(run / name, secret)
    (run / name).symlink_to(secret)
    attempts: list[Callable[[], object]] = [
        lambda: pull_from_hub(str(run), tmp_path / "pulled"),
        lambda: push_to_hub(run, str(tmp_path / "pushed")),
    ]
    if name == "model.safetensors":
        attempts.append(lambda: load_from_hub(str(run)))
    for attempt in attempts:
        with pytest.raises(ImelError, match=f"{name} is a link"):
            attempt()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "secret"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", '{"env": "x\\n# a card of my own"}'),
        ("config.json", '{"env": ["Pendulum-v1"]}'),
        ("config.json", '{"gamma": 0.5}'),
        ("config.json", '{"policy": "mki"}'),
        ("provenance.json", '{"run": "another"}'),
        ("evaluation.json", '{"deterministic": {"mean": "high"}}'),
        ("evaluation.json", '{"deterministic": []}'),
        ("evaluation.json", "[" * 100_000),
    ],
)
def test_fault_30_a_run_whose_files_do_not_fit_together_is_not_published(
    name: str, content: str, run: Path, tmp_path: Path
) -> None:
    (run / name).write_text(content)
    with pytest.raises(ImelError) as refusal:
        push_to_hub(run, str(tmp_path / "pushed"))
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "pushed").exists()


def test_fault_30_a_file_that_would_fill_the_memory_is_not_fetched(
    run: Path, tmp_path: Path
) -> None:
    with (run / "monitor.csv").open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)  # which takes no room on disk
    with pytest.raises(ImelError, match=r"monitor\.csv is larger than"):
        pull_from_hub(str(run), tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


# --- row 31 ---


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Policy]:
    """A Parquet file of ours, and a policy that it fits."""
    folder = tmp_path_factory.mktemp("exported")
    model = small_model(env=ENV, n_envs=2).learn(BATCH)
    model.save(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"env": ENV}))
    out = folder / "out"
    assert main(["export", str(folder), "--episodes", "0", "--out", str(out)]) == 0
    return out / "memory.parquet", model.policy


COLUMNS: dict[str, Any] = {
    "text": ["x"] * BATCH,
    "lists": [[1.0]] * BATCH,
    "nulls": [None] * BATCH,
    "some nulls": [1.0] * (BATCH - 1) + [None],
    "infinity": [float("inf")] * BATCH,
    "NaN": [1.0] * (BATCH - 1) + [float("nan")],
    "too large": [1e300] * BATCH,
    "bytes": [b"\x00"] * BATCH,
}


@pytest.mark.parametrize("values", COLUMNS.values(), ids=COLUMNS.keys())
@pytest.mark.parametrize("name", ["reward", "episode", "state_0", "terminated"])
def test_fault_31_a_parquet_column_of_what_is_no_number_is_refused_in_one_line(
    name: str, values: Any, exported: tuple[Path, Policy], tmp_path: Path
) -> None:
    path, policy = exported
    table = pyarrow.parquet.read_table(path)
    spoiled = table.set_column(table.column_names.index(name), name, pyarrow.array(values))
    spoiled = spoiled.replace_schema_metadata(table.schema.metadata)
    hostile = tmp_path / "hostile.parquet"
    pyarrow.parquet.write_table(spoiled, hostile)
    with pytest.raises(ImelError, match=r"hostile\.parquet") as refusal:
        read_dataset(hostile, policy)
    assert "\n" not in str(refusal.value)


def test_fault_31_a_few_bytes_that_stand_for_many_rows_are_not_read(
    exported: tuple[Path, Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imel.datasets.columns.MOST_BYTES", 8 * BATCH)
    with pytest.raises(ImelError, match="is larger than"):
        read_dataset(*exported)

"""The package: what its wheel holds, and what is imported and needed by whom."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import imel
from imel.extras import require

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

EXTRAS: dict[str, tuple[str, ...]] = {
    # extra: what it brings that nothing else needs
    "video": ("moviepy",),
    "box2d": ("Box2D",),
    "bench": ("sb3_contrib",),
    "zoo": ("rl_zoo3", "seaborn"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "tune": ("optuna",),
    "datasets": ("minari", "h5py", "pyarrow"),
    "hub": ("huggingface_hub",),
    "ray": ("ray",),
    "slurm": ("submitit",),
    "onnx": ("onnx",),
    "envpool": ("envpool",),
    "explorer": ("starlette", "uvicorn", "pygame"),
}
PACKAGES = sorted({package for packages in EXTRAS.values() for package in packages})


def python(*words: str, executable: str = sys.executable, **environment: str) -> str:
    """What a Python process prints; it has to end well."""
    result = subprocess.run(
        [executable, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


# --- the wheel ---


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, which has nothing of earlier builds."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for name in ("tests", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    flags = ("--wheel", "--no-isolation", "--outdir", str(target))
    python("-m", "build", *flags, str(source))
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "imel").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert {"imel/py.typed", "imel/zoo/imel.yml", "imel/explorer/static/index.html"} <= expected
    assert "imel/explorer/demo/model.safetensors" in expected
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert f"\nVersion: {imel.__version__}\n" in text
    assert set(re.findall(r"^Provides-Extra: (\S+)$", text, re.MULTILINE)) >= set(EXTRAS)


def test_the_wheel_trains_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    # The libraries are those of this environment; `make dist` installs all of them anew
    venv.create(tmp_path / "venv", with_pip=False)
    executable = str(tmp_path / "venv" / "bin" / "python")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    place = Path(python("-c", ask, executable=executable).strip())
    python(
        *("-m", "pip", "--python", executable, "install", "--quiet", "--no-deps"),
        *("--no-index", str(wheel)),
    )
    libraries = {sysconfig.get_path("purelib"), *(p for p in sys.path if "site-packages" in p)}
    (place / "libraries.pth").write_text("\n".join(sorted(libraries)) + "\n")

    script = str(Path(__file__).with_name("installed.py"))
    said = python(script, executable=executable, PYTHONPATH="", PYTHONSAFEPATH="1")
    assert said.endswith("all there, and it trains\n")
    assert re.match(r"the demo has \d+ lessons\n", said)


# --- versions and names ---


def test_the_version_has_one_source() -> None:
    assert "version" not in PROJECT
    assert "version" in PROJECT["dynamic"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert imel.__version__ == cited == newest[1]


def test_every_public_name_is_there_and_a_wrong_one_is_not() -> None:
    for name in imel.__all__:
        assert getattr(imel, name).__name__ == name
    assert set(imel.__all__) <= set(dir(imel))
    with pytest.raises(AttributeError, match="no attribute 'IMel'"):
        _ = imel.IMel  # type: ignore[attr-defined]


# --- what is imported when ---


def test_every_extra_is_listed_here() -> None:
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"dev", "docs"}


def test_help_and_version_need_neither_torch_nor_an_extra() -> None:
    script = (
        "import sys; from imel.cli.main import main; main(['--help']); main(['--version']);"
        "sys.exit(' '.join({'torch', 'numpy', 'stable_baselines3'} & set(sys.modules)) or 0)"
    )
    assert imel.__version__ in python("-c", script)


def test_the_package_is_run_as_the_command_is() -> None:
    asked = [sys.executable, "-m", "imel", "--version"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert imel.__version__ in told.stdout


def test_the_algorithm_and_every_command_are_imported_without_an_extra() -> None:
    # None in the table of modules makes an import fail as if the package were not installed
    script = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({PACKAGES!r}))\n"
        "from imel import IMeL\n"
        "from imel.cli.main import COMMANDS\n"
        "for name in COMMANDS: importlib.import_module(f'imel.cli.{name}')\n"
        "import imel.runs.running, imel.zoo\n"
        "IMeL('RidgePolicy', 'Pendulum-v1', rollout_size=16, memory_size=32).learn(16)\n"
        "print('learned')"
    )
    assert python("-c", script) == "learned\n"


def test_an_extra_is_named_only_if_it_is_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import a_package_there_is_not")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="No module named 'a_package_there_is_not'"):
        require("half_installed", "zoo")
    with pytest.raises(imel.ImelError, match=r"^never_there is not installed: .*'imel\[hub\]'$"):
        require("never_there", "hub")
    assert require("json", "hub").dumps(1) == "1"

"""`imel train`: check everything, learn, save, evaluate, draw; all of it in one run directory.

Each layer of settings beats the one before: the policy's defaults, the file's settings, the flags.
Every flag comes from a dataclass: the policy's settings and options, `RunArguments` and
`FileArguments`.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console

from imel.algorithm import IMeL
from imel.checkpoints.run_checkpoints import differences, latest_checkpoint
from imel.cli.arguments import Flag, parse, peek
from imel.environments.envpool import usable_cores
from imel.errors import CheckpointError, ImelError, SettingsError
from imel.pictures.run_pictures import draw_run
from imel.registry import find_policy
from imel.runs import layout
from imel.runs.best import best_of
from imel.runs.plan import Plan, RunArguments, checked, read_config, settings_in
from imel.runs.provenance import provenance
from imel.runs.running import evaluate_run, learn, make_model
from imel.runs.stored import differences_to_resume, find_run, outcome_of, read_own, run_id_of
from imel.settings import Settings

_DESCRIPTION = """\
Learn a policy on a Gymnasium environment, evaluate it and draw it.

examples:
  imel train Pendulum-v1
  imel train MountainCarContinuous-v0 --total-timesteps 6e4
  imel train HalfCheetah-v5 --n-envs auto                one environment a core, at least 8
  imel train HalfCheetah-v5 --policy mki --seed 1 --run-dir runs/cheetah-mki
  imel train --config runs/cheetah-mki/config.json --run-dir runs/again

The file given by --config is JSON or TOML. Its keys are the names below with underscores
(env, total_timesteps, trust_region, ...); the policy's own options stand in a table policy_kwargs.
Settings depend on the policy: --policy mki --help shows those of mki."""


_MOST_ENVIRONMENTS = 64
"""Of `--n-envs auto`: more would leave each only a few steps of a rollout."""


@dataclass(frozen=True)
class FileArguments:
    """Where the run is kept, and what it is made from."""

    run_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the run. By default a new one: runs/ENV-POLICY-seedN."""
    overwrite: Flag = False
    """Replace the run in the folder named by --run-dir. Only a run's own files are removed."""
    resume: Flag = False
    """Continue the run in --run-dir from its last checkpoint, bit for bit; start it if there is
    none."""
    allow_differences: Flag = False
    """Resume although settings, library versions, threads or device differ. The end is then another
    one."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Take settings from a file, such as another run's config.json. Flags win."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    plan, files = plan_from_arguments(argv)
    torch.set_num_threads(plan.run.threads)
    if files.resume:
        if files.run_dir is None:
            raise SettingsError("--resume needs the folder of the run: --run-dir DIR")
        if (files.run_dir / layout.CONFIG).is_file():
            return resume_run(files.run_dir, plan, files.allow_differences, fall_back=False)
    model = make_model(plan)  # refuses what cannot be learned on before anything is written
    name = f"{plan.env}-{plan.run.policy}-seed{plan.run.seed}"
    with layout.claimed(files.run_dir, name, files.overwrite) as folder:
        layout.write_json(folder / layout.CONFIG, plan.as_json())
        _write_provenance(model, folder)
        return carry_out(model, plan, folder)


def plan_from_arguments(argv: Sequence[str]) -> tuple[Plan, FileArguments]:
    """The plan behind a command line, checked, and where it is to be carried out."""
    argv = _with_environments(argv)
    path = peek(argv, "--config")
    document = {} if path is None else read_config(Path(path))
    policy = peek(argv, "--policy") or document.get("policy", RunArguments.policy)
    policy_class = find_policy(policy)
    settings = policy_class.make_settings(settings_in(document))
    arguments = parse(_argument_class(document, settings), argv, "imel train", _DESCRIPTION)
    chosen = {f.name: getattr(arguments, f.name) for f in fields(arguments)}
    plan = Plan(
        env=chosen["env"],
        run=checked(chosen["run"]),
        settings=policy_class.make_settings(vars(chosen["settings"])),
    )
    return plan, chosen["files"]


def _with_environments(argv: Sequence[str]) -> list[str]:
    """Replace `--n-envs auto` by one environment a core: the plan has the number."""
    number = str(min(max(usable_cores(), Settings.n_envs), _MOST_ENVIRONMENTS))
    words = [f"--n-envs={number}" if word == "--n-envs=auto" else word for word in argv]
    pairs = zip(["", *words], words, strict=False)
    return [number if pair == ("--n-envs", "auto") else pair[1] for pair in pairs]


def _argument_class(document: Mapping[str, Any], settings: Settings) -> type[Any]:
    """The dataclass whose fields are the command line, with the defaults that hold here."""
    run = {f.name: document[f.name] for f in fields(RunArguments) if f.name in document}
    environment = Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="ENV", help="Environment id, such as Pendulum-v1."),
    ]
    groups = {"run": RunArguments(**run), "files": FileArguments(), "settings": settings}
    columns = [(name, type(group), field(default=group)) for name, group in groups.items()]
    env: Any = ("env", environment, field(default=document.get("env", tyro.MISSING)))
    return make_dataclass("TrainArguments", [env, *columns], frozen=True)


def _write_provenance(model: IMeL, folder: Path) -> None:
    layout.write_json(folder / layout.PROVENANCE, {"run": model.run_id, **provenance()})


def carry_out(model: IMeL, plan: Plan, folder: Path) -> int:
    """Train what is left to train, save, evaluate and draw; the exit code."""
    console = Console()
    signal_received = learn(model, plan, folder, console)
    if signal_received is None:
        finish(model, plan, folder, console, save=True)
        return 0
    model.save(folder / layout.MODEL)
    newest = find_run(folder).models[:-1]
    print(
        f"imel: interrupted; the model as of step {model.num_timesteps} is in "
        f"{folder / layout.MODEL}; from step {newest[-1].timesteps if newest else 0} go on with: "
        f"imel resume {folder}",
        file=sys.stderr,
    )
    return 128 + signal_received


def finish(model: IMeL, plan: Plan, folder: Path, console: Console, save: bool = False) -> None:
    """Save, evaluate and draw a trained model; where the disk is full, do what can be done."""
    steps: dict[str, Callable[[], object]] = {
        layout.MODEL: lambda: model.save(folder / layout.MODEL) if save else None,
        layout.EVALUATION: lambda: evaluate_run(model, plan, folder, console),
        "pictures": lambda: draw_run(folder, model, plan.as_json()),
    }
    failed = []
    for name, step in steps.items():
        try:
            step()
        except OSError as error:
            if not plan.run.go_on_if_full:
                raise
            failed.append(f"{name} ({error.strerror or error})")
    if failed:
        raise ImelError(f"the run has ended, but could not write {', '.join(failed)}")
    _say_what_next(folder, console)


def resume_run(folder: Path, plan: Plan, allow_differences: bool, fall_back: bool) -> int:
    """Continue the run in a folder by a plan, which ought to be its own; the exit code."""
    with layout.reopened(folder):
        stored = layout.read_table(folder / layout.CONFIG)
        found = differences(outcome_of(stored), outcome_of(plan.as_json()))
        newest = latest_checkpoint(folder / layout.CHECKPOINTS, fall_back)
        path = None if newest is None else newest.path
        finished = _finished_model(folder, plan)
        model_file = None if finished is None else folder / layout.MODEL
        for file in (file for file in (path, model_file) if file is not None):
            found += differences_to_resume(read_own(file, folder), plan)
            if run_id_of(folder) is None:
                found.append(f"{layout.PROVENANCE} does not name the run")
        if found and not allow_differences:
            reasons = "; ".join(dict.fromkeys(found))
            raise ImelError(f"{folder} was made otherwise ({reasons}); --allow-differences goes on")
        layout.write_json(folder / layout.CONFIG, plan.as_json())
        console = Console()
        if finished is not None:
            finish(finished, plan, folder, console)
            return 0
        model = _model_at(path, plan, folder)
        steps = f"{model.num_timesteps:,} of {plan.run.total_timesteps:,}"
        console.out(f"{folder} goes on at step {steps}", highlight=False)
        return carry_out(model, plan, folder)


def _model_at(path: Path | None, plan: Plan, folder: Path) -> IMeL:
    """The model as a checkpoint has it, or a new one where none was taken yet."""
    if path is None:
        model = make_model(plan)
        model.run_id = run_id_of(folder) or model.run_id
    else:
        model = IMeL.resume(path, plan.env, plan.run.device, **plan.settings.as_json())
    if run_id_of(folder) is None:  # killed before it was written, or lost
        _write_provenance(model, folder)
    return model


def _finished_model(folder: Path, plan: Plan) -> IMeL | None:
    """The model of a run that has no steps left to take."""
    try:
        model = IMeL.load(folder / layout.MODEL, device=plan.run.device)
    except CheckpointError:
        return None  # none yet, or damaged: the checkpoints decide
    return model if model.learned_timesteps >= plan.run.total_timesteps else None


def _say_what_next(folder: Path, console: Console) -> None:
    """Say what was written, and give the commands with which to look at it."""
    best = best_of(folder)
    if best is not None:
        steps, mean = best
        said = f"best of the evaluations during training: {mean:.2f} after {steps:,} steps"
        console.out(f"{said}, kept in {layout.BEST}", highlight=False)
    names = " ".join(file.name for file in layout.files_of_a_run(folder))
    console.out(f"written to {folder}: {names}", highlight=False)
    place, program = shlex.quote(str(folder)), _program()
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    opener = f"{opener} " if shutil.which(opener) else ""
    lines = [
        (f"{opener}{shlex.quote(str(folder / layout.CURVE))}", "the returns over training"),
        (f"{opener}{shlex.quote(str(folder / layout.POLICY))}", "the policy over the state"),
        (f"{program} why {place}", "why it acts as it does, in words"),
        (f"{program} explore {place}", "the same in a browser"),
        *([(f"{program} eval {place} --best", "the best model, played")] if best else []),
    ]
    width = max(len(command) for command, _ in lines)
    console.out("\nlook at it:", highlight=False)
    for command, what in lines:
        console.out(f"  {command:<{width}}  # {what}", highlight=False)


def _program() -> str:
    """Return how this program was called, if its name alone would not find it."""
    called = sys.argv[0]
    found = shutil.which("imel") is not None or Path(called).name != "imel"
    return "imel" if found else shlex.quote(called)

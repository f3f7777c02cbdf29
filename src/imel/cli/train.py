"""`imel train` and `imel resume`: check everything, learn, save, evaluate, draw, in one folder.

Each layer of settings beats the one before: the policy's defaults, the file's settings, the flags.
Every flag comes from a dataclass: `RunArguments`, `FileArguments`, and the policy's settings.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console

from imel.algorithm import IMeL
from imel.checkpoints import Checkpoint, latest_checkpoint
from imel.checkpoints.checkpoint import circumstances, library_versions
from imel.checkpoints.run_checkpoints import differences
from imel.cli.arguments import Flag, OwnPolicy, RunPath, parse, peek, split_flags
from imel.environments.envpool import usable_cores
from imel.errors import CheckpointError, ImelError, SettingsError
from imel.pictures.run_pictures import draw_run
from imel.registry import find_policy, policies
from imel.runs import layout
from imel.runs.evaluation import best_of, evaluate_run
from imel.runs.running import learn, make_model
from imel.runs.stored import Plan, StoredRun, differences_to, outcome_of, provenance
from imel.settings import Settings, setting_names

_DESCRIPTION = """\
Learn a policy on a Gymnasium environment, evaluate it and draw it.

examples:
  imel train Pendulum-v1
  imel train MountainCarContinuous-v0 --total-timesteps 6e4
  imel train HalfCheetah-v5 --n-envs auto                one environment a core, at least 8
  imel train HalfCheetah-v5 --policy mki --seed 1 --run-dir runs/cheetah-mki
  imel train Pendulum-v1 --policy my_module:MyPolicy     a class of your own, in this folder
  imel train --config runs/cheetah-mki/config.json --run-dir runs/again

The file given by --config is JSON or TOML. Its keys are the names below with underscores (env,
total_timesteps, trust_region, ...). Settings depend on the policy: --policy mki --help shows those
of mki."""
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


@dataclass(frozen=True)
class ResumeArguments:
    """Go on with a run that was stopped or killed, from its last checkpoint.

    It ends bit for bit as it would have ended without the interruption: weights, memory and logged
    metrics. Episodes under way go on where they were.

    examples:
      imel resume runs/cheetah
      imel resume runs/cheetah --fall-back      use the checkpoint before, if the last is damaged
    """

    run: RunPath
    """The run directory."""
    policy: OwnPolicy = None
    """The run's policy, if it is a class of your own: no file is a reason to run code."""
    allow_differences: Flag = False
    """Go on although settings, library versions, threads or device differ from those of the
    checkpoint. The end is then another one."""
    fall_back: Flag = False
    """If the newest checkpoint is damaged, use the newest that is whole."""


def run(argv: Sequence[str]) -> int:
    """Run `imel train` and return its exit code."""
    plan, files = plan_from_arguments(argv)
    if files.resume:
        if files.run_dir is None:
            raise SettingsError("--resume needs the folder of the run: --run-dir DIR")
        if (files.run_dir / layout.CONFIG).is_file():
            return _go_on(ResumeArguments(files.run_dir, None, files.allow_differences), plan)
    torch.set_num_threads(plan.run.threads)
    model = make_model(plan)  # refuses what cannot be learned on before anything is written
    name = f"{plan.env}-{plan.run.policy}-seed{plan.run.seed}"
    with layout.claimed(files.run_dir, name, files.overwrite) as folder:
        layout.write_json(folder / layout.CONFIG, plan.as_json())
        return _carry_out(model, plan, folder)


def resume(argv: Sequence[str]) -> int:
    """Run `imel resume` and return its exit code."""
    given: ResumeArguments = parse(ResumeArguments, argv, "imel resume")
    if not (given.run / layout.CONFIG).is_file():
        raise ImelError(f"{given.run} holds no run to resume (no {layout.CONFIG})")
    return _go_on(given)


def plan_from_arguments(argv: Sequence[str]) -> tuple[Plan, FileArguments]:
    """Return the plan behind a command line, checked, and where it is to be carried out."""
    words = split_flags(argv)
    if peek(words, "--n-envs") == "auto":  # one a core: the plan has the number
        cores = min(max(usable_cores(), Settings.n_envs), _MOST_ENVIRONMENTS)
        words += ["--n-envs", str(cores)]
    file = peek(words, "--config")
    if file and not Path(file).is_file():
        raise SettingsError(f"there is no file {file}")
    usual = Plan.of(layout.read_table(Path(file or "")), file, peek(words, "--policy"))
    policy = find_policy(usual.run.policy)
    typed = {word[2:].replace("-", "_") for word in words if word[:2] == "--"}
    every = {name for other in policies().values() for name in setting_names(other.Settings)}
    policy.make_settings(dict.fromkeys(typed & every - set(setting_names(policy.Settings))))
    shown = tyro.conf.arg(metavar="ENV", help="Environment id, such as Pendulum-v1.")
    env: Any = Annotated[str, tyro.conf.Positional, shown]
    columns: list[Any] = [("env", env, field(default=usual.env or tyro.MISSING))]
    groups = {"run": usual.run, "files": FileArguments(), policy.__name__: usual.settings}
    columns += [(name, type(group), field(default=group)) for name, group in groups.items()]
    given = parse(make_dataclass("TrainArguments", columns), words, "imel train", _DESCRIPTION)
    plan = Plan(given.env, given.run, getattr(given, policy.__name__))
    return Plan.of(plan.as_json()), given.files


def _carry_out(model: IMeL, plan: Plan, folder: Path) -> int:
    """Train what is left to train, save, evaluate and draw; return the exit code."""
    if not (folder / layout.PROVENANCE).is_file():  # the run is new, or it was lost
        layout.write_json(folder / layout.PROVENANCE, {"run": model.run_id, **provenance()})
    console = Console()
    signal_received = learn(model, plan, folder, console)
    if signal_received is None:
        return _finish(model, plan, folder, console)
    model.save(folder / layout.MODEL)
    newest = StoredRun.of(folder).models[:-1]
    print(
        f"imel: interrupted; the model as of step {model.num_timesteps} is in "
        f"{folder / layout.MODEL}; from step {newest[-1].timesteps if newest else 0} go on with: "
        f"imel resume {folder}",
        file=sys.stderr,
    )
    return 128 + signal_received


def _finish(model: IMeL, plan: Plan, folder: Path, console: Console) -> int:
    """Save, evaluate and draw a trained model; where the disk is full, do what can be done."""
    steps: dict[str, Callable[[], object]] = {
        layout.MODEL: lambda: model.save(folder / layout.MODEL),
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
    return 0


def _go_on(given: ResumeArguments, plan: Plan | None = None) -> int:
    """Continue the run in a folder, by its own plan if none is given; return the exit code."""
    folder, config = given.run, given.run / layout.CONFIG
    with layout.held(folder):
        stored = StoredRun.of(folder)
        plan = plan or Plan.of(stored.config, str(config), given.policy)
        torch.set_num_threads(plan.run.threads)
        document = plan.as_json()
        found = differences(outcome_of(stored.config), outcome_of(document))
        now = {**document, **library_versions(), **circumstances(), "device": plan.run.device}
        newest = latest_checkpoint(folder / layout.CHECKPOINTS, given.fall_back)
        final = _finished(stored, plan)
        for file in filter(None, (newest, final)):
            found += differences_to(stored.own(file).document, now, known_only=False)
            if stored.run_id is None:
                found.append(f"{layout.PROVENANCE} does not name the run")
        if found and not given.allow_differences:
            reasons = "; ".join(dict.fromkeys(found))
            raise ImelError(f"{folder} was made otherwise ({reasons}); --allow-differences goes on")
        layout.write_json(config, document)
        if final is not None:
            return _finish(IMeL.load(final, device=plan.run.device), plan, folder, Console())
        if newest is None:  # none was taken yet
            model = make_model(plan)
            model.run_id = stored.run_id or model.run_id
        else:
            model = IMeL.resume(newest, plan.env, plan.run.device, **plan.settings.as_json())
        print(f"{folder} goes on at step {model.num_timesteps:,} of {plan.run.total_timesteps:,}")
        return _carry_out(model, plan, folder)


def _finished(stored: StoredRun, plan: Plan) -> Checkpoint | None:
    """Return the model of a run that has no steps left to take."""
    try:
        final = Checkpoint.read(stored.folder / layout.MODEL)
    except CheckpointError:
        return None  # none yet, or damaged: the checkpoints decide
    done = stored.own(final).document["progress"]["learned_timesteps"] >= plan.run.total_timesteps
    return final if done else None


def _say_what_next(folder: Path, console: Console) -> None:
    """Say what was written, and give the commands with which to look at it."""
    place, program = shlex.quote(str(folder)), "imel"
    if shutil.which(program) is None and Path(sys.argv[0]).name == program:
        program = shlex.quote(sys.argv[0])  # its name alone would not find it
    opener = next((f"{name} " for name in ("xdg-open", "open") if shutil.which(name)), "")
    said = [f"written to {folder}: {' '.join(f.name for f in layout.files_of_a_run(folder))}"]
    said += ["", "look at it:"]
    said += [f"  {opener}{place}/{name}" for name in (layout.CURVE, layout.POLICY)]
    said += [f"  {program} {command} {place}" for command in ("why", "explore")]
    if best := best_of(folder):
        said.append(f"  {program} eval {place} --best")
        kept = f"{best[1]:.2f} after {best[0]:,} steps, kept in {layout.BEST}"
        said.insert(0, f"best of the evaluations during training: {kept}")
    console.out("\n".join(said), highlight=False)

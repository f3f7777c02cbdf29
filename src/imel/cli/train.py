"""`imel train`: check everything, learn, save, evaluate, draw; all of it in one run directory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from imel.bench.provenance import provenance
from imel.cli import run_directory
from imel.cli.plan import plan_from_arguments
from imel.cli.resume import resume_run
from imel.cli.running import carry_out, make_model
from imel.errors import SettingsError


def run(argv: Sequence[str]) -> int:
    """The command; its exit code."""
    plan, files = plan_from_arguments(argv)
    torch.set_num_threads(plan.run.threads)
    if files.resume:
        if files.run_dir is None:
            raise SettingsError("--resume needs the folder of the run: --run-dir DIR")
        if (files.run_dir / run_directory.CONFIG).is_file():
            return resume_run(files.run_dir, plan, files.allow_differences, fall_back=False)
    model = make_model(plan)  # refuses what cannot be learned on before anything is written
    name = f"{plan.env}-{plan.run.policy}-seed{plan.run.seed}"
    with run_directory.claimed(files.run_dir, name, files.overwrite) as folder:
        run_directory.write_json(folder / run_directory.CONFIG, plan.as_json())
        run_directory.write_json(folder / run_directory.PROVENANCE, provenance())
        return carry_out(model, plan, folder)

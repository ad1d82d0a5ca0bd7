"""Cells as a list of commands, for xargs, GNU parallel, PBS, LSF, Kubernetes; and a SLURM array."""

import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from dfme.audits.compare.engines import Task
from dfme.audits.compare.engines.pool import WorkerPool, surroundings, threads_each
from dfme.audits.compare.plan import Cell
from dfme.errors import UserError
from dfme.files import write_text


class Commands(WorkerPool):
    """Writes what is to be run, and runs nothing."""

    def _prepare(self) -> str:
        for name, value in self._plan.engine_options.items():
            if not re.fullmatch(r"[a-z][a-z-]*", name) or not value.isprintable():
                raise UserError(
                    "--engine-options: expected options of sbatch such as partition=gpu, "
                    f"got {name!r}"
                )
        self._threads = threads_each(self._plan.jobs)
        return f"from a list of commands, each run of {self._threads} threads"

    def run(self, cells: Iterable[Cell], *_: object, **__: object) -> None:
        """List the cells, one a line, and say what to do with the lines."""
        tasks = [self._task(cell) for cell in cells]
        commands = self._plan.out / "commands.txt"
        array = self._plan.out / "array.sh"
        if tasks:
            write_text(commands, "".join(f"{self._line(task)}\n" for task in tasks))
            on_cpus = all(task.device == "cpu" for task in tasks)
            write_text(array, self._array(commands.resolve(), len(tasks), on_cpus))
            self._tell(
                f"{len(tasks)} cells to run, one a line of {commands}; here, {self._plan.jobs} at "
                "once, with\n"
                f"  xargs -P {self._plan.jobs} -d '\\n' -n 1 sh -c < {shlex.quote(str(commands))}\n"
                f"or on SLURM with\n  sbatch {shlex.quote(str(array))}\n"
                "The same again goes on with what was stopped, and does nothing to what is finished"
            )

    def _line(self, task: Task) -> str:
        """Shell command that works from any directory, so that a list of them can run one after
        another.
        """
        settings = [f"{name}={text}" for name, text in surroundings(self._threads).items()]
        run = ["env", "-u", "WANDB_NAME", *settings, sys.executable, "-m", "dfme", *task.words]
        return (
            f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(run)} >> "
            f"{shlex.quote(str(task.log))} 2>&1"
        )

    def _array(self, commands: Path, count: int, on_cpus: bool) -> str:
        """A SLURM script: task n runs line n, gets TERM two minutes before its limit, and finishes
        its step.

        ``B:`` sends it to the batch shell, whose place the run has taken; without, it would go to
        steps of srun alone.
        """
        options = {
            "requeue": "",
            "signal": "B:TERM@120",
            "cpus-per-task": str(self._threads),
            "output": "/dev/null",
            "array": f"1-{count}",
        }
        by_user = self._plan.engine_options
        if not on_cpus and not any(name.startswith("gpus") for name in by_user):
            options["gres"] = "gpu:1"
        options.update(by_user)
        values = {name: f"={shlex.quote(text)}" if text else "" for name, text in options.items()}
        lines = [f"#SBATCH --{name}{value}" for name, value in values.items()]
        task = f'sed -n "${{SLURM_ARRAY_TASK_ID}}p" {shlex.quote(str(commands))}'
        return "\n".join(
            ["#!/bin/bash", *lines, 'env() { exec env "$@"; }', f'eval "$({task})"', ""]
        )

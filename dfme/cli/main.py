"""The command line: which commands there are, and what each one calls. No torch until a command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dfme import __version__
from dfme.cli import extract
from dfme.cli.arguments import CommandInputs, CommandLine
from dfme.cli.flags import asks_for_help
from dfme.cli.help import command_help, overview
from dfme.config.commands import BenchConfig
from dfme.config.messages import did_you_mean
from dfme.config.options import Option
from dfme.config.settings import Job, TeacherConfig
from dfme.errors import DfmeError, UserError
from dfme.run.directory import RunDirectory
from dfme.run.job import resume_command
from teachers import KINDS, check_teacher

KIND_OPTIONS: dict[str, type[Any]] = {name: kind.options for name, kind in KINDS.items()}


def parse_extract(argv: Sequence[str]) -> Job:
    """The job that the words after ``extract`` describe, checked as far as that goes without torch.

    Raises:
        UserError: one line that names everything wrong.
    """
    return extract.job_of(CommandLine(argv, extract.LAYOUT, KIND_OPTIONS))


def _extract(argv: Sequence[str]) -> int:
    asked = CommandLine(argv, extract.LAYOUT, KIND_OPTIONS)
    if asked.wants_help:
        return _show_help("extract", asked.options)
    job = extract.job_of(asked)
    check_teacher(job.teacher, job.teacher_options)
    from dfme.run.build import run_job

    result = run_job(job, resume=job.config.resume)
    if result.finished:
        return 0
    print(
        f"stopped and kept after {result.summary['spent']:,} queries; go on with:\n  {resume_command(result.run_dir)}"
    )
    return 130


def _train_teacher(argv: Sequence[str]) -> int:
    from dfme.cli import train_teacher
    from teachers.options import TrainTeacherConfig, check_training

    asked = CommandLine(argv, CommandInputs(TrainTeacherConfig), {})
    if asked.wants_help:
        return _show_help("train-teacher", asked.options)
    config = asked.settings(TrainTeacherConfig, train_teacher.find_problems)
    check_training(config)
    from teachers.training.train import train_teacher as train

    done = train(config, train_teacher.show_epoch)
    print(train_teacher.result(done.path, done.card.accuracy, done.seconds))
    return 0


def _evaluate(argv: Sequence[str]) -> int:
    from dfme.cli import evaluate

    asked = CommandLine(argv, evaluate.LAYOUT, KIND_OPTIONS)
    if asked.wants_help:
        return _show_help("evaluate", asked.options)
    student, job = evaluate.plan_of(asked)
    check_teacher(job.teacher, job.teacher_options)
    from dfme.cli.scoring import score

    print(evaluate.table(score(student, job, tell=_warn)))
    return 0


def _check(argv: Sequence[str]) -> int:
    from dfme.cli import check

    asked = CommandLine(argv, check.LAYOUT, KIND_OPTIONS)
    if asked.wants_help:
        return _show_help("check", asked.options)
    config, teacher, options = check.plan_of(asked)
    check_teacher(teacher, options)
    from dfme.cli.preflight import examine
    from dfme.compute import choose_device
    from teachers.build import make_teacher

    made = make_teacher(teacher, options, choose_device(config.device))
    print(examine(made, config.images, config.seed, tell=_warn))
    return 0


def _serve(argv: Sequence[str]) -> int:
    from dfme.cli import serve

    asked = CommandLine(argv, serve.LAYOUT, KIND_OPTIONS)
    if asked.wants_help:
        return _show_help("serve", asked.options)
    config, teacher, options = serve.plan_of(asked)
    check_teacher(teacher, options)
    # Between requests torch's threads sleep, not spin: client and server often share a machine. Read as torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from dfme.compute import choose_device
    from teachers.build import make_teacher
    from teachers.serve.server import serve as serve_teacher

    served = make_teacher(teacher, options, choose_device(config.device))
    print(serve_teacher(served, config, tell=partial(print, flush=True)))
    return 0


def _report(argv: Sequence[str]) -> int:
    from dfme.cli import report

    if asks_for_help(argv):
        print(report.HELP)
        return 0
    run = report.run_directory(argv)
    from dfme.report import write_report

    print(write_report(run))
    return 0


def _bench(argv: Sequence[str]) -> int:
    from dfme.cli import bench

    asked = CommandLine(argv, CommandInputs(BenchConfig), {})
    if asked.wants_help:
        return _show_help("bench", asked.options)
    config = asked.settings(BenchConfig, bench.find_problems)
    kernels = tuple(case for case in config.cases if case != "http")
    if kernels:
        from dfme.benchmarks.speed import run_bench

        print(run_bench(replace(config, cases=kernels)))
    if kernels != config.cases:
        from dfme.run.build import run_job
        from teachers.serve.throughput import ratio_table, time_http

        job = parse_extract(["--budget", "60k"])

        def extract_from(teacher: TeacherConfig, options: dict[str, Any], out: Path) -> float:
            one = replace(job, config=replace(job.config, out=str(out)), teacher=teacher, teacher_options=options)
            return float(run_job(one, console=False).summary["wall_seconds"])

        print(ratio_table(time_http(job.teacher, job.teacher_options, config.rounds, extract_from)))
    return 0


def _compare(argv: Sequence[str]) -> int:
    from dfme.cli import compare

    if asks_for_help(argv):
        return _show_help("compare", compare.options(argv, KIND_OPTIONS))
    plan = compare.plan_of(argv, KIND_OPTIONS)
    for job in {cell.mode: cell.job for cell in plan.cells}.values():
        check_teacher(job.teacher, job.teacher_options)
    from dfme.benchmarks.compare.session import compare as run_comparison

    return run_comparison(plan, tell=_warn, show=print)


def _retrain(argv: Sequence[str]) -> int:
    from dfme.cli import retrain

    asked = CommandLine(argv, retrain.LAYOUT, {})
    if asked.wants_help:
        return _show_help("retrain", asked.options)
    config = retrain.plan_of(asked)
    from dfme.run.retrain import retrain as train_again

    out = Path(config.out) if config.out else RunDirectory.free_name(Path(f"{config.run.rstrip('/')}-retrained"))
    print(retrain.table(train_again(Path(config.run), out, retrain.settings(config), tell=_warn), out))
    return 0


def _gradients(argv: Sequence[str]) -> int:
    from dfme.cli import gradients

    asked = CommandLine(argv, gradients.LAYOUT, KIND_OPTIONS)
    if asked.wants_help:
        return _show_help("gradients", asked.options)
    config, job = gradients.plan_of(asked)
    from dfme.benchmarks.gradients.session import compare_gradients
    from dfme.compute import choose_device
    from teachers.local.white_box import open_white_box

    box = open_white_box(job.teacher, job.teacher_options, choose_device(config.device))
    compare_gradients(box, job, config, tell=partial(print, flush=True))
    return 0


class Command(NamedTuple):
    """What a command does with the words after its name, returning the exit code, and its line of help."""

    run: Callable[[Sequence[str]], int]
    summary: str


COMMANDS: dict[str, Command] = {
    "extract": Command(_extract, "clone a teacher by its answers alone; the command when none is named"),
    "compare": Command(_compare, "run methods x seeds x budgets x label modes side by side: one table, one picture"),
    "retrain": Command(_retrain, "train a fresh student on the answers that a run paid for, asking nothing"),
    "train-teacher": Command(_train_teacher, "train a teacher to practise on, and save its weights"),
    "evaluate": Command(_evaluate, "score a student against its teacher: accuracy, agreement, divergence"),
    "check": Command(_check, "ask a teacher a few hundred images and say what its answers are good for"),
    "serve": Command(_serve, "serve a teacher over the Open Inference Protocol v2, to rehearse an audit"),
    "report": Command(_report, "draw the curves and the report of a run again"),
    "gradients": Command(_gradients, "measure estimated gradients against the true ones of a teacher of your own"),
    "bench": Command(_bench, "time the loop against the bare kernels of the same work"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the words name; its exit code is 0, 1 to 3 for our errors, 130 after Ctrl-C.

    Errors of ours are one line on stderr. Any other exception is a bug, and keeps its traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except DfmeError as error:
        sys.stderr.write(f"dfme: {' '.join(str(error).split())}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe has gone: stop quietly, also at the flush on exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(words: list[str]) -> int:
    if words and not words[0].startswith("-"):
        name, rest = words[0], words[1:]
        if name not in COMMANDS:
            hint = did_you_mean(name, COMMANDS)
            raise UserError(f"expected a command ({', '.join(COMMANDS)}) or a flag, got {name!r}{hint}")
        return COMMANDS[name].run(rest)
    if words in (["-h"], ["--help"]):
        print(overview({name: command.summary for name, command in COMMANDS.items()}))
        return 0
    if words == ["--version"]:
        print(f"dfme {__version__}")
        return 0
    return _extract(words)


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show_help(name: str, options: Sequence[Option]) -> int:
    print(command_help(name, COMMANDS[name].summary, options))
    return 0

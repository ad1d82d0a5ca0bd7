"""``run.py compare``: which rows, seeds, budgets and label modes, and what every cell of them is as a job."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from dfme.benchmarks.compare.attackers import Attempt, attempt
from dfme.benchmarks.compare.checks import ELSEWHERE, directory_of, elsewhere_problems, own_problems, require_same
from dfme.benchmarks.compare.engines import EXTRAS
from dfme.benchmarks.compare.plan import OPTIONS, ComparisonPlan, cells_of, own_options
from dfme.benchmarks.compare.rows import parted, row_contents
from dfme.benchmarks.options import CompareConfig
from dfme.cli import extract, teacher_side
from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.files import Recipe, asks_to_resume, read_recipe, resumed
from dfme.cli.flags import Flag, last_text, split_flags
from dfme.cli.teacher_side import check_teacher, price_problems
from dfme.config.fields import parse_count
from dfme.config.messages import nearest
from dfme.config.settings import ExtractConfig, Job
from dfme.config.values import Option, options_of
from dfme.errors import UserError
from dfme.methods import SECTIONS, find_method
from dfme.run.job import PACKAGE, SAID_BY_THE_USER, comes_with_dfme, locate
from dfme.run.recipes import Content, tidy
from dfme.spec import LabelMode

SUMMARY = "run methods x seeds x budgets x label modes, defences x attackers, side by side: one table, one picture"
DEFAULT = PACKAGE / "configs" / "compare_digits.yaml"

OWN = {option.key: option for option in options_of(CompareConfig)}
OF_RUNS = [option.key for option in options_of(ExtractConfig) if option.key not in ELSEWHERE]


def options(words: Sequence[str]) -> Iterable[Option]:
    """The comparison's own options, then those that all of its runs share."""
    return with_shared(words, OWN, read_recipe(split_flags(words), _recipe))


def with_shared(words: Sequence[str], own: Mapping[str, Option], recipe: Recipe) -> list[Option]:
    """Options of a command's ``own``, then those that all of the cells of its ``recipe`` share."""
    file, content = recipe
    _, _, _, shared = parted(file, tidy(content), own)
    of_runs = [flag.word for flag in split_flags(words) if flag.key not in own and flag.key != "config"]
    every = Arguments(of_runs, extract.INPUTS, (file, shared)).options
    taken = {*own, *ELSEWHERE, "wandb.name"}
    of_cells = [key for key in every if key not in taken and key.partition(".")[0] not in ("method", "answers")]
    return [*own.values(), *(every[key] for key in of_cells)]


def run(words: Sequence[str]) -> int:
    """Run what is not finished, and print the table."""
    plan = plan_of(words)
    job = plan.cells[0].job  # whose teacher is every cell's
    check_teacher(job.teacher, job.teacher_options)
    plan = replace(plan, bills=_bills(plan))
    from dfme.benchmarks.compare.session import compare
    from dfme.report.terminal import StatusLine, columns

    return compare(plan, StatusLine(sys.stderr), print, columns(sys.stdout))


def _bills(plan: ComparisonPlan) -> dict[str, Mapping[str, Any]]:
    """What every stack of defences costs honest users; nothing where there is none, or no images of theirs."""
    job, config = plan.cells[0].job, plan.cells[0].job.config
    every = dict.fromkeys(cell.attempt.stack for cell in plan.cells)
    stacks = [stack for stack in every if stack != "none"]
    if not stacks or config.evaluation.dataset == "none":
        return {}
    if job.teacher.kind not in teacher_side.KINDS:
        why = "not measured of a teacher of your own; run.py utility --own-teacher local measures it"
        print(f"honest users: {why}", file=sys.stderr)
        return {}
    teacher, texts = replace(job.teacher, defences=()), [tuple(stack.split("+")) for stack in stacks]
    measured = teacher, job.teacher_options, texts, config.evaluation, config.device
    found = teacher_side.bills(*measured, tell=lambda line: print(f"honest users, {line}", file=sys.stderr))
    return dict(zip(["none", *stacks], found, strict=True))


def plan_of(words: Sequence[str], recipe: Recipe | None = None) -> ComparisonPlan:
    """The comparison that the words after ``compare`` describe, every cell checked as far as that goes without torch.

    ``recipe`` stands in the place of a file's, for who has checked price and directory by itself.

    Raises:
        UserError: one line that names everything wrong.
    """
    flags = split_flags(words)
    typed = [flag for flag in flags if flag.key != "config"]
    file, content = recipe or read_recipe(flags, _recipe)
    rows, overrides, written, shared = parted(file, tidy(content), OWN)
    if "engine_options" in written:  # hosts to connect to, and what runs there
        raise UserError(f"{file}: engine_options: say --engine-options on the command line; a file cannot")
    own = own_arguments(CompareConfig, file, written, typed)
    config = own.settings(CompareConfig)
    own.finish(own_problems(config, tuple(rows)))
    given = split_flags([Flag(*pair).word for pair in overrides.items()])  # as each cell will read them
    # What were flags is now a file's to say, which for these is a record or a wish.
    wished = {flag.key: flag.text or "" for flag in given if flag.key in SAID_BY_THE_USER}
    flags = [*(flag for flag in given if flag.key not in wished), *(flag for flag in typed if flag.key not in OWN)]
    _require_for_all(file, shared, flags)
    priced = recipe is not None or any(flag.key == "budgets" for flag in typed)
    if not priced and comes_with_dfme(Path(locate(file))) is not None:
        unpriced = [*price_problems(last_text(flags, "teacher.kind") or "", "budgets")]
        if unpriced:
            raise UserError(f"--budgets: {unpriced[0].text}")
    out = Path(config.out or "") if recipe else directory_of(config.out, config.resume, Path(file).stem or "compare")
    arch = last_text(flags, "student.arch")
    contents = row_contents(config.methods or tuple(rows), rows, shared | wished, arch, file)
    modes = [str(LabelMode.parse(text)) for text in config.label_modes]
    places = product(modes, config.defences, config.answers)
    asked = [(mode, attempt(defence, answers, mode)) for mode, defence, answers in places]
    jobs = _jobs(contents, asked, [*flags, Flag("student.steps", str(config.student_steps))], file)
    overrides = wished | {flag.key: "true" if flag.text is None else flag.text for flag in flags}
    paper = {**own_options(config, list(contents)), "rows": rows, "overrides": overrides} | shared
    cells = cells_of(jobs, config.seeds, [parse_count(text) for text in config.budgets], out)
    at_once = config.jobs or (len(cells) if config.engine in EXTRAS else 1)
    engine = config.engine, dict(text.split("=", 1) for text in config.engine_options), config.retries
    command = ("python", "run.py", "compare", *words)
    plan = ComparisonPlan(out, config.student_steps, at_once, cells, paper, command, *engine, format=config.format)
    require_same(plan)
    return plan


def _recipe(flags: Sequence[Flag]) -> Path:
    """Without --config: a resumed comparison's own file, else the digits'."""
    if not asks_to_resume(flags):
        return DEFAULT
    return resumed(flags, OPTIONS, "the directory of the comparison", "the directory of a comparison")


def own_arguments(model: type[Any], file: str, written: Content, flags: Sequence[Flag]) -> Arguments:
    """A command's own options. In a file a list may be a single value: ``seeds: 0``, ``budgets: 30k``."""
    lists = {option.key: isinstance(option.default, tuple) for option in options_of(model)}
    listed = {
        name: [value] if lists[name] and isinstance(value, int | float) else value for name, value in written.items()
    }
    return Arguments([flag.word for flag in flags if flag.key in lists], CommandInputs(model), (file, listed))


def _require_for_all(file: str, shared: Content, flags: Sequence[Flag]) -> None:
    """UserError for options that a comparison says otherwise, and for flags whose nearest name is one of its own."""
    said = elsewhere_problems(shared, [flag.key for flag in flags])
    problems = [text if text.startswith("--") else f"{file}: {text}" for text in said]
    for flag in flags:
        close = nearest(flag.key, [*OWN, *OF_RUNS]) if "." not in flag.key else None
        if close in OWN and flag.key not in ELSEWHERE:
            problems.append(f"--{flag.name}: unknown flag; did you mean --{close.replace('_', '-')}?")
    if problems:
        raise UserError("; ".join(problems))


def _jobs(
    contents: Mapping[str, Content], asked: Sequence[tuple[str, Attempt]], flags: Sequence[Flag], file: str
) -> dict[tuple[str, str, Attempt], Job]:
    """A job per label mode, row, defence and attacker. What is wrong with several of them is said once."""
    jobs: dict[tuple[str, str, Attempt], Job] = {}
    problems: dict[str, dict[str, None]] = {}
    for (mode, here), (row, content) in product(asked, contents.items()):
        others = set(SECTIONS) - set(find_method(content["method"]["name"]).sections)
        words = [flag.word for flag in flags if flag.key.partition(".")[0] not in others]
        try:
            words_of_mode = [*words, f"--teacher.label-mode={mode}"]
            words_of_mode += [f"--{key}={value}" for key, value in here.flags.items()]
            jobs[row, mode, here] = extract.parse_extract(words_of_mode, (file, {**content, "recipe": row}))
        except UserError as error:
            problems.setdefault(str(error), {})[row] = None
    if problems:
        shown = [
            (text, "" if len(rows) == len(contents) else f"{', '.join(rows)}: ") for text, rows in problems.items()
        ]
        raise UserError("; ".join(rows + text for text, rows in shown))
    return jobs

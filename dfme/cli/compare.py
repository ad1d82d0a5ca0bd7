"""``run.py compare``: which rows, seeds, budgets and label modes, and what every cell of them is as
a job.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from dfme import owner_side
from dfme.audits.compare.engines import EXTRAS
from dfme.audits.compare.plan import (
    OPTIONS,
    Attempt,
    CompareConfig,
    ComparisonPlan,
    attempt,
    cells_of,
    own_options,
)
from dfme.audits.compare.rows import (
    ELSEWHERE,
    Parts,
    directory_of,
    elsewhere_problems,
    own_problems,
    parted,
    require_same,
    row_contents,
)
from dfme.cli import extract
from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.flags import (
    Flag,
    Recipe,
    asks_to_resume,
    last_text,
    read_recipe,
    resumed,
    split_flags,
)
from dfme.cli.main import main
from dfme.config.messages import nearest
from dfme.config.settings import ExtractConfig, Job
from dfme.config.values import Option, flatten, options_of
from dfme.errors import UserError
from dfme.methods import SECTIONS, find_method
from dfme.owner_side import check_teacher, price_problems
from dfme.run.job import PACKAGE, SAID_BY_THE_USER, comes_with_dfme, locate
from dfme.run.recipes import Content, tidy
from dfme.spec import LabelMode

SUMMARY = (
    "run methods x seeds x budgets x label modes, defences x attackers, side by side: one table"
)
DEFAULT = PACKAGE / "configs" / "compare_digits.yaml"
OWN = {option.key: option for option in options_of(CompareConfig)}
OF_RUNS = [option.key for option in options_of(ExtractConfig) if option.key not in ELSEWHERE]


def options(words: Sequence[str]) -> Iterable[Option]:
    """The comparison's own options, then those that all of its runs share."""
    return with_shared(words, OWN, read_recipe(split_flags(words), _recipe))


def with_shared(words: Sequence[str], own: Mapping[str, Option], recipe: Recipe) -> list[Option]:
    """Options of a command's ``own``, then those that all of the cells of its ``recipe`` share."""
    file, content = recipe
    of_runs = [flag for flag in split_flags(words) if flag.key not in own and flag.key != "config"]
    shared = parted(file, tidy(content), own).shared
    every = Arguments(of_runs, extract.INPUTS, (file, shared)).options
    of_cells = every.keys() - {*own, *ELSEWHERE, "wandb.name"}
    of_cells = {key for key in of_cells if key.partition(".")[0] not in ("method", "answers")}
    return [*own.values(), *(option for key, option in every.items() if key in of_cells)]


def run(words: Sequence[str]) -> int:
    """Run what is not finished, and print the table."""
    plan = plan_of(words)
    job = plan.cells[0].job  # whose teacher is every cell's
    check_teacher(job.teacher, job.teacher_options)
    plan = replace(plan, bills={} if plan.config.dry_run else _bills(plan))
    from dfme.audits.compare.session import compare
    from dfme.report.terminal import StatusLine, columns, print_harmless

    return compare(plan, StatusLine(sys.stderr), print_harmless, columns(sys.stdout))


def _bills(plan: ComparisonPlan) -> dict[str, Mapping[str, Any]]:
    """Cost of every stack of defences to honest users; empty without defences or honest images."""
    job = plan.cells[0].job
    stacks = [
        *dict.fromkeys(cell.attempt.stack for cell in plan.cells if cell.attempt.stack != "none")
    ]
    if not stacks or job.config.evaluation.dataset == "none":
        return {}
    tell = partial(print, "honest users:", file=sys.stderr)
    if job.teacher.kind not in owner_side.KINDS:
        tell(
            "not measured of a teacher of your own; run.py utility --own-teacher local measures it"
        )
        return {}
    texts = [tuple(stack.split("+")) for stack in stacks]
    return {bill.defence: bill.to_json() for bill in owner_side.owner_of(job).bills(texts, tell)}


def plan_of(words: Sequence[str]) -> ComparisonPlan:
    """Build the comparison described after ``compare``, and check every cell without torch."""
    flags = split_flags(words)
    file, content = read_recipe(flags, _recipe)
    parts = parted(file, tidy(content), OWN)
    own = own_arguments(CompareConfig, file, parts.written, flags)
    config: CompareConfig = own.config
    own.finish(own_problems(config, tuple(parts.rows)))
    of_cells = [flag for flag in flags if flag.key not in (*OWN, "config")]
    priced = any(flag.key == "budgets" for flag in flags)
    if not priced and comes_with_dfme(Path(locate(file))) is not None:
        for problem in price_problems(said(of_cells, parts, "teacher.kind") or "", "budgets"):
            raise UserError(f"--budgets: {problem.text}")
    out = directory_of(config.out, config.resume, Path(file).stem or "compare")
    return planned(config, out, file, parts, of_cells, ("python", "run.py", "compare", *words))


def planned(
    config: CompareConfig,
    out: Path,
    file: str,
    parts: Parts,
    typed: Sequence[Flag],
    command: tuple[str, ...],
) -> ComparisonPlan:
    """Build every cell of a comparison whose own options have been checked; ``typed``: flags of all
    cells.
    """
    _require_for_all(file, parts, typed)
    # What were flags is now a file's to say, which for these is a record or a wish.
    wished = {
        key: text
        for key, text in parts.overrides.items()
        if Flag(key, text).key in SAID_BY_THE_USER
    }
    flags = [
        *(Flag(key, text) for key, text in parts.overrides.items() if key not in wished),
        *typed,
    ]
    shared = tidy(parts.shared | wished)
    arch = last_text(flags, "student.arch")
    contents = row_contents(config.methods or tuple(parts.rows), parts.rows, shared, arch, file)
    modes = [str(LabelMode.parse(text)) for text in config.label_modes]
    places = product(modes, config.defences, config.answers)
    asked = [(mode, attempt(defence, answers, mode)) for mode, defence, answers in places]
    jobs = _jobs(contents, asked, [*flags, Flag("student.steps", str(config.student_steps))], file)
    overrides = wished | {flag.key: "true" if flag.text is None else flag.text for flag in flags}
    paper = {
        **own_options(config),
        "methods": list(contents),
        "rows": parts.rows,
        "overrides": overrides,
    }
    cells = cells_of(jobs, config.seeds, config.budgets, out)
    at_once = config.jobs or (len(cells) if config.engine in EXTRAS else 1)
    plan = ComparisonPlan(out, config, at_once, cells, paper | parts.shared, command, main)
    require_same(plan)
    return plan


def said(flags: Sequence[Flag], parts: Parts, key: str) -> str | None:
    """Value of an option that all cells share, by the last flag, or the file."""
    found = (
        last_text(flags, key),
        parts.overrides.get(key),
        dict(flatten(parts.shared, ())).get(key),
    )
    return next((str(text) for text in found if text is not None), None)


def _recipe(flags: Sequence[Flag]) -> Path:
    """Without --config: a resumed comparison's own file, else the digits'."""
    return (
        resumed(flags, OPTIONS, "the directory of a comparison")
        if asks_to_resume(flags)
        else DEFAULT
    )


def own_arguments(
    model: type[Any], file: str, written: Content, flags: Sequence[Flag]
) -> Arguments:
    """A command's own options. In a file a list may be a single value: ``seeds: 0``, ``budgets:
    30k``.
    """
    lists = {option.key: isinstance(option.default, tuple) for option in options_of(model)}
    single = [
        name for name, value in written.items() if lists[name] and isinstance(value, int | float)
    ]
    listed = written | {name: [written[name]] for name in single}
    return Arguments(
        [flag for flag in flags if flag.key in lists], CommandInputs(model), (file, listed)
    )


def _require_for_all(file: str, parts: Parts, flags: Sequence[Flag]) -> None:
    """Reject single-run options and misspelt compare options with a UserError."""
    said = elsewhere_problems(parts.shared, [*parts.overrides, *(flag.key for flag in flags)])
    problems = [text if text.startswith("--") else f"{file}: {text}" for text in said]
    for flag in flags:
        close = nearest(flag.key, [*OWN, *OF_RUNS]) if "." not in flag.key else None
        if close in OWN and flag.key not in ELSEWHERE:
            problems.append(
                f"--{flag.name}: unknown flag; did you mean --{close.replace('_', '-')}?"
            )
    if problems:
        raise UserError("; ".join(problems))


def _jobs(
    contents: Mapping[str, Content],
    asked: Sequence[tuple[str, Attempt]],
    flags: Sequence[Flag],
    file: str,
) -> dict[tuple[str, str, Attempt], Job]:
    """A job per label mode, row, defence and attacker. What is wrong with several of them is said
    once.
    """
    jobs: dict[tuple[str, str, Attempt], Job] = {}
    problems: dict[str, dict[str, None]] = {}
    for (mode, here), (row, content) in product(asked, contents.items()):
        others = set(SECTIONS) - set(find_method(content["method"]["name"]).sections)
        heeded = [flag for flag in flags if flag.key.partition(".")[0] not in others]
        heeded += [Flag(*pair) for pair in {"teacher.label-mode": mode, **here.flags}.items()]
        try:
            jobs[row, mode, here] = extract.job_of_cell(heeded, (file, {**content, "recipe": row}))
        except UserError as error:
            problems.setdefault(str(error), {})[row] = None
    if problems:
        some = {
            text: [] if len(rows) == len(contents) else [*rows] for text, rows in problems.items()
        }
        shown = [": ".join(filter(None, (", ".join(rows), text))) for text, rows in some.items()]
        raise UserError("; ".join(shown))
    return jobs

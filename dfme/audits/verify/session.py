"""One verification: models opened, probes chosen and written, the suspect asked, figures and page
kept.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dfme.answers.reading import NO_ANSWER
from dfme.audits.audit.examine import open_twin
from dfme.audits.verify.case import Case, ServedLog
from dfme.audits.verify.evidence import BATCH, sentences
from dfme.audits.verify.marks import KeyFile, MarkCase
from dfme.audits.verify.models import PROBES, GivenClasses, Models, Tell, Told, digest_of
from dfme.audits.verify.probes import Answer, Probes
from dfme.compute.device import choose_device
from dfme.compute.modules import DeferredChecks
from dfme.config.settings import Job
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.errors import UserError
from dfme.files import make_folder, write_text
from dfme.oracle.ledger_log import audit, read_history
from dfme.oracle.oracle import Oracle
from dfme.run.build import build_oracle, build_teacher, facts_of, files_of
from dfme.run.directory import RunDirectory, run_start
from dfme.run.job import decisive, document, resume_command
from dfme.version import __version__

PLACES = ("model", "references", "record", "marks", "evaluation.root")
KEPT = ("budget", "seed", "device", "evaluation", "teacher")


def verify(
    job: Job,
    paths: Sequence[Path],
    tell: Tell,
    log: ServedLog | None = None,
    marks: KeyFile | None = None,
) -> dict[str, Any]:
    """Ask the job's teacher, the suspect; what verify.json holds. ``paths``: weights, the owner's
    first.

    ``log``: what the owner's service marked in it is asked, in place of what the owner's model gets
    wrong; ``marks``: so are the images of a key. UserError for what cannot work, before the
    suspect is asked; TeacherError where it fails for good.
    """
    with ExitStack() as held:
        suspect = build_teacher(job, None, choose_device(job.config.device))
        held.callback(suspect.info.close)
        model = open_twin(paths[0], job, suspect.spec, suspect.num_classes, "--model")
        case: Models
        if marks is None:
            case = Case(job, model, paths[1:], tell, log)
        else:
            case = MarkCase(job, model, paths, tell, marks)
        directory = held.enter_context(_open_directory(case, job, paths, suspect.spec.levels))
        probes, references = _loaded(case, directory)
        sha256 = digest_of(probes)
        tell(f"{len(probes.images)} images are chosen, SHA-256 {sha256}; if stopped, go on with:")
        tell(f"  {resume_command(directory.path, job, 'verify')}")
        facts = facts_of(job, suspect)
        checks = DeferredChecks()
        make_folder(directory.journal, case.modes[1])
        oracle = build_oracle(job, suspect, directory, {}, checks, facts)
        held.enter_context(closing(oracle)).report_to(tell)
        ask = case.answer(
            suspect.spec, suspect.info.class_names or (), partial(oracle, purpose="check")
        )
        figures = case.judge(_answers(oracle, ask, probes), references)
        checks.verify()
        result = {
            "dfme": __version__,
            "suspect": facts["target"],
            "model": str(paths[0]),
            **figures,
            "probes": sha256,
            "directory": str(directory.path),
            "ledger": asdict(oracle.ledger.totals()),
        }
        write_text(
            directory.path / "verify.json", json.dumps(result, indent=1, allow_nan=False) + "\n"
        )
        write_text(directory.path / "verify.md", "\n\n".join(sentences(result)) + "\n")
    return result


def _loaded(case: Models, directory: RunDirectory) -> tuple[Probes, Told]:
    """The probes on file, and what the references came to. UserError if those of other inputs."""
    probes, references, changed = case.load(directory.path)
    if changed:
        raise _other_values(directory, changed)
    return probes, references


def _open_directory(
    case: Models, job: Job, paths: Sequence[Path], levels: int | None
) -> RunDirectory:
    """A new directory with probes in it, or the one of the verification being resumed.

    One that was killed before its probes were on file has asked nothing: they are chosen then.
    """
    config = job.config
    settings = _settings(case, job, paths)
    if config.resume:
        directory = RunDirectory.open_for_resume(Path(config.out or ""))
        with ExitStack() as held:
            held.callback(directory.close)
            _require_same(directory, settings, job)
            if not (directory.path / PROBES).exists() and not _asked(directory):
                case.save(directory.path, case.choose(int(config.budget), levels))
            held.pop_all()
        return directory
    chosen = case.choose(int(config.budget), levels)
    directory = RunDirectory.create(Path(config.out or RunDirectory.free_name(Path("runs/verify"))))
    directory.is_new_run = True
    directory.write_config(dump_yaml(settings))
    case.save(directory.path, chosen)
    return directory


def _asked(directory: RunDirectory) -> bool:
    """True if anything may have been asked of the suspect."""
    return directory.ledger.is_file() and bool(audit(directory.ledger).requests)


def _settings(case: Models, job: Job, paths: Sequence[Path]) -> dict[str, Any]:
    """The content of config.yaml."""
    (model, *references) = (str(path.absolute()) for path in paths)
    settings = {name: document(job)[name] for name in KEPT}
    return {"model": model, "references": references, **settings, **case.settings}


def _require_same(directory: RunDirectory, settings: Mapping[str, Any], job: Job) -> None:
    """UserError, with the keys, for other values than the verification was begun with.

    Where models and images lie is free; what they are is compared with the probes
    (``Case.changed``), and the suspect's files with their digests in the ledger.
    """
    recorded = load_yaml(directory.config, own=True)
    before = decisive(json.loads(json.dumps(recorded)))
    now = decisive(json.loads(json.dumps(settings)))
    free = {*PLACES}
    if directory.ledger.is_file() and (read_history(directory.ledger).teacher or {}).get("files"):
        files, option = files_of(job)
        free |= {f"teacher.{name}" for name in (*files, option)}
    else:
        _place_suspect(job, run_start(directory.config) or Path(), before)
        _place_suspect(job, Path(), now)
    keys = [key for key in {**before, **now} if key not in free and before.get(key) != now.get(key)]
    if recorded.get("budget") != settings["budget"]:
        keys.append("budget")
    if keys:
        raise _other_values(directory, keys)


def _place_suspect(job: Job, start: Path, content: dict[str, Any]) -> None:
    """Make the paths of the suspect's files absolute: one file may be named in several ways."""
    files, option = files_of(job)
    for name in (*files, option):
        path = content.get(f"teacher.{name}")
        if isinstance(path, str):
            content[f"teacher.{name}"] = os.path.abspath(start / path)


def _other_values(directory: RunDirectory, keys: Sequence[str]) -> UserError:
    return UserError(
        f"--resume: this verification was begun with other values of {', '.join(keys)} (see "
        f"{directory.config}); leave those flags out, or begin anew in another --out"
    )


def _answers(oracle: Oracle, classes: Answer, probes: Probes) -> GivenClasses:
    """The suspect's classes and the expected ones, batch by batch, up to the budget, of the images
    that are given a class.
    """
    for start in range(0, len(probes.images), BATCH):
        if count := min(BATCH, oracle.remaining):
            part = slice(start, start + count)
            class_B = classes(probes.images[part])
            given_B = class_B != NO_ANSWER
            yield class_B[given_B], probes.expected[part][given_B]

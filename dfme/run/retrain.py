"""A fresh student on a run's paid answers: the value of its queries apart from its training."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dfme.answers.asking import Reader
from dfme.answers.reading import top_class
from dfme.compute.device import (
    Streams,
    choose_device,
    derived_seed,
    device_name,
    has_fast_bf16,
    within_memory,
)
from dfme.compute.modules import Seldom, validate_like
from dfme.config.sections import AnswersConfig
from dfme.config.settings import ExtractConfig, StudentConfig
from dfme.config.values import from_mapping
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.errors import Ref, UserError, flag, say
from dfme.oracle.ledger import Ledger
from dfme.report.classified import Training, baselines
from dfme.report.classified import paid_answers as paid_answers_of
from dfme.report.console import agreement_line
from dfme.report.metrics import MetricRecord
from dfme.report.run_files import read_summary
from dfme.report.verdict import warnings
from dfme.run.checkpoint import (
    PAID_AT_ONCE,
    explain_load_errors,
    load_checkpoint,
    naming_the_rate,
    require_paid,
)
from dfme.run.components import build_students, build_trainer, public_weights
from dfme.run.directory import RunDirectory
from dfme.run.evaluation import (
    EvaluationSet,
    HoldOut,
    classified,
    evaluated,
    examination_of,
    score_all,
)
from dfme.run.job import plain
from dfme.run.loop import numbers
from dfme.run.opening import digests_on_record, require_recorded
from dfme.run.run import ACCOUNTS
from dfme.run.scores import evaluation_images
from dfme.run.student_file import save_student, student_facts, student_weights
from dfme.spec import ImageSpec, LabelMode
from dfme.students.optimizers import Schedule
from dfme.students.replay import Replay
from dfme.students.trainer import StudentTrainer
from dfme.version import __version__

LINES = 10  # of progress over the whole training


@dataclass(frozen=True)
class PaidAnswers:
    """A run's kept answers, for training: ``replay`` draws, ``batches`` gives all in order.

    ``replayed``: answers that went into its replay, still there or not. ``spent``: images paid for
    in all. ``steps``: that the students took. ``examination``: the state of what they were scored
    on. ``answers``: what the run made of the teacher's, of form ``label_mode``.
    """

    replay: Replay
    spec: ImageSpec
    label_mode: LabelMode
    num_classes: int
    replayed: int
    spent: int
    steps: int
    examination: Any
    answers: AnswersConfig

    @property
    def shortfall(self) -> str | None:
        """In a line, what of all that was paid for is not there, and why; None if all of it is."""
        reasons = {
            f"older than the {flag('student.replay_capacity')} last ones": self.replayed
            - len(self.replay),
            "that served other ends (gradient estimates, checks, scores)": self.spent
            - self.replayed,
        }
        missing = " and not ".join(
            f"{count:,} {reason}" for reason, count in reasons.items() if count > 0
        )
        kept = f"{len(self.replay):,} of {self.spent:,} paid answers are kept"
        return f"{kept}; not {missing}" if missing else None


def paid_answers(run_dir: Path, rng: torch.Generator | None = None) -> PaidAnswers:
    """Load what the run in ``run_dir`` kept, on the device of ``rng`` (or on disk, if the run kept
    it there).

    Raises UserError where the run kept nothing; RunError for files damaged or missing.
    """
    checkpoint = run_dir / "checkpoint.pt"
    state = load_checkpoint(checkpoint)
    with explain_load_errors(checkpoint):
        own = {
            "trainer": {"steps": 0, "replay": None},
            "oracle": {"ledger": Ledger(1).state_dict()},
        }
        validate_like(own, state, "state")
        kept = state["trainer"]["replay"]
        if kept is None or not kept["held"]:
            raise UserError(
                say(
                    "{}: this run kept none of its paid answers; start one with "
                    "{student.replay_steps} 1 or more",
                    run_dir,
                )
            )
        _, spec, num_classes = student_facts(run_dir)
        folder = run_dir / "replay" if kept["items"]["kind"] == "disk" else None
        # of this size: what never overflowed lies in the order of its numbers, what did fills its
        # window
        replay = Replay(kept["held"], spec, rng or torch.Generator().manual_seed(0), folder)
        replay.load_state_dict(kept)
        config = load_yaml(run_dir / "config.yaml", own=True)
        mode = _label_mode(run_dir, config)
        answers = from_mapping(AnswersConfig, config.get("answers") or {})
        images = state["oracle"]["ledger"]["images"]
        spent = sum(count for purpose, count in images.items() if purpose != "evaluation")
        require_paid(
            replay.batches(spec.at_once(PAID_AT_ONCE)), spec, num_classes, answers.mode(mode)
        )
        return PaidAnswers(
            replay=replay,
            spec=spec,
            label_mode=mode,
            num_classes=num_classes,
            replayed=replay.added,
            spent=spent,
            steps=state["trainer"]["steps"],
            examination=state.get("examination"),
            answers=answers,
        )


def _label_mode(run_dir: Path, config: dict[str, Any]) -> LabelMode:
    """From the summary of a finished run, else from the configuration, if it was given there."""
    mode = (read_summary(run_dir / "summary.json") or config["teacher"])["label_mode"]
    if mode is None:
        raise UserError(
            f"{run_dir}: this run is not finished, and its config.yaml does not say "
            "teacher.label_mode; "
            "resume it to its end first"
        )
    return LabelMode.parse(mode)


def retrain(
    run: Path, out: Path, settings: ExtractConfig, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Train a student from scratch on the paid answers of ``run`` and write it into ``out``; its
    summary.

    Of ``settings``, seed, device, precision, memory format, schedule, student and evaluation count.
    Without ``student.steps`` the student takes its passes, or as many steps as the run's own. The
    schedule runs over the steps. Nothing is asked: the evaluation's answers are those on record.
    Global random state is as it was afterwards.

    Raises UserError for a run that kept no answers, or settings that do not go with it, and
    RunError for files of the run that are damaged or missing.
    """
    device = choose_device(settings.device)
    gpus = [device] if device.type == "cuda" else []
    with within_memory(device), torch.random.fork_rng(gpus):
        streams = Streams(settings.seed, device)
        paid = paid_answers(run, streams["replay"])
        if paid.shortfall is not None:
            tell(paid.shortfall)
        examination = recorded_examination(run, settings, paid, device)
        paid = read_again(paid, settings, streams["replay"])
        # All answers are there from the first step on, so every step comes after the spending.
        mode = paid.answers.mode(paid.label_mode)
        settings = settings.with_precision(paid.spec.shape, has_fast_bf16(device))
        student = settings.student
        steps = student.steps or student.pass_steps(len(paid.replay)) or paid.steps
        student = replace(student, steps=steps, passes=0, rounds=())
        settings = replace(settings, student=student)
        arch, nets = build_students(
            settings,
            max(1, student.count),
            paid.spec,
            paid.num_classes,
            device,
            weights=public_weights(settings),
        )
        settings = replace(settings, student=replace(student, rounds=(1.0,)))
        if student.weights is not None:  # whose steps follow the answers
            settings = replace(settings, budget=len(paid.replay))
        torch.manual_seed(derived_seed(settings.seed, "global"))
        schedule = Schedule(settings.schedule)
        trainer = build_trainer(
            settings,
            nets,
            mode,
            paid.num_classes,
            paid.replay,
            schedule,
            streams,
            directory=run,
        )
        with RunDirectory.create(out) as directory:
            seconds, training = _train(settings.student, trainer, examination, tell)
            queries = answered(paid)
            seen = classified(examination, paid.num_classes, (), trainer.delivered, queries)
            seen = replace(seen, training=training)
            save_student(
                directory.student, trainer.delivered.eval(), arch, paid.spec, paid.num_classes
            )
            own: dict[str, Any] = plain(settings, "config") | {"budget": 0}
            own["teacher"] = load_yaml(run / "config.yaml", own=True).get("teacher")
            own["method"] = {"name": "retrain", "run": str(run)}
            directory.write_config(dump_yaml(own))
            summary = _summary(run, settings, paid, examination, device_name(device)) | {
                "teacher_accuracy": None,
                "accuracy": None,
                "agreement": None,
                "kl": None,
                **score_all(examination, trainer.delivered, trainer.vote),
                "baselines": baselines(seen),
                "paid_answers": paid_answers_of(seen),
                "warnings": warnings(seen),
                "student_arch": arch,
                **student_weights(nets[0]),
                "students": len(trainer.nets),
                "student_steps": trainer.steps,
                **trainer.facts,
                "precision": trainer.precision,
                "wall_seconds": round(seconds, 3),
            }
            directory.write_summary(summary)
    return summary


def read_again(paid: PaidAnswers, settings: ExtractConfig, rng: torch.Generator) -> PaidAnswers:
    """Paid answers of a run, read as ``settings.answers`` say, if kept as the teacher gave them."""
    recorded = paid.answers
    new = settings.answers
    if new == recorded:
        return paid
    if recorded.mode(paid.label_mode) != paid.label_mode or (new.repeat, new.vote) != (
        recorded.repeat,
        recorded.vote,
    ):
        raise UserError(
            "expected those of the run, which kept no other answers, and none are asked",
            about=Ref("answers"),
        )
    reader = Reader(
        replace(new, repeat=1, vote=1), paid.label_mode, paid.num_classes, settings.seed
    )
    replay = Replay(len(paid.replay), paid.spec, rng)
    for images, answers in paid.replay.batches(paid.spec.at_once(PAID_AT_ONCE)):
        replay.add(images, reader.read(answers))
    return replace(paid, replay=replay, answers=new)


def recorded_examination(
    run: Path, settings: ExtractConfig, paid: PaidAnswers, device: torch.device
) -> EvaluationSet | HoldOut:
    """What the run's student was scored on, with the answers on record. UserError for other
    images.
    """
    # the labels on record are in the teacher's order, whatever its classes are called
    unnamed = tuple(map(str, range(paid.num_classes)))
    data = evaluation_images(settings.evaluation, paid.spec, paid.num_classes, unnamed)
    mode = paid.answers.mode(paid.label_mode) if data is None else paid.label_mode
    examination = examination_of(data, paid.spec, mode, device, None)
    with explain_load_errors(run / "checkpoint.pt"):
        examination.load_state_dict(paid.examination)
    if isinstance(examination, EvaluationSet):
        answered = 0 if examination.answers is None else len(examination.answers)
        if answered != len(examination):
            raise UserError(
                say(
                    "{}: {} has answers to {} evaluation images on record, but here are {}; leave "
                    "it as the run has it",
                    Ref("evaluation.dataset", settings.evaluation.dataset),
                    run,
                    answered,
                    len(examination),
                )
            )
        now = digests_on_record(run) | ({} if data is None else {"evaluation.dataset": data.digest})
        require_recorded(run, now, "evaluation.dataset")
    with explain_load_errors(run / "checkpoint.pt"):
        require_paid(examination.paid, paid.spec, paid.num_classes, examination.mode)
    return examination


def _train(
    config: StudentConfig,
    trainer: StudentTrainer,
    examination: EvaluationSet | HoldOut,
    tell: Callable[[str], None],
) -> tuple[float, Training]:
    """All the steps; the seconds that they took, and their record.

    DivergedError for a student that diverges.
    """
    started = time.monotonic()
    steps = trainer.steps_left
    in_stages = bool(trainer.facts)
    at_once = 1 if in_stages else max(1, steps // LINES)
    seldom = Seldom(tell)
    records: list[MetricRecord] = []
    while trainer.steps_left:
        with naming_the_rate(config, trainer):
            metrics = numbers(trainer.train_pending(1 if not records else at_once))
            records.append({**metrics})
            if len(records) == 1 and at_once > 1:  # the loss before any training, and no line
                metrics = numbers(trainer.train_pending(at_once - 1))
                records.append({**metrics})
        line = f"{steps - trainer.steps_left:,} / {steps:,} steps"
        if in_stages and trainer.steps_left:  # there is no new student to score
            seldom(line)
            continue
        scores = examination.score(trainer.delivered)
        agreement = "".join(f"  {text}" for text in agreement_line(scores))
        loss = f"  loss {metrics['replay_loss']:.4g}" if "replay_loss" in metrics else ""
        tell(line + agreement + loss)
    if outcome := trainer.outcome:
        tell(f"student: {outcome}")
    return time.monotonic() - started, Training.of_records(records)


def answered(paid: PaidAnswers) -> torch.Tensor:
    """How often each class is the kept answers' top class, (K,)."""
    counts_K = torch.zeros(paid.num_classes, dtype=torch.int64)
    for _, answers in paid.replay.batches(paid.spec.at_once(PAID_AT_ONCE)):
        counts_K += torch.bincount(top_class(answers).cpu(), minlength=paid.num_classes)
    return counts_K


def _summary(
    run: Path,
    settings: ExtractConfig,
    paid: PaidAnswers,
    examination: EvaluationSet | HoldOut,
    device: str,
) -> dict[str, Any]:
    """The entries of summary.json that are known before the student is; its form is a run's."""
    source = read_summary(run / "summary.json") or {}
    known = (
        "method",
        "seed",
        "spent",
        "accuracy",
        "agreement",
        "kl",
        "student_steps",
        "config_hash",
    )
    own = {name: source[name] for name in (*known, "defences") if name in source}
    nothing = dict.fromkeys(ACCOUNTS, 0)
    return {
        "method": "retrain",
        "source": {"run": str(run), "method": "unfinished", **own},
        "answers": len(paid.replay),
        "seed": settings.seed,
        **nothing,
        "spent_by_purpose": {},
        "label_mode": str(paid.label_mode),
        "evaluation": evaluated(examination),
        "queries_per_second": None,
        "device": device,
        "version": __version__,
        "torch": torch.__version__,
    }

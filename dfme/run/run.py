"""One run on disk and in memory: resumed, run, saved, and delivered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dfme.compute.device import Streams, device_name
from dfme.compute.modules import DeferredChecks, evaluating, validate_like
from dfme.config.settings import Job
from dfme.errors import BudgetExhausted, flag, say
from dfme.methods.base import Method
from dfme.oracle.ledger_log import audit
from dfme.oracle.oracle import Oracle
from dfme.oracle.retry import left_out_warnings, require_classes
from dfme.report import verdict
from dfme.report.classified import Classified, Training, baselines, histogram, paid_answers
from dfme.report.metrics import MetricRecord, latest_of_callback, read_metrics
from dfme.report.page import write_report
from dfme.report.recorder import Recorder
from dfme.run import loop
from dfme.run.checkpoint import PAID_AT_ONCE, require_finite, require_paid, save_checkpoint
from dfme.run.directory import RunDirectory
from dfme.run.evaluation import (
    EvaluationSet,
    HoldOut,
    OwnersRecord,
    classified,
    evaluated,
    score_all,
    under_defences,
)
from dfme.run.job import config_hash
from dfme.run.loop import Goal, Interrupt
from dfme.run.scores import compare, scores
from dfme.run.student_file import save_student, student_weights
from dfme.run.work import Rehearsed, Work
from dfme.students.trainer import StudentTrainer
from dfme.version import __version__

EARLY_SHARE = (
    0.1  # of the budget, after which answers of one class alone are told: a start may be poor
)
FITTED = (
    500  # images at most, of those trained on, on which a student that learnt nothing is looked at
)
FEW_STEPS = 50  # of a generator, below which a run says that they are few; heuristic
ACCOUNTS = (  # figures of the ledger that summary.json has
    "budget",
    "spent",
    "spent_by_purpose",
    "evaluation_queries",
    "requests",
    "refused",
    "failed",
    "no_answer",
    "lost",
)


@dataclass(frozen=True)
class Result:
    """Result of a run: the student (eval mode), ``summary.json`` as a dict, and the directory.

    ``finished`` is false for a run that was interrupted; its student is the one so far.
    """

    student: nn.Module
    summary: dict[str, Any]
    run_dir: Path
    finished: bool = True

    @property
    def metrics(self) -> list[MetricRecord]:
        """The lines of metrics.jsonl as dicts, in order; of more than 12,000 a sample, evenly
        drawn.
        """
        return read_metrics(self.run_dir / "metrics.jsonl")


@dataclass
class Run:
    """Everything of one run, put together by ``dfme.run.build``; ``facts`` are those of its
    teacher.
    """

    job: Job
    facts: dict[str, Any]
    directory: RunDirectory
    oracle: Oracle
    owner: OwnersRecord
    method: Method
    examination: EvaluationSet | HoldOut
    recorder: Recorder
    streams: Streams
    deferred: DeferredChecks
    progress: loop.Progress
    device: torch.device
    arch: str
    goal: Goal | None = None
    notes: Sequence[str] = ()
    looked: bool = False
    rehearsed: Rehearsed | None = None

    @property
    def trainer(self) -> StudentTrainer:
        return self.method.students

    def _asks(self) -> bool:
        return self.oracle.asking

    def go(self, interrupt: Interrupt) -> Result:
        """Carry the run to the end of its budget, or to where it is stopped, and deliver what there
        is.
        """
        self.oracle.after_answer = interrupt.heed
        interrupt.asking = self._asks
        work = Work(self.job, self.method, self.rehearsed)
        asked = self.examination.answers is not None or self.examination.held_back
        time, shorter = work.foretold(0 if asked else len(self.examination))
        self.recorder.note(f"{time}: student {work.training(self.arch)}{shorter}")
        if "auto" not in (
            self.job.estimator.kind,
            self.job.estimator.step,
        ):  # whose cost the check decides
            self._remark_on_budget()
        if isinstance(self.examination, EvaluationSet):
            self._ask_about(self.examination)
        for line in self.method.prepare():
            self.recorder.note(line)
        if self.oracle.service is not None and not self.directory.has_checkpoint:
            # a service may be gone for good at the next request: there is one to resume from
            self.keep()
        config = self.job.config
        interrupt.starting = False
        self.recorder.follow(lambda: work.standing(self.progress.seconds))
        finished = loop.run(
            self.method,
            self.oracle,
            self.examination,
            self.recorder,
            self.progress,
            self.deferred,
            work=work,
            points=config.evaluation.points,
            price=self.job.teacher.price_per_1000,
            checkpoint_seconds=config.checkpoint_seconds,
            keep=self.keep,
            stopped=lambda: self.recorder.stopped or interrupt.requested(),
            goal=self.goal,
            look=self.look,
        )
        if self.recorder.error is not None:
            raise self.recorder.error
        if finished and not self.trainer.steps:
            require_classes(self.oracle.ledger, enough=1)
            failures = ", ".join(self.oracle.ledger.reasons.get("failed", {}))
            raise BudgetExhausted(
                say(
                    "query budget: all {} images are charged, and no answer came to learn from "
                    "({}); mend the teacher, then resume with a larger {budget}",
                    self.oracle.ledger.spent,
                    failures,
                )
            )
        if finished and self.oracle.remaining and self.goal is not None:
            rate = f"its learning rate at {self.trainer.lr_factor():.0%} of the first"
            self.recorder.note(
                f"{flag('until_agreement', self.goal.share)} is reached; the student is kept as it "
                f"is, {rate}"
            )
        return self.deliver(finished)

    def _ask_about(self, examination: EvaluationSet) -> None:
        """Ask the teacher about the evaluation images, unless the answers are there already."""
        folder = self.job.config.shared_answers
        on_record = self.oracle.ledger.requests and audit(self.directory.ledger).evaluation_queries
        if not examination.prepare(
            None if folder is None or on_record else Path(folder), self.facts
        ):
            self.recorder.note("evaluation: its answers are those that another run asked for")
        for line in verdict.teacher_warnings(self.classified()):
            self.recorder.note(f"warning: {line}")

    def heard(
        self, callback: Callable[..., object], queries: int, metrics: dict[str, float]
    ) -> object:
        """Call the callback with a record and the student as it is then, in eval mode; what it
        returns.
        """
        with evaluating(self.trainer.delivered) as student:
            return callback(queries, metrics, student)

    def look(self) -> None:
        """Warn once, early on, if paid answers show one class."""
        if not self.looked and self.oracle.ledger.share >= EARLY_SHARE:
            self.looked = True
            for line in verdict.query_warnings(self.classified(), " so far"):
                self.recorder.note(f"warning: {line}")

    def classified(self, student: nn.Module | None = None) -> Classified:
        """Classes by teacher, labels, paid answers and ``student``, as things stand."""
        classes = self.oracle.num_classes
        recorded = self.facts.get("class_names")
        names = recorded if isinstance(recorded, list) and len(recorded) == classes else ()
        seen = classified(self.examination, classes, names, student, self.oracle.answered)
        training = None
        if student is not None:
            records = read_metrics(self.directory.path / "metrics.jsonl")
            training = Training.of_records(records, bool(self.job.config.student.rounds))
        seen = replace(
            seen, method=self.job.method, programs=self.job.queries.programs, training=training
        )
        if student is None or training is None or not verdict.student_warnings(seen):
            return seen
        return replace(seen, training=replace(training, fit=self._fit(student)))

    def _fit(self, student: nn.Module) -> tuple[float, float, int] | None:
        """Agreement of student and constant answer on images that were trained on; None if none are
        held.
        """
        replay = self.trainer.replay
        if replay is None or not len(replay):
            return None
        images, answers = next(iter(replay.batches(self.oracle.spec.at_once(FITTED))))
        compared = compare(scores(student, images), answers, self.oracle.label_mode)
        return compared["agreement"], compared["constant_agreement"], len(images)

    def _remark_on_budget(self) -> None:
        """Say, before a run's first step, where its budget holds next to no step of the
        generator.
        """
        name = self.job.method
        budget = self.job.config.images
        cost = self.method.cost
        per_iteration: int = getattr(self.method.config, "generator_steps", 0)
        steps = budget // cost * per_iteration
        generates = per_iteration and hasattr(self.method, "generator_optimizer")
        if self.trainer.steps or steps >= FEW_STEPS or not generates:
            return
        few = f"{steps} steps of {name}'s generator, too few to train it"
        none = (
            f"no iteration of {name}, which is {cost:,} images, so its generator is not "
            "trained by it"
        )
        self.recorder.note(
            f"the budget of {budget:,} images holds {few if steps else none}; give a larger "
            f"{flag('budget')}, a smaller {flag('method.batch_size')}, or "
            f"{flag('recipe', 'frugal')}, which is made for few queries"
        )

    def _left_out(self) -> list[str]:
        on = self.examination
        return left_out_warnings(
            self.oracle.ledger, on.left_out if isinstance(on, EvaluationSet) else 0
        )

    def keep(self) -> None:
        """Save a checkpoint; the journal then lets go of what the checkpoint covers."""
        self.deferred.verify()
        require_finite(self.job.config.student, self.trainer, self.method)
        self.owner.keep_watch(self.directory.watch)
        save_checkpoint(self.directory.checkpoint, self.state_dict())
        self.oracle.checkpointed()

    def state_dict(self) -> dict[str, Any]:
        return {
            "method": self.method.state_dict(),
            "trainer": self.trainer.state_dict(),
            "oracle": self.oracle.state_dict(),
            "examination": self.examination.state_dict(),
            "goal": None if self.goal is None else self.goal.state_dict(),
            "streams": self.streams.state_dict(),
            "seconds": self.progress.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up everything but the oracle, whose ledger and journal were opened with their
        states.

        Raises ValueError unless ``state`` has the form of this run's own state.
        """
        form = self.state_dict() | {"oracle": None}
        if ":" in self.job.method:  # a user's method may keep what it likes
            form["method"] = None
        validate_like(form, state, "state")
        self.method.load_state_dict(state["method"])
        self.trainer.load_state_dict(state["trainer"])
        self.examination.load_state_dict(state["examination"])
        if self.goal is not None:
            self.goal.load_state_dict(state["goal"])
        self.streams.load_state_dict(state["streams"])
        self.progress.seconds = state["seconds"]
        oracle = self.oracle
        replay = self.trainer.replay
        replayed = () if replay is None else replay.batches(oracle.spec.at_once(PAID_AT_ONCE))
        held_back = () if self.goal is None else self.goal.held.paid
        paid = chain(held_back, replayed)
        require_paid(paid, oracle.spec, oracle.num_classes, oracle.label_mode)
        require_paid(self.examination.paid, oracle.spec, oracle.num_classes, self.examination.mode)

    def deliver(self, finished: bool) -> Result:
        """Write the student and, at the end of the budget, all results; the summary last."""
        student = self.trainer.delivered.eval()
        self.oracle.ledger.end()
        save_student(
            self.directory.student, student, self.arch, self.oracle.spec, self.oracle.num_classes
        )
        if outcome := self.trainer.outcome:
            self.recorder.note(f"student: {outcome}")
        summary = self.summary(student)
        ended_by = "until_agreement" if self.oracle.remaining else "budget"
        summary["ended_by"] = ended_by if finished else None
        summary["held_back"] = (
            None if self.goal is None else {"goal": self.goal.share, **self.goal.latest}
        )
        if finished:
            write_report(self.directory.path, summary=summary)
            self.directory.write_summary(summary)
            self.recorder.finish(summary)
        return Result(student, summary, self.directory.path, finished)

    def summary(self, student: nn.Module) -> dict[str, Any]:
        """The contents of summary.json for the student as it is."""
        seen = self.classified(student)
        # it may ask, and the totals count that
        defended = under_defences(self.owner, self.examination, seen)
        config = self.job.config
        totals = self.oracle.ledger.totals()
        latest = self.progress.scores.get(
            (totals.spent, self.trainer.steps)
        )  # those of the last evaluation
        scored = latest or score_all(self.examination, student, self.trainer.vote)
        price = self.job.teacher.price_per_1000
        seconds = self.progress.seconds
        added = latest_of_callback(read_metrics(self.directory.metrics))
        accounts = {name: getattr(totals, name) for name in ACCOUNTS}
        if totals.benign_queries:
            accounts["benign_queries"] = totals.benign_queries
        beside = {
            name: value
            for name, value in scored.items()
            if name.startswith(("agreement_", "vote_"))
        }
        return {
            "method": self.job.method,
            "seed": config.seed,
            **accounts,
            "cost": None if price is None else round(totals.served * price / 1000, 6),
            "authorised_by": self.job.teacher_options.get("authorised_by"),
            "teacher": self.facts,
            "started": self.oracle.ledger.stretches[0]["started"],
            "ended": self.oracle.ledger.stretches[-1]["ended"],
            "stretches": self.oracle.ledger.stretches,
            "service": self.oracle.service,
            "label_mode": str(self.oracle.raw_label_mode),
            **self.method.facts,
            **(
                {"attacker_knew": domain}
                if (domain := self.job.queries.domain) != "unknown"
                else {}
            ),
            "teacher_accuracy": self.examination.teacher_accuracy,
            "accuracy": scored.get("accuracy"),
            "agreement": scored.get("agreement"),
            "kl": scored.get("kl"),
            **beside,
            **defended,
            "evaluation": evaluated(self.examination),
            "baselines": baselines(seen),
            "answers": histogram(seen),
            "paid_answers": paid_answers(seen),
            "warnings": verdict.warnings(seen) + self._left_out(),
            "student_arch": self.arch,
            **student_weights(student),
            "students": len(self.trainer.nets),
            **({"callback_metrics": added} if added else {}),
            "student_steps": self.trainer.steps,
            **self.trainer.facts,
            "precision": self.trainer.precision,
            "wall_seconds": round(seconds, 3),
            "queries_per_second": round(totals.spent / seconds, 1) if seconds else None,
            "device": device_name(self.device),
            "threads": self.oracle.ledger.stretches[-1]["threads"],
            "config_hash": config_hash(self.job),
            "version": __version__,
            "torch": torch.__version__,
        }

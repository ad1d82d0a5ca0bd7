"""Asking a teacher: calls whose answers come back checked, and what is made of them."""

import hashlib
from collections import Counter
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from dfme.answers.reading import (
    NO_ANSWER,
    UNKNOWN_CLASS,
    PartialAnswers,
    read_answers,
    top_class,
    unanswered,
)
from dfme.answers.recover import Recovery, known_map, make_recovery
from dfme.compute.device import on_accelerator
from dfme.compute.modules import DeferredChecks
from dfme.config.sections import AnswersConfig
from dfme.errors import (
    BudgetExhausted,
    DfmeError,
    Misfit,
    Ref,
    TeacherError,
    Unusable,
    UserError,
    flag,
    say,
)
from dfme.spec import LabelMode, Teacher


class TeacherCall:
    """Asks ``teacher``, also from several threads; answers come to ``device``, checked.

    ``run`` names the run, for the keys of its requests. ``tells_more``: an answer told more than
    its mode. ``unknown_names``: what a service answered in place of its classes. ``fits``: whether
    it has ever answered as is read.
    """

    tells_more = False

    def __init__(
        self, teacher: Teacher, deferred: DeferredChecks, run: str, device: torch.device
    ) -> None:
        self._teacher = teacher
        self._deferred = deferred
        self._run = run
        self._device = device
        self._remote = teacher.info.remote
        self._ask = teacher.info.charged or teacher
        self.needs_key = self._remote is not None
        self.unknown_names = Counter[str]()
        self.fits: Callable[[], bool] = lambda: True

    def __call__(self, query_BCHW: Tensor, position: int, code: bytes) -> Tensor:
        """The answers to the images that follow ``position`` others of the run and have the digest
        ``code``.

        Raises:
            Refused, Unanswered: as the teacher does; Unusable also for an answer of a service that
            its label
                mode rules out.
            TeacherError: for such an answer of any other teacher, and for whatever it raises.
        """
        raw = self._call(query_BCHW, position, code)
        mode = self._teacher.label_mode
        gaps = (
            raw if isinstance(raw, PartialAnswers) else PartialAnswers(raw, (0,) * len(query_BCHW))
        )
        if gaps.slip and not self.fits():
            raise Misfit(gaps.slip, "unknown class", for_good=True)
        self.unknown_names.update(gaps.names)
        if len(gaps.gaps) != len(query_BCHW) or not {*gaps.gaps} <= {0, NO_ANSWER, UNKNOWN_CLASS}:
            raise TeacherError(
                f"teacher: expected PartialAnswers with a mark for each of {len(query_BCHW)} "
                "images (0, "
                f"{NO_ANSWER} or {UNKNOWN_CLASS}), got {len(gaps.gaps)} marks"
            )
        try:
            answers = self._read(gaps.answers, gaps.gaps.count(0))
            return (
                gaps.whole(answers, self._teacher.num_classes, mode) if any(gaps.gaps) else answers
            )
        except TeacherError as error:
            if self._remote:
                numbers = isinstance(gaps.answers, Tensor) and bool(gaps.answers.isfinite().all())
                raise (Misfit if numbers else Unusable)(error.message, error.reason) from error
            raise
        except Exception as error:  # there are dtypes that nothing can be done with
            what = f"what none can be read from ({type(error).__name__})"
            raise TeacherError(f"teacher: expected {mode.kind}, got {what}") from error

    def _read(self, raw: object, images: int) -> Tensor:
        if not images:
            return torch.empty(0, device=self._device)
        return read_answers(
            raw,
            images,
            self._teacher.num_classes,
            self._teacher.label_mode,
            self._deferred,
            self._device,
            self._more,
        )

    def _more(self) -> None:
        self.tells_more = True

    def _call(self, query_BCHW: Tensor, position: int, code: bytes) -> object:
        try:
            with torch.no_grad(), torch.autocast(query_BCHW.device.type, enabled=False):
                asked_BCHW = query_BCHW.clone()  # a teacher may write into it, and be asked again
                if self._remote is None:
                    return self._ask(asked_BCHW)
                return self._remote.ask(asked_BCHW, self._key(position, code))
        except (
            BaseException
        ) as error:  # a client may give up the whole process: it is not its own here
            if isinstance(error, DfmeError | KeyboardInterrupt) and not isinstance(
                error, BudgetExhausted
            ):
                raise
            name = type(error).__name__[:80]
            raise TeacherError(
                f"teacher: expected answers to {len(query_BCHW)} images {tuple(query_BCHW.shape)}, "
                "but it "
                f"raised {name}: {' '.join(str(error).split())[:500]}",
                f"raised {name}",
            ) from error

    def _key(self, position: int, code: bytes) -> str:
        """Seed that is the same for every attempt at the same images at the same place of the same
        run.
        """
        return hashlib.sha256(f"{self._run} {position} {code.hex()}".encode()).hexdigest()[:32]


# How an image is asked about, and what is made of the answers; nothing here hides a client

SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1))
"""Rows and columns by which images are moved, for as many votes as there are."""


class Reader:
    """Makes of every image those that are asked, and of their answers one.

    ``times``: images that are asked, and charged, for each. ``mode``: the form of what ``read``
    gives, of answers in ``raw_mode``, which the teacher gave. ``seed``: the run's. UserError,
    naming the option, for what such answers do not allow.
    """

    def __init__(
        self, config: AnswersConfig, raw_mode: LabelMode, classes: int, seed: int = 0
    ) -> None:
        self.times = config.times
        self._raw_mode = raw_mode
        self.mode = config.mode(raw_mode)
        self._config = config
        self._classes = classes
        self._seed = seed
        self.tell: Callable[[str], None] = lambda line: None
        self._compared = config.repeat == 1
        scores = config.learn in ("scores", "kl")
        recovers = config.recover != "none"
        again = say("{answers.repeat} and {answers.vote}")
        for needed, able, option, what in (
            (scores, raw_mode.kind != "label", Ref("answers.learn", config.learn), "scores"),
            (
                recovers,
                raw_mode.soft,
                Ref("answers.recover", config.recover),
                "a score of every class",
            ),
            (self.times > 1, raw_mode.kind != "top_k", again, "the same classes every time"),
        ):
            if needed and not able:
                raise UserError(
                    say(
                        "{}: expected a teacher that answers {}, this one answers {}",
                        option,
                        what,
                        raw_mode,
                    )
                )
        if recovers:
            known_map(config, raw_mode, torch.Generator())

    @cached_property
    def recovery(self) -> Recovery | None:
        """Return the recovery of ``config``, the same for the same seed, so that no run stores
        it.
        """
        undone = self._config.recover != "none"
        return (
            make_recovery(self._config, self._raw_mode, self._classes, self._seed)
            if undone
            else None
        )

    def expand(self, x_BCHW: Tensor) -> Tensor:
        """Return the images to ask: all ``repeat`` times, then again moved by a pixel, edges
        repeated.
        """
        if self.times == 1:
            return x_BCHW
        (height, width) = x_BCHW.shape[2:]
        wide_BCHW = pad(x_BCHW, (1, 1, 1, 1), mode="replicate")
        moved = [
            wide_BCHW[:, :, 1 + down : 1 + down + height, 1 + right : 1 + right + width]
            for down, right in SHIFTS[: self._config.vote]
        ]
        return torch.cat([shifted for shifted in moved for _ in range(self._config.repeat)])

    def read(self, answers: Tensor) -> Tensor:
        """One answer for each image, of those to all that ``expand`` made of it.

        Scores are averaged; of labels the most frequent counts, and of equally frequent ones the
        image's own. What a service did not answer counts for nothing, and marks an image alone that
        it never answered.
        """
        if on_accelerator(answers.device) or not bool((gaps := unanswered(answers)).any()):
            return self._learnable(self._merged(answers))
        answered_B = ~gaps.view(self.times, -1).all(dim=0)
        learnable = self._learnable(self._merged(answers)[answered_B])
        mark = torch.tensor(NO_ANSWER if learnable.ndim == 1 else torch.nan, dtype=learnable.dtype)
        batch = mark.repeat(len(answered_B), *learnable.shape[1:])
        batch[answered_B] = learnable
        return batch

    def _merged(self, answers: Tensor) -> Tensor:
        """One answer for each image; scores that are missing (NaN) count for nothing."""
        if self.recovery is not None and self._raw_mode.kind == "logits":
            answers = answers.softmax(dim=1)
        if not self._compared and len(answers) and not on_accelerator(answers.device):
            first, second = answers.chunk(self.times)[:2]
            self._compared = True
            if torch.equal(first, second):
                self.tell(
                    "warning: an image that is asked again is answered alike: "
                    f"{flag('answers.repeat')} buys nothing"
                )
        if self.times == 1:
            return answers
        answers = answers.unflatten(0, (self.times, len(answers) // self.times))
        if self._raw_mode.kind == "label":
            votes_TBK = answers[..., None] == torch.arange(self._classes, device=answers.device)
            return (votes_TBK.sum(dim=0) + 0.5 * votes_TBK[0]).argmax(dim=1)
        partly = not on_accelerator(answers.device) and bool(answers.isnan().any())
        return answers.nanmean(dim=0) if partly else answers.mean(dim=0)

    def _learnable(self, answers: Tensor) -> Tensor:
        """The answers with a defence undone, in the form that students learn from."""
        if self.recovery is not None:
            answers = self.recovery(answers)
        return top_class(answers) if self.mode.kind == "label" else answers


BINS = 15


def binned_gaps(scores_N: Tensor, right_N: Tensor) -> Tensor:
    """Return right (1) or wrong (0) less the score of each image, in the bin of its score: (N,
    ``BINS``).
    """
    bins_N1 = (scores_N[:, None] * BINS).ceil().long().clamp(1, BINS) - 1
    return torch.zeros(len(scores_N), BINS, dtype=torch.float64).scatter_(
        1, bins_N1, right_N[:, None].double() - scores_N[:, None].double()
    )

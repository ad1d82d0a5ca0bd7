"""How an image is asked about, and what is made of the answers; nothing here hides or disguises a
client.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from dfme.answers.reading import NO_ANSWER, top_class, unanswered
from dfme.answers.recover import Recovery, known_map, make_recovery
from dfme.compute.device import on_accelerator
from dfme.config.sections import AnswersConfig
from dfme.errors import Ref, UserError, flag, say
from dfme.spec import LabelMode

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
    gaps_N1 = right_N[:, None].double() - scores_N[:, None].double()
    return torch.zeros(len(scores_N), BINS, dtype=torch.float64).scatter_(1, bins_N1, gaps_N1)

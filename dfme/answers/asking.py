"""How an image is asked about, and what is made of the answers before a student learns from them.

An attacker who knows the owner's defence recovers what answers still tell, and does nothing else: nothing here hides,
splits or disguises a client.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from dfme.answers.reading import top_class
from dfme.answers.recover import Recovery, known_map, make_recovery
from dfme.compute import on_accelerator
from dfme.config.answer_settings import AnswersConfig
from dfme.errors import UserError
from dfme.spec import LabelMode

SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1))
"""Rows and columns by which images are moved, for as many votes as there are; the image itself comes first."""


class Reader:
    """Makes of every image those that are asked, and of their answers one.

    ``times``: images that are asked, and charged, for each. ``mode``: the form of what ``read`` gives, of answers that
    the teacher ``told``. ``seed``: the run's. UserError, naming the option, for what such answers do not allow.
    """

    def __init__(self, config: AnswersConfig, told: LabelMode, classes: int, seed: int = 0) -> None:
        self.times, self._told, self.mode = config.times, told, config.mode(told)
        self._config, self._classes, self._seed = config, classes, seed
        self.tell: Callable[[str], None] = lambda line: None
        self._compared = config.repeat == 1
        scores, recovers = config.learn in ("scores", "kl"), config.recover != "none"
        for needed, able, option, what in (
            (scores, told.kind != "label", f"learn {config.learn}", "scores"),
            (recovers, told.soft, f"recover {config.recover}", "a score of every class"),
            (self.times > 1, told.kind != "top_k", "repeat and --answers.vote", "the same classes every time"),
        ):
            if needed and not able:
                raise UserError(f"--answers.{option}: expected a teacher that answers {what}, this one answers {told}")
        if recovers:
            known_map(config, told, torch.Generator())

    @cached_property
    def recovery(self) -> Recovery | None:
        """What undoes the defence, the same for the same seed, so that no run keeps it; None where nothing does."""
        undone = self._config.recover != "none"
        return make_recovery(self._config, self._told, self._classes, self._seed) if undone else None

    def expand(self, x_BCHW: Tensor) -> Tensor:
        """The images that are asked: all of them ``repeat`` times, then again moved by a pixel, edges repeated."""
        if self.times == 1:
            return x_BCHW
        (height, width), wide_BCHW = x_BCHW.shape[2:], pad(x_BCHW, (1, 1, 1, 1), mode="replicate")
        shifts = SHIFTS[: self._config.vote]
        moved = [wide_BCHW[:, :, 1 + down : 1 + down + height, 1 + right : 1 + right + width] for down, right in shifts]
        return torch.cat([each for each in moved for _ in range(self._config.repeat)])

    def read(self, answers: Tensor) -> Tensor:
        """One answer for each image, of those to all that ``expand`` made of it.

        Scores are averaged; of labels the most frequent counts, and of equally frequent ones the image's own.
        """
        if self.recovery is not None and self._told.kind == "logits":
            answers = answers.softmax(dim=1)
        if not self._compared and len(answers) and not on_accelerator(answers.device):
            first, second = answers.chunk(self.times)[:2]
            self._compared = True
            if torch.equal(first, second):
                self.tell("warning: an image that is asked again is answered alike: --answers.repeat buys nothing")
        if self.times > 1:
            answers = self._average(answers.unflatten(0, (self.times, len(answers) // self.times)))
        if self.recovery is not None:
            answers = self.recovery(answers)
        return top_class(answers) if self.mode.kind == "label" else answers

    def _average(self, answers: Tensor) -> Tensor:
        if answers.ndim == 3:
            return answers.mean(dim=0)
        votes_TBK = answers[..., None] == torch.arange(self._classes, device=answers.device)
        return (votes_TBK.sum(dim=0) + 0.5 * votes_TBK[0]).argmax(dim=1)

"""DisGUIDE: Disagreement-Guided Data-Free Model Extraction (Rosenthal, Enouen, Pham, Tan; AAAI
2023).
"""

from typing import Any

import torch
from torch import Tensor

from dfme.compute.modules import evaluating
from dfme.methods.base import Components
from dfme.methods.configs import DisguideConfig
from dfme.methods.generator_losses import (
    DescendingMethod,
    class_diversity,
    predict,
    students_disagreement,
)

COLOURS = 3
"""Channels of an image that can be made grey."""

SETTLING = 50
"""Batches generated before the first step: what statistics were initialised with counts .9 to this
power then."""


class Disguide(DescendingMethod):
    """A generator of images on which the students' probabilities differ and that spread over the
    classes.

    An iteration is ``generator_steps`` steps of the generator, which ask nothing, then
    ``student_steps`` batches for the students: cost = B * d images. The generator minimises

        - mean_{b,k} std_e(p) + lambda * sum_k pbar_k log pbar_k,

    p the probabilities of student e in eval mode, pbar their mean over students and batch.

    B 256, d 1, a latent of 256 and Adam 1e-4 are published. Of colour images every
    ``grey_every``-th (8) of a batch is made grey, one of its three channels in place of all, in the
    generator's loss as among those paid for, as published.

    Differences from the paper and its published scripts, with their values where we know them:

    - students, optimiser, schedule and replay are options (``student``, ``schedule``); published:
      two students, one SGD of .03 over both with momentum .9 and weight decay 5e-4, x0.3 at 40 and
      80 % of the budget, three steps on uniform samples of a replay of a million images after each
      fresh batch (``configs/cifar10_disguide.yaml``);
    - lambda is .2 by default, the paper's for 10 classes (.04 for 100);
    - the channel is drawn for each grey image; whether the scripts draw one for the whole batch, we
      do not know;
    - the images that are paid for come from the generator in eval mode, as published; before the
      first step its statistics are let settle on its own output, since at small budgets those that
      it is initialised with would decide what is asked (10 % agreement on digits at 20,000 queries
      without it);
    - the generator and g of 1 are DFME's;
    - one student is reported beside the soft vote of both; the paper reports the vote;
    - the last students are reported, never the best on the evaluation set.
    """

    config: DisguideConfig

    def __init__(self, config: DisguideConfig, components: Components) -> None:
        super().__init__(config, components)
        self._settled = False

    def generator_loss(self, gen_op: Tensor) -> Tensor:
        """- mean std_e(p) + lambda * sum_k pbar_k log pbar_k of student probabilities, some images
        grey.
        """
        scores_EBK = predict(self.students.nets, self.with_grey(self.generator.squash(gen_op)))
        return self.config.diversity * class_diversity(scores_EBK) - students_disagreement(
            scores_EBK
        )

    @torch.no_grad()
    def prepare(self) -> tuple[str, ...]:
        """Let the generator's statistics settle, which asks nobody: images to pay for are drawn by
        them.
        """
        if not self._settled:
            for _ in range(SETTLING):
                self.generate(self.config.batch_size)
            self._settled = True
        return ()

    def query_images(self, count: int) -> Tensor:
        """Images to pay for, from the generator in eval mode, some of them grey."""
        with evaluating(self.generator):
            return self.with_grey(self.queries.images(count))

    def with_grey(self, x_BCHW: Tensor) -> Tensor:
        """Every so many-th colour image with one of its channels, drawn evenly, in place of all
        three.
        """
        every = self.config.grey_every
        if not every or x_BCHW.shape[1] != COLOURS:
            return x_BCHW
        rng = self.rng["grey"]
        of_B = torch.arange(0, len(x_BCHW), every, device=x_BCHW.device)
        channel_B = torch.randint(COLOURS, of_B.shape, generator=rng, device=rng.device)
        x_BCHW = x_BCHW.clone()
        x_BCHW[of_B] = x_BCHW[of_B, channel_B][:, None]
        return x_BCHW

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"settled": self._settled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._settled = state["settled"]

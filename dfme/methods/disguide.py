"""DisGUIDE: Disagreement-Guided Data-Free Model Extraction (Rosenthal, Enouen, Pham, Tan; AAAI 2023)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from dfme.compute import evaluating, held_to
from dfme.methods.base import Components, Method, Metrics
from dfme.methods.configs import DisguideConfig
from dfme.methods.generator_losses import class_diversity, predict, students_disagreement
from dfme.spec import LABEL_KINDS, LabelKind
from dfme.students.optimizers import ScheduledOptimizer

GREY = (0.299, 0.587, 0.114)
"""Luma weights of red, green and blue (ITU-R BT.601)."""

SETTLING = 50
"""Batches generated before the first step: what statistics were initialised with counts .9 to this power then."""


class Disguide(Method):
    """A generator of images on which the students' probabilities differ and that spread over the classes.

    An iteration is ``generator_steps`` steps of the generator, which ask nothing, then ``student_steps`` batches for
    the students: cost = B * d images. The generator minimises

        - mean_{b,k} std_e(p) + lambda * sum_k pbar_k log pbar_k,

    p the probabilities of student e in eval mode, pbar their mean over students and batch.

    Differences from the paper, with the paper's values where we know them:

    - students, optimiser, schedule and replay are options (``student``, ``schedule``); the paper's: two students, one
      SGD of .03 over both, x0.3 at 40 and 80 % of the budget, three steps on uniform samples of a replay of a million
      images after each fresh batch (``configs/cifar10_disguide.yaml``);
    - lambda is .2 by default, the paper's for 10 classes (.04 for 100);
    - the images that are paid for come from the generator in eval mode, as published; before the first step its
      statistics are let settle on its own output, since at small budgets those that it is initialised with would
      decide what is asked (10 % agreement on digits at 20,000 queries without it);
    - the generator is DFME's, with Adam 1e-4 as published; g of 1 and d of 5 are DFME's values;
    - one student is reported beside the soft vote of both; the paper reports the vote;
    - the last students are reported, never the best on the evaluation set.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = LABEL_KINDS
    config: DisguideConfig

    def __init__(self, config: DisguideConfig, components: Components) -> None:
        super().__init__(config, components)
        adam = torch.optim.Adam(self.generator.parameters(), config.generator_lr, fused=True)
        self.generator_optimizer = ScheduledOptimizer(adam, components.lr_factor)
        self._settled = False

    def step(self) -> Metrics:
        """One iteration: g steps of the generator, which ask nothing, then d batches for the students."""
        metrics: Metrics = {}
        for _ in range(self.config.generator_steps):
            metrics |= self.generator_step(self.config.batch_size)
        return metrics | self.pay_in_batches(self.cost)

    def generator_step(self, batch_size: int) -> Metrics:
        """One step of the generator on the students' disagreement, whose gradient autograd knows."""
        gen_op = self.generator(self.generator.draw(batch_size, self.rng["latent"]))
        loss = self.generator_loss(gen_op)
        self.generator_optimizer.zero_grad()
        loss.backward(inputs=[gen_op, *self.generator.parameters()])  # the students' weights get no gradient
        self.generator_optimizer.step()
        return self.generator_metrics(gen_op.grad) | {"generator_loss": loss.detach()}

    def generator_loss(self, gen_op: Tensor) -> Tensor:
        """- mean std_e(p) + lambda * sum_k pbar_k log pbar_k of the students' probabilities on the images."""
        scores_EBK = predict(self.students.nets, self.generator.squash(gen_op))
        return self.config.diversity * class_diversity(scores_EBK) - students_disagreement(scores_EBK)

    @torch.no_grad()
    def prepare(self) -> tuple[str, ...]:
        """Let the generator's statistics settle, which asks nobody: images to pay for are drawn by them."""
        if not self._settled:
            for _ in range(SETTLING):
                self.generate(self.config.batch_size)
            self._settled = True
        return ()

    def query_images(self, count: int) -> Tensor:
        """Images to pay for, from the generator in eval mode; every so many-th is made grey."""
        with evaluating(self.generator):
            x_BCHW = self.queries.images(count)
        every = self.config.grey_every
        if every and x_BCHW.shape[1] == len(GREY):
            weight_C = torch.tensor(GREY, device=x_BCHW.device)
            grey_BHW = torch.einsum("bchw,c->bhw", x_BCHW[::every], weight_C)
            x_BCHW[::every] = self.oracle.spec.quantise(grey_BHW[:, None].expand_as(x_BCHW[::every]))
        return x_BCHW

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"settled": self._settled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._settled = held_to(True, state["settled"], "settled")

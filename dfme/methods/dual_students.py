"""Dual Students Networks for data-free model stealing (Beetham, Kardan, Mian, Shah; ICLR 2023)."""

from typing import ClassVar

import torch
from torch import Tensor

from dfme.methods.base import Components, Method, Metrics
from dfme.methods.configs import DualStudentsConfig
from dfme.methods.generator_losses import pairwise_distance, predict
from dfme.spec import LABEL_KINDS, LabelKind
from dfme.students.optimizers import ScheduledOptimizer


class DualStudents(Method):
    """A generator of images with far apart scores: loss_G = - mean_b mean_k |S_1(x) - S_2(x)|.

    An iteration is ``generator_steps`` steps of the generator, which ask nothing, then ``student_steps``
    batches for the students: cost = B * d images. Of more than two students, the mean over all pairs counts.

    Differences from the paper, with the paper's values where we know them:

    - optimiser, schedule and average are options (``student``, ``schedule``); the paper's: SGD of .3 for each
      student, x0.3 at 10, 30 and 50 % of the budget, a moving average of decay .9 every 10 iterations
      (``configs/cifar10_dual_students.yaml``); one optimiser over both is the same as one for each;
    - the paper describes students that see images; the published code shows them, in the generator's step,
      its output before the squashing: ``before_tanh`` does so;
    - the generator is DFME's, with Adam 1e-4 and g of 1;
    - one student is reported beside the soft vote; the last ones, never the best on the evaluation set.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = LABEL_KINDS
    config: DualStudentsConfig

    def __init__(self, config: DualStudentsConfig, components: Components) -> None:
        super().__init__(config, components)
        adam = torch.optim.Adam(self.generator.parameters(), config.generator_lr, fused=True)
        self.generator_optimizer = ScheduledOptimizer(adam, components.lr_factor)

    def step(self) -> Metrics:
        """One iteration: g steps of the generator, which ask nothing, then d batches for the students."""
        metrics: Metrics = {}
        for _ in range(self.config.generator_steps):
            metrics |= self.generator_step(self.config.batch_size)
        return metrics | self.pay_in_batches(self.cost)

    def generator_step(self, batch_size: int) -> Metrics:
        """One step of the generator on the students' distance, whose gradient autograd knows."""
        gen_op = self.generator(self.generator.draw(batch_size, self.rng["latent"]))
        loss = self.generator_loss(gen_op)
        self.generator_optimizer.zero_grad()
        loss.backward(inputs=[gen_op, *self.generator.parameters()])  # the students' weights get no gradient
        self.generator_optimizer.step()
        return self.generator_metrics(gen_op.grad) | {"generator_loss": loss.detach()}

    def generator_loss(self, gen_op: Tensor) -> Tensor:
        """- mean |S_1(x) - S_2(x)|, on images or, ``before_tanh``, on the generator's output."""
        shown_BCHW = gen_op if self.config.before_tanh else self.generator.squash(gen_op)
        return -pairwise_distance(predict(self.students.nets, shown_BCHW))

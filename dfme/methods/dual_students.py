"""Dual Students Networks for data-free model stealing (Beetham, Kardan, Mian, Shah; ICLR 2023)."""

from torch import Tensor

from dfme.methods.configs import DualStudentsConfig
from dfme.methods.generator_losses import DescendingMethod, pairwise_distance, predict


class DualStudents(DescendingMethod):
    """A generator of images with far apart scores: loss_G = - mean_b mean_k |S_1(x) - S_2(x)|.

    An iteration is ``generator_steps`` steps of the generator, which ask nothing, then
    ``student_steps`` batches for the students: cost = B * d images. Of more than two students, the
    mean over all pairs counts.

    Differences from the paper, with the paper's values where we know them:

    - optimiser, schedule and average are options (``student``, ``schedule``); the paper's: SGD of
      .3 for each student, x0.3 at 10, 30 and 50 % of the budget, a moving average of decay .9 every
      10 iterations (``configs/cifar10_dual_students.yaml``); one optimiser over both is the same as
      one for each;
    - the paper describes students that see images; the published code shows them, in the
      generator's step, its output before the squashing: ``before_tanh`` does so;
    - the generator is DFME's, with Adam 1e-4 and g of 1;
    - one student is reported beside the soft vote; the last ones, never the best on the evaluation
      set.
    """

    config: DualStudentsConfig

    def generator_loss(self, gen_op: Tensor) -> Tensor:
        """- mean |S_1(x) - S_2(x)|, on images or, ``before_tanh``, on the generator's output."""
        shown_BCHW = gen_op if self.config.before_tanh else self.generator.squash(gen_op)
        return -pairwise_distance(predict(self.students.nets, shown_BCHW))

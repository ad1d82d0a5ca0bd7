"""Data-Free Model Extraction (Truong, Maini, Walls, Papernot; CVPR 2021; arXiv 2011.14779).

B images in a batch, C channels, H height, W width, Z latent size, m directions.
"""

from dfme.compute.modules import Adam
from dfme.estimators.differences import check_upstream
from dfme.methods.base import Components, EstimatingMethod, Metrics
from dfme.methods.configs import DfmeConfig
from dfme.students.optimizers import ScheduledOptimizer


class Dfme(EstimatingMethod):
    """A generator trained to find where student and teacher differ, by finite differences through
    the API.

    An iteration is ``generator_steps`` (g) steps of the generator, each on ``batch_size`` (B)
    images, then ``student_steps`` (d) batches for the students: cost = B * (g * estimator.cost(1) +
    d) images, B less with ``reuse``, and nothing for a gradient that is predicted.

    Differences from the paper, with the paper's values:

    - the estimator and what it differentiates are options (``estimator``); the paper's is one
      forward difference of 1e-3 on the unit sphere before the squashing, of the student's L1 loss,
      which is the default;
    - ``reuse``, replay steps, average of weights, optimiser and schedule are options (``student``,
      ``schedule``); the paper has no reuse, no replay, no average, SGD .1 and steps of x0.3 at 10,
      30 and 50 % of the budget, as in ``configs/cifar10_dfme.yaml``;
    - ``learn_from`` all teaches the students what the generator's steps paid for too, the images
      and their neighbours. It is our own; the paper's is students;
    - the teacher takes images within the bounds of its API and normalises them itself; the paper
      sends tanh's output straight to a network trained on normalised images
      (``*_paper_space.yaml``);
    - the estimate is not divided by the number of classes a second time, as the published code does
      for its L1 loss: Adam hides that factor, other optimisers would not;
    - the last student is reported, and never one chosen by its score on the evaluation set;
    - nothing is sent to the teacher for a log line: the norm of the true gradient is not shown.
    """

    config: DfmeConfig

    def __init__(self, config: DfmeConfig, components: Components) -> None:
        super().__init__(config, components)
        adam = Adam(self.generator.parameters(), config.generator_lr, fused=True)
        self.generator_optimizer = ScheduledOptimizer(adam, components.lr_factor)

    def step(self) -> Metrics:
        """One iteration: g steps of the generator towards disagreement, then d batches for the
        students.
        """
        metrics: Metrics = {}
        for _ in range(self.config.generator_steps):
            metrics |= self.generator_step(self.config.batch_size)
        return metrics | self.train_students()

    def generator_step(self, batch_size: int) -> Metrics:
        """One step of the generator, on an estimated gradient at its output."""
        # z -> G -> gen_op, the output before tanh: the last tensor that autograd knows of.
        z_BZ = self.generator.draw(batch_size, self.rng["latent"])
        gen_op = self.generator(z_BZ)

        # Finite differences through the API: G minimises f(x) = -loss(S(x), T(x)), for each image
        # by itself.
        estimate = self.estimate(gen_op)
        upstream_grads = (
            estimate.grad_BCHW / batch_size
        )  # the only place that averages over the batch
        check_upstream(gen_op, upstream_grads, self.deferred)  # shape, dtype, device, finite

        # The API cut the chain rule at gen_op; from here autograd goes on into G's weights.
        self.generator_optimizer.zero_grad()
        gen_op.backward(gradient=upstream_grads)
        self.generator_optimizer.step()

        return self.generator_metrics(upstream_grads) | self.after_estimate(gen_op, estimate)

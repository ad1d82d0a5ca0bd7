"""DFME's published training loop (Truong et al. 2021), rewritten from its description.

What differs from ours in cost: fp32 work is in TF32 where the device has it, probes included;
directions are drawn by numpy in double precision, and probes are made and squashed, on the host;
cuDNN is held to deterministic algorithms; optimisers are not fused; there is no ledger, log or
check.
"""

from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor, nn

from dfme.compute.device import tf32
from dfme.compute.modules import evaluating
from dfme.methods.configs import DfmeConfig
from dfme.nets import build_net
from dfme.nets.generators import Generator
from dfme.spec import ImageSpec

STEP = 1e-3
BOUNDS = (-1.0, 1.0)


class PublishedLoop:
    """One forward difference on the unit sphere, then student steps; the paper's values."""

    def __init__(
        self,
        spec: ImageSpec,
        teacher: str,
        student: str,
        num_classes: int,
        batch: int,
        device: torch.device,
    ) -> None:
        config = DfmeConfig()
        self.latent_size = config.latent_size
        self.student_steps = config.student_steps
        self.spec = ImageSpec(spec.shape, BOUNDS)
        self.batch = batch
        self.device = device
        self.teacher = build_net(teacher, spec.shape, num_classes).to(device).eval()
        self.student = build_net(student, spec.shape, num_classes).to(device)
        self.generator = Generator(self.latent_size, self.spec).to(device)
        self.student_optimizer = torch.optim.SGD(
            self.student.parameters(), 0.1, momentum=0.9, weight_decay=5e-4
        )
        self.generator_optimizer = torch.optim.Adam(self.generator.parameters(), 1e-4)
        self.rng = np.random.default_rng(0)

    def run(self, iterations: int) -> None:
        """So many iterations of batch x (1 + 1 + student steps) queries."""
        cudnn = torch.backends.cudnn
        with tf32(), ExitStack() as undo:
            undo.callback(setattr, cudnn, "deterministic", cudnn.deterministic)
            cudnn.deterministic = True
            for _ in range(iterations):
                self._generator_step()
                for _ in range(self.student_steps):
                    self._student_step()

    def _generator_step(self) -> None:
        gen_op = self.generator(torch.randn(self.batch, self.latent_size, device=self.device))
        point_BCHW = gen_op.detach().cpu()
        drawn_BD = self.rng.standard_normal((self.batch, self.spec.numel))
        drawn_BD /= np.linalg.norm(drawn_BD, axis=1, keepdims=True)
        v_BCHW = torch.from_numpy(drawn_BD).float().view(point_BCHW.shape)
        probes_NCHW = torch.tanh(torch.cat([point_BCHW, point_BCHW + STEP * v_BCHW])).to(
            self.device
        )
        with torch.no_grad(), evaluating(self.student):
            here_B, there_B = -self._distance(
                self.student(probes_NCHW), self._answers(probes_NCHW)
            ).view(2, -1)
        slope_B = (there_B - here_B) * (self.spec.numel / STEP)
        self.generator_optimizer.zero_grad()
        gen_op.backward(slope_B.view(-1, 1, 1, 1) * v_BCHW.to(self.device) / self.batch)
        self.generator_optimizer.step()

    def _student_step(self) -> None:
        with torch.no_grad():
            z_BZ = torch.randn(self.batch, self.latent_size, device=self.device)
            x_BCHW = self.generator.squash(self.generator(z_BZ))
            answers_BK = self._answers(x_BCHW)
        self.student_optimizer.zero_grad()
        self._distance(self.student(x_BCHW), answers_BK).mean().backward()
        self.student_optimizer.step()

    def _answers(self, x_NCHW: Tensor) -> Tensor:
        """Logits recovered from probabilities, as the paper does."""
        log_NK = self.teacher(x_NCHW).log_softmax(dim=1)
        return log_NK - log_NK.mean(dim=1, keepdim=True)  # type: ignore[no-any-return]

    def _distance(self, scores_NK: Tensor, answers_NK: Tensor) -> Tensor:
        return nn.functional.l1_loss(scores_NK, answers_NK, reduction="none").mean(dim=1)

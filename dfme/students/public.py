"""Training of a student with public weights: its last layer, by algebra on features that are
computed once, and its last blocks where answers that are held back say that it helps.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dfme.answers.reading import top_class, unanswered
from dfme.compute.device import derived_seed
from dfme.compute.modules import evaluating
from dfme.config.settings import ExtractConfig
from dfme.errors import OptionError, say
from dfme.nets.public import PublicNet
from dfme.spec import LabelMode
from dfme.students import heads
from dfme.students.class_prior import adjustment, class_mass
from dfme.students.features import FeatureCache
from dfme.students.heads import Head
from dfme.students.losses import make_distance
from dfme.students.optimizers import Schedule, StepPlan
from dfme.students.replay import Replay
from dfme.students.stages import Stage
from dfme.students.tail import TailTraining
from dfme.students.trainer import Metrics, StudentTrainer

BATCH = 32
"""Images whose features are computed at once, and of a step of the last blocks."""

ROUNDS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Shares of the budget at which the student learns, where its recipe names none."""

TAIL_STEPS = 160

AT_ONCE = 2
"""Steps of the last blocks that count as one: so one takes about as long as a batch of features."""

CHECKS = 8
"""Looks at the held-back answers while the last blocks are trained, at even steps."""

MIN_ANSWERS = 2
"""Answers that a last layer is learnt from; with fewer the student stays as it is."""

PATIENCE = 3
"""Looks in a row that find nothing better, after which the training ends."""

HELD_BACK_EVERY = 8
"""Of so many answers one is held back from the training of the last blocks."""

MIN_FOR_BLOCKS = 10 * HELD_BACK_EVERY
"""Answers; with fewer than ten of them held back nothing can be told of the last blocks."""

MAX_BYTES = 2 << 30
"""Of activations in memory; of more images the network is computed whole at every step."""


class PublicTrainer(StudentTrainer):
    """Trains a student with public weights in rounds, each from these weights on all that is held.

    A step is a batch of features, the last layer, or a step of the last blocks. ``mode``: the form
    of the answers. ``cache``: where features are kept. The other arguments are those of
    ``StudentTrainer``; of the student's options those of its training have no effect but ``train``
    and ``rounds``. A round that was cut short begins anew from the features in the cache.
    """

    def __init__(
        self,
        config: ExtractConfig,
        nets: Sequence[nn.Module],
        replay: Replay,
        schedule: Schedule,
        rng: torch.Generator,
        mode: LabelMode,
        cache: FeatureCache,
    ) -> None:
        (net,) = nets
        assert isinstance(net, PublicNet)
        student = replace(
            config.student,
            rounds=config.student.rounds or ROUNDS,
            steps=0,
            passes=0,
            replay_steps=0,
            replay_batch=BATCH,
            average=0.0,
        )
        require_solvable(student.train, mode)
        distance = make_distance("cross_entropy" if mode.kind == "label" else "kl", mode)
        config = replace(config, student=student)
        super().__init__(config, nets, distance, replay, schedule, rng)
        self._held_images = replay
        self._frozen = net  # with public weights in all of its blocks
        self._is_tuned = False
        self._mode = mode
        self._cache = cache
        self._seed = config.seed
        self._rows: list[Tensor] = []  # features of the items from _first on
        self._first = 0
        self._round: Iterator[Metrics] | None = None
        self._round_began = 0
        self.stages: list[Stage] = []

    @property
    def facts(self) -> dict[str, Any]:
        """``student_stages``: those of the last round, in order."""
        return {"student_stages": [asdict(stage) for stage in self.stages]}

    @property
    def outcome(self) -> str:
        """The stages in a line, and what they say of the teacher."""
        said = [str(stage) for stage in self.stages if stage.taken or stage.name != "solve"]
        if self._is_exact:
            tuned = "" if self._least_residual < heads.EXACT else ", hardly tuned if at all,"
            said.append(f"so the teacher is these weights{tuned} with a last layer of its own")
        return "; ".join(said)

    def learn(self, images_BCHW: Tensor, answers: Tensor, keep: bool = True) -> Metrics:
        """Hold a paid batch until its round.

        One not to ``keep`` is looked at and forgotten: so a rehearsal times features.
        """
        if keep:
            self._held_images.add(images_BCHW, answers)
        else:
            self._features_of(images_BCHW)
        return {}

    def train_pending(self, at_most: int) -> Metrics:
        """Take up to ``at_most`` of the ``steps_due``, of which the last one ends the round."""
        metrics: Metrics = {}
        for _ in range(at_most):
            if self.steps_due:  # which the end of a round makes fewer than one step does
                metrics |= self._advance()
        return metrics | {"student_steps": self.steps}

    keeps_features = True

    @torch.no_grad()
    def scores(self, x_NCHW: Tensor) -> Tensor:
        """Scores (1, N, K) of the student, from features that are kept while it has no others."""
        student = self.nets[0]
        if self._is_tuned or not isinstance(student, PublicNet):
            return super().scores(x_NCHW)
        features = [self._features_of(part_BCHW) for part_BCHW in x_NCHW.split(BATCH)]
        scores_NK: Tensor = student.head(torch.cat(features))
        return scores_NK[None]

    def _advance(self) -> Metrics:
        """The next step; the last one that the plan has for a round does all that is left of it."""
        end = next(edge for edge in self.plan.edges if edge > self.steps)
        if self._round is None:
            self._round_began = self.steps
            self._round = self._stages_of_round(is_last=end == self.plan.edges[-1])
        metrics: Metrics = {}
        for metrics in self._round:
            self.steps += 1
            if self.steps < end:
                return metrics
        self._round = None
        self.steps = end
        return metrics

    @property
    def _is_exact(self) -> bool:
        """True if the teacher is the public network with another last layer."""
        return self._least_residual < heads.FROZEN

    @property
    def _least_residual(self) -> float:
        residuals = [stage.residual for stage in self.stages if stage.residual is not None]
        return min(residuals, default=math.inf)

    @property
    def _trains_blocks(self) -> bool:
        return self.config.train in ("auto", "tail")

    def _plan(self, images: int) -> StepPlan:
        """Batches of features and a last layer in each round; in the last one the blocks, too."""
        most = self.config.replay_capacity
        held = [min(most, math.ceil(share * images)) for share in self.config.rounds]
        batches = [0, *(math.ceil(count / BATCH) for count in held)]
        steps = [later - sooner + 1 for sooner, later in pairwise(batches)]
        if self._trains_blocks and held[-1] >= MIN_FOR_BLOCKS:
            steps[-1] += batches[-1] + TAIL_STEPS // AT_ONCE
        return StepPlan(0, tuple(steps), self.config.rounds)

    def _stages_of_round(self, is_last: bool) -> Iterator[Metrics]:
        """All that a round does, a step at a time; ``stages`` says what came of it."""
        self.stages = []
        yield from self._compute_features()
        _, answers = self._held_images.items(self._first, self._held_images.added)
        if int((~unanswered(answers)).sum()) < MIN_ANSWERS:
            yield {}
            return
        self._take(self._last_layer(answers))
        yield {}
        enough = len(answers) >= MIN_FOR_BLOCKS
        if is_last and self._trains_blocks and enough and not self._is_exact:
            yield from self._last_blocks(answers)

    def _compute_features(self) -> Iterator[Metrics]:
        """Features of the images held that have none yet; those of images no longer held go."""
        replay = self._held_images
        oldest = replay.added - len(replay)
        if self._rows:
            self._rows = [torch.cat(self._rows)[max(0, oldest - self._first) :]]
        self._first = max(oldest, self._first)
        following = self._first + sum(map(len, self._rows))
        for start in range(following, replay.added, BATCH):
            images_BCHW, _ = replay.items(start, min(start + BATCH, replay.added))
            self._rows.append(self._features_of(images_BCHW))
            yield {}

    def _features_of(self, images_BCHW: Tensor) -> Tensor:
        with evaluating(self._frozen), torch.no_grad():
            return self._cache(images_BCHW, self._frozen.features)

    def _last_layer(self, answers: Tensor) -> Head:
        """The last layer by linear equations where that is exact, or asked for; else by a fit."""
        features_ND = torch.cat(self._rows)
        images = len(features_ND)
        classes = self._frozen.head.out_features
        arguments = (features_ND, answers, self._mode, classes, self._seed)
        if self.config.train != "head" and is_solvable(self._mode):
            solved = heads.solve(*arguments)
            rounded = self._mode.decimals is not None
            taken = self.config.train == "solve" or rounded or solved.residual < heads.FROZEN
            tells = not rounded and math.isfinite(solved.residual)
            residual = solved.residual if tells else None
            self.stages.append(Stage("solve", images, taken, solved.held_back_agreement, residual))
            if taken:
                return solved.head
        fitted = heads.fit(*arguments)
        self.stages.append(Stage("head", images, True, fitted.held_back_agreement))
        return fitted.head.lowered(self._adjustment(answers))

    def _adjustment(self, answers: Tensor) -> Tensor:
        """What the loss adds to scores (K,), and a last layer that is fitted lacks in its bias."""
        mass_K = class_mass(answers, self._mode, self._frozen.head.out_features)
        return adjustment(mass_K, self.config.logit_adjustment)

    @torch.no_grad()
    def _take(self, head: Head, blocks: PublicNet | None = None) -> None:
        """Give the student this last layer, on ``blocks``, or on the public ones."""
        student = self.nets[0]
        assert isinstance(student, PublicNet)
        if blocks is not None and not self._is_tuned:
            self._frozen = copy.deepcopy(student)
        if blocks is not None or self._is_tuned:
            source = blocks or self._frozen
            student.backbone.load_state_dict(source.backbone.state_dict())
        self._is_tuned = blocks is not None
        student.head.weight.copy_(head.weight_KD)
        student.head.bias.copy_(head.bias_K)

    def _last_blocks(self, answers: Tensor) -> Iterator[Metrics]:
        """Train the last blocks on most answers; the best by the others is taken, if one helps."""
        replay = self._held_images
        features_ND = torch.cat(self._rows)
        place_N = torch.arange(len(features_ND))
        is_held_N = place_N % HELD_BACK_EVERY == HELD_BACK_EVERY - 1
        learnt_N = place_N[~is_held_N]
        held_N = place_N[is_held_N]
        classes = self._frozen.head.out_features
        head = heads.fit(
            features_ND[learnt_N], answers[learnt_N], self._mode, classes, self._seed
        ).head
        added_K = self._adjustment(answers[learnt_N])
        probe_BCHW, _ = replay.items(self._first, self._first + 2)
        tail = TailTraining(self._frozen, head.lowered(added_K), self.distance, probe_BCHW, added_K)
        tail.by_activations &= len(place_N) * tail.bytes_of_image < MAX_BYTES
        middle: list[Tensor] = []
        for places in place_N.split(BATCH) if tail.by_activations else ():
            middle.append(tail.middle(replay.read(self._first + places)[0]))
            yield {}
        activations = torch.cat(middle) if middle else None

        def part(place_B: Tensor) -> Tensor:
            if activations is not None:
                return activations[place_B]
            return replay.read(self._first + place_B)[0]

        def looked() -> tuple[float, float]:
            """Agreement on the held-back answers, and their mean distance with the sign changed."""
            with torch.no_grad():
                scores = [tail.scores(part(place_B)) for place_B in held_N.split(BATCH)]
                scores_NK = torch.cat(scores)
                far = self.distance(scores_NK, answers[held_N]).mean()
                same = scores_NK.argmax(1) == top_class(answers[held_N])
            return float(same.float().mean()), -float(far)

        yield from self._until_no_better(tail, part, looked, learnt_N, answers)

    def _until_no_better(
        self,
        tail: TailTraining,
        part: Callable[[Tensor], Tensor],
        looked: Callable[[], tuple[float, float]],
        learnt_N: Tensor,
        answers: Tensor,
    ) -> Iterator[Metrics]:
        """Steps of the last blocks, of which the best that was ``looked`` at is taken."""
        rng = torch.Generator().manual_seed(derived_seed(self._seed, "last blocks"))
        before = best = looked()
        weights = None
        worse = 0
        for step in range(TAIL_STEPS):
            place_B = learnt_N[torch.randint(len(learnt_N), (BATCH,), generator=rng)]
            rate = 0.5 * (1 + math.cos(math.pi * step / TAIL_STEPS))
            losses_B = tail.step(part(place_B), answers[place_B], rate)
            if (step + 1) % AT_ONCE == 0:
                yield {"replay_loss": losses_B.mean()}
            if (step + 1) % (TAIL_STEPS // CHECKS):
                continue
            now = looked()
            worse = 0 if now > best else worse + 1
            if now > best:
                best = now
                weights = copy.deepcopy(tail.tuned.state_dict())
            if worse == PATIENCE:
                break
        images = len(answers)
        taken = weights is not None
        self.stages.append(Stage("tail", images, taken, best[0], before=before[0]))
        if weights is not None:
            tail.tuned.load_state_dict(weights)
            tuned = tail.tuned.head
            self._take(Head(tuned.weight.detach(), tuned.bias.detach()), tail.tuned)

    def state_dict(self) -> dict[str, Any]:
        """The state at the beginning of the round, if one is under way."""
        state = super().state_dict()
        if self._round is not None:
            state["steps"] = self._round_began
        return state | {**self.facts, "is_tuned": self._is_tuned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        student = self.nets[0]
        assert isinstance(student, PublicNet)
        if state["is_tuned"]:
            self._frozen = copy.deepcopy(student)
        super().load_state_dict(state)
        self._is_tuned = bool(state["is_tuned"])
        self.stages = [Stage(**stage) for stage in state["student_stages"]]
        self._rows = []
        self._first = 0
        self._round = None


def feature_key(net: PublicNet) -> str:
    """Text that is the same for networks which see the same features in an image."""
    digest = hashlib.sha256(repr((net.form, net.low, net.range)).encode())
    for name, tensor in net.backbone.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def is_solvable(mode: LabelMode) -> bool:
    """True if answers of this form say every class's log-odds, as far as rounding lets them."""
    return mode.kind != "label"


def require_solvable(train: str, mode: LabelMode) -> None:
    """UserError where equations for a last layer need answers that the teacher does not give."""
    if train == "solve" and not is_solvable(mode):
        expected = "expected a teacher that answers scores, got {}; give head"
        raise OptionError("student.train", say(expected, mode))

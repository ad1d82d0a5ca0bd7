"""Defences and attackers of a comparison by name: what runs, what needs no run of its own, and what cannot be.

An attacker is what it learns (``scores``, ``kl``, ``label``, or ``auto``: as the row says), how it undoes the defence
(``table``, ``net``), ``repeat=N`` and ``vote=N``, joined by +: ``label``, ``kl+table``, ``table+repeat=4``. One that
undoes the defence knows it by name and options, and learns by ``kl`` where nothing else is said, as ModelGuard's own
adaptive attackers do. It recovers what answers still tell, and hides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfme.config.answer_settings import AnswersConfig
from dfme.config.defence_texts import parse_defences
from dfme.config.defences import DefenceOptions, Quota
from dfme.config.values import from_mapping
from dfme.errors import UserError
from dfme.spec import LabelMode

NO_DEFENCE, AS_IT_IS = "none", "auto"

KINDS = {**dict.fromkeys(("auto", "scores", "kl", "label"), "learn"), **dict.fromkeys(("table", "net"), "recover")}
"""Words of an attacker, and the option of the section answers that each sets."""

ANSWERS_UNTOUCHED = ("quota", "pow")
"""Defences that change no answer: what an attacker gets is read off the run without them."""

WITHOUT_MAP = ("watermark", "misinform", "modelguard_s")
"""Defences whose answers nobody can work out from the probabilities, their name and their options."""

CLASSES = 10  # which facts about the top class do not depend on


@dataclass(frozen=True)
class Condition:
    """Where a run stands besides its row, as it was asked for, and as it is run: the stack that answers in its run.

    ``reason``: why it cannot be run, or nothing. ``limit``: images after which a quota refuses.
    """

    defence: str = NO_DEFENCE
    answers: str = AS_IT_IS
    runs: str = NO_DEFENCE
    reason: str = ""
    limit: int | None = None

    @property
    def flags(self) -> dict[str, str]:
        """The options of a run that it sets."""
        if self.reason:
            return {}
        given = parse_attacker(self.answers)
        flags = {f"answers.{key}": value for key, value in given.items() if value != AS_IT_IS}
        flags |= {"answers.knows": self.runs} if "recover" in given else {}
        return flags | ({"teacher.defences": self.runs} if self.runs != NO_DEFENCE else {})


PLAIN = Condition()


def condition(defence: str, answers: str, mode: str) -> Condition:
    """What becomes of a defence, an attacker and a label mode.

    A label of a defence that keeps the top class, and is not random, is the undefended one: the attackers that learn
    labels alone are run once for all of these. Not where probabilities are rounded, which makes ties.
    """
    stack, given, form = parse_defences(defence), parse_attacker(answers), LabelMode.parse(mode)
    at_work = [each for each in stack if each.name not in ANSWERS_UNTOUCHED]
    facts = [each.facts(CLASSES) for each in at_work]
    reason = _cannot(at_work, given, form, any(each.random for each in facts))
    learns_labels = form.kind == "label" or (given.get("learn") == "label" and "recover" not in given)
    kept = all(each.keeps_top == "yes" and not each.random for each in facts)
    if learns_labels and kept and form.decimals is None and not reason:
        at_work = []
    names = [text.strip() for text in defence.split("+")]
    texts = [text for text, each in zip(names, stack, strict=False) if each in at_work]
    limits = [each.images for each in stack if isinstance(each, Quota)]
    return Condition(defence, answers, "+".join(texts) or NO_DEFENCE, reason, min(limits, default=None))


def without_counting(defence: str) -> str:
    """The stack less what changes no answer: that which honest users are answered by, too."""
    return condition(defence, AS_IT_IS, "probabilities").runs


def parse_attacker(text: str) -> dict[str, str]:
    """The options of the section answers that an attacker sets. UserError for one that is none."""
    found: dict[str, str] = {}
    for part in text.split("+"):
        name, _, count = part.strip().partition("=")
        key = name if name in ("repeat", "vote") and count else None if count else KINDS.get(name)
        if key is None:
            known = f"{', '.join(KINDS)}, repeat=N or vote=N, joined by +, such as table+repeat=4"
            raise UserError(f"expected attackers of {known}; got {text!r}")
        if key in found:
            raise UserError(f"expected an attacker that sets {key} once, got {text!r}")
        found[key] = count or name
    if "recover" in found:
        found.setdefault("learn", "kl")
    from_mapping(AnswersConfig, found, prefix=f"{text!r}: ")
    return found


def _cannot(stack: list[DefenceOptions], given: dict[str, str], form: LabelMode, random: bool) -> str:
    """Why there is no such run, or nothing."""
    learns, undone = given.get("learn", AS_IT_IS), given.get("recover")
    if form.kind == "label" and (undone or learns in ("scores", "kl")):
        return "answers are labels"
    if undone and not stack:
        return "there is nothing to undo"
    secret = [each.name for each in stack if each.name in WITHOUT_MAP] if undone else []
    if secret:
        return (
            f"nobody but its owner can work out what {' or '.join(secret)} answers, so there is nothing to undo it by"
        )
    if stack and not random and "repeat" in given:
        return "an image gets the same answer again"
    return ""

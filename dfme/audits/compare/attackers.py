"""Defences and attackers of a comparison by name: which are run, share a run, or do not apply.

An attacker is what it learns (``scores``, ``kl``, ``label``, or ``auto``: as the row says), how it undoes the
defence, which it knows (``table``, ``net``), ``repeat=N`` and ``vote=N``, joined by +. One that undoes learns
by ``kl`` where nothing else is said, as ModelGuard's adaptive attackers do.
"""

from dataclasses import dataclass

from dfme.config.answer_settings import AnswersConfig
from dfme.config.defences import Quota, parse_defences, stated
from dfme.config.values import from_mapping
from dfme.errors import UserError
from dfme.spec import LabelMode

NO_DEFENCE = "none"
AS_IT_IS = "auto"

WORDS = {**dict.fromkeys((AS_IT_IS, "scores", "kl", "label"), "learn"), "table": "recover", "net": "recover"}
"""Words of an attacker, and the option of the section answers that each sets."""

ANSWERS_UNTOUCHED = ("quota", "pow")
WITHOUT_MAP = ("watermark", "misinform", "modelguard_s")
"""Defences that change no answer, and those whose answers cannot be worked out from their name and
options."""


@dataclass(frozen=True)
class Attempt:
    """A defence and an attacker as asked for, and what they come to in a label mode.

    ``stack``: of the defence what changes answers. ``runs``: the stack of the run that tells what the
    attacker gets.
    ``reason``: why there is no such run, or nothing. ``limit``: images after which a quota ends it.
    """

    defence: str = NO_DEFENCE
    answers: str = AS_IT_IS
    stack: str = NO_DEFENCE
    runs: str = NO_DEFENCE
    reason: str = ""
    limit: int | None = None

    @property
    def flags(self) -> dict[str, str]:
        """The options of a run that it sets."""
        given = {} if self.reason else parse_attacker(self.answers)
        flags = {f"answers.{key}": text for key, text in given.items() if text != AS_IT_IS}
        flags |= {"answers.knows": self.runs} if "recover" in given else {}
        return flags | ({"teacher.defences": self.runs} if given and self.runs != NO_DEFENCE else {})


def attempt(defence: str, answers: str, mode: str) -> Attempt:
    """The run that answers for a pair of defence and attacker in a label mode.

    The label of a defence that keeps the top class, and is not random, is the undefended one: who learns
    labels alone is run without it. Not where probabilities are rounded, which makes ties.
    """
    stack = parse_defences(defence)
    given = parse_attacker(answers)
    form = LabelMode.parse(mode)
    named = zip(defence.split("+"), stack, strict=False)
    at_work = [(text.strip(), each) for text, each in named if each.name not in ANSWERS_UNTOUCHED]
    # of any number of classes: what is asked does not depend on it
    facts = stated([each for _, each in at_work], 10)
    undoes = "recover" in given
    secret = " and ".join(each.name for _, each in at_work if each.name in WITHOUT_MAP)
    reasons = {
        "answers are labels": form.kind == "label" and (undoes or given.get("learn") in ("scores", "kl")),
        "there is nothing to undo": undoes and not at_work,
        f"what {secret} answers cannot be worked out from probabilities, name and options": undoes and secret,
        "an image gets the same answer again": "repeat" in given and at_work and not facts.random,
    }
    reason = next((text for text, holds in reasons.items() if holds), "")
    labels_alone = form.kind == "label" or (given.get("learn") == "label" and not undoes)
    same = labels_alone and form.decimals is None and not facts.random and facts.keeps_top == "yes"
    changed = "+".join(text for text, _ in at_work) or NO_DEFENCE
    limit = min((each.images for each in stack if isinstance(each, Quota)), default=None)
    return Attempt(defence, answers, changed, NO_DEFENCE if same and not reason else changed, reason, limit)


def parse_attacker(text: str) -> dict[str, str]:
    """The options of the section answers that an attacker sets. UserError for one that is none."""
    found: dict[str, str] = {}
    for part in text.split("+"):
        name, _, count = part.strip().partition("=")
        key = WORDS.get(name) if not count else name if name in ("repeat", "vote") else None
        if key is None or key in found:
            known = (
                f"one of {', '.join(WORDS)}, or several of learning, undoing, repeat=N and vote=N joined by +"
            )
            raise UserError(f"expected {known}, such as table+repeat=4; got {text!r}")
        found[key] = count or name
    if "recover" in found:
        found.setdefault("learn", "kl")
    from_mapping(AnswersConfig, found, prefix=f"{text!r}: ")
    return found

"""Options that all defences have, and those of a class of the user's own. No torch."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from dfme.config.defence_facts import Facts, facts_problem
from dfme.config.imports import blaming, find_target, own_model
from dfme.config.values import leaves
from dfme.errors import UserError


class DefenceOptions(ABC):
    """Common options of defences; ``facts`` may depend on them and on the number of classes."""

    name: ClassVar[str]
    kind: ClassVar[Any] = None
    has_map: ClassVar[bool] = True

    @abstractmethod
    def facts(self, classes: int) -> Facts: ...

    @property
    def margin_kept(self) -> float | None:
        """Guaranteed margin of the top score over all others, if any; rounding may undo it."""
        return getattr(self, "margin", None) if getattr(self, "keep_top", True) else None

    def __str__(self) -> str:
        """The defence with all its options, as it is typed; equal for what is equal."""
        return ":".join(
            [self.name, *(f"{key}={_text(value)}" for key, value in leaves(self).items())]
        )


class OwnDefence(DefenceOptions):
    """Those of a class of the user's own, ``kind``; ``has_map``: an attacker may know it."""

    def facts(self, classes: int) -> Facts:
        """What the class states of itself; by default nothing is promised."""
        return getattr(self.kind, "facts", Facts("no", stateful=True, random=True))

    def make(self) -> Any:
        """A new object. UserError for whatever it raises."""
        with blaming(f"defence {self.name}", UserError):
            return self.kind(**leaves(self))


def own_defence(name: str) -> type[OwnDefence]:
    """The options of ``module:Class``. UserError unless it is a class with ``answer``."""
    kind: Any = find_target(name, "defence")
    if not isinstance(kind, type) or not hasattr(kind, "answer"):
        expected = (
            "expected a class with a method answer(p_BK, images_BCHW), as docs/extending.md has one"
        )
        raise UserError(f"defence {name}: {expected}; got {kind!r:.80}")
    if problem := facts_problem(getattr(kind, "facts", None)):
        expected = "expected facts to be a dfme.config.defences.Facts, such as Facts('yes', l1=0.4)"
        raise UserError(f"defence {name}: {expected}; {problem}")
    body = (("name", name), ("kind", kind), ("has_map", hasattr(kind, "map")))
    return own_model(OwnDefence, kind, body)  # type: ignore[no-any-return]


def _text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value}"

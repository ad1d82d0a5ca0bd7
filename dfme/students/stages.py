"""What the stages came to in which a student with public weights learns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """What a stage of a round came to, on so many ``images``.

    ``held_back``: agreement on answers that were not learnt from; ``before``: what the last layer
    alone had on the same ones, which are not those of another stage. ``residual``: of the solve
    (``heads.Solved``). ``taken``: whether the student has it.
    """

    name: str
    images: int
    taken: bool
    held_back: float | None = None
    residual: float | None = None
    before: float | None = None

    def __str__(self) -> str:
        if self.residual is not None:
            how = f"residual {self.residual:.1g} on answers held back"
            return f"its last layer was solved from {self.images:,} answers, {how}"
        if self.name == "tail" and not self.taken:
            return "training its last blocks did not help"
        part = {
            "solve": "its last layer was solved",
            "head": "its last layer was fitted",
            "tail": "its last blocks were trained",
        }
        before = "" if self.before is None else f"{self.before:.1%} before, then "
        share = f"{before}{self.held_back:.1%}" if self.held_back is not None else ""
        right = f" ({share} of answers held back)" if share else ""
        return part[self.name] + right

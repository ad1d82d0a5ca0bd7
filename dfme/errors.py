"""The errors a person may meet. Each message is one line: what was expected, what came, what to
do.
"""

from dfme.problems import Message, Problem, Ref, Text, joined, pieces_of, say


class DfmeError(Exception):
    """Base of every error the command line prints as one line instead of a traceback."""

    exit_code = 1

    @property
    def message(self) -> Message:
        """What is wrong; the options in it are spelled by whoever shows it."""
        return Message(pieces_of(self.args[0])) if self.args else Message()


class UserError(DfmeError):
    """Something in the command, the configuration or the files given cannot work; nothing was
    queried.

    ``problems``: the options that are wrong, where it is options. ``about``: what ``text`` is said
    of, and the message begins with.
    """

    exit_code = 2

    def __init__(self, *said: Text | Problem, about: Text | Ref = "") -> None:
        self.problems = tuple(part for part in said if isinstance(part, Problem))
        sentences = [
            say("{}: {}", Ref(part.key), part.text) if isinstance(part, Problem) else part
            for part in said
        ]
        self.about = about
        self.text = joined(sentences, "; ")
        super().__init__(say("{}: {}", about, self.text) if about else self.text)


class ShapeUnknown(UserError):  # noqa: N818 (what is not known, not a fault)
    """A teacher's file does not say which images it takes."""


class RunError(UserError):
    """A file of a run is damaged, missing or does not fit the others; nothing more was queried."""


class ServiceError(DfmeError):
    """A request came to nothing.

    ``reason``: a few words for the ledger, such as ``429`` or ``connection refused``; never a
    secret.
    """

    exit_code = 3

    def __init__(self, message: Text, reason: str = "unusable answer") -> None:
        super().__init__(message)
        self.reason = reason


class TeacherError(ServiceError):
    """The teacher failed for good or answered what its specification rules out; everything paid is
    kept.
    """


class Unserved(TeacherError):  # noqa: N818 (an outcome, not a fault of the program)
    """The service answers, but hardly ever with one of the classes: to resume would end alike."""


class BudgetExhausted(DfmeError):  # noqa: N818 (the name of the contract)
    """A batch would have exceeded the query budget; it was refused before it was sent."""

    exit_code = 3


class SeamError(ValueError, DfmeError):
    """An upstream gradient does not fit the generator output it was handed to."""


class Refused(ServiceError):  # noqa: N818 (an outcome, not a fault of the program)
    """The service says, or it is plain, that it did not serve a request: nothing is owed for it.

    ``retry``: whether asking again can help. ``retry_after``: seconds that the service asks to
    wait. ``body``: the start of what the service said, which may repeat secrets and is never shown.
    A teacher of one's own may raise it too.
    """

    body: bytes = b""

    def __init__(
        self, message: Text, reason: str, retry: bool = True, retry_after: float | None = None
    ) -> None:
        super().__init__(message, reason)
        self.retry = retry
        self.retry_after = retry_after


class BatchTooLarge(Refused):
    """A request was refused for its number of images; ``limit`` is the most the service takes, if
    it says.
    """

    def __init__(self, message: Text, limit: int | None = None) -> None:
        super().__init__(message, "batch too large", retry=False)
        self.limit = limit


class Unanswered(ServiceError):  # noqa: N818 (an outcome, too)
    """A request that may have been served has no answer: it stays paid for, and asking again costs
    again.

    A teacher of one's own may raise it too.
    """


class Unusable(Unanswered):
    """An impossible answer: garbage, another shape, NaN, too long. Asked again a few times."""


class Misfit(Unusable):
    """A whole answer came in another form than is read: the same question would get the same again.

    It is not asked again before the service has once answered as is read; ``for_good``: nor
    afterwards.
    """

    def __init__(self, message: Text, reason: str, for_good: bool = False) -> None:
        super().__init__(message, reason)
        self.for_good = for_good


class Misread(Misfit):
    """A whole answer shows that those before it were read wrongly: nothing can go on with them."""

"""The errors a person may meet. Each message is one line: what was expected, what came, what to do."""


class DfmeError(Exception):
    """Base of every error the command line prints as one line instead of a traceback."""

    exit_code = 1


class UserError(DfmeError):
    """Something in the command, the configuration or the files given cannot work; nothing was queried."""

    exit_code = 2


class RunError(UserError):
    """A file of a run is damaged, missing or does not fit the others; nothing more was queried."""


class TeacherError(DfmeError):
    """The teacher failed for good or answered what its specification rules out; everything paid is kept."""

    exit_code = 3


class BudgetExhausted(DfmeError):  # noqa: N818 (the name of the contract)
    """A batch would have exceeded the query budget; it was refused before it was sent."""

    exit_code = 3


class SeamError(ValueError, DfmeError):
    """An upstream gradient does not fit the generator output it was handed to."""

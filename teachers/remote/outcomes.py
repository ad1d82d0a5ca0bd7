"""Requests without an answer: whether they may have been served, and the message about it."""

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpcore2

from dfme.errors import Refused, Unanswered, flag
from dfme.teachers.remote.secrets import Secrets
from dfme.teachers.remote.transport import CertificateError

CONNECTION_ERRORS = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
)
"""All that a connection raises."""

# statuses of a service that did not serve the request, but may serve it later
RETRY_STATUSES = (408, 425, 429, 503)
MAX_WAIT = 86_400.0  # seconds beyond which a wish to wait is cut: no run waits for a day
MAX_QUOTED = 200  # characters of the service's own words that a message holds
ADVICE = {
    "no connection": "is the server running?",
    "certificate": f"name the file of its authority with {flag('teacher.ca_file')}",
    "timeout": f"is it overloaded? else raise {flag('teacher.timeout')}",
    "redirect": f"if that is the service, name it in {flag('teacher.url')}",
    "401": f"check the key that {flag('teacher.api_key_env')} names, or name one",
    "403": f"check the key that {flag('teacher.api_key_env')} names, or name one",
    "refused": "its owner answers this key no more, for now or for good",
    "404": f"check {flag('teacher.url')} and the model's name",
}
"""What to do, by reason."""


def refused(where: str, what: str, reason: str, retry: bool = False) -> Refused:
    """A request that was not served for a reason that no status tells."""
    return Refused(f"{where}: {what}{advice(reason)}", reason, retry)


def failed_status(
    where: str, status: int, headers: Mapping[str, str], body: bytes, secrets: Secrets
) -> Refused | Unanswered:
    """The outcome of an answer with a status other than 2xx; names of ``headers`` are in lower
    case.

    A server error may come after the work was done. Everything else says that nothing was served,
    and so does 503.
    """
    readable = b"" if "content-encoding" in headers else body
    text = quoted(readable.decode(errors="replace"), secrets)
    reason = "refused" if re.search(r"refused: (quota|watch)\b", text) else str(status)
    message = f"{where}: the service answered {status}{text}{advice(reason)}"
    if status >= 500 and status != 503:
        return Unanswered(message, str(status))
    outcome = Refused(
        message, str(status), retry=status in RETRY_STATUSES, retry_after=retry_after(headers)
    )
    outcome.body = readable
    return outcome


def failed_connection(where: str, error: Exception, secrets: Secrets) -> Refused | Unanswered:
    """The outcome of trouble with a connection, one of ``CONNECTION_ERRORS``."""
    reason = _reason(error)
    what = f"{reason}{quoted(str(error), secrets)}"
    if reason in ("timeout", "reset"):
        return Unanswered(f"{where}: {what}{advice(reason)}", reason)
    return refused(where, what, reason, retry=reason == "no connection")


def advice(reason: str) -> str:
    """Advice as the last words of a message, if there is any."""
    return f"; {ADVICE[reason]}" if reason in ADVICE else ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a service asks to wait, at most a day; None without a usable wish.

    ``Retry-After`` holds seconds or a date (RFC 9110, 10.2.3), which is compared with the service's
    clock if known.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return min(float(text), MAX_WAIT)
    moment = _seconds(text)
    now = _seconds(headers.get("date", ""))
    if moment is None:
        return None
    wait = moment - (time.time() if now is None else now)
    return min(wait, MAX_WAIT) if wait >= 0 else None


def quoted(text: str, secrets: Secrets) -> str:
    """The start of what a service says, in brackets and on one line, without secrets; maybe
    empty.
    """
    spaced = (" " if letter.isspace() else letter for letter in secrets.hide(text))
    plain = "".join(filter(str.isprintable, spaced))
    # a second time: unprintable characters may have stood within a secret
    words = secrets.hide(" ".join(plain.split()))
    if not words:
        return ""
    return f" ({words[:MAX_QUOTED]}...)" if len(words) > MAX_QUOTED else f" ({words})"


def _reason(error: Exception) -> str:
    """Why there is no answer, in the ledger's words."""
    if isinstance(error, CertificateError):
        return "certificate"
    if isinstance(error, httpcore2.ReadTimeout | httpcore2.WriteTimeout):
        return "timeout"
    if isinstance(error, httpcore2.LocalProtocolError | httpcore2.UnsupportedProtocol):
        return "no HTTP request"
    if isinstance(
        error, httpcore2.ConnectError | httpcore2.TimeoutException | httpcore2.ProxyError
    ):
        return "no connection"
    return "reset"


def _seconds(date: str) -> float | None:
    """An HTTP date as seconds since the epoch."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return None

"""Connections to one service, under a deadline that no server can stretch, and how they fail.

The time-outs of a request are one moment on ``time.monotonic()``; every operation on a socket gets
the time that remains until then. Only a host name's lookup takes as long as the system lets it.
"""

import os
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

from dfme.errors import Refused, Unanswered, UserError, flag
from dfme.teachers.remote.secrets import Secrets, is_this_machine

# a connection is kept for the next request: less than the five after which many servers hang up
IDLE_SECONDS = 4.0
PROXY_HOST = re.compile(rb"[\w.~-]+|[\w.:%~-]*:[\w.:%~-]*")  # a name, or an IPv6 address


class CertificateError(httpcore2.ConnectError):
    """The service's certificate is not one that it should have."""


def connections(url: httpx2.URL, most: int, ca_file: str | None) -> httpcore2.ConnectionPool:
    """At most so many connections to the host of ``url``, kept alive; for several threads at once.

    The time-outs of a request are ``moments``. Raises httpcore2's exceptions.
    """
    return httpcore2.ConnectionPool(
        ssl_context=_ssl_context(ca_file) if url.scheme == "https" or ca_file else None,
        proxy=_proxy(url),
        max_connections=most,
        max_keepalive_connections=most,
        keepalive_expiry=IDLE_SECONDS,
        network_backend=_Network(),
    )


def moments(deadline: float) -> dict[str, float]:
    """Time-outs of a request that has until ``deadline`` on ``time.monotonic()``."""
    pool = max(deadline - time.monotonic(), 0.0)  # the pool itself waits, and not at a socket
    return {
        "connect": deadline,
        "write": deadline,
        "read": deadline,
        "pool": pool,
    }


class _Network(httpcore2.NetworkBackend):
    """Opens sockets; ``timeout`` is a moment."""

    def __init__(self) -> None:
        self._sockets = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """The first of the host's addresses that answers; each gets its share of the time."""
        failure: Exception = httpcore2.ConnectError(f"{host} has no address")
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # no such name, or none that could be one
            raise httpcore2.ConnectError(error) from None
        for tried, (*_, (address, *_)) in enumerate(addresses):
            share = _left(timeout, httpcore2.ConnectTimeout) / (len(addresses) - tried)
            try:
                return _Stream(
                    self._sockets.connect_tcp(
                        str(address), port, share, local_address, socket_options
                    )
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure


class _Stream(httpcore2.NetworkStream):
    """A connection; ``timeout`` is a moment."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream
        self._socket: socket.socket = stream.get_extra_info("socket")
        self._answer = _Answer()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._stream.read(max_bytes, _left(timeout, httpcore2.ReadTimeout))
        self._answer.add(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it; the time left is checked before each piece, for slow servers."""
        view = memoryview(buffer)
        if self._answer.received:
            self._answer = _Answer()
        try:
            while view:
                self._socket.settimeout(_left(timeout, httpcore2.WriteTimeout))
                view = view[self._socket.send(view) :]
        except TimeoutError as error:
            raise httpcore2.WriteTimeout(error) from None
        except OSError as error:
            raise httpcore2.WriteError(error) from None

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        try:
            return _Stream(
                self._stream.start_tls(
                    ssl_context, server_hostname, _left(timeout, httpcore2.ConnectTimeout)
                )
            )
        except httpcore2.ConnectError as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                raise CertificateError(error.__cause__.verify_message) from None
            raise

    def get_extra_info(self, info: str) -> Any:
        """State of the socket. One with more than its last answer is readable, and not reused."""
        if info == "is_readable" and not self._answer.exact:
            return True
        return self._stream.get_extra_info(info)


class _Answer:
    """Bytes of an answer that have come on a connection, and that should: head and announced body.

    Further bytes would be read as the answer to the next request, so such a connection is not used
    again, nor one whose answer had no announced length (chunks).
    """

    LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*\r\n", re.IGNORECASE)

    def __init__(self) -> None:
        self.received = 0
        self._head = b""
        self._expected: int | None = None

    def add(self, data: bytes) -> None:
        self.received += len(data)
        if self._expected is not None:
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end >= 0:
            length = self.LENGTH.search(self._head, 0, end + 4)
            self._expected = end + 4 + int(length[1]) if length else -1

    @property
    def exact(self) -> bool:
        """True if no byte is missing and none is too many; so is a connection on which nothing came
        yet.
        """
        return self.received == (self._expected or 0)


def _left(moment: float | None, late: type[Exception]) -> float:
    """Seconds until a moment; ``late`` once it has passed."""
    assert moment is not None, "every request has its moments"
    seconds = moment - time.monotonic()
    if seconds <= 0:
        raise late("the time is up")
    return seconds


def _ssl_context(ca_file: str | None) -> ssl.SSLContext:
    """Verify by the system's authorities and those of ``ca_file``; UserError if it has none."""
    source = (
        "the environment variables SSL_CERT_FILE and SSLKEYLOGFILE: expected files that can be used"
    )
    try:
        context = httpx2.create_ssl_context()
        if ca_file is not None:
            source = f"{flag('teacher.ca_file')}: expected certificates (PEM), got {ca_file}"
            context.load_verify_locations(cafile=ca_file)
    except OSError as error:  # ssl's own errors among them
        reason = "no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise UserError(f"{source}: {reason}") from None
    return context


def _proxy(url: httpx2.URL) -> httpcore2.Proxy | None:
    """Proxy of the environment for a URL, never for this machine. UserError if invalid."""
    if is_this_machine(url.host):
        return None
    proxies = getproxies()
    kind = url.scheme if proxies.get(url.scheme) else "all"
    address = proxies.get(kind)
    if not address or proxy_bypass(
        f"{url.host}:{url.port or (443 if url.scheme == 'https' else 80)}"
    ):
        return None
    wrong = "one whose host or port is none"
    try:
        proxy = httpx2.Proxy(address if "://" in address else f"http://{address}")
        if (
            proxy.url.scheme == "http"
            and proxy.url.port != 0
            and PROXY_HOST.fullmatch(proxy.url.raw_host)
        ):
            return httpcore2.Proxy(str(proxy.url), auth=proxy.raw_auth)
        if proxy.url.scheme != "http":
            wrong = f"{proxy.url.scheme}://..."
    except (ValueError, httpx2.InvalidURL):  # their words may hold a part of a password
        pass
    named = max(
        (name for name in os.environ if name.lower() == f"{kind}_proxy"), default=f"{kind}_proxy"
    )
    raise UserError(
        f"{named}: expected a proxy such as http://HOST:PORT, got {wrong}; nothing was sent"
    )


# Requests without an answer: whether they may have been served, and the message about it

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

"""One service over HTTP: a request is attempted once, and its outcome is an answer or one of our
exceptions.

Nothing here retries, waits or counts. Messages have every secret hidden, and no exception of ours
is chained to one of the client's, which hold what was sent.
"""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import httpcore2
import httpx2

from dfme.errors import OptionError, Refused, Unanswered, Unusable, UserError, flag
from dfme.teachers.options import ServiceOptions
from dfme.teachers.remote.secrets import Secrets, host_of, require_consent
from dfme.teachers.remote.transport import (
    CONNECTION_ERRORS,
    advice,
    connections,
    failed_connection,
    failed_status,
    moments,
    quoted,
    refused,
)
from dfme.version import __version__

USER_AGENT = f"dfme/{__version__} (data-free model extraction, authorised measurement)"
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
MAX_REDIRECTS = 3
MAX_REFUSAL_BYTES = 65_536  # bytes that are read of an answer that is no success


@dataclass(frozen=True)
class Reply:
    """An answer with a status of 2xx; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Endpoint:
    """One service at ``url``, for several threads at once; connections are kept alive.

    ``url`` and ``headers`` may hold ``${NAME}`` placeholders of ``secrets``; the attribute ``url``
    has them hidden. UserError for a URL that is none, a host that nobody consented to
    (``require_consent``: no teacher is asked but through here), a header that cannot be sent, and a
    ``ca_file`` without certificates.
    """

    def __init__(
        self,
        options: ServiceOptions,
        url: str,
        secrets: Secrets,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._timeout = options.timeout
        self.secrets = secrets
        self._base = secrets.fill_url(url)
        # By path: where to ask stands last, and redirects led there from the others.
        self._routes: dict[str, tuple[httpx2.URL, ...]] = {}
        self.url = secrets.hide(self._base).rstrip("/")
        base = self._route("")[-1]
        require_consent(url, options.authorised_by)
        self._headers = _standing_headers(options, base, secrets, headers or {})
        self._connections = connections(base, options.in_flight, options.ca_file)

    def get(self, path: str, most: int = 1_000_000) -> Reply:
        """Answer to a request before the run; UserError, with the cause and remedy, if none
        comes.
        """
        try:
            return self._ask("GET", path, b"", {}, most)
        except (Refused, Unanswered) as error:
            remedy = (
                ""
                if advice(error.reason)
                else f"; is the service ready, and {flag('teacher.url')} right?"
            )
            problem = error.message + remedy
        raise UserError(problem)

    def post(self, path: str, body: bytes, headers: Mapping[str, str], most: int) -> Reply:
        """One attempt; the answer if its status is 2xx and its body has at most ``most`` bytes.

        Raises:
            Refused: nothing was served; for an answer with another status, ``body`` is the start of
            its body.
                After a redirect that may be followed, the next attempt goes to where it leads: each
                send is one attempt.
            Unanswered: it may have been served: the time is up, the connection broke, the server
            failed. Unusable: the answer's body is too long or compressed.
        """
        return self._ask("POST", path, body, headers, most)

    def close(self) -> None:
        self._connections.close()

    def _route(self, path: str) -> tuple[httpx2.URL, ...]:
        """The way to the address of a path, which is read once: adapters ask at very few."""
        route = self._routes.get(path)
        if route is None:
            if path and ("?" in self._base or "#" in self._base):
                raise OptionError("teacher.url", f"expected a URL without a query, got {self.url}")
            route = (
                address_of(self._base.rstrip("/") + path if path else self._base, self.secrets),
            )
            self._routes[path] = route
        return route

    def _ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], most: int
    ) -> Reply:
        """One request before the deadline; a GET follows its redirects."""
        route = self._route(path)
        where = f"{method} {self._shown(route[-1])}"
        sent = dict(self._headers)
        sent.update((name.lower(), value) for name, value in headers.items())
        if method != "GET":
            sent["content-length"] = str(len(body))
        request = httpcore2.Request(method, "", headers=[*sent.items()], content=body)
        deadline = time.monotonic() + self._timeout
        try:
            reply = self._attempt(request, route[-1], deadline, where, most)
            while not isinstance(reply, Reply):
                if len(route) > MAX_REDIRECTS or reply.raw_path in [url.raw_path for url in route]:
                    raise refused(
                        where, f"redirects in a circle, or more than {MAX_REDIRECTS}", "redirect"
                    )
                route = *route, reply
                self._routes[path] = route
                if method != "GET":
                    to = quoted(self._shown(reply), self.secrets)
                    raise refused(
                        where, f"the service answered with a redirect{to}", "redirect", retry=True
                    )
                reply = self._attempt(request, route[-1], deadline, where, most)
        except CONNECTION_ERRORS as error:
            failure: Refused | Unanswered = failed_connection(where, error, self.secrets)
        except Refused as refusal:
            if not refusal.retry:
                # A redirect may hold for a while only; other threads may have followed it
                # meanwhile.
                if len(route) == 1 and self._routes.get(path, route)[-1] == route[-1]:
                    self._routes.pop(path, None)
                refusal.retry = self._route(path)[-1] != route[-1]
            failure = refusal
        else:
            self._routes[path] = route[-1:]
            return reply
        raise failure

    def _attempt(
        self, request: httpcore2.Request, url: httpx2.URL, deadline: float, where: str, most: int
    ) -> Reply | httpx2.URL:
        """Ask the service at one address: a reply, or another address."""
        request.url = httpcore2.URL(
            scheme=url.raw_scheme,
            host=url.raw_host,
            port=url.port,
            target=url.raw_path,
        )
        request.extensions["timeout"] = moments(deadline)
        response = self._connections.handle_request(request)
        try:
            headers = dict(httpx2.Headers(response.headers).items())  # names in lower case
            if 200 <= response.status < 300:
                return Reply(response.status, headers, self._body(response, headers, where, most))
            beginning = bytearray()  # it is read, so that the connection can be used again
            with suppress(*CONNECTION_ERRORS):
                _read(response, beginning, MAX_REFUSAL_BYTES)
            if 300 <= response.status < 400 and "location" in headers:
                return self._redirect(response.status, url, headers["location"], where)
            raise failed_status(
                where, response.status, headers, bytes(beginning[:MAX_REFUSAL_BYTES]), self.secrets
            )
        finally:
            response.close()

    def _body(
        self, response: httpcore2.Response, headers: Mapping[str, str], where: str, most: int
    ) -> bytes:
        """The body of a success, if it has at most so many bytes and is as it was written."""
        encoding = headers.get("content-encoding", "identity").lower()
        if encoding not in ("", "identity"):
            coded = quoted(encoding, self.secrets)
            raise Unusable(
                f"{where}: expected a plain body, got a compressed one{coded}", "compressed"
            )
        announced = int(headers.get("content-length", "0"))  # h11 lets nothing but digits pass
        body = bytearray()
        if announced <= most:
            _read(response, body, most + 1)
        if max(announced, len(body)) > most:
            raise Unusable(f"{where}: expected at most {most:,} bytes, got more", "too long")
        return bytes(body)

    def _redirect(self, status: int, url: httpx2.URL, location: str, where: str) -> httpx2.URL:
        """Target of a redirect that keeps the request, scheme, host and port; else Refused."""
        target = redirected(url, location)
        same = target is not None and origin(target) == origin(url) and not target.userinfo
        if target is None or not same or status not in (307, 308):
            to = "what is no URL" if target is None else self.secrets.hide(origin(target))[:200]
            came = f"{status}, a redirect from {self.secrets.hide(origin(url))} to {to}"
            raise refused(where, f"the service answered {came}, which is not followed", "redirect")
        return target

    def _shown(self, url: httpx2.URL) -> str:
        """A URL for messages, without its query."""
        return self.secrets.hide(str(url.copy_with(query=None)))


def _standing_headers(
    options: ServiceOptions, base: httpx2.URL, secrets: Secrets, headers: Mapping[str, str]
) -> dict[str, str]:
    """Headers of every request; names in lower case."""
    standing = {
        "host": base.netloc.decode("ascii"),
        "user-agent": USER_AGENT,
        "accept": "*/*",
        "accept-encoding": "identity",
        "connection": "keep-alive",
    }
    standing |= {name.lower(): secrets.fill(value) for name, value in headers.items()}
    if options.api_key_env is not None:
        name = options.api_key_header.lower()
        key = secrets.fill(f"${{{options.api_key_env}}}")
        standing[name] = f"Bearer {key}" if name == "authorization" else key
    for name, value in standing.items():
        if not (HEADER_NAME.fullmatch(name) and value.isascii() and value.isprintable()):
            raise UserError(f"header {name!r}: expected a name and a value of printable ASCII")
    return standing


def _read(response: httpcore2.Response, body: bytearray, enough: int) -> None:
    for chunk in response.iter_stream():
        body += chunk
        if len(body) >= enough:
            return


def origin(url: httpx2.URL) -> str:
    """Scheme, host and port."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def address_of(text: str, secrets: Secrets) -> httpx2.URL:
    """A URL, read. UserError for an invalid one, or one with an ambiguous host."""
    host = host_of(text)
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        raise OptionError("teacher.url", f"expected a URL, got {secrets.hide(text)}") from None
    if url.host != host:
        raise OptionError(
            "teacher.url", f"expected a host in plain letters, got {secrets.hide(text)}"
        )
    return url


def redirected(url: httpx2.URL, location: str) -> httpx2.URL | None:
    """Where a redirect leads; None if that is no URL."""
    try:
        return url.join(location)
    except (httpx2.InvalidURL, ValueError):
        return None

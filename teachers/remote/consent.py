"""Consent: which hosts may be asked. This machine, or one whose owner allowed it. No torch."""

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from dfme.errors import OptionError, UserError, flag, say

# only an IPv6 address has brackets
HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+(%\w+)?\]|[^][:@]*)(:\d*)?")


def require_consent(url: str, authorised_by: str | None) -> None:
    """UserError unless the URL's host is this machine, or ``authorised_by`` says who allowed the
    queries.

    Also for what is no plain http or https URL. Nothing is sent, and no name is looked up: a name
    counts as this machine only if it is ``localhost`` or the machine's own.
    """
    host = host_of(url)
    if not any(character.isalnum() for character in authorised_by or "") and not is_this_machine(
        host
    ):
        raise OptionError(
            "teacher.url",
            say(
                "{} is not this machine; expected your own {teacher.authorised_by} "
                '"WHO ALLOWED IT AND WHY" (or the variable DFME_AUTHORISED_BY), what a file '
                "says does not count; nothing was sent",
                host,
            ),
        )


def host_of(url: str) -> str:
    """The host in an http or https URL, in lower case and without brackets; UserError for any other
    URL.

    Refused are URLs that two programs could read differently (white space, backslashes, a user
    before the host).
    """
    expected = f"{flag('teacher.url')}: expected a URL such as http://127.0.0.1:8080"
    if not url.isprintable() or " " in url or "\\" in url:
        raise UserError(
            f"{expected}, got one with blanks, backslashes or characters that cannot be seen"
        )
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port = parts.port
    except ValueError:
        raise UserError(f"{expected}, got one whose host or port is none") from None
    if "@" in parts.netloc:
        raise OptionError(
            "teacher.url",
            say("expected no user or password in the URL; name a key with {teacher.api_key_env}"),
        )
    if parts.scheme not in ("http", "https"):
        scheme = f"{parts.scheme}:" if parts.scheme else repr(url[:20])
        raise OptionError("teacher.url", f"expected http:// or https://, got {scheme}")
    if "${" in parts.netloc:
        raise UserError(
            f"{expected}, got one with ${{NAME}} in its host, which whoever looks the host up "
            "would learn"
        )
    if not host or port == 0 or not HOST_AND_PORT.fullmatch(parts.netloc):
        raise UserError(f"{expected}, got one whose host or port is none")
    return host


def is_this_machine(host: str) -> bool:
    """True for this machine: a loopback, unspecified or own address, ``localhost``, its name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().rstrip(".") in ("localhost", socket.gethostname().lower().rstrip("."))
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback or address.is_unspecified or _is_own(address)


def _is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """True if this machine has the address: only then would it send from it to it. Nothing is
    sent.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ipaddress.ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False

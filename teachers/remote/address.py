"""Where requests go: read once, and shown to people without secrets."""

from __future__ import annotations

from dataclasses import dataclass

import httpcore2
import httpx2

from dfme.errors import UserError
from dfme.teachers.remote.consent import host_of
from dfme.teachers.remote.secrets import Secrets


@dataclass(frozen=True, repr=False)
class Address:
    """A URL as it is (``url``, and ``core`` for the connection), and as logs and messages have it (``shown``)."""

    url: httpx2.URL
    core: httpcore2.URL
    shown: httpx2.URL

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.url.scheme}://{self.url.netloc.decode('ascii')}"


def address_of(text: str, secrets: Secrets) -> Address:
    """The address of a URL. UserError for one that is none, or whose host another reader may take for another."""
    host = host_of(text)
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        raise UserError(f"--teacher.url: expected a URL, got {secrets.hide(text)}") from None
    if url.host != host:
        raise UserError(f"--teacher.url: expected a host in plain letters, got {secrets.hide(text)}")
    return _addressed(url, secrets.hide(text))


def redirected(address: Address, location: str, secrets: Secrets) -> Address | None:
    """Where a redirect leads; none if that is no URL at all."""
    try:
        url = address.url.join(location)
        return _addressed(url, secrets.hide(str(url.copy_with(query=None))))
    except (httpx2.InvalidURL, ValueError):
        return None


def _addressed(url: httpx2.URL, readable: str) -> Address:
    try:
        shown = httpx2.URL(readable)
    except httpx2.InvalidURL:  # so short a secret that it occurs in the port
        shown = httpx2.URL(f"{url.scheme}://hidden/")
    core = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
    return Address(url, core, shown)

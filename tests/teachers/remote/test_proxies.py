"""What the environment says of proxies and certificates: used as it is meant, or one line that names the variable."""

from __future__ import annotations

import os

import httpx2
import pytest

from dfme.errors import UserError
from dfme.teachers.remote.transport import _proxy, _ssl_context

URL = "http://service.example/v2"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("SSL")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"])
def test_a_proxy_that_is_none_is_named_and_its_password_is_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = ["[::1", "h:99999", "h:0", "h:-1", "h:port", "", ":8080", "h h:1", "h\\x:1", "h\u202e:1", "1.2.3.999:1"]
    addresses = [
        f"http://{user}{host}" for host in hosts for user in ("", "me:s3cret@", "me:s3/cret@", "m e:\u5bc6s3@")
    ]
    for address in [*addresses, "\n", "://", "socks5://me:s3cret@h:1", "https://h:1", f"http://{'a' * 90_000}:1"]:
        monkeypatch.setenv(name, address)
        with pytest.raises(UserError, match=rf"^{name}: expected a proxy such as .*; nothing was sent$") as problem:
            _proxy(httpx2.URL("https://service.example" if name == "HTTPS_PROXY" else URL))
        assert "s3" not in str(problem.value)
        assert len(str(problem.value)) < 200
        assert str(problem.value).isprintable()
        assert _proxy(httpx2.URL("http://localhost:8000")) is None  # none for this machine, whatever is said


@pytest.mark.parametrize(
    ("address", "host", "auth"),
    [
        ("h:3128", b"h", None),
        ("http://me:s3cret@h:3128", b"h", (b"me", b"s3cret")),
        ("http://m e:s%203@[::1]:3128/", b"::1", (b"m e", b"s 3")),
        (
            "http://\u00e9:\u00e9@b\u00fccher.example:3128",
            b"xn--bcher-kva.example",
            ("\u00e9".encode(), "\u00e9".encode()),
        ),
    ],
)
def test_a_proxy_is_used_as_it_is_named(
    address: str, host: bytes, auth: tuple[bytes, bytes] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", address)
    proxy = _proxy(httpx2.URL(URL))
    assert proxy is not None
    assert (proxy.url.host, proxy.url.port, proxy.auth) == (host, 3128, auth)
    for nothing in ("[::1", "example.org:99999", "\u00e9", " ,,", "[", "service.example:8080", "\udcff"):
        monkeypatch.setenv("no_proxy", nothing)
        assert _proxy(httpx2.URL(URL)) is not None
    for everything in ("*", "example.org, service.example", ".example", "service.example:80"):
        monkeypatch.setenv("no_proxy", everything)
        assert _proxy(httpx2.URL(URL)) is None


@pytest.mark.parametrize("value", ["/nowhere/at/all", os.devnull, "/"])
def test_certificates_of_the_environment_that_are_none_are_said(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", value)
    with pytest.raises(UserError, match=r"^the environment variables SSL_CERT_FILE and .*: \w+"):
        _ssl_context(None)

"""What the environment says of proxies and certificates: used as it is meant."""

import os

import httpx2
import pytest
from refusals import refused

from dfme.teachers.remote.transport import _proxy, _ssl_context

URL = "http://service.example/v2"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("SSL")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"])
def test_a_proxy_that_is_none_is_named_and_its_password_is_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = "[::1|h:99999|h:0|h:-1|h:port||:8080|h h:1|h\\x:1|h\u202e:1|1.2.3.999:1".split("|")
    users = ("", "me:s3cret@", "me:s3/cret@", "m e:\u5bc6s3@")
    addresses = [f"http://{user}{host}" for host in hosts for user in users]
    addresses += ["\n", "://", "socks5://me:s3cret@h:1", "https://h:1", f"http://{'a' * 90_000}:1"]
    url = httpx2.URL("https://service.example" if name == "HTTPS_PROXY" else URL)
    for address in addresses:
        monkeypatch.setenv(name, address)
        said = str(refused("expected a proxy such as", _proxy, url))
        assert said.startswith(f"{name}: ")
        assert "s3" not in said
        assert len(said) < 200
        assert said.isprintable()
        assert _proxy(httpx2.URL("http://localhost:8000")) is None  # none for this machine, whatever is said


@pytest.mark.parametrize(
    ("address", "host", "auth"),
    [
        ("h:3128", b"h", None),
        ("http://me:s3cret@h:3128", b"h", (b"me", b"s3cret")),
        ("http://m e:s%203@[::1]:3128/", b"::1", (b"m e", b"s 3")),
        ("http://\u00e9:x@b\u00fccher.example:3128", b"xn--bcher-kva.example", ("\u00e9".encode(), b"x")),
    ],
)
def test_a_proxy_is_used_as_it_is_named(
    address: str, host: bytes, auth: tuple[bytes, bytes] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", address)
    proxy = _proxy(httpx2.URL(URL))
    assert (proxy.url.host, proxy.url.port, proxy.auth) == (host, 3128, auth)
    for nothing in ("[::1", "example.org:99999", "\u00e9", " ,,", "[", "service.example:8080", "\udcff"):
        monkeypatch.setenv("no_proxy", nothing)
        assert _proxy(httpx2.URL(URL)) is not None
    for everything in ("*", "example.org, service.example", ".example", "service.example:80"):
        monkeypatch.setenv("no_proxy", everything)
        assert _proxy(httpx2.URL(URL)) is None


@pytest.mark.parametrize("value", ["/nowhere/at/all", os.devnull, "/"])
def test_certificates_of_the_environment_that_are_none_are_said(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", value)
    refused("the environment variables SSL_CERT_FILE and", _ssl_context, None)

"""Nobody is asked who has not allowed it: this machine, or a host for which it is said who did and why."""

import socket
from itertools import product

import pytest
from refusals import refused
from tables import all_hold

from dfme.teachers.remote.consent import host_of, is_this_machine, require_consent

OWN = [
    "127.0.0.1", "127.5.5.5", "127.255.255.254", "[::1]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]",
    "0.0.0.0", "[::]",
    "localhost", "LOCALHOST.", "LocalHost",
]  # fmt: skip

OTHERS = [
    "192.0.2.7", "198.51.100.1", "[2001:db8::1]", "[::ffff:192.0.2.7]", "example.com", "2130706433",
    "127.1", "0x7f.1",
    "0177.0.0.1", "127.0.0.01", "127.0.0.1.", "localhost.example.com", "localhost.localdomain", "xlocalhost",
    "127.0.0.1.nip.io", "foo.localhost", "\uff11\uff12\uff17.0.0.1", "128.0.0.1",
]  # fmt: skip

BAD = [
    "", "127.0.0.1", "127.0.0.1:8080", "localhost:8080", "//127.0.0.1", "http://", "http:///v2",
    "http://:80", "http:",
    "file:///etc/passwd", "file://localhost/x", "ftp://127.0.0.1", "ws://127.0.0.1", "gopher://127.0.0.1", "HTTP+UNIX://x",
    "http://user@127.0.0.1", "http://user:secret-word@127.0.0.1", "http://:secret-word@127.0.0.1", "http://@127.0.0.1",
    "http://127.0.0.1@example.com", "http://127.0.0.1:80@example.com", "http://127.0.0.1\\@example.com",
    "http://127.0.0.1 ", " http://127.0.0.1", "http://127.0.0.1\t.example.com", "http://127.0.0.1\n", "http://ex\u200bample.com",
    "http://${KEY}", "http://${KEY}.example.com", "http://example.${KEY}:80/x", "${KEY}",
    "http:${KEY}//127.0.0.1",
    "http://127.0.0.1:99999", "http://127.0.0.1:0", "http://127.0.0.1:x", "http://[::1", "http://[::1]x", "http://[example.com]",
]  # fmt: skip


def test_this_machine_needs_no_consent():
    """Each name of it, and one of them with whatever may stand around it."""
    urls = [f"http://{host}:8080/v2" for host in OWN]
    urls += [
        f"http://127.0.0.1{rest}" for rest in ("", ":8080", "/", ":8080/v2/models?x=1", "?u=a@example.com")
    ]
    urls += [f"{scheme}://[::1]:8080" for scheme in ("http", "https", "HTTP")]
    all_hold(lambda url: require_consent(url, None), [(url,) for url in urls])


def needs_consent(url: str) -> None:
    refused("nothing was sent", require_consent, url, None)
    require_consent(url, "the owner, to measure it")


@pytest.mark.integration
def test_another_host_needs_consent():
    all_hold(needs_consent, [(f"http://{host}:8080/v2",) for host in OTHERS])


def is_blank(text: str | None) -> None:
    refused("example.com is not this machine", require_consent, "https://example.com", text)


def is_no_plain_url(url: str, authorised_by: str | None) -> None:
    said = str(refused("--teacher.url: expected", require_consent, url, authorised_by))
    assert "secret-word" not in said
    assert said.isprintable()


def test_a_blank_consent_is_none_and_what_is_no_plain_url_is_refused_whoever_allowed_it():
    all_hold(is_blank, [(text,) for text in (None, "", "  ", "\t\n", "\u00a0", "\u200b", "-", '""')])
    all_hold(is_no_plain_url, product(BAD, (None, "the owner, to measure it")))


def test_the_machines_own_name_and_addresses_count(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Lab-7.example.org")
    assert is_this_machine("lab-7.example.org")
    assert is_this_machine("LAB-7.EXAMPLE.ORG.")
    assert not is_this_machine("lab-7")
    assert not is_this_machine("lab-7.example.org.evil.example")


@pytest.mark.integration
def test_an_address_is_the_machines_own_if_it_can_be_listened_on():
    addresses = {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    for address in addresses - {"127.0.0.1", "::1"}:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as listener:
            try:
                listener.bind((address, 0))
            except OSError:
                continue  # the name is somebody else's here
        assert is_this_machine(address)


def test_no_name_is_looked_up(monkeypatch):
    def fail(*_: object) -> None:
        raise AssertionError("a name was looked up")

    for name in ("getaddrinfo", "gethostbyname", "getfqdn"):
        monkeypatch.setattr(socket, name, fail)
    assert not is_this_machine("example.com")
    assert is_this_machine("localhost")


def test_the_host_of_a_url():
    assert host_of("HTTP://ExAmple.COM:80/x") == "example.com"
    assert host_of("http://[::1]:80") == "::1"
    assert host_of("https://10.0.0.1?x") == "10.0.0.1"

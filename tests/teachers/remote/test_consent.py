"""Which hosts may be asked, and which secrets are sent there and hidden everywhere else."""

import base64
import html
import json
import logging
import os
import socket
from contextlib import closing
from itertools import product
from urllib.parse import parse_qs, quote, quote_plus, urlencode, urlsplit

import httpx2
import pytest
from clients import KEY as SENT
from clients import post
from damage import refused
from hypothesis import given
from hypothesis import strategies as st
from service import Request, Service, http
from tables import all_hold

from dfme.errors import DfmeError, Refused
from dfme.teachers.options import ServiceOptions
from dfme.teachers.remote.endpoint import Endpoint
from dfme.teachers.remote.secrets import Secrets, is_this_machine, require_consent
from dfme.teachers.remote.transport import _proxy, _ssl_context

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
        f"http://127.0.0.1{rest}"
        for rest in ("", ":8080", "/", ":8080/v2/models?x=1", "?u=a@example.com")
    ]
    urls += [f"{scheme}://[::1]:8080" for scheme in ("http", "https", "HTTP")]
    all_hold(lambda url: require_consent(url, None), [(url,) for url in urls])


def needs_consent(url: str) -> None:
    refused("nothing was sent", require_consent, url, None)
    require_consent(url, "the owner, to measure it")


@pytest.mark.integration
def test_another_host_needs_consent():
    all_hold(needs_consent, [(f"http://{host}:8080/v2",) for host in OTHERS])


def is_no_plain_url(url: str, authorised_by: str | None) -> None:
    said = str(refused("--teacher.url: expected", require_consent, url, authorised_by))
    assert "secret-word" not in said
    assert said.isprintable()


def test_a_blank_consent_is_none_and_what_is_no_plain_url_is_refused_whoever_allowed_it():
    for text in (None, "", "  ", "\t\n", "\u00a0", "\u200b", "-", '""'):
        refused("example.com is not this machine", require_consent, "https://example.com", text)
    all_hold(is_no_plain_url, product(BAD, (None, "the owner, to measure it")))


def test_the_machines_own_name_and_addresses_count(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Lab-7.example.org")
    assert is_this_machine("lab-7.example.org")
    assert is_this_machine("LAB-7.EXAMPLE.ORG.")
    assert not is_this_machine("lab-7")
    assert not is_this_machine("lab-7.example.org.evil.example")


@pytest.mark.integration
def test_an_address_is_the_machines_own_if_it_can_be_listened_on():
    addresses = {str(result[4][0]) for result in socket.getaddrinfo(socket.gethostname(), None)}
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


URL = "http://service.example/v2"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of proxies and certificates is in the environment."""
    for name in [
        name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("SSL")
    ]:
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
        assert (
            _proxy(httpx2.URL("http://localhost:8000")) is None
        )  # none for this machine, whatever is said


@pytest.mark.parametrize(
    ("address", "host", "auth"),
    [
        ("h:3128", b"h", None),
        ("http://me:s3cret@h:3128", b"h", (b"me", b"s3cret")),
        ("http://m e:s%203@[::1]:3128/", b"::1", (b"m e", b"s 3")),
        (
            "http://\u00e9:x@b\u00fccher.example:3128",
            b"xn--bcher-kva.example",
            ("\u00e9".encode(), b"x"),
        ),
    ],
)
def test_a_proxy_is_used_as_it_is_named(
    address: str, host: bytes, auth: tuple[bytes, bytes] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", address)
    proxy = _proxy(httpx2.URL(URL))
    assert (proxy.url.host, proxy.url.port, proxy.auth) == (host, 3128, auth)
    for nothing in (
        "[::1",
        "example.org:99999",
        "\u00e9",
        " ,,",
        "[",
        "service.example:8080",
        "\udcff",
    ):
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


KEY = "s3cr+t/k=y?&\"<'\\ 7"

values = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


def test_they_come_from_the_environment_by_name(monkeypatch):
    monkeypatch.setenv("DFME_TEST_KEY", " abc\n")
    assert (
        Secrets.from_environment(["DFME_TEST_KEY"]).fill(
            "Bearer ${DFME_TEST_KEY}, twice ${DFME_TEST_KEY}"
        )
        == "Bearer abc, twice abc"
    )
    assert Secrets.from_environment([]).fill("nothing $x {y} $") == "nothing $x {y} $"


@pytest.mark.parametrize(
    "value", [None, "", "  ", "two\nlines", "\u043a\u043b\u044e\u0447", "a\x00b"]
)
def test_a_variable_that_holds_no_key_is_named_but_not_shown(monkeypatch, value):
    if value is None or "\x00" in value:  # an environment cannot hold a zero byte
        monkeypatch.delenv("DFME_TEST_KEY", raising=False)
    else:
        monkeypatch.setenv("DFME_TEST_KEY", value)
    refusal = refused("DFME_TEST_KEY", Secrets.from_environment, ["DFME_TEST_KEY"])
    assert "lines" not in str(refusal)


@pytest.mark.parametrize("text", ["${OTHER}", "${}", "${A-B}", "${HOME}", "x ${KEY} ${KEY }"])
def test_a_placeholder_without_a_secret_is_refused(text):
    assert KEY not in str(refused("the name of a secret", Secrets({"KEY": KEY}).fill, text))


def test_a_value_that_looks_like_a_placeholder_is_not_filled_again():
    assert Secrets({"A": "${B}", "B": "x"}).fill("${A}") == "${B}"


@given(values)
def test_a_url_carries_the_value_as_it_is(value):
    url = Secrets({"KEY": value}).fill_url("http://127.0.0.1/p?a=1&key=${KEY}&b=2")
    assert parse_qs(urlsplit(url).query) == {"a": ["1"], "key": [value], "b": ["2"]}


@pytest.mark.parametrize(
    "written",
    [
        KEY, quote(KEY), quote(KEY, safe=""), quote_plus(KEY), quote(KEY, safe="").lower(),
        urlencode({"k": KEY}),
        json.dumps({"error": f"bad key {KEY}"}), repr(KEY), html.escape(KEY),
        base64.b64encode(KEY.encode()).decode(), base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("="),
    ],
)  # fmt: skip
def test_every_way_of_writing_it_is_hidden(written):
    hidden = Secrets({"KEY": KEY}).hide(f"before {written} after")
    assert "***" in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    assert written not in hidden
    assert "s3cr" not in hidden


@given(values, st.text(max_size=20), st.text(max_size=20))
def test_no_text_that_was_hidden_holds_the_value(value, before, after):
    if value in "***":
        return
    assert value not in Secrets({"KEY": value}).hide(before + value + after).replace("***", "\0")


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=9, max_size=40),
    st.binary(max_size=9),
    st.binary(max_size=9),
)
def test_base64_of_more_than_the_value_is_hidden_too(value, before, after):
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        written = encode(before + value.encode() + after).decode()
        hidden = Secrets({"KEY": value}).hide(written)
        assert "***" in hidden
        # At both ends of the value a character may also hold bits of its neighbours; no more than
        # those stay.
        assert len(written) - len(hidden) + 3 >= len(value) * 4 // 3 - 1


def test_the_longer_of_two_secrets_goes_first_and_other_text_stays():
    assert Secrets({"A": "abc", "B": "abcdef"}).hide("abcdef abc") == "*** ***"
    assert (
        Secrets({}).hide("a plain text")
        == Secrets({"KEY": KEY}).hide("a plain text")
        == "a plain text"
    )


def everything_said(error: BaseException | None) -> str:
    """An exception with all that it is chained to."""
    if error is None:
        return ""
    return f"{error!r} {error} {everything_said(error.__cause__ or error.__context__)}"


FORMS = [SENT, quote(SENT, safe=""), quote(SENT), base64.b64encode(SENT.encode()).decode()]


def does_not_reach_people(url: str, status: str, written: str) -> None:
    said = everything_said(
        refused(
            "bad key",
            post,
            url,
            body=f"{status}|bad key {written}".encode(),
            api_key_env="DFME_KEY",
            error=DfmeError,
        )
    )
    assert "***" in said
    assert [form for form in [*FORMS, written[8:-8]] if form in said] == []


@pytest.mark.integration
def test_a_service_that_repeats_the_key_does_not_reach_people():
    def repeat(request: Request) -> bytes:
        status, _, words = request.body.decode().partition("|")
        return http(words.encode(), status)

    writings = [*FORMS, "\0".join(SENT), base64.b64encode(f"me:{SENT}".encode()).decode()]
    statuses = ["400 Bad", "401 Who", "422 No", "500 Oops", "503 Busy"]
    with Service(repeat) as service:
        all_hold(does_not_reach_people, product([service.url], statuses, writings))


@pytest.mark.integration
def test_a_secret_in_the_url_is_sent_and_shown_nowhere(caplog):
    caplog.set_level(logging.DEBUG)
    quoted = quote(SENT, safe="")

    def turn(request):
        location = "" if "moved" in request.line else f"/moved?key={quoted}&again={SENT}"
        return http(b"", "307 Away" if location else "404 What", Location=location)

    with Service(turn) as server:
        url, secrets = (
            f"{server.url}/p/${{DFME_KEY}}?key=${{DFME_KEY}}",
            Secrets({"DFME_KEY": SENT}),
        )
        service = Endpoint(ServiceOptions(url=""), url, secrets, {"X-Key": "is ${DFME_KEY}"})
        with closing(service):
            refusal = refused("", service.post, "", b"", {}, 10, error=Refused)
    assert server.requests[0].line == f"POST /p/{quoted}?key={quoted} HTTP/1.1"
    assert server.requests[0].headers["x-key"] == f"is {SENT}"
    shown = [service.url, everything_said(refusal)]
    logged = [
        line
        for line in map(logging.LogRecord.getMessage, caplog.records)
        if "receive_resp" not in line
    ]
    assert logged
    assert [text for text in shown + logged if any(form in text for form in FORMS)] == []


@pytest.mark.integration
def test_a_secret_so_short_that_it_is_in_the_port_is_hidden_all_the_same():
    with Service(http(b"yes")) as server:
        service = Endpoint(ServiceOptions(url=""), server.url, Secrets({"PORT": str(server.port)}))
        assert service.post("/ask", b"", {}, 10).body == b"yes"
        service.close()
    assert str(server.port) not in service.url

"""HTTP: what is asked and what comes of it; no secret leaves for another host or for a message."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder import http as http_module
from builder.errors import BuilderError, ExternalError, OfflineError, UsageError
from builder.http import (
    Http,
    RefusedError,
    Slice,
    origin_of,
    redact,
    redact_urls,
    without_credentials,
)
from tests.builders import FileServer

URL = "https://files.example/x.whl"
DATA = bytes(range(256)) * 40
Handler = Callable[[httpx.Request], httpx.Response]


def client(
    handler: Handler,
    environ: dict[str, str] | None = None,
    *,
    pauses: list[float] | None = None,
    offline: bool = False,
) -> Http:
    return Http(
        environ or {},
        offline=offline,
        transport=httpx.MockTransport(handler),
        sleep=(pauses if pauses is not None else []).append,
    )


def serving(**settings: Any) -> FileServer:
    return FileServer(files={"/x.whl": DATA}, **settings)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def always(response: httpx.Response) -> Handler:
    return lambda request: response


def test_whole_bodies_sizes_and_ranges() -> None:
    server = serving()
    with client(server) as http:
        assert http.get(URL) == DATA
        assert http.size(URL) == len(DATA)
        assert http.read(URL, 100, 50) == Slice(100, DATA[100:150], len(DATA), ranged=True)
        with http.stream(URL, 5000) as (first, chunks):
            assert (first, b"".join(chunks)) == (5000, DATA[5000:])
        with http.stream(URL) as (first, chunks):
            assert (first, b"".join(chunks)) == (0, DATA)
    assert [request.method for request in server.requests] == ["GET", "HEAD", "GET", "GET", "GET"]
    assert {request.headers["accept-encoding"] for request in server.requests} == {"identity"}
    assert [request.headers.get("range") for request in server.requests[2:]] == [
        "bytes=100-149",
        "bytes=5000-",
        None,
    ]
    assert server.requests[0].headers["user-agent"].startswith("spark-build/")


def test_the_end_of_a_file_is_asked_for_by_a_suffix() -> None:
    headers = {"Content-Range": f"bytes {len(DATA) - 64}-{len(DATA) - 1}/{len(DATA)}"}
    seen: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["range"])
        return httpx.Response(206, headers=headers, content=DATA[-64:])

    with client(handler) as http:
        found = http.read(URL, -64, 64)
    assert seen == ["bytes=-64"]
    assert found == Slice(len(DATA) - 64, DATA[-64:], len(DATA), ranged=True)


def test_a_server_without_ranges_gives_the_whole_file() -> None:
    with client(serving(ranges=False)) as http:
        assert http.read(URL, 100, 50) == Slice(0, DATA, len(DATA), ranged=False)
        with http.stream(URL, 5000) as (first, chunks):
            assert (first, b"".join(chunks)) == (0, DATA)


@pytest.mark.parametrize(
    "value", ["", "bytes", "bytes 0-9", "bytes */100", "bytes 0-9/*", "bytes a-b/c", "items 0-9/10"]
)
def test_a_range_that_cannot_be_read_is_refused(value: str) -> None:
    response = httpx.Response(206, headers={"Content-Range": value}, content=b"0123456789")
    with client(always(response)) as http, pytest.raises(ExternalError, match="Content-Range"):
        http.read(URL, 0, 10)


@pytest.mark.parametrize("value", ["none", "-1", "1.5", ""])
def test_a_size_that_is_none_is_refused(value: str) -> None:
    headers = {"Content-Length": value} if value else {}
    with (
        client(lambda request: httpx.Response(200, headers=headers)) as http,
        pytest.raises(ExternalError, match="does not say how large"),
    ):
        http.size(URL)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again_with_growing_pauses(status: int) -> None:
    pauses: list[float] = []
    with client(serving(statuses=[status] * 3), pauses=pauses) as http:
        assert http.get(URL) == DATA
    assert pauses == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "pause"), [("7", 7.0), ("0", 0.0), ("86400", 30.0), ("soon", 0.5), ("\xb2", 0.5)]
)
def test_the_server_says_how_long_to_wait(value: str, pause: float) -> None:
    pauses: list[float] = []
    server = serving(statuses=[503])

    def handler(request: httpx.Request) -> httpx.Response:
        response = server(request)
        if response.status_code == 503:
            response.headers = httpx.Headers([(b"Retry-After", value.encode("latin-1"))])
        return response

    with client(handler, pauses=pauses) as http:
        assert http.get(URL) == DATA
    assert pauses == [pause]


def test_it_is_not_tried_for_ever() -> None:
    server = serving(statuses=[503] * 100)
    with client(server) as http, pytest.raises(ExternalError, match="503 Service Unavailable"):
        http.get(URL)
    assert len(server.requests) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 416])
def test_a_refusal_is_told_at_once(status: int) -> None:
    server = serving(statuses=[status] * 100)
    with client(server) as http, pytest.raises(ExternalError, match=str(status)) as caught:
        http.get(URL)
    assert len(server.requests) == 1
    assert (caught.value.hint is not None) == (status in (401, 403, 404, 410))
    gone = all(word in (caught.value.hint or "") for word in ("--upgrade-package NAME", "--vendor"))
    assert gone == (status in (404, 410))


@pytest.mark.parametrize(
    "kind", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.ProxyError]
)
def test_a_broken_connection_is_tried_again(kind: type[httpx.TransportError]) -> None:
    pauses: list[float] = []
    server = serving()

    def handler(request: httpx.Request) -> httpx.Response:
        if len(pauses) < 2:
            raise kind("broken")
        return server(request)

    with client(handler, pauses=pauses) as http:
        assert http.get(URL) == DATA
    assert pauses == [0.5, 1.0]


def test_a_host_that_is_never_reached_is_named_with_a_hint() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Name or service not known")

    with client(handler) as http, pytest.raises(ExternalError, match=r"files\.example") as caught:
        http.get(f"{URL}?token=secret")
    assert "ConnectError: Name or service not known" in caught.value.message
    assert "proxy" in (caught.value.hint or "")
    assert "secret" not in caught.value.message


def test_a_body_that_breaks_off_is_an_error_of_ours() -> None:
    with client(serving(breaks=[3000])) as http, http.stream(URL) as (_, chunks):
        received = bytearray()
        with pytest.raises(ExternalError, match="connection reset"):
            received.extend(b"".join(chunks))


@pytest.mark.parametrize(
    "url", ["ftp://files.example/x", "no-url", "https://[::1", "https://files.example:port/x", ""]
)
def test_what_cannot_be_asked_for_is_refused_without_a_pause(url: str) -> None:
    pauses: list[float] = []

    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.UnsupportedProtocol("no such protocol")

    with client(handler, pauses=pauses) as http, pytest.raises(ExternalError):
        http.get(url)
    assert pauses == []


def test_redirects_without_end_are_refused() -> None:
    response = httpx.Response(302, headers={"Location": "/again"})
    pauses: list[float] = []
    with (
        client(always(response), pauses=pauses) as http,
        pytest.raises(ExternalError, match="TooManyRedirects"),
    ):
        http.get(URL)
    assert pauses == []


def test_offline_nothing_is_asked() -> None:
    server = serving()
    with client(server, offline=True) as http:
        with pytest.raises(OfflineError, match="the run is offline") as caught:
            http.get(f"https://user:secret@files.example/x.whl?sig=secret#{'f' * 5}")
        with pytest.raises(OfflineError):
            http.size(URL)
    assert server.requests == []
    assert "secret" not in caught.value.message
    assert "--offline" in (caught.value.hint or "")


INDEX = "https://user:p%40ss@index.example/simple"


@pytest.mark.parametrize("variable", ["PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"])
def test_an_index_url_gives_the_credentials_of_its_host_only(variable: str) -> None:
    server = FileServer(files={"/x.whl": DATA})
    with client(server, {variable: INDEX}) as http:
        http.get("https://index.example/x.whl")
        http.get("https://files.example/x.whl")
        http.get("https://sub.index.example/x.whl")
    found = [request.headers.get("authorization") for request in server.requests]
    assert found == [basic("user", "p@ss"), None, None]


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({"USERNAME": "me", "PASSWORD": "hush"}, basic("me", "hush")),
        ({"PASSWORD": "token"}, basic("", "token")),
        ({}, None),
    ],
)
def test_a_named_index_has_its_credentials_by_name(
    variables: dict[str, str], sent: str | None
) -> None:
    server = FileServer(files={"/x.whl": DATA})
    environ = {f"UV_INDEX_OUR_OWN_{key}": value for key, value in variables.items()}
    indexes = {"our-own": "https://index.example/simple"}
    with Http(environ, indexes=indexes, transport=httpx.MockTransport(server)) as http:
        http.get("https://index.example/x.whl")
        http.get("https://files.example/x.whl")
    found = [request.headers.get("authorization") for request in server.requests]
    assert found == [sent, None]


@pytest.mark.parametrize(
    "url",
    [
        "http://index.example/x.whl",
        "https://index.example:8443/x.whl",
        "http://index.example:443/x.whl",
    ],
)
def test_credentials_stay_with_their_scheme_and_port(url: str) -> None:
    server = FileServer(files={"/x.whl": DATA})
    with client(server, {"UV_DEFAULT_INDEX": INDEX}) as http:
        http.get(url)
        http.get("https://index.example:443/x.whl")
    found = [request.headers.get("authorization") for request in server.requests]
    assert found == [None, basic("user", "p@ss")]


def test_netrc_is_not_for_open_connections(tmp_path: Path) -> None:
    text = (
        "machine files.example login me password hush\nmachine 127.0.0.1 login me password hush\n"
    )
    (tmp_path / ".netrc").write_text(text)
    server = FileServer(files={"/x.whl": DATA})
    with client(server, {"HOME": str(tmp_path)}) as http:
        for origin in ("http://files.example", "https://files.example", "http://127.0.0.1:8000"):
            http.get(f"{origin}/x.whl")
    found = [request.headers.get("authorization") for request in server.requests]
    assert found == [None, basic("me", "hush"), basic("me", "hush")]


def test_a_netrc_of_other_bytes_is_named(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_bytes(b"machine x login \xff password hush\n")
    with client(serving(), {"HOME": str(tmp_path)}) as http, pytest.raises(UsageError) as caught:
        http.get(URL)
    assert "hush" not in caught.value.message


@pytest.mark.parametrize(
    "proxy", ["http://user:s3c/ret@h:1", "ftp://h:1", "http://u:p@[::1", "socks5://h:1"]
)
def test_a_proxy_that_is_none_is_told_without_its_value(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with Http({}) as http, pytest.raises(UsageError, match="proxy variables") as caught:
        http.get(URL)
    assert "s3c" not in f"{caught.value.message}{caught.value.hint}"


def test_certificates_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.crt")
    with Http({}) as http, pytest.raises(UsageError, match="certificates") as caught:
        http.get(URL)
    assert "SSL_CERT_FILE" in (caught.value.hint or "")


def test_an_encoded_body_is_refused() -> None:
    headers = {"Content-Encoding": "gzip"}
    response = httpx.Response(200, headers=headers, content=gzip.compress(DATA))
    with client(always(response)) as http, pytest.raises(ExternalError, match="encoded"):
        http.get(URL)


def test_a_body_without_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                yield bytes(1 << 20)

    monkeypatch.setattr(http_module, "_WHOLE_BYTES", 8 << 20)
    endless = always(httpx.Response(200, stream=Endless()))
    with client(endless) as http, pytest.raises(ExternalError, match="more than 8388608 bytes"):
        http.read(URL, 0, 100)


def test_a_body_that_only_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dripping(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                yield b"x"

    monkeypatch.setattr(http_module, "_PACE_SECONDS", 0.01)
    monkeypatch.setattr(http_module, "_PACE_BYTES", 1 << 40)
    dripping = always(httpx.Response(200, stream=Dripping()))
    given_up = pytest.raises(ExternalError, match="given up")
    with client(dripping) as http, http.stream(URL) as (_, chunks), given_up:
        list(chunks)


def test_netrc_gives_the_credentials_of_its_hosts_only(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine files.example login me password hush\n")
    other = tmp_path / "other"
    other.write_text("machine files.example login you password hush\n")
    for environ, expected in (
        ({"HOME": str(tmp_path)}, basic("me", "hush")),
        ({"HOME": str(tmp_path), "NETRC": str(other)}, basic("you", "hush")),
        ({"HOME": str(tmp_path / "absent")}, None),
        ({}, None),
    ):
        server = serving()
        with client(server, environ) as http:
            http.get(URL)
        assert server.requests[0].headers.get("authorization") == expected
    server = FileServer(files={"/x": b""})
    with client(server, {"HOME": str(tmp_path)}) as http:
        http.get("https://elsewhere.example/x")
    assert "authorization" not in server.requests[0].headers


def test_an_index_url_goes_before_netrc(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine index.example login me password hush\n")
    server = serving()
    with client(server, {"HOME": str(tmp_path), "PIP_INDEX_URL": INDEX}) as http:
        http.get("https://index.example/x.whl")
    assert server.requests[0].headers["authorization"] == basic("user", "p@ss")


def test_a_broken_netrc_is_named_without_its_content(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine files.example login me\nhush hush2\n")
    with (
        client(serving(), {"HOME": str(tmp_path)}) as http,
        pytest.raises(UsageError, match="netrc") as caught,
    ):
        http.get(URL)
    assert str(tmp_path / ".netrc") in caught.value.message
    assert "hush" not in caught.value.message


def test_an_index_variable_that_is_no_url_is_named_without_its_value() -> None:
    with (
        client(serving(), {"PIP_INDEX_URL": "https://user:hush@[index/simple"}) as http,
        pytest.raises(UsageError, match="PIP_INDEX_URL") as caught,
    ):
        http.get(URL)
    assert "hush" not in caught.value.message


def test_credentials_are_not_sent_to_where_a_redirect_leads() -> None:
    server = FileServer(files={"/far/x.whl": DATA})

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "index.example":
            server.requests.append(request)
            return httpx.Response(302, headers={"Location": "https://cdn.example/far/x.whl"})
        return server(request)

    with client(handler, {"PIP_INDEX_URL": INDEX}) as http:
        assert http.get("https://index.example/x.whl") == DATA
        with http.stream("https://index.example/x.whl", 100) as (first, _):
            assert first == 100
    sent = [(request.url.host, "authorization" in request.headers) for request in server.requests]
    assert sent == [("index.example", True), ("cdn.example", False)] * 2


def test_a_refusal_has_its_status_and_headers() -> None:
    response = httpx.Response(401, headers={"WWW-Authenticate": "Basic"})
    refused = pytest.raises(RefusedError, match="401 Unauthorized")
    with client(always(response)) as http, refused as caught, http.stream(URL):
        pass
    assert (caught.value.status, caught.value.headers["www-authenticate"]) == (401, "Basic")


SECRETS = "https://user:hush@index.example/x.whl?token=hush#hush"


@pytest.mark.parametrize(
    "handler",
    [
        always(httpx.Response(403)),
        always(httpx.Response(206, headers={"Content-Range": "bytes"})),
        always(httpx.Response(302, headers={"Location": "https://hush@[bad"})),
        always(httpx.Response(302, headers={"Location": "?again"})),
    ],
    ids=["refused", "range", "redirect", "loop"],
)
def test_no_message_holds_a_secret(handler: Handler) -> None:
    with client(handler, {"PIP_INDEX_URL": SECRETS}) as http, pytest.raises(BuilderError) as caught:
        http.read(SECRETS, 0, 10)
    assert "hush" not in f"{caught.value.message} {caught.value.hint}"
    assert "index.example/x.whl" in caught.value.message


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, URL),
        (SECRETS, "https://index.example/x.whl"),
        ("https://token@index.example:8443/a", "https://index.example:8443/a"),
        ("https://us@er:hu@sh@index.example/a", "https://index.example/a"),
        ("http://user:hush@[2001:db8::1]:80/a", "http://[2001:db8::1]:80/a"),
        ("mirror.example/debian", "mirror.example/debian"),
        ("user:hush@index.example/a", "(a URL that cannot be read)"),
        ("https:/user:hush@index.example/a", "(a URL that cannot be read)"),
        ("https://user:hu/sh@index.example/a", "(a URL that cannot be read)"),
        ("https://user:hu#sh@index.example/a", "(a URL that cannot be read)"),
        ("https://user:hush@[index/a", "(a URL that cannot be read)"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "unable to access 'https://user:hush@git.example/x/': 401",
            "'https://git.example/x/': 401",
        ),
        ("for url (https://user:hush@index.example:8443)", "(https://index.example:8443)"),
        ("fetch `http://h:hush@a.example/w?sig=hush`, HTTPS://x:hush@b.example/.", "b.example/."),
        ("ssh://git:hu)sh@git.example/team failed", "ssh://git.example/team failed"),
        ("nothing to hide: a://", "nothing to hide: a://"),
    ],
)
def test_what_a_tool_said_is_shown_without_what_may_be_secret(said: str, shown: str) -> None:
    assert redact_urls(said).endswith(shown)
    assert "hush" not in redact_urls(said)
    assert "hu)sh" not in redact_urls(said)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://index.example/a", ("https", "index.example", 443)),
        ("https://user:hush@INDEX.example:443/", ("https", "index.example", 443)),
        ("http://index.example/", ("http", "index.example", 80)),
        ("https://index.example:8443/", ("https", "index.example", 8443)),
    ],
)
def test_whom_a_url_is_for(url: str, origin: tuple[str, str, int]) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "https://u:p@files.example/x%2By.whl?q=1#sha256=0",
            "https://files.example/x%2By.whl?q=1#sha256=0",
        ),
        ("https://files.example/a@b", "https://files.example/a@b"),
        ("https://u:p@[2001:db8::1]:80/a", "https://[2001:db8::1]:80/a"),
    ],
)
def test_credentials_are_taken_out_and_nothing_else(url: str, expected: str) -> None:
    assert without_credentials(url) == expected


@given(st.text(max_size=40), st.from_regex(r"[a-z]{8}", fullmatch=True))
def test_showing_a_url_never_fails_and_never_shows_the_password(tail: str, password: str) -> None:
    assert isinstance(redact(tail), str)
    assert password not in redact(f"https://user:{password}@index.example/")

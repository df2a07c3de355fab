"""HTTP requests that their sender signs himself: any answer, nothing twice, no other login."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from builder.errors import ExternalError, OfflineError
from builder.http import Http, is_loopback, phrase
from tests.builders import FileServer

from .test_http import DATA, INDEX, URL, always, basic, client, serving


@pytest.mark.parametrize("status", [200, 201, 304, 400, 401, 404, 418])
def test_an_exchange_gives_the_answer_whatever_its_status(status: int) -> None:
    response = httpx.Response(status, headers={"X-Some": "thing"}, content=b"body")
    with client(always(response)) as http:
        answer = http.exchange("GET", URL, {"Accept": "a/b"})
    assert (answer.status, answer.headers["x-some"], answer.data) == (status, "thing", b"body")
    assert repr(answer) == f"Answer(status={status})"


def test_an_exchange_is_tried_again_and_its_last_answer_given() -> None:
    pauses: list[float] = []
    server = serving(statuses=[503] * 9)
    with client(server, pauses=pauses) as http:
        assert http.exchange("GET", URL, {}).status == 503
        assert http.exchange("GET", URL, {}, attempts=1).status == 503
        assert http.exchange("PUT", URL, {}, content=b"x").status == 503
    assert pauses == [0.5, 1.0, 2.0] * 2
    assert [request.content for request in server.requests] == [b""] * 5 + [b"x"] * 4


def test_an_exchange_of_too_much_or_of_encoded_bytes_is_refused() -> None:
    with client(always(httpx.Response(404, content=b"12345"))) as http:
        assert http.exchange("GET", URL, {}, limit=5).data == b"12345"
        with pytest.raises(ExternalError, match="more than 4 bytes"):
            http.exchange("GET", URL, {}, limit=4)
    headers = {"Content-Encoding": "gzip"}
    encoded = httpx.Response(200, headers=headers, content=gzip.compress(DATA))
    with client(always(encoded)) as http, pytest.raises(ExternalError, match="encoded"):
        http.exchange("GET", URL, {})


def test_an_exchange_offline_is_refused() -> None:
    server = serving()
    with client(server, offline=True) as http, pytest.raises(OfflineError):
        http.exchange("GET", URL, {})
    assert server.requests == []


def test_a_body_in_chunks_is_sent_once() -> None:
    pauses: list[float] = []
    sent: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers["content-length"] == "4"
        assert "transfer-encoding" not in request.headers
        sent.append(request.read())
        return httpx.Response(503)

    with client(handler, pauses=pauses) as http:
        chunks = iter([b"ab", b"cd"])
        answer = http.exchange("PUT", URL, {"Content-Length": "4"}, content=chunks)
    assert (answer.status, sent, pauses) == (503, [b"abcd"], [])


def test_whoever_signs_himself_sends_no_other_credentials(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine index.example login me password hush\n")
    server = FileServer(files={"/x.whl": DATA})
    url = "https://index.example/x.whl"
    with client(server, {"HOME": str(tmp_path), "PIP_INDEX_URL": INDEX}) as http:
        http.exchange("GET", url, {})
        http.exchange("GET", url, {"Authorization": "Bearer mine"})
        with http.stream(url, 5, {}), http.stream(url, 5, {"Authorization": "Bearer mine"}):
            pass
        http.get(url)
    found = [request.headers.get("authorization") for request in server.requests]
    assert found == [None, "Bearer mine", None, "Bearer mine", basic("user", "p@ss")]
    assert [request.headers.get("range") for request in server.requests[2:4]] == ["bytes=5-"] * 2


@pytest.mark.parametrize(
    "location",
    ["https://cdn.example/x.whl", "http://files.example/x.whl", "https://files.example:8443/x.whl"],
)
def test_a_signature_does_not_follow_to_another_origin(location: str) -> None:
    seen: list[tuple[str, str | None]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), request.headers.get("authorization")))
        if str(request.url) == URL:
            return httpx.Response(307, headers={"Location": location})
        return httpx.Response(200, stream=httpx.ByteStream(DATA))

    signed = {"Authorization": "Bearer mine"}
    with client(handler) as http:
        assert http.exchange("GET", URL, signed).data == DATA
        with http.stream(URL, 0, signed) as (_, chunks):
            assert b"".join(chunks) == DATA
    assert seen == [(URL, "Bearer mine"), (location, None)] * 2


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT"])
def test_only_a_get_is_redirected(method: str) -> None:
    server = always(httpx.Response(307, headers={"Location": "https://cdn.example/"}))
    with client(server) as http:
        assert http.exchange(method, URL, {}, content=b"").status == 307


class _Answering(BaseHTTPRequestHandler):
    """Answers 200 to everything, and logs nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


def test_this_machine_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), _Answering) as server, Http({}) as http:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for host in ("localhost", "127.0.0.1"):
            url = f"http://{host}:{server.server_port}/"
            assert http.exchange("GET", url, {}, attempts=1).status == 200
        with pytest.raises(ExternalError, match="ConnectError"):
            http.exchange("GET", f"http://127.0.0.2:{server.server_port}/", {}, attempts=1)
        server.shutdown()


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("localhost.example", False)],
)
def test_which_hosts_are_this_machine(host: str, loopback: object) -> None:
    assert is_loopback(host) == loopback


def test_a_status_has_its_name() -> None:
    assert [phrase(404), phrase(599)] == ["404 Not Found", "599"]

"""A TLS server that plays several hosts at once and keeps what it was asked."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asked; `target` is the path with its query, header names are in lower case."""

    method: str
    host: str
    target: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer; a body that is no bytes needs its Content-Length among the headers."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Iterable[bytes] = b""


Site = Callable[[Request], Response]


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server listens on loopback, and every request so far."""

    port: int
    requests: list[Request]


@contextmanager
def serving(sites: Mapping[str, Site], context: ssl.SSLContext) -> Iterator[Server]:
    """Serve each host of `sites`; a site is asked by several threads at once."""
    seen: list[Request] = []
    server = _TlsServer(sites, context, seen)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Server(server.server_address[1], seen)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _TlsServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, sites: Mapping[str, Site], context: ssl.SSLContext, seen: list[Request]
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sites = sites
        self.seen = seen
        self._context = context

    def get_request(self) -> tuple[ssl.SSLSocket, Any]:
        connection, address = super().get_request()
        # The handshake comes with the first read, in the connection's own thread.
        wrapped = self._context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        return wrapped, address

    def handle_error(self, request: Any, client_address: object) -> None:
        """A client that hangs up, or trusts us not, is no fault of the server."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _TlsServer

    def __getattr__(self, name: str) -> Callable[[], None]:
        """The base class looks for `do_` and the method, whatever that is."""
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Requests are kept, not printed."""

    def _answer(self) -> None:
        request = Request(
            method=self.command,
            host=self.headers.get("host", "").partition(":")[0],
            target=self.path,
            headers={
                name.lower(): ", ".join(self.headers.get_all(name, [])) for name in self.headers
            },
            body=self._body(),
        )
        self.server.seen.append(request)
        site = self.server.sites.get(request.host)
        self._send(Response(status=421) if site is None else site(request))

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def _send(self, response: Response) -> None:
        self.send_response(response.status, responses.get(response.status))
        headers = dict(response.headers)
        if isinstance(response.body, bytes):
            headers.setdefault("Content-Length", str(len(response.body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            whole = [response.body] if isinstance(response.body, bytes) else response.body
            self.wfile.writelines(whole)

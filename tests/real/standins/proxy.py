"""A CONNECT proxy (RFC 9110 section 9.3.6) that leads some hosts astray and lets others pass."""

from __future__ import annotations

import base64
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

_TIMEOUT_SECONDS = 60.0
_CHUNK_BYTES = 1 << 16
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where the proxy listens on loopback, and each `HOST:PORT` that was asked of it."""

    port: int
    asked: list[str]


@contextmanager
def proxying(routes: Mapping[str, int]) -> Iterator[Proxy]:
    """Lead each host of `routes` to its port on loopback, and all others where they are.

    The others go by way of this process's own proxy, where its environment names one now; later
    it may well name this one.
    """
    asked: list[str] = []
    server = _ProxyServer(routes, asked, getproxies().get("https"))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Proxy(server.server_address[1], asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _ProxyServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, routes: Mapping[str, int], asked: list[str], outer: str | None) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.asked = asked
        self._routes = routes
        self._outer = outer

    def connect(self, target: str) -> socket.socket:
        """A connection to `HOST:PORT`, or to what stands in for it."""
        host, _, port = target.rpartition(":")
        if port == "443" and host in self._routes:
            return socket.create_connection(("127.0.0.1", self._routes[host]), _TIMEOUT_SECONDS)
        if self._outer and not proxy_bypass(host):
            return _connect_by(self._outer, target)
        return socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_SECONDS)


class _Tunnel(socketserver.StreamRequestHandler):
    server: _ProxyServer

    def handle(self) -> None:
        method, _, rest = self.rfile.readline(_HEAD_BYTES).decode("ascii").partition(" ")
        target = rest.partition(" ")[0]
        while self.rfile.readline(_HEAD_BYTES).strip():
            pass
        if method != "CONNECT":
            self.wfile.write(b"HTTP/1.1 405 Method Not Allowed\r\nConnection: close\r\n\r\n")
            return
        self.server.asked.append(target)
        try:
            upstream = self.server.connect(target)
        except OSError:
            self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n")
            return
        with upstream, suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
            _relay(self.connection, upstream)


def _connect_by(outer: str, target: str) -> socket.socket:
    parts = urlsplit(outer)
    upstream = socket.create_connection((parts.hostname or "", parts.port or 80), _TIMEOUT_SECONDS)
    head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
    if parts.username:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        head += f"Proxy-Authorization: Basic {base64.b64encode(user).decode()}\r\n"
    upstream.sendall(f"{head}\r\n".encode())
    answer = bytearray()
    while not answer.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the tunnel's
        answer += upstream.recv(1) or b"\r\n\r\n"
    if answer.split()[1:2] != [b"200"]:
        upstream.close()
        raise OSError(f"{parts.hostname} does not connect to {target}")
    return upstream


def _relay(client: socket.socket, upstream: socket.socket) -> None:
    upstream.settimeout(None)  # an idle connection that is kept is none that hangs
    back = threading.Thread(target=_copy, args=(upstream, client), daemon=True)
    back.start()
    _copy(client, upstream)
    back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)

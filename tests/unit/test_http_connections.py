"""HTTP over real connections: one that was made is used again."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from builder.http import Http, RefusedError


class _Counting(ThreadingHTTPServer):
    """Says how many connections were made to it."""

    daemon_threads = False  # closing waits for them
    connections = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


class _KeepAlive(BaseHTTPRequestHandler):
    """Answers `/found` and nothing else, each time on the connection that there is."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()
        self.wfile.write(b"some" if self.path == "/found" else b"none")

    def _answer(self) -> None:
        self.send_response(200 if self.path == "/found" else 404)
        self.send_header("Content-Length", "4")
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


def test_one_connection_serves_many_requests() -> None:
    with _Counting(("127.0.0.1", 0), _KeepAlive) as server, Http({}) as http:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            for _ in range(5):
                assert http.stated_size(f"{url}/found") == 4
                assert http.get(f"{url}/found") == b"some"
                assert http.exchange("HEAD", f"{url}/gone", {}).status == 404
                for ask in (http.stated_size, http.get):
                    with pytest.raises(RefusedError):
                        ask(f"{url}/gone")
        finally:
            server.shutdown()
            thread.join()
    assert server.connections == 1

"""A registry of its own for a test session: Debian's docker-registry on loopback, without TLS."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_START_SECONDS = 20.0
_CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: "{folder}"}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
_AUTH = """auth: {{htpasswd: {{realm: here, path: "{path}"}}}}
"""


@contextmanager
def registry(folder: Path, htpasswd: str | None = None) -> Iterator[int]:
    """Run a registry that keeps its images in `folder`; yields its port on loopback.

    With `htpasswd`, it lets in only those whose names and bcrypt hashes are in that text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    config = folder / "config.yml"
    text = _CONFIG.format(folder=folder / "images", port=port)
    if htpasswd is not None:
        users = folder / "htpasswd"
        users.write_text(htpasswd, encoding="utf-8")
        text += _AUTH.format(path=users)
    config.write_text(text, encoding="utf-8")
    with (folder / "log").open("wb") as log:
        argv = ["docker-registry", "serve", str(config)]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _await(process, port, folder / "log")
            yield port
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(encoding="utf-8", errors="replace")
                raise AssertionError(f"the registry does not start: {said}") from None
            time.sleep(0.05)
        else:
            return

"""github.com as git sees it: its smart HTTP protocol, by git's own server."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path

from builder import process

from .server import Request, Response

_WHO = ("Nobody", "nobody@example.org", "2026-01-01T00:00:00Z")
_ALONE = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True, slots=True)
class GitHub:
    """Serves the bare repositories `OWNER/NAME.git` in `folder`, under their names without .git."""

    folder: Path

    def add(self, name: str, files: Mapping[str, str], tag: str) -> str:
        """A repository `OWNER/NAME` of one commit with that tag; returns the commit."""
        work = self.folder / "work" / name
        for path, text in files.items():
            file = work / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        _git("init", "--quiet", "--initial-branch=main", folder=work)
        _git("add", ".", folder=work)
        _git("commit", "--quiet", "--message=As released", folder=work)
        _git("tag", tag, folder=work)
        bare = self._bare(name)
        _git("clone", "--quiet", "--bare", str(work), str(bare), folder=self.folder)
        # As GitHub lets its clients: part of a history, and any commit by its name.
        for option in ("allowFilter", "allowAnySHA1InWant"):
            _git("config", f"uploadpack.{option}", "true", folder=bare)
        return _git("rev-parse", "HEAD", folder=work)

    def __call__(self, request: Request) -> Response:
        found = re.fullmatch(r"/([\w-]+/[\w-]+)(?:\.git)?(/.+)", request.path, re.ASCII)
        if found is None or not self._bare(found[1]).is_dir():
            return Response(status=404)
        return _cgi(request, self.folder, f"/{found[1]}.git{found[2]}")

    def _bare(self, name: str) -> Path:
        return self.folder / f"{name}.git"


def _git(*arguments: str, folder: Path) -> str:
    name, mail, when = _WHO
    who = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", name), ("EMAIL", mail), ("DATE", when))
    }
    done = process.run(["git", *arguments], cwd=folder, env={**os.environ, **_ALONE, **who})
    return done.stdout.strip()


def _cgi(request: Request, root: Path, inside: str) -> Response:
    """What `git http-backend` answers (RFC 3875)."""
    environ = {
        "PATH": os.environ["PATH"],
        **_ALONE,
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": inside,
        "QUERY_STRING": request.target.partition("?")[2],
        "REQUEST_METHOD": request.method,
        "CONTENT_TYPE": request.headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(request.body)),
        "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
        "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
        "REMOTE_ADDR": "127.0.0.1",
    }
    argv = ["git", "http-backend"]
    done = subprocess.run(argv, input=request.body, env=environ, capture_output=True, check=False)
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    headers = dict(BytesParser().parsebytes(head))
    status = int(headers.pop("Status", "200").split()[0])
    return Response(status=status, headers=headers, body=body)

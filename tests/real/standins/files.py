"""Hosts of plain files: whole or in ranges, gone or tampered with; and package indexes of them."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import secrets
import zipfile
from dataclasses import dataclass, field
from io import BytesIO
from urllib.parse import quote

from packaging.utils import canonicalize_name

from .server import Request, Response


@dataclass(slots=True)
class Files:
    """Serves `pages` by their paths as they are asked for, percent-encoded or not.

    `statuses` are answered in the stead of a path's page, until they are taken out again.
    """

    pages: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)

    def __call__(self, request: Request) -> Response:
        if status := self.statuses.get(request.path):
            return Response(status=status)
        data = self.pages.get(request.path)
        if data is None:
            return Response(status=404)
        if request.method not in {"GET", "HEAD"}:
            return Response(status=405)
        return _part(data, request)

    def add_index(self, root: str, wheels: dict[str, bytes]) -> None:
        """A simple index (PEP 503) at `root`, with each wheel's metadata beside it (PEP 658)."""
        projects: dict[str, list[str]] = {}
        for name, data in wheels.items():
            metadata = _metadata(data)
            self.pages[f"{root}/{name}"] = data
            self.pages[f"{root}/{name}.metadata"] = metadata
            anchor = _anchor(f"{root}/{name}", data, metadata)
            projects.setdefault(canonicalize_name(name.partition("-")[0]), []).append(anchor)
        for project, anchors in projects.items():
            page = f"<!DOCTYPE html><html><body>{'<br>'.join(anchors)}</body></html>"
            self.pages[f"{root}/{project}/"] = page.encode()


@dataclass(frozen=True, slots=True)
class Protected:
    """The same files for those alone who sign in (RFC 7617)."""

    files: Files
    user: str
    password: str = field(default_factory=lambda: f"canary{secrets.token_hex(12)}", repr=False)

    def __call__(self, request: Request) -> Response:
        if request.headers.get("authorization") != self.basic:
            return Response(status=401, headers={"WWW-Authenticate": 'Basic realm="files"'})
        return self.files(request)

    @property
    def basic(self) -> str:
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


def _part(data: bytes, request: Request) -> Response:
    """The whole, or what the Range header asks for (RFC 9110 section 14)."""
    kind = "text/html" if request.path.endswith("/") else "application/octet-stream"
    headers = {"Content-Type": kind, "Accept-Ranges": "bytes"}
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
    if asked is None or asked.groups() == ("", ""):
        return Response(headers=headers, body=data)
    if asked[1]:
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
    else:
        first, last = max(0, len(data) - int(asked[2])), len(data) - 1
    if first > last:
        return Response(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(status=206, headers=headers, body=data[first : last + 1])


def _anchor(path: str, data: bytes, metadata: bytes) -> str:
    whole, part = (f"sha256={hashlib.sha256(text).hexdigest()}" for text in (data, metadata))
    name = path.rpartition("/")[2]
    return f'<a href="{quote(path)}#{whole}" data-core-metadata="{part}">{html.escape(name)}</a>'


def _metadata(wheel: bytes) -> bytes:
    with zipfile.ZipFile(BytesIO(wheel)) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return archive.read(name)

"""Single files of locked wheels: read where they lie, over ranges or not, and kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from builder.errors import ExternalError
from builder.http import Http
from builder.lock.members import read_member
from builder.lock.model import LockedWheel
from builder.lock.store import Store
from builder.progress import Progress
from builder.remote import WheelError
from tests.builders import FileServer, WheelText, locked

WHEEL = WheelText(files={"demo/data.txt": b"one", "demo/other.txt": b"x" * 90_000})
DATA = re.compile(r"demo/data\.txt")


def server_of(*wheels: WheelText) -> FileServer:
    files: Mapping[str, bytes] = {f"/packages/{wheel.filename}": wheel.zipped() for wheel in wheels}
    return FileServer(files)


def read(
    server: FileServer,
    cache: Path,
    wheel: LockedWheel | None = None,
    name: re.Pattern[str] = DATA,
) -> bytes:
    with Http({}, transport=httpx.MockTransport(server), sleep=lambda seconds: None) as http:
        return read_member(wheel or locked(WHEEL), name, http=http, store=Store(cache), cache=cache)


def test_what_was_read_is_kept(tmp_path: Path) -> None:
    server = server_of(WHEEL)
    assert read(server, tmp_path) == b"one"
    asked = len(server.requests)
    assert asked
    assert read(server, tmp_path) == b"one"
    assert len(server.requests) == asked
    assert read(server, tmp_path, name=re.compile(r".*/METADATA")).startswith(b"Metadata-Version")
    assert len(server.requests) > asked


def test_what_is_kept_belongs_to_the_url_as_well(tmp_path: Path) -> None:
    """A lock may give one wheel's hash to another, and nobody checked it here."""
    other = WheelText(name="other", files={"demo/data.txt": b"two"})
    server = server_of(WHEEL, other)
    assert read(server, tmp_path) == b"one"
    forged = LockedWheel(
        name="other",
        version="1.0",
        url=locked(other).url,
        sha256=locked(WHEEL).sha256,
        size=locked(other).size,
    )
    assert read(server, tmp_path, forged) == b"two"


def test_a_wheel_in_the_store_is_read_there(tmp_path: Path) -> None:
    server = server_of(WHEEL)
    with Http({}, transport=httpx.MockTransport(server)) as http:
        Store(tmp_path).fetch([locked(WHEEL)], http, Progress(), "wheels")
    server.requests.clear()
    assert read(server, tmp_path) == b"one"
    assert server.requests == []


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match=r"demo-1\.0-py3-none-any\.whl: holds no file"):
        read(server_of(WHEEL), tmp_path, name=re.compile("absent"))
    with pytest.raises(ExternalError, match="404"):
        read(server_of(), tmp_path)
    assert not (tmp_path / "facts").exists()


def test_a_file_of_no_sensible_size_is_not_read(tmp_path: Path) -> None:
    bomb = WheelText(files={"demo/data.txt": bytes((4 << 20) + 1)})
    with pytest.raises(WheelError, match=r"demo/data\.txt has 4194305 bytes"):
        read(server_of(bomb), tmp_path, locked(bomb))

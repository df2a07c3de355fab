"""ZIPs read in place: over ranges, without them, from disk, and broken ones."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import ExternalError
from builder.http import Http
from builder.remote import (
    Member,
    RemoteSource,
    WheelError,
    merge_spans,
    open_local,
    open_remote,
    read_beginnings,
    read_directory,
)
from tests.binaries import RangeServer

_URL = "https://files.example/demo.whl"


def _zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def _source(data: bytes, *, ranges: bool = True) -> tuple[RemoteSource, RangeServer]:
    server = RangeServer({"/demo.whl": data}, ranges=ranges)
    http = Http({}, transport=httpx.MockTransport(server))
    return open_remote("demo.whl", http, _URL), server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_reads_the_beginning_of_an_entry_only(method: int, pool: ThreadPoolExecutor) -> None:
    big = os.urandom(400_000)
    source, server = _source(_zipped({"a.so": big, "b.py": b"pass", "c.so": big[::-1]}, method))
    entries = [entry for entry in read_directory(source) if entry.filename.endswith(".so")]
    first, second = read_beginnings(source, entries, 1000, pool)
    assert big.startswith(first.data)
    assert 1000 <= len(first.data) < 1100
    assert big[::-1].startswith(second.data)
    assert server.sent == source.bytes_read < 70_000


def test_reads_on_to_the_end() -> None:
    big = os.urandom(300_000)
    source, _ = _source(_zipped({"a.so": big}))
    member = Member(source, read_directory(source)[0])
    while not member.whole:
        member.grow(50_000)
    assert bytes(member.data) == big


def test_drains_an_entry_that_inflates_to_much() -> None:
    zeros = bytes(5_000_000)
    source, _ = _source(_zipped({"a.so": zeros}))
    out = bytearray()
    Member(source, read_directory(source)[0]).drain(out.extend)
    assert out == zeros


def test_neighbours_come_in_one_request(pool: ThreadPoolExecutor) -> None:
    files = {f"{number}.so": os.urandom(20_000) for number in range(10)}
    data = _zipped({**files, "rest": os.urandom(200_000)})
    source, server = _source(data)
    entries = [entry for entry in read_directory(source) if entry.filename.endswith(".so")]
    before = len(server.requests)
    members = read_beginnings(source, entries, 32_000, pool)
    assert len(server.requests) == before + 1
    assert {m.entry.filename: bytes(m.data) for m in members} == files


def test_a_server_without_ranges_is_told_apart(pool: ThreadPoolExecutor) -> None:
    data = _zipped({"a.so": b"plain", "b": os.urandom(100_000)})
    source, server = _source(data, ranges=False)
    (member,) = read_beginnings(source, read_directory(source)[:1], 100, pool)
    assert bytes(member.data) == b"plain"
    assert (source.ranged, source.bytes_read, len(server.requests)) == (False, len(data), 1)


def test_reads_a_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "demo.whl"
    path.write_bytes(_zipped({"a.so": b"plain"}))
    with open_local(path, "demo.whl") as source:
        out = bytearray()
        Member(source, read_directory(source)[0]).drain(out.extend)
    assert out == b"plain"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ExternalError, match=r"none\.whl"), open_local(tmp_path / "none.whl", "n"):
        pass


def test_a_directory_of_zip64() -> None:
    """An entry's offset in the extra field, as in wheels past 4 GiB (APPNOTE.TXT 4.5.3)."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive, archive.open("a.so", "w", force_zip64=True) as file:
        file.write(b"plain")
    source, _ = _source(out.getvalue())
    member = Member(source, read_directory(source)[0])
    member.grow(100)
    assert bytes(member.data) == b"plain"


def test_a_file_that_changes_meanwhile() -> None:
    data = _zipped({"a": os.urandom(200_000)})
    source, server = _source(data)
    server.files = {"/demo.whl": data + b"more"}
    with pytest.raises(WheelError, match="changed"):
        source.read(0, 10)


def test_what_is_no_zip() -> None:
    source, _ = _source(b"<html>not found</html>")
    with pytest.raises(WheelError, match=r"demo\.whl: not a readable ZIP"):
        read_directory(source)


def test_a_compression_that_wheels_do_not_have() -> None:
    source, _ = _source(_zipped({"a.so": b"x" * 100}, zipfile.ZIP_LZMA))
    with pytest.raises(WheelError, match=r"a\.so: has compression method 14"):
        Member(source, read_directory(source)[0])


def test_a_local_header_that_is_elsewhere() -> None:
    data = bytearray(_zipped({"a.so": b"x" * 100}))
    data[:4] = b"none"
    source, _ = _source(bytes(data))
    with pytest.raises(WheelError, match="no header where the directory says"):
        Member(source, read_directory(source)[0]).grow(10)


def test_an_entry_that_is_shorter_than_announced() -> None:
    data = bytearray(_zipped({"a.so": b"x" * 100}, zipfile.ZIP_STORED))
    at = data.index(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, 101)
    source, _ = _source(bytes(data))
    with pytest.raises(WheelError, match="another size"):
        Member(source, read_directory(source)[0]).drain(lambda plain: None)


@given(st.lists(st.tuples(st.integers(0, 1 << 24), st.integers(1, 1 << 16)), max_size=20))
def test_merged_spans_cover_and_do_not_overlap(pairs: list[tuple[int, int]]) -> None:
    spans = [(start, start + size) for start, size in pairs]
    merged = merge_spans(spans)
    assert all(any(low <= start and end <= high for low, high in merged) for start, end in spans)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(merged))


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(_zipped({"a.so": b"\x7fELF" * 50, "d/METADATA": b"Name: demo\n"}))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data) - 1))
        piece = draw(st.binary(min_size=1, max_size=8))
        data[at : at + len(piece)] = piece
    return bytes(data[draw(st.integers(0, 3)) : draw(st.integers(0, len(data)))])


@settings(deadline=None)
@given(_damaged())
def test_a_damaged_zip_is_read_or_refused(data: bytes) -> None:
    if not data:
        return
    source, _ = _source(data, ranges=False)
    with ThreadPoolExecutor(1) as pool, contextlib.suppress(WheelError):
        for member in read_beginnings(source, read_directory(source), 1000, pool):
            member.drain(lambda plain: None)


def test_an_entry_without_a_name_is_read_or_refused() -> None:
    """zipfile runs into an IndexError where it asks whether that is a folder."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive, archive.open(zipfile.ZipInfo(""), "w") as file:
        file.write(b"plain")
    source, _ = _source(out.getvalue())
    with contextlib.suppress(WheelError):
        read_directory(source)


def test_what_is_no_zip_has_a_hint() -> None:
    source, _ = _source(b"<html>not found</html>")
    with pytest.raises(WheelError) as caught:
        read_directory(source)
    assert "a page in its place" in (caught.value.hint or "")


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "demo.whl"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(ExternalError, match="not a regular file"), open_local(path, "demo.whl"):
            pass


def test_a_path_with_a_nul(tmp_path: Path) -> None:
    with pytest.raises(ExternalError, match="not a path"), open_local(tmp_path / "a\0", "demo.whl"):
        pass


def test_a_hash_is_known_where_the_whole_file_is_at_hand(tmp_path: Path) -> None:
    data = _zipped({"a.so": b"plain"})
    digest = hashlib.sha256(data).hexdigest()
    assert _source(data)[0].sha256() is None
    assert _source(data, ranges=False)[0].sha256() == digest
    path = tmp_path / "demo.whl"
    path.write_bytes(data)
    with open_local(path, "demo.whl") as source:
        assert (source.sha256(), source.bytes_read) == (digest, 0)

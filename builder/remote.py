"""A wheel's ZIP read in place: its directory, and of each entry only as much as is asked for.

The same code reads over HTTP ranges and from a local file. A ZIP has its directory at the end
(APPNOTE.TXT sections 4.3.12 to 4.3.16), so the first request takes the tail. A deflate stream can
be entered at its beginning only (RFC 1951), so entries are read from there.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import threading
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from zipfile import ZipInfo

from builder.errors import ExternalError
from builder.http import Http, Slice

_TAIL_BYTES = 64 << 10
_DIRECTORY_MAX_BYTES = 64 << 20
_STEP_BYTES = 4 << 20
_INFLATE_BYTES = 1 << 20
_GAP_BYTES = 8 << 10
_BLOCK_MAX_BYTES = 4 << 20
_KEPT_MAX_BYTES = 32 << 20
_LOCAL_HEADER = struct.Struct("<4s22x2H")
_LOCAL_EXTRA_BYTES = 64  # room for what a local header's extra field usually holds
_ENCRYPTED = 0x1
_STORED, _DEFLATED = 0, 8


class WheelError(ExternalError):
    """A wheel that is no readable ZIP; the message names the file and the entry."""


class Source(Protocol):
    """A file of which parts can be read, from any thread."""

    @property
    def label(self) -> str:
        """What messages call the file."""

    @property
    def size(self) -> int:
        """The whole file's size in bytes."""

    @property
    def bytes_read(self) -> int:
        """How many bytes were brought here so far."""

    @property
    def ranged(self) -> bool:
        """Whether parts can be had without bringing the whole file here."""

    def read(self, start: int, size: int) -> bytes:
        """The `size` bytes from `start`, fewer where the file ends before."""

    def sha256(self) -> str | None:
        """The file's hash in hex, None where not all of it is at hand."""


class LocalSource:
    """A wheel on disk."""

    ranged = True

    def __init__(self, label: str, descriptor: int) -> None:
        self.label = label
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._count = _Counter()

    @property
    def bytes_read(self) -> int:
        """See `Source`."""
        return self._count.value

    def read(self, start: int, size: int) -> bytes:
        """See `Source`."""
        data = os.pread(self._descriptor, size, start)
        self._count.add(len(data))
        return data

    def sha256(self) -> str:
        """See `Source`; reads the whole file, which `bytes_read` leaves out."""
        hasher = hashlib.sha256()
        at = 0
        while block := os.pread(self._descriptor, _STEP_BYTES, at):
            hasher.update(block)
            at += len(block)
        return hasher.hexdigest()


class RemoteSource:
    """A wheel on a server; its last bytes, or all of them without ranges, are kept."""

    def __init__(self, label: str, http: Http, url: str, tail: Slice) -> None:
        self.label, self.size, self.ranged = label, tail.total, tail.ranged
        self._http, self._url = http, url
        self._tail_start, self._tail = tail.start, tail.data
        self._count = _Counter()
        self._count.add(len(tail.data))

    @property
    def bytes_read(self) -> int:
        """See `Source`."""
        return self._count.value

    def read(self, start: int, size: int) -> bytes:
        """See `Source`; what lies in the tail is not asked for again."""
        end = min(start + size, self.size)
        if start >= end:
            return b""
        kept = self._tail[max(start - self._tail_start, 0) : max(end - self._tail_start, 0)]
        missing = end - start - len(kept)
        return self._fetch(start, missing) + kept if missing else kept

    def sha256(self) -> str | None:
        """See `Source`."""
        return None if self.ranged else hashlib.sha256(self._tail).hexdigest()

    def _fetch(self, start: int, size: int) -> bytes:
        part = self._http.read(self._url, start, size)
        self._count.add(len(part.data))
        if part.total != self.size:
            raise WheelError(f"{self.label}: the file changed while it was read")
        inside = start - part.start
        return part.data[inside : inside + size]


def open_remote(label: str, http: Http, url: str) -> RemoteSource:
    """A wheel on a server, its tail read; ExternalError where it cannot be had."""
    return RemoteSource(label, http, url, http.read(url, -_TAIL_BYTES, _TAIL_BYTES))


@contextmanager
def open_local(path: Path, label: str) -> Iterator[LocalSource]:
    """A wheel on disk; ExternalError where it cannot be opened, or is no regular file."""
    try:
        # A pipe is opened at once, and told below, in place of a wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ExternalError(f"{path}: {error.strerror}") from None
    except ValueError:  # a NUL in the name
        raise ExternalError(f"{str(path)!r}: not a path") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ExternalError(f"{path}: not a regular file")
        yield LocalSource(label, descriptor)
    finally:
        os.close(descriptor)


class _Counter:
    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.value += size


def read_directory(source: Source) -> tuple[ZipInfo, ...]:
    """The files in the ZIP, in the order of their data; WheelError where it is none."""
    try:
        with zipfile.ZipFile(_File(source)) as archive:
            files = [entry for entry in archive.infolist() if not entry.is_dir()]
    # zipfile lets whatever its arithmetic runs into through, on a directory made to be broken.
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        struct.error,
        ValueError,
        OverflowError,
        LookupError,
        EOFError,
        OSError,
    ) as error:
        raise WheelError(
            f"{source.label}: not a readable ZIP: {error}",
            hint="the file is damaged, or the server sent a page in its place: see what the URL "
            "or path in the lock leads to",
        ) from None
    for entry in files:
        if not 0 <= entry.header_offset < source.size:
            raise _broken(source, entry, "its header lies outside of the file")
    return tuple(sorted(files, key=lambda entry: entry.header_offset))


class _File(io.RawIOBase):
    """What zipfile needs of a file to read a directory."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        if start + offset < 0:
            raise ValueError("a position before the beginning of the file")
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._source.size - self._at, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > _DIRECTORY_MAX_BYTES:
            raise ValueError(f"a directory of {wanted} bytes")
        data = self._source.read(self._at, wanted)
        self._at += len(data)
        return data


class Member:
    """One entry, inflated from its beginning as far as it was asked for."""

    def __init__(self, source: Source, entry: ZipInfo) -> None:
        self.entry = entry
        self._source = source
        self._at = entry.header_offset
        self._left = entry.compress_size
        self._inflater = _inflater(source, entry)
        self._started = False
        self.data = bytearray()

    @property
    def compressed_read(self) -> int:
        """How many bytes of the compressed stream were taken in."""
        return self.entry.compress_size - self._left

    @property
    def whole(self) -> bool:
        """Whether `data` is the whole file."""
        return not self._left and len(self.data) == self.entry.file_size

    def grow(self, size: int) -> None:
        """Take in up to `size` further compressed bytes, and keep what they inflate to."""
        self.feed(self._source.read(self._at, self._wanted(size)), self.keep)

    def keep(self, plain: bytes) -> None:
        """Append to `data`, up to a bound: a few kB may inflate to very much."""
        if len(self.data) < _KEPT_MAX_BYTES:
            self.data += plain

    def drain(self, write: Callable[[bytes], object]) -> None:
        """Inflate the whole entry into `write`, in pieces; WheelError where it is not whole."""
        size = 0

        def count(plain: bytes) -> None:
            nonlocal size
            size += len(plain)
            write(plain)

        while self._left:
            before = self._left
            self.feed(self._source.read(self._at, self._wanted(_STEP_BYTES)), count)
            if self._left == before:
                break
        if size != self.entry.file_size:
            raise _broken(self._source, self.entry, "inflates to another size than announced")

    def span(self, size: int) -> tuple[int, int]:
        """Where the next `size` compressed bytes lie, header included: (start, end)."""
        return self._at, self._at + self._wanted(size)

    def feed(self, data: bytes, write: Callable[[bytes], object]) -> None:
        """Take in what lies at the current position, the local header first."""
        if not self._started:
            data = self._skip_header(data)
        data = data[: self._left]
        self._at += len(data)
        self._left -= len(data)
        for plain in self._inflate(data):
            write(plain)

    def _wanted(self, size: int) -> int:
        size = min(size, self._left)
        if self._started:
            return size
        # The local header repeats the name; its extra field may differ from the directory's.
        name = len(self.entry.orig_filename.encode())
        return _LOCAL_HEADER.size + name + _LOCAL_EXTRA_BYTES + size

    def _skip_header(self, data: bytes) -> bytes:
        if len(data) < _LOCAL_HEADER.size:
            raise _broken(self._source, self.entry, "its header lies outside of the file")
        signature, name, extra = _LOCAL_HEADER.unpack_from(data)
        if signature != b"PK\x03\x04":
            raise _broken(self._source, self.entry, "has no header where the directory says")
        self._started = True
        begin = _LOCAL_HEADER.size + name + extra
        self._at += begin
        return data[begin:]

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        if self._inflater is None:
            yield data
            return
        try:
            while True:
                plain = self._inflater.decompress(data, _INFLATE_BYTES)
                yield plain
                data = self._inflater.unconsumed_tail
                # A full piece may leave output inside the inflater though all input is consumed.
                if not data and len(plain) < _INFLATE_BYTES:
                    return
        except zlib.error as error:
            raise _broken(self._source, self.entry, str(error)) from None


def read_whole(source: Source, entry: ZipInfo) -> bytes:
    """All of a small file, for the caller to bound by `entry.file_size`."""
    data = bytearray()
    Member(source, entry).drain(data.extend)
    return bytes(data)


def read_beginnings(
    source: Source, entries: Iterable[ZipInfo], size: int, pool: Executor
) -> tuple[Member, ...]:
    """The first `size` compressed bytes of each entry, or a few more; neighbours in one request.

    `entries` are in the order of their data; the requests run in `pool`, side by side.
    """
    members = tuple(Member(source, entry) for entry in entries)
    spans = merge_spans(member.span(size) for member in members)
    starts = [start for start, _ in spans]
    blocks = list(pool.map(lambda span: source.read(span[0], span[1] - span[0]), spans))
    for member in members:
        start, end = member.span(size)
        index = bisect_right(starts, start) - 1
        inside = start - starts[index]
        member.feed(blocks[index][inside : inside + end - start], member.keep)
    return members


def merge_spans(spans: Iterable[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Half-open spans in order, those that nearly touch as one, up to a bound."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        first, last = merged[-1] if merged else (0, -_GAP_BYTES - 1)
        overlaps = start < last
        if overlaps or (start <= last + _GAP_BYTES and end - first <= _BLOCK_MAX_BYTES):
            merged[-1] = (first, max(last, end))
        else:
            merged.append((start, end))
    return merged


def _inflater(source: Source, entry: ZipInfo) -> zlib._Decompress | None:
    if entry.flag_bits & _ENCRYPTED or entry.compress_type not in (_STORED, _DEFLATED):
        raise _broken(source, entry, f"has compression method {entry.compress_type}")
    return None if entry.compress_type == _STORED else zlib.decompressobj(-zlib.MAX_WBITS)


def _broken(source: Source, entry: ZipInfo, reason: str) -> WheelError:
    return WheelError(f"{source.label}: {entry.filename}: {reason}")

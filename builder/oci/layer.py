"""One deterministic layer: a sorted, constant-time, uid-0 tar in spliced gzip members.

What is deflated already (a wheel's ZIP entries) becomes a gzip member of its own and is not
compressed again; all else goes into members of stored blocks, because the output of zlib differs
from build to build (RFC 1952 section 2.2 allows any number of members; RFC 1951 section 3.2.4 has
the stored block). So a layer's digest depends on its entries only.
"""

from __future__ import annotations

import hashlib
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from builder.errors import BuilderError
from builder.progress import Advance

LAYOUT_VERSION = 1
"""Goes up whenever the same entries would give other bytes: it is part of every cache key."""

MTIME = 315532800
"""1980-01-01T00:00:00Z, the earliest time a ZIP can hold, so that wheels built inside work."""

Owner = tuple[int, int]
"""User and group of an entry, as numbers."""

ROOT: Owner = (0, 0)
"""Whose everything is, a few files of a distribution apart (`/etc/shadow` is its group's)."""

WHITEOUT = ".wh."
"""How a name begins that deletes what lower layers have (OCI layer.md, "Whiteouts")."""

OPAQUE = ".wh..wh..opq"
"""The name that empties its folder of what lower layers have there (same place)."""

_BLOCK = 512
_RECORD = 20 * _BLOCK  # POSIX.1-1988 pax: archives end on a 10,240-byte record
_STORED_MAX = 0xFFFF
_PENDING_MAX = 1 << 20
_INFLATE_BYTES = 1 << 20
_GZIP_HEADER = struct.pack("<4BI2B", 0x1F, 0x8B, 8, 0, 0, 0, 255)  # no name, no time, OS unknown


class LayerError(BuilderError):
    """An entry that cannot go into a layer: the reason names its path."""

    exit_code = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDigest:
    """A finished layer: `diff_id` over the tar, `digest` and `size` (bytes) over the blob."""

    diff_id: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deflated:
    """A raw deflate stream (RFC 1951) and what it inflates to: `size` bytes with `crc32`."""

    chunks: Iterable[bytes]
    size: int
    crc32: int


class LayerWriter:
    """Writes entries in ascending path order and says, at the end, what the layer's digests are.

    `written` is told of the blob's bytes as they come, for a progress bar.
    Paths are relative, with `/` between parts and none at the end. A path that does not come
    after the last one is refused, so a layer is sorted and free of duplicates by construction.
    """

    def __init__(self, out: BinaryIO, written: Advance = lambda size_bytes: None) -> None:
        self._out = out
        self._written = written
        self._tar_hash = hashlib.sha256()
        self._blob_hash = hashlib.sha256()
        self._blob_size = 0
        self._tar_size = 0
        self._pending = bytearray()
        self._last: tuple[bytes, ...] = ()

    def directory(self, path: str, mode: int = 0o755, owner: Owner = ROOT) -> None:
        """A folder; only those that the layer owns, never one over a base's symlink."""
        self._header(path, tarfile.DIRTYPE, mode, owner=owner)

    def symlink(self, path: str, target: str) -> None:
        """A symbolic link, with the mode that Linux shows for one."""
        self._header(path, tarfile.SYMTYPE, 0o777, link=target)

    def hardlink(self, path: str, target: str, mode: int = 0o644, owner: Owner = ROOT) -> None:
        """A second name of the file `target`, which stands earlier in this layer.

        `mode` and `owner` must be the file's: extractors set what the last header says.
        """
        self._header(path, tarfile.LNKTYPE, mode, link=target, owner=owner)

    def file(self, path: str, data: bytes, mode: int = 0o644, owner: Owner = ROOT) -> None:
        """A regular file out of memory."""
        self._header(path, tarfile.REGTYPE, mode, size=len(data), owner=owner)
        self._put(data)
        self._put(_padding(len(data)))

    def stream(
        self,
        path: str,
        size: int,
        chunks: Iterable[bytes],
        mode: int = 0o644,
        owner: Owner = ROOT,
    ) -> str:
        """A regular file of `size` bytes out of `chunks`; returns its sha256 in hex."""
        self._header(path, tarfile.REGTYPE, mode, size=size, owner=owner)
        hasher = hashlib.sha256()
        length = 0
        for chunk in chunks:
            hasher.update(chunk)
            length += len(chunk)
            self._put(chunk)
        if length != size:
            raise LayerError(f"{path}: has {length} bytes where {size} were announced")
        self._put(_padding(size))
        return hasher.hexdigest()

    def deflated(self, path: str, data: Deflated, mode: int = 0o644) -> str:
        """A regular file whose deflate stream is taken over as it is; returns its sha256 in hex.

        It is inflated once, for the hashes. A stream that does not inflate to exactly what was
        announced, or is followed by further bytes, is refused.
        """
        self._header(path, tarfile.REGTYPE, mode, size=data.size)
        self._flush()
        self._blob(_GZIP_HEADER)
        hasher = self._splice(path, data)
        self._blob(struct.pack("<2I", data.crc32, data.size & 0xFFFFFFFF))
        self._tar_size += data.size
        self._put(_padding(data.size))
        return hasher

    def close(self) -> LayerDigest:
        """Write the end of the archive; the writer is done."""
        self._put(b"\0" * (2 * _BLOCK))
        self._put(b"\0" * (-self._tar_size % _RECORD))
        self._flush()
        return LayerDigest(
            diff_id=f"sha256:{self._tar_hash.hexdigest()}",
            digest=f"sha256:{self._blob_hash.hexdigest()}",
            size=self._blob_size,
        )

    def _header(
        self,
        path: str,
        kind: bytes,
        mode: int,
        *,
        size: int = 0,
        link: str = "",
        owner: Owner = ROOT,
    ) -> None:
        key = sort_key(path)
        if not path or {b"", b".", b".."} & set(key) or "\0" in path + link:
            raise LayerError(f"{path!r}: not a clean relative path")
        if any(part.startswith(WHITEOUT.encode()) for part in key):
            raise LayerError(f"{path}: a name that begins with {WHITEOUT} would delete files")
        if key <= self._last:
            raise LayerError(f"{path}: comes twice, or out of order")
        self._last = key
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.size, info.linkname = kind, mode, size, link
        info.uid, info.gid = owner
        info.mtime = MTIME
        self._put(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _put(self, data: bytes) -> None:
        """Take up what is not deflated; members are cut at a fixed size, however data comes."""
        self._tar_hash.update(data)
        self._tar_size += len(data)
        view = memoryview(data)
        while view:
            room = _PENDING_MAX - len(self._pending)
            self._pending += view[:room]
            view = view[room:]
            if len(self._pending) == _PENDING_MAX:
                self._flush()

    def _flush(self) -> None:
        """Everything pending as one gzip member of stored blocks."""
        if not self._pending:
            return
        data = memoryview(self._pending)
        self._blob(_GZIP_HEADER)
        for start in range(0, len(data), _STORED_MAX):
            block = data[start : start + _STORED_MAX]
            final = start + _STORED_MAX >= len(data)
            self._blob(struct.pack("<B2H", final, len(block), len(block) ^ _STORED_MAX))
            self._blob(block)
        self._blob(struct.pack("<2I", zlib.crc32(data), len(data)))
        data.release()
        self._pending = bytearray()

    def _splice(self, path: str, data: Deflated) -> str:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        hasher = hashlib.sha256()
        crc32 = size = 0
        for chunk in data.chunks:
            self._blob(chunk)
            for plain in _inflate(inflater, chunk, path):
                hasher.update(plain)
                self._tar_hash.update(plain)
                crc32 = zlib.crc32(plain, crc32)
                size += len(plain)
        if not inflater.eof or (size, crc32) != (data.size, data.crc32):
            raise LayerError(f"{path}: inflates to other data than its ZIP entry announces")
        return hasher.hexdigest()

    def _blob(self, data: bytes | memoryview) -> None:
        self._out.write(data)
        self._blob_hash.update(data)
        self._blob_size += len(data)
        self._written(len(data))


def _inflate(inflater: zlib._Decompress, data: bytes, path: str) -> Iterator[bytes]:
    """All that `data` inflates to, in pieces of bounded size."""
    while True:
        try:
            plain = inflater.decompress(data, _INFLATE_BYTES)
        except zlib.error as error:
            raise LayerError(f"{path}: broken deflate stream: {error}") from None
        yield plain
        data = inflater.unconsumed_tail
        # A full piece may leave output inside the inflater though all input is consumed.
        if inflater.eof or (not data and len(plain) < _INFLATE_BYTES):
            break
    if inflater.unused_data:
        raise LayerError(f"{path}: bytes follow the end of its deflate stream")


def sort_key(path: str) -> tuple[bytes, ...]:
    """The order of a layer: part by part, so a folder comes right before what it holds."""
    return tuple(part.encode("utf-8", "surrogateescape") for part in path.split("/"))


def _padding(size: int) -> bytes:
    return b"\0" * (-size % _BLOCK)

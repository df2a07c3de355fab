"""Layers read as the tar that is in them: plain, gzip (any number of members) or zstd.

A layer may come from anybody: what no archiver writes is a broken layer, before it costs time or
memory. With its digest, a layer is hashed on the way.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import zstandard

from builder.errors import ExternalError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Member = tuple[tarfile.TarInfo, IO[bytes] | None]
"""An entry and, for a file, its content."""

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BUFFER_BYTES = 1 << 20
_FILE_MAX_BYTES = 64 << 30
_PATH_MAX_BYTES = 4096  # Linux's own bound, limits.h
_HEADER_MAX_BYTES = 1 << 20
_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_BROKEN = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)


@contextmanager
def open_tar(path: Path, digest: str | None = None) -> Iterator[IO[bytes]]:
    """The uncompressed bytes of the layer at `path`, told by its first bytes, as one stream.

    At the end, whether all was read or not, ExternalError where the blob does not have `digest`.
    """
    with _open_blob(path, digest) as file:
        magic = file.peek(4)[:4]
        if magic.startswith(_GZIP_MAGIC):
            with gzip.GzipFile(fileobj=file) as plain:
                yield io.BufferedReader(plain, _BUFFER_BYTES)
        elif magic == _ZSTD_MAGIC:
            decompressor = zstandard.ZstdDecompressor()
            with decompressor.stream_reader(file, read_across_frames=True, closefd=False) as plain:
                yield plain
        else:
            yield file


@contextmanager
def open_members(path: Path, digest: str | None = None) -> Iterator[Iterator[Member]]:
    """The layer's entries in order; a file's content can be read until the next one is taken.

    Raises ExternalError for what is no layer, and at the end for a blob without `digest`.
    """
    try:
        with open_tar(path, digest) as stream, closing(_members(stream)) as members:
            yield members
    except _BROKEN as error:
        raise ExternalError(f"{path}: not a readable layer: {error}") from None


def member_path(name: str) -> str | None:
    r"""An entry's name as a path below the root; None for the root itself.

    `..` does not lead out of the root, and bytes that are no UTF-8 are shown as `\xNN`.
    """
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return posixpath.normpath("/" + text.lstrip("/")).lstrip("/") or None


@contextmanager
def _open_blob(path: Path, digest: str | None) -> Iterator[io.BufferedReader[_Hashing]]:
    with path.open("rb", buffering=0) as raw:
        hashing = _Hashing(raw)
        file = io.BufferedReader(hashing, _BUFFER_BYTES)
        yield file
        if digest is None:
            return
        while file.read(_BUFFER_BYTES):  # what follows the archive is part of the blob
            pass
        if hashing.digest != digest:
            raise ExternalError(
                f"{path}: the blob does not match its digest",
                hint="it was damaged or replaced; build or fetch the image again",
            )


class _Hashing(io.RawIOBase):
    """A file that is hashed as it is read, once and in order."""

    def __init__(self, file: io.FileIO) -> None:
        super().__init__()
        self._file = file
        self._hasher = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of what was read so far."""
        return f"sha256:{self._hasher.hexdigest()}"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = self._file.readinto(buffer) or 0
        self._hasher.update(memoryview(buffer)[:count])
        return count


_Process = Callable[[tarfile.TarInfo, tarfile.TarFile], tarfile.TarInfo]

_PROCESS = "_proc_member"
"""The method that tarfile's comments name as the one to override; `frombuf`, which is public, is
not asked by the Pythons of 2026 and by older ones with their security fixes."""


class _Entry(tarfile.TarInfo):
    """An entry, or what a header says about the next one, which tarfile reads into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > _HEADER_MAX_BYTES:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        process: _Process = getattr(tarfile.TarInfo, _PROCESS)
        return process(self, archive)


def _members(stream: IO[bytes]) -> Generator[Member]:
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Entry) as archive:
            for member in archive:
                _check(member)
                yield member, _content(archive, member)
    # What tarfile lets through where a header's numbers or nesting are made to be broken.
    except (ValueError, OverflowError, RecursionError) as error:
        raise tarfile.ReadError(str(error)) from None


def _check(member: tarfile.TarInfo) -> None:
    """Before the next header is looked for: tarfile skips as many bytes as this one announces."""
    if not 0 <= member.size <= _FILE_MAX_BYTES:
        raise tarfile.ReadError(f"{member.name[:80]!r} has {member.size} bytes")
    if member.issparse():
        raise tarfile.ReadError(f"{member.name[:80]!r} is a sparse file")
    if len(member.name) > _PATH_MAX_BYTES:
        raise tarfile.ReadError(f"{member.name[:80]!r}… is longer than a path can be")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes] | None:
    """A file's content; tarfile would follow a link to its target, which a stream cannot."""
    return archive.extractfile(member) if member.isreg() else None

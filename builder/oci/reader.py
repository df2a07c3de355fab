"""Layers read as the tar that is in them: plain, gzip (any number of members) or zstd."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import zstandard

from builder.errors import ExternalError

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BUFFER_BYTES = 1 << 20
_BROKEN = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)


@contextmanager
def open_tar(path: Path) -> Iterator[IO[bytes]]:
    """The uncompressed bytes of the layer at `path`, told by its first bytes, as one stream."""
    with path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic.startswith(_GZIP_MAGIC):
            with gzip.GzipFile(fileobj=file) as plain:
                yield io.BufferedReader(plain, _BUFFER_BYTES)
        elif magic == _ZSTD_MAGIC:
            decompressor = zstandard.ZstdDecompressor()
            with decompressor.stream_reader(file, read_across_frames=True) as plain:
                yield plain
        else:
            yield file


@contextmanager
def open_members(path: Path) -> Iterator[Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]]:
    """The layer's entries in order; a file's content can be read until the next one is taken."""
    try:
        with open_tar(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            yield ((member, _content(archive, member)) for member in archive)
    except _BROKEN as error:
        raise ExternalError(f"{path}: not a readable layer: {error}") from None


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes] | None:
    """A file's content; tarfile would follow a link to its target, which a stream cannot."""
    return archive.extractfile(member) if member.isreg() else None

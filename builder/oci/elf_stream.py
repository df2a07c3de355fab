"""ELF files that go by in a stream, such as a layer's: read without being kept whole.

Tables lie at a file's beginning, or at its end where patchelf moved them. These parts of a large
file are kept; one whose tables lie elsewhere has to be read again, out of a temporary file.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import BinaryIO, Protocol, cast

from builder.elf import ElfError, ElfFacts, Known, dynamic_span, read_elf

_HEAD_BYTES = 32 << 20
_TAIL_BYTES = 16 << 20
_READ_BYTES = 1 << 20


class Readable(Protocol):
    """What gives its bytes once and in order."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, none at the end."""


def read_passing(magic: bytes, size: int, content: Readable) -> ElfFacts | None:
    """The facts of a file of `size` bytes, of which `magic` was read and `content` is the rest.

    None where the parts that are kept do not suffice. A file that only looks like ELF has no known
    facts, and is no error. Up to 64 MiB of memory are taken.
    """
    head = magic + content.read(_HEAD_BYTES - len(magic))
    if size <= len(head):
        return read_or_unknown(io.BytesIO(head))
    try:
        offset, length = dynamic_span(head) or (0, 0)
        windows = [
            _Window(max(offset, len(head)), offset + length),
            _Window(max(size - _TAIL_BYTES, len(head)), size),
        ]
        at = len(head)
        while chunk := content.read(_READ_BYTES):
            for window in windows:
                window.offer(at, chunk)
            at += len(chunk)
        return read_elf(cast(BinaryIO, _PartialFile(head, windows, size)))
    except ElfError:
        return None


def read_or_unknown(file: BinaryIO) -> ElfFacts:
    """The facts of a whole, seekable file; not known where it is broken or no ELF file at all."""
    try:
        return read_elf(file)
    except ElfError:
        return ElfFacts(known=Known.UNKNOWN, machine=0, bits=0)


class _Window:
    """The part of a file from `start` to `end`, filled as the file goes by."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.data = bytearray()
        self._end = end

    def offer(self, at: int, chunk: bytes) -> None:
        """Take what belongs here out of the file's bytes from `at`."""
        self.data += chunk[max(self.start - at, 0) : max(self._end - at, 0)]


class _PartialFile:
    """A file of which its head and some windows are there; reading the rest is an ElfError."""

    def __init__(self, head: bytes, windows: Sequence[_Window], size: int) -> None:
        self._parts = [(0, head), *((window.start, window.data) for window in windows)]
        self._size, self._at = size, 0

    def seek(self, offset: int) -> None:
        self._at = offset

    def read(self, size: int) -> bytes:
        if self._at >= self._size:
            return b""
        for start, data in self._parts:
            inside = self._at - start
            if 0 <= inside < len(data):
                piece = bytes(data[inside : inside + size])
                self._at += len(piece)
                return piece
        raise ElfError(f"offset {self._at} was not kept")

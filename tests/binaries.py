"""Minimal ELF files and a range server, for tests of what reads wheels and layers.

An ELF file is written byte by byte with what the dynamic loader reads and nothing else: header,
program headers, string table, version tables, dynamic section. They come in the order of GNU ld
or lld, or as patchelf leaves them.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import httpx

from builder.elf import elf_hash

AARCH64, X86_64, CUDA = 183, 62, 190
_EXECUTABLE_HEADERS = 3


@dataclass(frozen=True, kw_only=True)
class Elf:
    """What to write; `filler` bytes of noise stand between the tables and the dynamic section.

    Offsets and addresses are the same, so one PT_LOAD covers the file.
    """

    needed: Sequence[str] = ()
    soname: str | None = None
    rpath: str | None = None
    runpath: str | None = None
    interpreter: str | None = None
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    defines: Sequence[str] = ()
    machine: int = AARCH64
    bits: Literal[32, 64] = 64
    linker: Literal["gnu", "lld", "patchelf"] = "gnu"
    filler: int = 0

    def write(self) -> bytes:
        """The file."""
        strings = _Strings()
        dynamic = [(1, strings.add(name)) for name in self.needed]
        texts = ((14, self.soname), (15, self.rpath), (29, self.runpath))
        dynamic += [(tag, strings.add(text)) for tag, text in texts if text is not None]
        needs = _version_needs(self.versions, strings, split=self.linker == "lld")
        defines = _version_definitions(self.defines, strings)
        table = bytes(strings.data)
        # What stands where the linker puts the strings: patchelf overwrites them with X.
        early = {"gnu": table, "lld": b"", "patchelf": b"X" * len(table)}[self.linker]
        late = {"gnu": b"", "lld": table, "patchelf": b""}[self.linker]
        name = b"" if self.interpreter is None else self.interpreter.encode() + b"\0"
        parts = [name, early, needs, defines, late, _noise(self.filler)]
        at, spans = self._first, []
        for index, part in enumerate(parts):
            parts[index] = part + b"\0" * (-len(part) % 8)
            spans.append(at)
            at += len(parts[index])
        count = len(dynamic) + 3 + 2 * bool(self.versions) + 2 * bool(self.defines)
        end = at + count * (16 if self.bits == 64 else 8)
        place = {"gnu": spans[1], "lld": spans[4], "patchelf": end}[self.linker]
        dynamic += [(5, place), (10, len(table))]
        if self.versions:
            dynamic += [(0x6FFFFFFE, spans[2]), (0x6FFFFFFF, len(self.versions))]
        if self.defines:
            dynamic += [(0x6FFFFFFC, spans[3]), (0x6FFFFFFD, len(self.defines))]
        word = "<qQ" if self.bits == 64 else "<iI"
        section = b"".join(struct.pack(word, *entry) for entry in [*dynamic, (0, 0)])
        body = b"".join(parts) + section + (table if self.linker == "patchelf" else b"")
        size = self._first + len(body)
        headers = [(1, 0, size), (2, at, len(section)), (3, spans[0], len(name))]
        return self._head(headers if name else headers[:2]) + body

    @property
    def _first(self) -> int:
        """Where the first part begins: room for three program headers is always left."""
        header, entry = (64, 56) if self.bits == 64 else (52, 32)
        return (header + _EXECUTABLE_HEADERS * entry + 7) // 8 * 8

    def _head(self, headers: Sequence[tuple[int, int, int]]) -> bytes:
        ident = b"\x7fELF" + bytes([self.bits // 32, 1, 1]) + b"\0" * 9
        sizes = (64, 56) if self.bits == 64 else (52, 32)
        form = "<HHIQQQIHHHHHH" if self.bits == 64 else "<HHIIIIIHHHHHH"
        fixed = (3, self.machine, 1, 0, sizes[0], 0, 0, *sizes, len(headers), 0, 0, 0)
        text = ident + struct.pack(form, *fixed)
        for kind, at, size in headers:
            if self.bits == 64:
                text += struct.pack("<IIQQQQQQ", kind, 4, at, at, at, size, size, 8)
            else:
                text += struct.pack("<IIIIIIII", kind, at, at, at, size, size, 4, 8)
        return text + b"\0" * (self._first - len(text))


def _noise(size: int) -> bytes:
    """What no compression makes smaller, and the same every time."""
    return random.Random(size).randbytes(size)


class _Strings:
    def __init__(self) -> None:
        self.data = bytearray(b"\0")

    def add(self, text: str) -> int:
        """The text's index, which it keeps when it is added again."""
        data = text.encode() + b"\0"
        at = self.data.find(b"\0" + data) + 1
        if not at:
            at = len(self.data)
            self.data += data
        return at


def _version_needs(
    versions: Mapping[str, Sequence[str]], strings: _Strings, *, split: bool
) -> bytes:
    """Each library followed by its names, as GNU ld writes; all libraries first where `split`."""
    heads, tails = [], []
    index = 2
    for library, names in versions.items():
        tail = b""
        for left, name in zip(range(len(names), 0, -1), names, strict=True):
            step = 16 if left > 1 else 0
            tail += struct.pack("<IHHII", elf_hash(name), 0, index, strings.add(name), step)
            index += 1
        heads.append((len(names), strings.add(library)))
        tails.append(tail)
    text = b""
    for place, ((count, library_at), tail) in enumerate(zip(heads, tails, strict=True)):
        first = 16 * (len(heads) - place) + len(b"".join(tails[:place])) if split else 16
        step = (16 if split else 16 + len(tail)) if place < len(heads) - 1 else 0
        text += struct.pack("<HHIII", 1, count, library_at, first, step)
        text += b"" if split else tail
    return text + (b"".join(tails) if split else b"")


def _version_definitions(names: Sequence[str], strings: _Strings) -> bytes:
    text = b""
    for left, name in zip(range(len(names), 0, -1), names, strict=True):
        step = 28 if left > 1 else 0
        text += struct.pack("<HHHHIII", 1, 0, left + 1, 1, elf_hash(name), 20, step)
        text += struct.pack("<II", strings.add(name), 0)
    return text


@dataclass
class RangeServer:
    """Serves `files` by path with ranges from either end, and counts the bytes that it sent."""

    files: Mapping[str, bytes]
    ranges: bool = True
    sent: int = 0
    requests: list[str] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        data = self.files.get(request.url.path)
        if data is None:
            return httpx.Response(404)
        self.requests.append(request.headers.get("range", ""))
        asked = re.fullmatch(r"bytes=(\d*)-(\d+)?", self.requests[-1])
        if not self.ranges or asked is None:
            self.sent += len(data)
            return httpx.Response(200, content=data)
        if asked[1]:
            start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
        else:
            start, end = max(len(data) - int(asked[2]), 0), len(data)
        self.sent += end - start
        shown = f"bytes {start}-{end - 1}/{len(data)}"
        return httpx.Response(206, content=data[start:end], headers={"Content-Range": shown})

"""Facts of one ELF file, out of the whole file or out of its first bytes; nothing is judged.

The whole file is read by its program headers and PT_DYNAMIC, so stripped section headers do no
harm (System V ABI, chapter 5). Where only the beginning is at hand, as when a wheel is read in
place, `.dynamic` is out of reach, but `.gnu.version_r` is not: it is found by its shape, and the
string table by proof, since each entry holds the hash of the string that it points to (Linux
Standard Base, "Symbol Versioning").
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from itertools import islice
from typing import BinaryIO

from builder.errors import BuilderError

MAGIC = b"\x7fELF"

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 0, 1, 5, 10
_DT_SONAME, _DT_RPATH, _DT_RUNPATH = 14, 15, 29
_DT_VERDEF, _DT_VERDEFNUM = 0x6FFFFFFC, 0x6FFFFFFD
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_VER_FLG_BASE = 1

# Far above what any linker writes, so that a broken file costs neither time nor memory.
_SEGMENTS_MAX = 4096
_DYNAMIC_MAX_BYTES = 1 << 20
_STRING_MAX_BYTES = 1 << 16
_STRING_STEP_BYTES = 256
_PREFIX_STRING_MAX_BYTES = 1 << 10
_VERSIONS_MAX = 4096
# Of one file together; what the tables of a real one name comes to some hundred, and to a few kB.
_NAMES_MAX = 1 << 16
_NAMES_MAX_BYTES = 1 << 20


class ElfError(BuilderError):
    """Not an ELF file, or one whose tables point outside of it."""

    exit_code = 5


class Known(StrEnum):
    """How much of what a file needs could be learnt."""

    DYNAMIC = "dynamic"
    """Everything, from the dynamic section."""
    PREFIX = "prefix"
    """The libraries with versioned symbols for certain; the others are `candidates`."""
    HASHES = "hashes"
    """Only the hashes of the symbol versions: the strings were moved to the file's end."""
    UNKNOWN = "unknown"
    """Nothing but the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionNeed:
    """The versions of its symbols that a file needs from `library` (`libc.so.6`: `GLIBC_2.17`)."""

    library: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFacts:
    """What one ELF file says about itself.

    `machine` is e_machine (183 aarch64, 62 x86-64), `bits` 32 or 64. `candidates` and
    `version_hashes` are empty unless `known` says otherwise; a candidate is a name out of the
    dynamic string table that is NEEDED or the file's own SONAME. `rpath` and `runpath` are split
    at colons, `$ORIGIN` and its like unexpanded.
    """

    known: Known
    machine: int
    bits: int
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    interpreter: str | None = None
    version_needs: tuple[VersionNeed, ...] = ()
    version_definitions: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    version_hashes: tuple[int, ...] = ()


def read_elf(file: BinaryIO) -> ElfFacts:
    """The facts of a whole file, which must be seekable; ElfError where it is none or is broken."""
    return _read_dynamic(_Elf(file))


def read_prefix(data: bytes) -> ElfFacts:
    """What the first bytes of a file tell: as much as `Known` says, never a guess.

    Raises ElfError where they are not the beginning of an ELF file.
    """
    elf = _Elf(BytesIO(data))
    try:
        return _read_dynamic(elf)
    except ElfError:
        pass
    if elf.order == "<":
        for chain in _chains(data):
            base = _prove_strings(data, chain)
            if base is not None:
                return _prefix_facts(elf, data, chain, base)
            hashes = tuple(dict.fromkeys(chain.hashes))
            if _COMMON_HASHES.intersection(hashes):
                return ElfFacts(
                    known=Known.HASHES, machine=elf.machine, bits=elf.bits, version_hashes=hashes
                )
    return ElfFacts(known=Known.UNKNOWN, machine=elf.machine, bits=elf.bits)


def dynamic_span(data: bytes) -> tuple[int, int] | None:
    """Where in the file the dynamic section lies, (offset, size in bytes), by its first bytes.

    None for a static file. Raises ElfError where `data` does not hold the program headers.
    """
    segments = _Elf(BytesIO(data)).segments()
    return next(((s.offset, s.size) for s in segments if s.kind == _PT_DYNAMIC), None)


def elf_hash(name: str) -> int:
    """The hash that version tables use (System V ABI, chapter 5, "Hash Table")."""
    return _hash(name.encode())


def _hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & 0x0FFFFFFF
    return value


class _Elf:
    """The header and segments of an ELF file, and bounded reads from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._names_left, self._name_bytes_left = _NAMES_MAX, _NAMES_MAX_BYTES
        ident = self.read(0, 16)
        if ident[:4] != MAGIC or ident[4] not in (1, 2) or ident[5] not in (1, 2):
            raise ElfError("not an ELF file")
        self.bits = 32 * ident[4]
        self.order = "<" if ident[5] == 1 else ">"
        header = self.unpack("HHIQQQIHHH" if self.bits == 64 else "HHIIIIIHHH", 16)
        self.machine = header[1]
        self._table, self._entry_bytes, self._entries = header[4], header[8], header[9]

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`."""
        if not 0 <= offset < 1 << 62:
            raise ElfError(f"offset {offset} lies outside of the file")
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise ElfError(f"{size} bytes at offset {offset} lie outside of the file")
        return data

    def unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        """Integers in the file's byte order."""
        form = struct.Struct(self.order + layout)
        return form.unpack(self.read(offset, form.size))

    def string(self, offset: int) -> str:
        """The NUL-terminated string at `offset`."""
        if not 0 <= offset < 1 << 62:
            raise ElfError(f"a string at offset {offset} lies outside of the file")
        self._file.seek(offset)
        text = b""
        while len(text) < _STRING_MAX_BYTES:
            step = self._file.read(_STRING_STEP_BYTES)
            head, end, _ = step.partition(b"\0")
            text += head
            if end:
                self._spend(len(text))
                return text.decode("utf-8", "backslashreplace")
            if not step:
                break
        raise ElfError(f"the string at offset {offset} does not end")

    def _spend(self, size: int) -> None:
        """Tables may name one long string thousands of times, each of which is kept."""
        self._names_left -= 1
        self._name_bytes_left -= size
        if self._names_left < 0 or self._name_bytes_left < 0:
            raise ElfError("the file's tables name more than any linker writes")

    def segments(self) -> Iterator[_Segment]:
        """The program headers."""
        if self._entries > _SEGMENTS_MAX:
            raise ElfError(f"{self._entries} program headers")
        for index in range(self._entries):
            at = self._table + index * self._entry_bytes
            if self.bits == 64:
                kind, _, offset, address, _, size = self.unpack("IIQQQQ", at)
            else:
                kind, offset, address, _, size = self.unpack("IIIII", at)
            yield _Segment(kind, offset, address, size)


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class _Dynamic:
    """The dynamic section: its entries, and where addresses lie in the file."""

    elf: _Elf
    segments: Sequence[_Segment]
    entries: Sequence[tuple[int, int]]

    def value(self, tag: int) -> int | None:
        return next((value for key, value in self.entries if key == tag), None)

    def offset(self, tag: int) -> int | None:
        """The place in the file of the address that `tag` holds."""
        address = self.value(tag)
        if address is None:
            return None
        for segment in self.segments:
            inside = address - segment.address
            if segment.kind == _PT_LOAD and 0 <= inside < segment.size:
                return segment.offset + inside
        raise ElfError(f"address {address:#x} lies in no segment of the file")

    def string(self, index: int) -> str:
        base, size = self.offset(_DT_STRTAB), self.value(_DT_STRSZ)
        if base is None or (size is not None and index >= size):
            raise ElfError(f"string {index} lies outside of the string table")
        return self.elf.string(base + index)

    def strings(self, tag: int) -> tuple[str, ...]:
        return tuple(self.string(value) for key, value in self.entries if key == tag)

    def paths(self, tag: int) -> tuple[str, ...]:
        return tuple(part for text in self.strings(tag) for part in text.split(":") if part)


def _read_dynamic(elf: _Elf) -> ElfFacts:
    segments = tuple(elf.segments())
    interpreter = next((s for s in segments if s.kind == _PT_INTERP), None)
    dynamic = _Dynamic(elf, segments, tuple(_dynamic_entries(elf, segments)))
    soname = dynamic.strings(_DT_SONAME)
    return ElfFacts(
        known=Known.DYNAMIC,
        machine=elf.machine,
        bits=elf.bits,
        soname=soname[0] if soname else None,
        needed=dynamic.strings(_DT_NEEDED),
        rpath=dynamic.paths(_DT_RPATH),
        runpath=dynamic.paths(_DT_RUNPATH),
        interpreter=None if interpreter is None else elf.string(interpreter.offset),
        version_needs=tuple(_version_needs(dynamic)),
        version_definitions=tuple(_version_definitions(dynamic)),
    )


def _dynamic_entries(elf: _Elf, segments: Sequence[_Segment]) -> Iterator[tuple[int, int]]:
    """Nothing for a static file, which has no such segment."""
    segment = next((s for s in segments if s.kind == _PT_DYNAMIC), None)
    if segment is None:
        return
    if segment.size > _DYNAMIC_MAX_BYTES:
        raise ElfError(f"a dynamic section of {segment.size} bytes")
    layout = struct.Struct(elf.order + ("qQ" if elf.bits == 64 else "iI"))
    usable = segment.size - segment.size % layout.size
    for tag, value in layout.iter_unpack(elf.read(segment.offset, usable)):
        if tag == _DT_NULL:
            return
        yield tag, value


def _version_needs(dynamic: _Dynamic) -> Iterator[VersionNeed]:
    at, count = dynamic.offset(_DT_VERNEED), dynamic.value(_DT_VERNEEDNUM) or 0
    if at is None:
        return
    for _ in range(min(count, _VERSIONS_MAX)):
        _, names, library, first, step = dynamic.elf.unpack("HHIII", at)
        yield VersionNeed(
            library=dynamic.string(library),
            versions=tuple(_need_names(dynamic, at + first, min(names, _VERSIONS_MAX))),
        )
        if not step:
            return
        at += step


def _need_names(dynamic: _Dynamic, at: int, count: int) -> Iterator[str]:
    for _ in range(count):
        _, _, _, name, step = dynamic.elf.unpack("IHHII", at)
        yield dynamic.string(name)
        if not step:
            return
        at += step


def _version_definitions(dynamic: _Dynamic) -> Iterator[str]:
    """The versions that the file gives its symbols; the base entry is its SONAME once more."""
    at, count = dynamic.offset(_DT_VERDEF), dynamic.value(_DT_VERDEFNUM) or 0
    if at is None:
        return
    for _ in range(min(count, _VERSIONS_MAX)):
        _, flags, _, _, _, first, step = dynamic.elf.unpack("HHHHIII", at)
        if not flags & _VER_FLG_BASE:
            name, _ = dynamic.elf.unpack("II", at + first)
            yield dynamic.string(name)
        if not step:
            return
        at += step


# What follows reads a prefix.

_VERNEED = struct.Struct("<HHIII")  # vn_version, vn_cnt, vn_file, vn_aux, vn_next
_VERNAUX = struct.Struct("<IHHII")  # vna_hash, vna_flags, vna_other, vna_name, vna_next
_SIXTEENS = b"[" + b"".join(rb"\x%02x" % value for value in range(0, 256, 16)) + b"]"
# Version 1, fewer than 256 names; vn_aux and vn_next are multiples of 16 in what GNU ld (each
# entry followed by its names) and lld (all entries, then all names) write.
_CHAIN_START = re.compile(
    rb"(?s)(?=\x01\x00[^\x00]\x00.{4}" + _SIXTEENS + rb".\x00\x00" + _SIXTEENS + rb".\x00\x00)"
)
_VERSION_NAME = re.compile(rb"(?<=\x00)(?!_Z)[\x21-\x7e]{2,64}(?=\x00)")
_STRINGS = re.compile(rb"\x00(?:[\x20-\xff]++\x00)*+")
_SONAME = re.compile(rb"[\w.+-]+\.so(?:\.\w+)*")
_COMMON_HASHES = frozenset(
    elf_hash(name)
    for name in (
        *(f"GLIBC_2.{minor}" for minor in range(61)),
        *(f"GLIBC_2.{minor}" for minor in ("2.5", "3.2", "3.3", "3.4")),
        *(f"GLIBCXX_3.4.{patch}" for patch in range(1, 41)),
        "GLIBCXX_3.4",
        "CXXABI_1.3",
        "GCC_3.0",
    )
)


@dataclass(frozen=True, slots=True)
class _Chain:
    """`.gnu.version_r` by its numbers: per library its name's index, and (hash, index) pairs."""

    needs: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]

    @property
    def names(self) -> tuple[tuple[int, int], ...]:
        return tuple(name for _, names in self.needs for name in names)

    @property
    def hashes(self) -> tuple[int, ...]:
        return tuple(value for value, _ in self.names)


def _chains(data: bytes) -> Iterator[_Chain]:
    """Everything in `data` that has the shape of a whole version table, in order."""
    for match in _CHAIN_START.finditer(data):
        if match.start() % 4 == 0:
            chain = _walk(data, match.start())
            if chain is not None:
                yield chain


def _walk(data: bytes, at: int) -> _Chain | None:
    needs: list[tuple[int, tuple[tuple[int, int], ...]]] = []
    seen: set[int] = set()
    while len(needs) < _VERSIONS_MAX and at + _VERNEED.size <= len(data):
        version, count, library, first, step = _VERNEED.unpack_from(data, at)
        if version != 1 or not library or first < _VERNEED.size:
            return None
        names = _walk_names(data, at + first, count, seen)
        if names is None:
            return None
        needs.append((library, names))
        if not step:
            return _Chain(tuple(needs))
        at += step
    return None


def _walk_names(
    data: bytes, at: int, count: int, seen: set[int]
) -> tuple[tuple[int, int], ...] | None:
    """The names of one library; every version index is 2 or more, and is given once in a file."""
    names: list[tuple[int, int]] = []
    if not count or at + count * _VERNAUX.size > len(data) or len(seen) > _VERSIONS_MAX:
        return None
    for left in range(count, 0, -1):
        value, flags, index, name, step = _VERNAUX.unpack_from(data, at)
        if flags > 3 or index < 2 or index in seen or not name or not value:
            return None
        if step != (_VERNAUX.size if left > 1 else 0):
            return None
        seen.add(index)
        names.append((value, name))
        at += step
    return tuple(names)


def _prove_strings(data: bytes, chain: _Chain) -> int | None:
    """Where the string table begins: the one place where every name has its hash."""
    wanted = dict(chain.names)
    for match in _VERSION_NAME.finditer(data):
        index = wanted.get(_hash(match.group()))
        if index is None:
            continue
        base = match.start() - index
        if base >= 0 and data[base] == 0 and _all_proven(data, chain, base):
            return base
    return None


def _all_proven(data: bytes, chain: _Chain, base: int) -> bool:
    libraries = (_string_at(data, base + index) for index, _ in chain.needs)
    return all(libraries) and all(
        _hash(_string_at(data, base + index)) == value for value, index in chain.names
    )


def _string_at(data: bytes, at: int) -> bytes:
    """The string at `at`, empty where it does not end within `data`, or not soon."""
    end = data.find(b"\0", at, at + _PREFIX_STRING_MAX_BYTES)
    return data[at:end] if end > 0 else b""


def _prefix_facts(elf: _Elf, data: bytes, chain: _Chain, base: int) -> ElfFacts:
    def text(index: int) -> str:
        return _string_at(data, base + index).decode("utf-8", "backslashreplace")

    needs = tuple(
        VersionNeed(library=text(library), versions=tuple(text(index) for _, index in names))
        for library, names in chain.needs
    )
    certain = {need.library for need in needs}
    sonames = islice(_sonames(data, base), _NAMES_MAX)
    return ElfFacts(
        known=Known.PREFIX,
        machine=elf.machine,
        bits=elf.bits,
        version_needs=needs,
        candidates=tuple(name for name in sonames if name not in certain),
    )


def _sonames(data: bytes, base: int) -> Iterator[str]:
    """Names of libraries in the string table, as far as it lies in `data`."""
    table = _STRINGS.match(data, base)
    names = table.group().split(b"\0") if table else ()
    for name in dict.fromkeys(names):
        if _SONAME.fullmatch(name):
            yield name.decode("ascii", "backslashreplace")

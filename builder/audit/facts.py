"""Facts of one wheel: its tags, what it requires, and what each ELF file in it needs.

A quick read takes the first part of each ELF entry and goes on only until the needs are known; a
deep read takes all of it. Facts belong to a hash, so they are kept under it and never read twice;
where only parts were read, nobody checked the hash, and they belong to the URL as well.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, cast
from zipfile import ZipInfo

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from pydantic import TypeAdapter, ValidationError

from builder.elf import MAGIC, ElfError, ElfFacts, Known, read_elf, read_prefix
from builder.errors import LockError, UsageError
from builder.lock.base.metadata import METADATA, parse_requires
from builder.lock.base.torch_version import (
    TORCH_VERSION_FILE,
    TORCH_VERSION_MAX_BYTES,
    TorchVersion,
    parse_torch_version,
)
from builder.lock.model import SHA256
from builder.remote import (
    LocalSource,
    Member,
    Source,
    WheelError,
    read_beginnings,
    read_directory,
    read_whole,
)
from builder.scratch import write_whole

FORMAT = 2
"""Goes up whenever the same wheel would give other facts; older ones are read anew."""

# Compressed bytes. The first suffices for most extension modules, the last for all whose string
# table is not of megabytes; what is smaller than _WHOLE_BYTES is not worth knowing in part.
_STEPS_BYTES = (32 << 10, 128 << 10, 512 << 10)
_WHOLE_BYTES = 192 << 10
_SPOOL_BYTES = 32 << 20
_METADATA_MAX_BYTES = 4 << 20

_LIBRARY = re.compile(r"\.so(\.[\w-]+)*$")
_PROGRAM = re.compile(r"(^|/)(bin|scripts)/[^/]+(?<!\.py)(?<!\.sh)$")
_EXECUTABLE_BITS = 0o111 << 16
_USEFUL = (Known.DYNAMIC, Known.PREFIX, Known.HASHES)
_BROKEN = ElfFacts(known=Known.UNKNOWN, machine=0, bits=0)


class Access(StrEnum):
    """How a wheel was read."""

    RANGES = "ranges"
    """In place, over HTTP ranges."""
    WHOLE = "whole"
    """The server has no ranges and sent all of it."""
    LOCAL = "local"
    """From a file on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFile:
    """One ELF file at `path` inside a wheel."""

    path: str
    facts: ElfFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """What a wheel holds.

    `tags` are PEP 425 tags, expanded; `requires` the Requires-Dist lines of its METADATA;
    `bytes_read` of `size_bytes` were brought here for it. `deep` is set where every ELF file was
    read whole. `torch` is what a torch says of itself, None where it says nothing that can be read.
    """

    filename: str
    tags: tuple[str, ...]
    size_bytes: int
    bytes_read: int
    access: Access
    deep: bool
    requires: tuple[str, ...]
    files: tuple[ElfFile, ...]
    torch: TorchVersion | None = None

    def count(self, known: Known) -> int:
        """How many of the ELF files are known as far as `known` says."""
        return sum(file.facts.known == known for file in self.files)


def read_wheel(filename: str, source: Source, pool: Executor, *, deep: bool) -> WheelFacts:
    """The facts of the wheel behind `source`; requests run in `pool`.

    Raises WheelError where it is no wheel, ExternalError where it cannot be had.
    """
    entries = read_directory(source)
    candidates = tuple(entry for entry in entries if _may_be_elf(entry))
    read = _read_deep if deep else _read_quick
    files = tuple(sorted(read(source, candidates, pool), key=lambda file: file.path))
    requires = _read_requires(source, entries)
    torch = _read_torch(source, entries) if filename.startswith("torch-") else None
    return WheelFacts(
        filename=filename,
        tags=_tags(filename),
        size_bytes=source.size,
        bytes_read=source.bytes_read,
        access=_access(source),
        deep=deep,
        requires=requires,
        files=files,
        torch=torch,
    )


def _access(source: Source) -> Access:
    if isinstance(source, LocalSource):
        return Access.LOCAL
    return Access.RANGES if source.ranged else Access.WHOLE


def _tags(filename: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(str(tag) for tag in parse_wheel_filename(filename)[3]))
    except InvalidWheelFilename as error:
        raise WheelError(f"{filename}: not a wheel's name: {error}") from None


def _may_be_elf(entry: ZipInfo) -> bool:
    """By its name, or as a file without a suffix that is to be executable; magic decides later."""
    if entry.file_size < len(MAGIC):
        return False
    name = entry.filename.rpartition("/")[2]
    executable = "." not in name and bool(entry.external_attr & _EXECUTABLE_BITS)
    return executable or bool(_LIBRARY.search(name) or _PROGRAM.search(entry.filename))


def _read_quick(source: Source, entries: Iterable[ZipInfo], pool: Executor) -> Iterator[ElfFile]:
    members = read_beginnings(source, entries, _STEPS_BYTES[0], pool)
    binaries = [member for member in members if member.data.startswith(MAGIC)]
    for member, facts in zip(binaries, pool.map(_read_steps, binaries), strict=True):
        yield ElfFile(path=member.entry.filename, facts=facts)


def _read_steps(member: Member) -> ElfFacts:
    """Read on until the needs are known; small files to their end."""
    size = member.entry.compress_size
    for step in (*_STEPS_BYTES, size):
        member.grow(max(step - member.compressed_read, 0))
        facts = _prefix_facts(member)
        enough = (Known.DYNAMIC, Known.PREFIX) if size <= _WHOLE_BYTES else _USEFUL
        if facts.known in enough or (step == _STEPS_BYTES[-1] and size > _WHOLE_BYTES):
            break
    return facts


def _prefix_facts(member: Member) -> ElfFacts:
    try:
        return read_prefix(bytes(member.data))
    except ElfError:
        return _BROKEN


def _read_deep(source: Source, entries: Iterable[ZipInfo], pool: Executor) -> Iterator[ElfFile]:
    def read(entry: ZipInfo) -> ElfFile | None:
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool:
            Member(source, entry).drain(spool.write)
            facts = _whole_facts(cast(BinaryIO, spool))
        return None if facts is None else ElfFile(path=entry.filename, facts=facts)

    return (file for file in pool.map(read, entries) if file is not None)


def _whole_facts(file: BinaryIO) -> ElfFacts | None:
    """None for what is no ELF file; a broken one is unknown, and does not end the audit."""
    file.seek(0)
    if file.read(len(MAGIC)) != MAGIC:
        return None
    try:
        return read_elf(file)
    except ElfError:
        return _BROKEN


def _read_requires(source: Source, entries: Sequence[ZipInfo]) -> tuple[str, ...]:
    entry = next((entry for entry in entries if METADATA.fullmatch(entry.filename)), None)
    if entry is None:
        raise WheelError(f"{source.label}: has no METADATA")
    if entry.file_size > _METADATA_MAX_BYTES:
        raise WheelError(f"{source.label}: {entry.filename} has {entry.file_size} bytes")
    return parse_requires(read_whole(source, entry))


def _read_torch(source: Source, entries: Sequence[ZipInfo]) -> TorchVersion | None:
    entry = next((entry for entry in entries if entry.filename == TORCH_VERSION_FILE), None)
    if entry is None or entry.file_size > TORCH_VERSION_MAX_BYTES:
        return None
    try:
        return parse_torch_version(read_whole(source, entry).decode("utf-8", "replace"))
    except LockError:
        return None


def load_facts(
    cache: Path, sha256: str, *, deep: bool, url: str | None = None
) -> WheelFacts | None:
    """The facts kept for a wheel; None where there are none, or none as deep as asked for.

    Those of a file with that hash, or those that were read in place at `url`.
    """
    for place in (_place(cache, sha256), _place(cache, sha256, url)):
        try:
            kept = _KEPT.validate_json(place.read_bytes())
        except (OSError, ValidationError):
            continue
        if kept.format == FORMAT and (kept.facts.deep or not deep):
            return kept.facts
    return None


def save_facts(cache: Path, sha256: str, facts: WheelFacts, *, url: str | None = None) -> None:
    """Keep the facts of a wheel; the file appears whole or not at all.

    `url` is where it was read, unless the whole of it was seen to have that hash: a lock may give
    one wheel's hash to another, and its facts would then be taken for those of the first.
    """
    place = _place(cache, sha256, url)
    write_whole(place, _KEPT.dump_json(_Kept(format=FORMAT, facts=facts)), cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    format: int
    facts: WheelFacts


_KEPT = TypeAdapter(_Kept)


def _place(cache: Path, sha256: str, url: str | None = None) -> Path:
    if not SHA256.fullmatch(sha256):
        raise UsageError(f"{sha256!r} is no sha256 in small hex digits")
    suffix = "" if url is None else f"-{hashlib.sha256(url.encode()).hexdigest()}"
    return cache / "facts" / f"{sha256}{suffix}.json"

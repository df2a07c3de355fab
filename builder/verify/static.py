"""Facts of an image's layers, each read once as a stream: names, links, whiteouts, ELF files.

Nothing is unpacked and nothing is run. Facts belong to a layer's digest, so they are kept under
it: an image that shares layers with one seen before is not read again.
"""

from __future__ import annotations

import posixpath
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, BinaryIO, cast

from pydantic import TypeAdapter

from builder.context import Context
from builder.elf import MAGIC, ElfFacts
from builder.oci.elf_stream import read_or_unknown, read_passing
from builder.oci.image import LayerBlob
from builder.oci.layer import OPAQUE, WHITEOUT
from builder.oci.layer_facts import read_each
from builder.oci.reader import member_path, open_members

FORMAT = 1
"""Goes up whenever the same layer would give other facts; older ones are read anew."""

_READ_BYTES = 1 << 20

_LD_CACHE = "etc/ld.so.cache"
_LD_CACHE_MAX_BYTES = 16 << 20
_LD_MAGIC = b"glibc-ld.so.cache1.1"
_LD_HEADER = struct.Struct("<20sI24x")
_LD_ENTRY = struct.Struct("<iIIIQ")


class Kind(StrEnum):
    """What an entry of a layer is, or does."""

    DIRECTORY = "d"
    FILE = "f"
    SYMLINK = "l"
    HARDLINK = "h"
    WHITEOUT = "w"
    """The path is gone (image-spec, layer.md, "Whiteouts")."""
    OPAQUE = "o"
    """The folder keeps nothing of what lower layers had in it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; `path` is relative to the root, `target` that of a link as it is written."""

    kind: Kind
    path: str
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """What one layer holds, in its own order.

    `elfs` are the ELF files by path; `libraries` is the loader's cache, from a library's name to
    its path, None where the layer has none.
    """

    entries: tuple[Entry, ...]
    elfs: Mapping[str, ElfFacts]
    libraries: Mapping[str, str] | None


_FACTS = TypeAdapter(LayerFacts)


def read_layers(layers: Sequence[LayerBlob], context: Context) -> tuple[LayerFacts, ...]:
    """The facts of each layer, from the cache or by reading it; ExternalError where it is broken.

    About 64 MiB of memory are taken for each of two layers at a time.
    """
    return read_each(
        layers,
        read_layer,
        _FACTS,
        kind=f"layer-{FORMAT}",
        label="verify",
        cache=context.cache,
        progress=context.progress,
    )


def read_layer(layer: LayerBlob) -> LayerFacts:
    """Read a layer as a stream; a second time for files that need it (rare).

    Raises ExternalError where it is broken or does not match its digest: facts are kept under it.
    """
    scan = _Scan()
    with open_members(layer.path, layer.digest) as members:
        for member, content in members:
            scan.take(member, content)
    if scan.unread:
        scan.elfs |= _read_spooled(layer, scan.unread)
    return LayerFacts(entries=tuple(scan.entries), elfs=scan.elfs, libraries=scan.libraries)


class _Scan:
    """Collects the facts of one layer, entry by entry."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.elfs: dict[str, ElfFacts] = {}
        self.libraries: dict[str, str] | None = None
        self.unread: set[str] = set()

    def take(self, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        path = member_path(member.name)
        if path is None:
            return
        folder, name = posixpath.split(path)
        if name == OPAQUE:
            self.entries.append(Entry(Kind.OPAQUE, folder))
        elif name.startswith(WHITEOUT):
            hidden = posixpath.join(folder, name.removeprefix(WHITEOUT))
            self.entries.append(Entry(Kind.WHITEOUT, hidden))
        else:
            self.entries.append(_entry(member, path))
            if member.isreg() and content is not None:
                self._take_file(path, member.size, content)

    def _take_file(self, path: str, size: int, content: IO[bytes]) -> None:
        if path == _LD_CACHE and size <= _LD_CACHE_MAX_BYTES:
            self.libraries = parse_ld_cache(content.read())
            return
        magic = content.read(len(MAGIC))
        if magic != MAGIC:
            return
        facts = read_passing(magic, size, content)
        if facts is None:
            self.unread.add(path)
        else:
            self.elfs[path] = facts


def _entry(member: tarfile.TarInfo, path: str) -> Entry:
    if member.isdir():
        return Entry(Kind.DIRECTORY, path)
    if member.issym():
        return Entry(Kind.SYMLINK, path, member.linkname)
    if member.islnk():
        return Entry(Kind.HARDLINK, path, member_path(member.linkname) or "")
    return Entry(Kind.FILE, path)


def _read_spooled(layer: LayerBlob, wanted: AbstractSet[str]) -> dict[str, ElfFacts]:
    """The facts of some files of a layer, each by way of a temporary file."""
    facts: dict[str, ElfFacts] = {}
    with open_members(layer.path, layer.digest) as members:
        for member, content in members:
            name = member_path(member.name)
            if name is not None and name in wanted and content is not None:
                with tempfile.TemporaryFile() as file:
                    shutil.copyfileobj(content, file, _READ_BYTES)
                    facts[name] = read_or_unknown(cast(BinaryIO, file))
    return facts


def parse_ld_cache(data: bytes) -> dict[str, str]:
    """Library names and their paths out of `/etc/ld.so.cache`; empty where it is not readable.

    The format is glibc's `struct cache_file_new` (sysdeps/generic/dl-cache.h); an older one may
    stand before it. Of several entries for a name the first counts, as it does for the loader.
    """
    begin = data.find(_LD_MAGIC)
    libraries: dict[str, str] = {}
    if begin < 0 or len(data) < begin + _LD_HEADER.size:
        return libraries
    _, count = _LD_HEADER.unpack_from(data, begin)
    end = begin + _LD_HEADER.size + count * _LD_ENTRY.size
    if end > len(data):
        return libraries
    for _, name, path, _, _ in _LD_ENTRY.iter_unpack(data[begin + _LD_HEADER.size : end]):
        libraries.setdefault(_ld_string(data, begin + name), _ld_string(data, begin + path))
    return libraries


def _ld_string(data: bytes, at: int) -> str:
    return data[at : data.find(b"\0", at)].decode("utf-8", "backslashreplace")

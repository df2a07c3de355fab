"""What an image's layers hold of what an inventory asks for.

Each layer is read once, as a stream: nothing is unpacked, nothing is run. What is found belongs to
the layer's digest and is kept under it, so a layer that many images share is read for the first.
"""

from __future__ import annotations

import csv
import hashlib
import io
import posixpath
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from pathlib import Path
from typing import IO, BinaryIO, cast

from pydantic import TypeAdapter

from builder.elf import MAGIC, ElfFacts
from builder.errors import ExternalError
from builder.lock.base.torch_version import TORCH_VERSION_MAX_BYTES, is_torch_file
from builder.lock.base.tree import FileFacts, LayerContents
from builder.oci.elf_stream import Readable, read_or_unknown, read_passing
from builder.oci.image import LayerBlob
from builder.oci.layer import OPAQUE, WHITEOUT
from builder.oci.layer_facts import read_each
from builder.oci.reader import member_path, open_members
from builder.progress import Progress

FORMAT = 1
"""Goes up whenever the same layer would give other facts; older ones are read anew."""

LIBC = re.compile(
    r"(?:usr/)?lib(?:64)?/(?:[\w-]+-linux-gnu\w*/)?libc(?:\.so\.6|-2\.\d{1,3}\.so)", re.ASCII
)
"""Where the loader looks for the C library; the second name until glibc 2.33."""

_CONTENTS = TypeAdapter(LayerContents)
_READ_BYTES = 1 << 20
_SPOOL_MAX_BYTES = 4 << 30  # no library is larger: its code must reach its data within 2 GiB
_TEXTS_MAX_BYTES = 256 << 20  # of one layer; a full base comes to a few MB
_ENTRIES_MAX = 1_000_000  # of one layer, of those that count; NGC's bases have some 100,000
_LINKS_MAX = 40  # from one hard link to the next; archivers link to the first name

_PACKAGES = re.compile(
    r"usr/(?:local/)?lib(?:64)?/python3(?:\.\d{1,3})?/(?:dist|site)-packages/(?P<inside>.+)",
    re.ASCII | re.DOTALL,
)
# Where something other than a folder hides what lower layers have: on the way to the packages.
_ABOVE = re.compile(
    r"usr(?:/local)?(?:/bin|/lib(?:64)?"
    r"(?:/python3(?:\.\d{1,3})?(?:/(?:dist|site)-packages)?)?)?",
    re.ASCII,
)
# Of these it only counts that they are there.
_MARKS = re.compile(
    r"usr/(?:local/)?(?:bin/python3\.\d{1,3}|lib(?:64)?/python3\.\d{1,3}/os\.py)", re.ASCII
)
_LIBRARY = re.compile(r"\.so(?:\.\d+)*$", re.ASCII)
_TORCH_LIBRARY = re.compile(r"lib(?:torch|c10)(?:_\w+)?\.so(?:\.\d+)*", re.ASCII)
_GLIBC = re.compile(rb"\0GLIBC_2\.(\d{1,3})(?=\0)")
_HEADER_END = re.compile(rb"\r?\n\r?\n")


def read_contents(
    layers: Sequence[LayerBlob], cache: Path, progress: Progress
) -> tuple[LayerContents, ...]:
    """What each layer holds, from the cache or by reading it.

    Raises ExternalError where one is broken or does not match its digest. About 64 MiB of memory
    are taken for each of two layers at a time.
    """
    return read_each(
        layers,
        read_layer,
        _CONTENTS,
        kind=f"inventory-{FORMAT}",
        label="inventory",
        cache=cache,
        progress=progress,
    )


def read_layer(layer: LayerBlob) -> LayerContents:
    """Read one layer as a stream; a second time where the first was not enough (rare).

    Raises ExternalError where it is broken, does not match its digest, or holds more text than is
    plausible.
    """
    scan = _Scan(layer)
    with open_members(layer.path, layer.digest) as members:
        for member, content in members:
            scan.take(member, content)
    scan.resolve()
    return LayerContents(
        hidden=tuple(scan.hidden),
        emptied=tuple(scan.emptied),
        files=scan.files,
        others=tuple(scan.others),
    )


class _Wanted(Flag):
    """What is to be learnt of a file."""

    HASH = auto()
    TEXT = auto()
    ELF = auto()


_NOTHING = _Wanted(0)


class _Scan:
    """Collects what one layer holds, entry by entry."""

    def __init__(self, layer: LayerBlob) -> None:
        self.hidden: list[str] = []
        self.emptied: list[str] = []
        self.files: dict[str, FileFacts] = {}
        self.others: dict[str, None] = {}
        self._layer = layer
        self._texts_bytes = 0
        self._entries = 0
        self._unread: dict[str, str] = {}  # a path and that of the entry with its content

    def take(self, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        """What an entry says; of two for one path the later one counts, as when it is unpacked."""
        path = member_path(member.name)
        if path is None or member.isdir():
            return
        self._entries += 1
        if self._entries > _ENTRIES_MAX:
            raise ExternalError(
                f"{self._layer.path}: a layer with more than {_ENTRIES_MAX} entries",
                hint="no base has as many; take another one",
            )
        folder, name = posixpath.split(path)
        if name == OPAQUE:
            self.emptied.append(folder)
        elif name.startswith(WHITEOUT):
            self.hidden.append(posixpath.join(folder, name.removeprefix(WHITEOUT)))
        elif _matters(path):
            self._unread.pop(path, None)
            self._take_file(path, member, content)

    def resolve(self) -> None:
        """Hard links, whose content another entry has, and ELF files that have to be read whole."""
        again: dict[str, list[str]] = {}
        for path in self._unread:
            at = self._content_of(path)
            read = (at in self.files or at in self.others) and at not in self._unread
            if read and _reads_alike(path, at):
                self._keep(path, self.files.get(at, FileFacts()))
            else:
                again.setdefault(at, []).append(path)
        if again:
            self._read_again(again)

    def _content_of(self, path: str) -> str:
        """The entry with the content of `path`; links that lead in a circle have none."""
        seen = {path}
        while (at := self._unread.get(path, path)) not in seen and len(seen) < _LINKS_MAX:
            seen.add(at)
            path = at
        return at

    def _take_file(self, path: str, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        facts: FileFacts | None = FileFacts()
        if member.issym():
            facts = FileFacts(link=_printable(member.linkname))
        elif member.islnk():
            if _wants(path):
                self._unread[path] = member_path(member.linkname) or ""
        elif content is not None:
            facts = self._read(path, member.size, content, _wants(path))
            if facts is None:
                self._unread[path] = path
        self._keep(path, facts)

    def _keep(self, path: str, facts: FileFacts | None) -> None:
        self.files.pop(path, None)
        self.others.pop(path, None)
        if facts is None or facts == FileFacts():
            self.others[path] = None
        else:
            self.files[path] = facts

    def _read(self, path: str, size: int, content: Readable, wanted: _Wanted) -> FileFacts | None:
        """What is wanted of a file that goes by; None where all of it would have to be kept."""
        if not wanted:
            return FileFacts()
        source = _Hashed(content) if _Wanted.HASH in wanted else content
        magic, text, elf = source.read(len(MAGIC)), None, None
        if _Wanted.TEXT in wanted:
            text = self._text(path, size, magic, source)
        elif _Wanted.ELF in wanted and magic == MAGIC:
            elf = read_passing(magic, size, source)
            if elf is None:
                return None
        return FileFacts(
            sha256=source.hexdigest() if isinstance(source, _Hashed) else None,
            text=text,
            links_torch=_links_torch(elf),
        )

    def _text(self, path: str, size: int, magic: bytes, source: Readable) -> str | None:
        kind = _text_kind(path)
        if kind is None or (size > kind.max_bytes and not kind.prefix):
            return None
        text = kind.extract(magic + source.read(kind.max_bytes - len(magic)))
        self._texts_bytes += len(text or "")
        if self._texts_bytes > _TEXTS_MAX_BYTES:
            raise ExternalError(
                f"{self._layer.path}: a layer with more than {_TEXTS_MAX_BYTES >> 20} MiB of "
                "package metadata",
                hint="no base has as much; take another one",
            )
        return text

    def _read_again(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Read some entries once more, each by way of a temporary file, for all of their names."""
        with open_members(self._layer.path, self._layer.digest) as members:
            for member, content in members:
                paths = wanted.get(member_path(member.name) or "", ())
                if paths and content is not None and member.size <= _SPOOL_MAX_BYTES:
                    with tempfile.TemporaryFile() as file:
                        shutil.copyfileobj(content, file, _READ_BYTES)
                        for path in paths:
                            self._keep(path, self._read_spooled(path, member.size, file))

    def _read_spooled(self, path: str, size: int, file: IO[bytes]) -> FileFacts | None:
        wanted = _wants(path)
        file.seek(0)
        facts = self._read(path, size, file, wanted & ~_Wanted.ELF)
        if facts is None or _Wanted.ELF not in wanted:
            return facts
        file.seek(0)
        return replace(facts, links_torch=_links_torch(read_or_unknown(cast(BinaryIO, file))))


class _Hashed:
    """A file's content that is hashed as it is read."""

    def __init__(self, content: Readable) -> None:
        self._content = content
        self._hasher = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        data = self._content.read(size)
        self._hasher.update(data)
        return data

    def hexdigest(self) -> str:
        """Of all of the content: what is left of it is read."""
        while self.read(_READ_BYTES):
            pass
        return self._hasher.hexdigest()


def _links_torch(elf: ElfFacts | None) -> bool:
    return elf is not None and any(_TORCH_LIBRARY.fullmatch(name) for name in elf.needed)


def _printable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


# Which files matter, and what is kept of those that are read.


def _matters(path: str) -> bool:
    known = (_PACKAGES, _ABOVE, _MARKS)
    return any(pattern.fullmatch(path) for pattern in known) or _text_kind(path) is not None


def _wants(path: str) -> _Wanted:
    packages = _PACKAGES.fullmatch(path)
    wanted = _NOTHING if _text_kind(path) is None else _Wanted.TEXT
    if packages is None:
        return wanted
    if is_torch_file(packages["inside"]):
        wanted |= _Wanted.HASH
    return wanted if _Wanted.TEXT in wanted else wanted | _Wanted.ELF


def _reads_alike(path: str, other: str) -> bool:
    """Whether what is learnt of one content under the name `other` answers for `path` too."""
    return not _wants(path) & ~_wants(other) and _text_kind(path) is _text_kind(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextKind:
    """A file that is read, and how; one that is larger is left out, unless a `prefix` will do."""

    pattern: re.Pattern[str]
    extract: Callable[[bytes], str | None]
    max_bytes: int = 1 << 20
    prefix: bool = False


def _text_kind(path: str) -> _TextKind | None:
    return next((kind for kind in _TEXT_KINDS if kind.pattern.fullmatch(path)), None)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _header(data: bytes) -> str:
    """The part before the description, which may be long (core metadata, "Description")."""
    return _decoded(_HEADER_END.split(data, maxsplit=1)[0])


def _recorded(data: bytes) -> str:
    """RECORD's paths of what may be an ELF file: libraries, and programs, whose names have no dot.

    The other thousands are not asked for.
    """
    try:
        paths = (row[0] for row in csv.reader(io.StringIO(_decoded(data), newline=None)) if row)
        names = ((path, posixpath.basename(path)) for path in paths)
        kept = {path: None for path, name in names if "." not in name or _LIBRARY.search(name)}
    except csv.Error:
        return ""
    return "\n".join(kept)


def _newest_version(data: bytes) -> str | None:
    """2.N out of the version names that the library defines (`GLIBC_2.41`)."""
    found = [int(minor) for minor in _GLIBC.findall(data)]
    return f"2.{max(found)}" if found else None


_INFO = r"[^/]+\.(?:dist|egg)-info/"
_IN_PACKAGES = r"usr/(?:local/)?lib(?:64)?/python3(?:\.\d{1,3})?/(?:dist|site)-packages/"
_TEXT_KINDS = (
    _TextKind(
        pattern=re.compile(
            rf"{_IN_PACKAGES}(?:{_INFO}(?:METADATA|PKG-INFO)|[^/]+\.egg-info)", re.ASCII
        ),
        extract=_header,
        prefix=True,
    ),
    _TextKind(
        pattern=re.compile(rf"{_IN_PACKAGES}{_INFO}RECORD", re.ASCII),
        extract=_recorded,
        max_bytes=64 << 20,
    ),
    _TextKind(
        pattern=re.compile(
            rf"{_IN_PACKAGES}{_INFO}(?:entry_points|requires|top_level)\.txt", re.ASCII
        ),
        extract=_decoded,
    ),
    _TextKind(
        pattern=re.compile(rf"{_IN_PACKAGES}torch/version\.py", re.ASCII),
        extract=_decoded,
        max_bytes=TORCH_VERSION_MAX_BYTES,
    ),
    # Whatever PIP_CONSTRAINT names is called so; which one it is, the image's config says.
    _TextKind(pattern=re.compile(r"(?:.*/)?[^/]*constraint[^/]*\.txt"), extract=_decoded),
    # With its symbols a C library has some 20 MB.
    _TextKind(
        pattern=LIBC,
        extract=_newest_version,
        max_bytes=64 << 20,
        prefix=True,
    ),
)

"""What is in a .deb, read without unpacking it: control files, and an index of its data archive.

The format is deb(5): an ar archive of `debian-binary`, `control.tar.*` and `data.tar.*`, in this
order. The data archive is decompressed once into a `Spool`, an anonymous file that all packages
share, and found there again by position; so memory holds an index and no file's content.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, cast

import zstandard

from builder.errors import ExternalError
from builder.oci.layer import ROOT, Owner

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_AR_MAGIC = b"!<arch>\n"
_AR_HEADER_BYTES = 60
_CHUNK_BYTES = 1 << 18
_CONTROL_MAX_BYTES = 64 << 20
_BROKEN = (
    *(tarfile.TarError, lzma.LZMAError, zlib.error, zstandard.ZstdError),
    *(OSError, EOFError, OverflowError, ValueError, KeyError),
)


class Kind(Enum):
    """What an entry of a file system is; there is nothing else in a package."""

    DIRECTORY = "directory"
    FILE = "file"
    SYMLINK = "symlink"


@dataclass(frozen=True, slots=True)
class Span:
    """A file's content: `size` bytes of the spool from `offset`.

    Two names with the same span are hard links of each other: every file has a header of its own
    before it, so even empty files lie at different offsets.
    """

    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a file system: `content` of a file, `target` of a symbolic link.

    `mode` holds permission bits with setuid, setgid and sticky; a link's counts for nothing.
    """

    kind: Kind
    mode: int = 0o755
    owner: Owner = ROOT
    content: Span | bytes = b""
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deb:
    """One package: what it says about itself, and what it brings.

    `fields` are those of its control file in their order; `control` the other control files by
    name (`postinst`, `md5sums`, …); `files` the data archive in its order, paths relative to the
    root (the root itself is left out) exactly as they are shipped.
    """

    filename: str
    fields: Mapping[str, str]
    control: Mapping[str, bytes]
    files: tuple[tuple[str, Entry], ...]

    @property
    def name(self) -> str:
        """The package's name, without architecture."""
        return self.fields["Package"]

    @property
    def version(self) -> str:
        """The package's version, epoch and revision included."""
        return self.fields["Version"]

    @property
    def architecture(self) -> str:
        """Debian's word for its architecture, `all` where it fits every one."""
        return self.fields["Architecture"]


class Spool:
    """A file that holds the data archives of many packages, decompressed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def append(self, source: IO[bytes]) -> BinaryIO:
        """Add all of `source`; returns the spool, positioned where it begins."""
        start = self._file.seek(0, io.SEEK_END)
        shutil.copyfileobj(source, self._file, _CHUNK_BYTES)
        self._file.seek(start)
        return self._file

    def open(self, span: Span) -> BinaryIO:
        """One file's content, to be read from its start."""
        return _window(self._file, span.offset, span.size)

    def chunks(self, span: Span) -> Iterator[bytes]:
        """One file's content in pieces of bounded size."""
        file = self.open(span)
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


class _Window(io.RawIOBase):
    """Part of another file as a file of its own, wherever the other's position is."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        super().__init__()
        self._file = file
        self._offset = offset
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(self._offset + self._at)
        data = self._file.read(max(0, min(len(view), self._size - self._at)))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _window(file: BinaryIO, offset: int, size: int) -> BinaryIO:
    return io.BufferedReader(_Window(file, offset, size))


@contextmanager
def open_spool(workdir: Path) -> Iterator[Spool]:
    """An empty spool in an anonymous file under `workdir`, gone at the end."""
    with tempfile.TemporaryFile(dir=workdir) as file:
        yield Spool(cast("BinaryIO", file))


def read_deb(path: Path, name: str, spool: Spool) -> Deb:
    """The package in the file at `path`; `name` is what messages call it.

    Raises ExternalError where the file is not a whole .deb, or holds what a package must not.
    """
    try:
        with path.open("rb") as file:
            members = _members(file)
            version = _expect(members, "debian-binary")[1].read(64)
            if not version.startswith(b"2."):
                raise tarfile.ReadError(f"format {version[:16]!r} is not 2.x")
            control = _read_control(*_expect(members, "control.tar"))
            files = tuple(_read_data(*_expect(members, "data.tar"), spool))
            fields = parse_control(control.pop("control").decode("utf-8"))
            return Deb(filename=name, fields=fields, control=control, files=files)
    except _BROKEN as error:
        raise ExternalError(
            f"{name}: not a whole Debian package: {error}",
            hint="lock again: `spark-build lock RECIPE --upgrade`",
        ) from None


def parse_control(text: str) -> dict[str, str]:
    """The fields of one deb822(5) paragraph; a value keeps its continuation lines as they are.

    Raises ValueError where a line belongs to no field or a mandatory field is absent.
    """
    fields: dict[str, str] = {}
    last = ""
    for line in text.rstrip("\n").split("\n"):
        if line[:1] in {" ", "\t"} and last:
            fields[last] += "\n" + line
            continue
        last, colon, value = line.partition(":")
        if not colon or not last or last in fields or last[0] in " \t":
            raise ValueError(f"line {line!r} of the control file is no field")
        fields[last] = value.lstrip(" \t")
    for mandatory in ("Package", "Version", "Architecture"):
        if not fields.get(mandatory):
            raise ValueError(f"the control file has no {mandatory}")
    return fields


def _members(file: BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    """Name and content of every member of the ar archive.

    Those whose name begins with an underscore are left out, as deb(5) demands.
    """
    size = file.seek(0, io.SEEK_END)
    if _window(file, 0, size).read(len(_AR_MAGIC)) != _AR_MAGIC:
        raise tarfile.ReadError("no ar archive")
    start = len(_AR_MAGIC)
    while start < size:
        header = _window(file, start, size - start).read(_AR_HEADER_BYTES)
        if len(header) != _AR_HEADER_BYTES or header[58:] != b"`\n":
            raise tarfile.ReadError(f"no member begins at byte {start}")
        start += _AR_HEADER_BYTES
        name = header[:16].decode("ascii").rstrip().rstrip("/")
        length = int(header[48:58].decode("ascii"))
        if not 0 <= length <= size - start:
            raise tarfile.ReadError(f"it ends inside {name}")
        if not name.startswith("_"):
            yield name, _window(file, start, length)
        start += length + length % 2


def _expect(members: Iterator[tuple[str, BinaryIO]], prefix: str) -> tuple[str, BinaryIO]:
    """The next member, whose name must begin with `prefix`."""
    name, data = next(members, ("", io.BytesIO()))
    if not name.startswith(prefix):
        raise tarfile.ReadError(f"{name or 'the end'} where {prefix} should be")
    return name, data


def _decompressed(name: str, data: BinaryIO) -> IO[bytes]:
    match name.rpartition(".")[2]:
        case "tar":
            return data
        case "xz":
            return lzma.LZMAFile(data)
        case "gz":
            return cast("IO[bytes]", gzip.GzipFile(fileobj=data))
        case "bz2":
            return bz2.BZ2File(data)
        case "zst":
            return zstandard.ZstdDecompressor().stream_reader(data)
    raise tarfile.ReadError(f"{name} is compressed in an unknown way")


def _read_control(name: str, compressed: BinaryIO) -> dict[str, bytes]:
    with _decompressed(name, compressed) as stream:
        data = stream.read(_CONTROL_MAX_BYTES)
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for info in archive:
            path = info.name.removeprefix("./")
            if info.isreg() and "/" not in path:
                content = archive.extractfile(info)
                found[path] = content.read() if content else b""
    return found


def _read_data(name: str, compressed: BinaryIO, spool: Spool) -> Iterator[tuple[str, Entry]]:
    with _decompressed(name, compressed) as stream:
        spooled = spool.append(stream)
    archive = tarfile.TarFile(fileobj=spooled, encoding="utf-8", errors="surrogateescape")
    seen: dict[str, Entry] = {}
    for info in archive:
        path = _clean_path(info.name)
        if path == "":
            continue
        entry = _entry(info, seen)
        seen[path] = entry
        yield path, entry


def _entry(info: tarfile.TarInfo, seen: Mapping[str, Entry]) -> Entry:
    mode, owner = info.mode & 0o7777, (info.uid, info.gid)
    if info.isdir():
        return Entry(kind=Kind.DIRECTORY, mode=mode, owner=owner)
    if info.issym():
        return Entry(kind=Kind.SYMLINK, mode=0o777, target=info.linkname)
    if info.islnk():
        linked = seen.get(_clean_path(info.linkname))
        if linked is None or linked.kind is Kind.DIRECTORY:
            raise tarfile.ReadError(f"{info.name} is a hard link to nothing before it")
        return linked
    if info.isreg() and not info.issparse():
        content = Span(info.offset_data, info.size)
        return Entry(kind=Kind.FILE, mode=mode, owner=owner, content=content)
    raise tarfile.ReadError(f"{info.name} is neither a file, a folder nor a link")


def _clean_path(name: str) -> str:
    """`name` relative to the root and without a slash at its end; nothing may climb out."""
    path = name.removeprefix("./").strip("/")
    if path == ".":
        return ""
    if path and any(part in {"", ".", ".."} for part in path.split("/")):
        raise tarfile.ReadError(f"the path {name!r} is not a clean one")
    return path

"""Debian packages made in memory, for tests that lay them out."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import struct
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from builder.lock.model import LockedDeb
from builder.oci.layer import LayerWriter


def member(
    path: str,
    content: bytes | None = None,
    *,
    mode: int = 0o644,
    link: str | None = None,
    hardlink: str | None = None,
    gid: int = 0,
    kind: bytes = tarfile.REGTYPE,
) -> tuple[tarfile.TarInfo, bytes]:
    """One entry of a data archive; a folder where there is neither content nor a link."""
    info = tarfile.TarInfo(f"./{path}")
    info.mode, info.gid, info.mtime = mode, gid, 1_700_000_000
    info.type = kind
    if link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, link
    elif hardlink is not None:
        info.type, info.linkname = tarfile.LNKTYPE, f"./{hardlink}"
    elif content is None and kind == tarfile.REGTYPE:
        info.type, info.mode = tarfile.DIRTYPE, mode if mode != 0o644 else 0o755
    info.size = len(content or b"")
    return info, content or b""


def tar(entries: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def ar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """An ar archive (deb(5)): every member begins at an even offset."""
    out = b"!<arch>\n"
    for name, data in members:
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
        out += header.encode() + data + b"\n" * (len(data) % 2)
    return out


def deb_bytes(
    name: str,
    entries: Iterable[tuple[tarfile.TarInfo, bytes]] = (),
    *,
    version: str = "1.0-1",
    architecture: str = "all",
    control: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
) -> bytes:
    """A whole package; `control` are further control files, `fields` further fields."""
    named = {
        "Package": name,
        "Version": version,
        "Architecture": architecture,
        "Maintainer": "Nobody <nobody@example.org>",
        **(fields or {}),
        "Description": f"the package {name}\n of a test",
    }
    text = "".join(f"{key}: {value}\n" for key, value in named.items())
    files = {"control": text, **(control or {})}
    inner = tar(member(path, content.encode()) for path, content in files.items())
    return ar(
        [
            ("debian-binary", b"2.0\n"),
            ("control.tar.xz", lzma.compress(inner)),
            ("data.tar.xz", lzma.compress(tar(entries))),
        ]
    )


class Archive:
    """Packages written to a folder, as the store would hold them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.debs: list[tuple[LockedDeb, Path]] = []

    def add(
        self,
        name: str,
        *entries: tuple[tarfile.TarInfo, bytes],
        version: str = "1.0-1",
        architecture: str = "all",
        control: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        data = deb_bytes(
            name,
            entries,
            version=version,
            architecture=architecture,
            control=control,
            fields=fields,
        )
        self.add_bytes(name, data, version=version, architecture=architecture)

    def add_bytes(
        self, name: str, data: bytes, *, version: str = "1.0-1", architecture: str = "all"
    ) -> None:
        filename = f"{name}_{version}_{architecture}.deb"
        path = self._folder / filename
        path.write_bytes(data)
        locked = LockedDeb(
            url=f"https://mirror.example/debian/pool/{filename}",
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            name=name,
            version=version,
            architecture=architecture,
        )
        self.debs.append((locked, path))


class Layer:
    """What a layer holds, by path, for asserting on it."""

    def __init__(self, blob: bytes) -> None:
        self._archive = tarfile.TarFile(fileobj=io.BytesIO(gzip.decompress(blob)))
        self.names = self._archive.getnames()

    def __getitem__(self, path: str) -> tarfile.TarInfo:
        return self._archive.getmember(path)

    def read(self, path: str) -> bytes:
        file = self._archive.extractfile(path)
        assert file is not None
        return file.read()


def written(write: Callable[[LayerWriter], None]) -> bytes:
    """The bytes of a layer that `write` fills."""
    out = io.BytesIO()
    writer = LayerWriter(out)
    write(writer)
    writer.close()
    return out.getvalue()


def elf(soname: str | None, *, machine: int = 183, dynamic: bool = True, padding: int = 0) -> bytes:
    """A 64-bit little-endian shared library with one segment, and nothing but a name in it."""
    strings = b"\0" + (soname or "").encode() + b"\0"
    headers = 2 if dynamic else 1
    start = 64 + 56 * headers
    tags = [(5, start), (10, len(strings))] + ([(14, 1)] if soname is not None else []) + [(0, 0)]
    table = b"".join(struct.pack("<qQ", tag, value) for tag, value in tags)
    at = start + len(strings)
    total = at + len(table)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, headers, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, total, total, 4096)
    dynamic_header = struct.pack("<IIQQQQQQ", 2, 4, at, at, at, len(table), len(table), 8)
    return header + load + (dynamic_header if dynamic else b"") + strings + table + bytes(padding)

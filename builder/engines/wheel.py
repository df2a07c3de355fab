"""A wheel as the entries it becomes in a layer, without unpacking it to disk.

Follows the binary distribution format (PEP 427,
https://packaging.python.org/en/latest/specifications/binary-distribution-format/) and the
recording of installed projects (PEP 376/627, RECORD). What varies between installers (INSTALLER,
REQUESTED, direct_url.json) is left out, so that a layer depends on the wheel's bytes only.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from packaging.utils import canonicalize_name

from builder.oci.layer import Deflated, LayerError, LayerWriter
from builder.plan import Venv

_LOCAL_HEADER_BYTES = 30  # APPNOTE.TXT section 4.3.7
_CHUNK_BYTES = 1 << 18
_SPLICE_COST_BYTES = (
    41  # the gzip member around a spliced entry, and the cut through what is pending
)
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_SCRIPT = """\
#!{python}
# -*- coding: utf-8 -*-
import sys
from {module} import {first}
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit({function}())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of the image: out of `member` of the wheel, or `data` of our own.

    `path` is relative to the venv's prefix; `sha256` is in hex, as RECORD states it.
    """

    path: str
    mode: int
    sha256: str
    size: int
    member: zipfile.ZipInfo | None = None
    data: bytes | None = None


class Wheel:
    """An open wheel, as a context manager; LayerError where it cannot be installed."""

    def __init__(self, path: Path, filename: str) -> None:
        self.filename = filename
        self._file: BinaryIO = path.open("rb")
        try:
            self._zip = zipfile.ZipFile(self._file)
            self._members = self._checked_members()
            self._dist_info = self._find_dist_info()
            self._record = self._read_record()
        except (zipfile.BadZipFile, UnicodeDecodeError, csv.Error) as error:
            self._file.close()
            raise LayerError(f"{filename}: not a wheel: {error}") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def entries(self, venv: Venv) -> list[Entry]:
        """Every file that installing this wheel into `venv` gives, the true RECORD among them."""
        found = [self._placed(member, venv) for member in self._members.values()]
        entries = [entry for entry in found if entry is not None]
        scripts = [_made(f"bin/{name}", text.encode(), 0o755) for name, text in self._scripts(venv)]
        replaced = {script.path for script in scripts}
        entries = [entry for entry in entries if entry.path not in replaced] + scripts
        return [*entries, self._installed_record(entries, venv)]

    def write(self, entry: Entry, writer: LayerWriter, path: str) -> None:
        """Write one of this wheel's entries as `path` of the layer; its hash must be RECORD's."""
        member = entry.member
        if member is None:
            writer.file(path, entry.data or b"", entry.mode)
            return
        deflated = member.compress_type == zipfile.ZIP_DEFLATED
        if deflated and member.compress_size + _SPLICE_COST_BYTES < member.file_size:
            data = Deflated(chunks=self._raw(member), size=member.file_size, crc32=member.CRC)
            found = writer.deflated(path, data, entry.mode)
        else:
            found = writer.stream(path, member.file_size, self._plain(member), entry.mode)
        if found != entry.sha256:
            raise LayerError(
                f"{self.filename}: {member.filename} has sha256 {found}, its RECORD says "
                f"{entry.sha256}",
                hint="the wheel was changed after it was built; take another version",
            )

    def _checked_members(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        for member in self._zip.infolist():
            name = member.filename
            parts = PurePosixPath(name).parts
            if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
                raise LayerError(f"{self.filename}: {name!r} would leave the environment")
            if member.flag_bits & 1:
                raise LayerError(f"{self.filename}: {name} is encrypted")
            if name in members:
                raise LayerError(f"{self.filename}: {name} is in it twice")
            if not member.is_dir():
                members[name] = member
        return members

    def _find_dist_info(self) -> str:
        expected = canonicalize_name(self.filename.split("-")[0])
        found = {name.split("/")[0] for name in self._members if ".dist-info/" in name}
        named = [f for f in found if f.endswith(".dist-info")]
        for folder in named:
            if len(named) == 1 or canonicalize_name(folder.split("-")[0]) == expected:
                return folder
        raise LayerError(f"{self.filename}: has no .dist-info folder of its own")

    def _read_record(self) -> Mapping[str, tuple[str, int]]:
        """Path → (sha256 in hex, size), out of the wheel's own RECORD."""
        text = self._read(f"{self._dist_info}/RECORD").decode()
        record = {}
        for row in csv.reader(io.StringIO(text)):
            if len(row) != 3 or not row[1]:
                continue
            algorithm, _, value = row[1].partition("=")
            if algorithm != "sha256":
                raise LayerError(
                    f"{self.filename}: RECORD has {algorithm} for {row[0]}, not sha256"
                )
            digest = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
            record[row[0]] = (digest, int(row[2]) if row[2] else -1)
        return record

    def _read(self, name: str) -> bytes:
        if name not in self._members:
            raise LayerError(f"{self.filename}: has no {name}")
        return self._zip.read(name)

    def _placed(self, member: zipfile.ZipInfo, venv: Venv) -> Entry | None:
        """Where a file of the wheel goes; None for those that describe the wheel itself."""
        name = member.filename
        if name == f"{self._dist_info}/RECORD" or name.endswith(_SIGNATURES):
            return None
        if name not in self._record:
            raise LayerError(f"{self.filename}: {name} is not in its RECORD")
        sha256, _ = self._record[name]
        path, script = self._destination(name, venv)
        executable = script or bool((member.external_attr >> 16) & 0o111)
        mode = 0o755 if executable else 0o644
        if script and self._peek(member).startswith(b"#!python"):
            return _made(path, self._shebang(member, venv), mode)
        return Entry(path=path, mode=mode, sha256=sha256, size=member.file_size, member=member)

    def _destination(self, name: str, venv: Venv) -> tuple[str, bool]:
        """Path under the prefix, and whether it is a script (PEP 427, "The .data directory")."""
        data, _, rest = name.partition("/")
        if not data.endswith(".data") or not rest:
            return f"{venv.site}/{name}", False
        scheme, _, path = rest.partition("/")
        distribution = data.split("-")[0]
        folders = {
            "purelib": venv.site,
            "platlib": venv.site,
            "scripts": "bin",
            "data": "",
            "headers": f"include/site/python{venv.python}/{distribution}",
        }
        if scheme not in folders or not path:
            raise LayerError(f"{self.filename}: {name}: unknown scheme {scheme!r}")
        return f"{folders[scheme]}/{path}".lstrip("/"), scheme == "scripts"

    def _shebang(self, member: zipfile.ZipInfo, venv: Venv) -> bytes:
        """A script's text with `#!python` (or `#!pythonw`) made to name the venv's Python."""
        _, newline, rest = self._zip.read(member).partition(b"\n")
        return f"#!{venv.executable}".encode() + newline + rest

    def _scripts(self, venv: Venv) -> Iterator[tuple[str, str]]:
        """Console and GUI scripts (entry points specification), as uv writes them."""
        name = f"{self._dist_info}/entry_points.txt"
        if name not in self._members:
            return
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
        parser.read_string(self._read(name).decode())
        for group in ("console_scripts", "gui_scripts"):
            for script, reference in parser.items(group) if parser.has_section(group) else ():
                yield script, self._script(script, reference, venv)

    def _script(self, name: str, reference: str, venv: Venv) -> str:
        module, _, function = reference.partition("[")[0].strip().partition(":")
        module, function = module.strip(), function.strip()
        dotted = [*module.split("."), *function.split(".")]
        if "/" in name or name in ("", ".", "..") or not all(p.isidentifier() for p in dotted):
            raise LayerError(f"{self.filename}: entry point {name!r} = {reference!r} is not valid")
        first = function.partition(".")[0]
        return _SCRIPT.format(python=venv.executable, module=module, first=first, function=function)

    def _installed_record(self, entries: list[Entry], venv: Venv) -> Entry:
        """RECORD of what is installed: paths relative to site-packages, sorted."""
        up = "../" * len(PurePosixPath(venv.site).parts)
        site = f"{venv.site}/"
        path = f"{site}{self._dist_info}/RECORD"
        rows = [(path, "", "")]
        for entry in entries:
            digest = base64.urlsafe_b64encode(bytes.fromhex(entry.sha256)).rstrip(b"=").decode()
            rows.append((entry.path, f"sha256={digest}", str(entry.size)))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            sorted(
                (p.removeprefix(site) if p.startswith(site) else up + p, h, s) for p, h, s in rows
            )
        )
        return _made(path, text.getvalue().encode(), 0o644)

    def _peek(self, member: zipfile.ZipInfo) -> bytes:
        with self._zip.open(member) as file:
            return file.read(16)

    def _plain(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        try:
            with self._zip.open(member) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise LayerError(f"{self.filename}: {member.filename}: {error}") from None

    def _raw(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        """The entry's deflate stream as it lies in the file."""
        self._file.seek(member.header_offset)
        header = self._file.read(_LOCAL_HEADER_BYTES)
        name_bytes, extra_bytes = struct.unpack("<2H", header[26:30])
        start = member.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        end = start + member.compress_size
        for position in range(start, end, _CHUNK_BYTES):
            self._file.seek(position)
            yield self._file.read(min(_CHUNK_BYTES, end - position))


def _made(path: str, data: bytes, mode: int) -> Entry:
    sha256 = hashlib.sha256(data).hexdigest()
    return Entry(path=path, mode=mode, sha256=sha256, size=len(data), data=data)

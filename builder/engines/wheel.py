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
import lzma
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from packaging.utils import canonicalize_name

from builder.lock.base.metadata import EntryPoints
from builder.oci.layer import WHITEOUT, Deflated, LayerError, LayerWriter
from builder.plan import Venv, console_script

_PLACEHOLDER = b"#!python"  # PEP 427, "Recommended installer features"
_LOCAL_HEADER_BYTES = 30  # APPNOTE.TXT section 4.3.7
_CHUNK_BYTES = 1 << 18
_TEXT_MAX_BYTES = 64 << 20  # RECORD, entry points, scripts
_SPLICE_COST_BYTES = (
    41  # the gzip member around a spliced entry, and the cut through what is pending
)
_RECORDS = ("RECORD", "RECORD.jws", "RECORD.p7s")  # describe the wheel, not what is installed
_BROKEN = (
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OverflowError, OSError),
    *(zlib.error, lzma.LZMAError, struct.error, csv.Error, configparser.Error, ValueError),
)
"""What zipfile and the other readers raise where a file is not what it says it is."""

INSTALL_VERSION = 1
"""Goes up whenever the same wheel would give other entries: it is part of every cache key."""


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
            with self._reading():
                self._zip = zipfile.ZipFile(self._file)
                self._members = self._checked_members()
                self._dist_info = self._find_dist_info()
                self._record = self._read_record()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def entries(self, venv: Venv) -> list[Entry]:
        """Every file that installing this wheel into `venv` gives, the true RECORD among them."""
        with self._reading():
            scripts = {f"bin/{name}": text for name, text in self._scripts(venv)}
            entries = list(self._placed(venv, replaced=scripts.keys()))
            # A file of the data scheme goes before the entry point's script, as with uv.
            taken = {entry.path for entry in entries}
            made = [(path, text) for path, text in scripts.items() if path not in taken]
            entries += [_made(path, text.encode(), 0o755) for path, text in made]
        self._refuse_repeats(entries)
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
        self._compare(member.filename, found, entry.sha256)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """LayerError for whatever a broken file makes its readers raise."""
        try:
            yield
        except _BROKEN as error:
            raise LayerError(f"{self.filename}: not a readable wheel: {error}") from None

    def _compare(self, name: str, found: str, recorded: str) -> None:
        if found != recorded:
            raise LayerError(
                f"{self.filename}: {name} has sha256 {found}, its RECORD says {recorded}",
                hint="the wheel was changed after it was built; take another version",
            )

    def _refuse_repeats(self, entries: list[Entry]) -> None:
        counts = Counter(entry.path for entry in entries)
        repeated = [path for path, count in counts.items() if count > 1]
        if repeated:
            raise LayerError(f"{self.filename}: installs {repeated[0]} twice")

    def _checked_members(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        for member in self._zip.infolist():
            name = member.orig_filename  # zipfile cuts the other one off at a NUL
            parts = PurePosixPath(name).parts
            if not parts or name.startswith("/") or ".." in parts or {"\\", "\0"} & set(name):
                raise LayerError(f"{self.filename}: {name!r} would leave the environment")
            if any(part.startswith(WHITEOUT) for part in parts):
                raise LayerError(
                    f"{self.filename}: {name!r} would delete files of the image",
                    hint=f"names that begin with {WHITEOUT} mark deletion; take another version",
                )
            if member.flag_bits & 1:
                raise LayerError(f"{self.filename}: {name} is encrypted")
            if name in members:
                raise LayerError(f"{self.filename}: {name} is in it twice")
            if not name.endswith("/"):
                members[name] = member
        return members

    def _find_dist_info(self) -> str:
        """The one folder at the top that describes this distribution (PEP 427)."""
        expected = canonicalize_name(self.filename.split("-")[0])
        tops = {name.partition("/")[0] for name in self._members if "/" in name}
        named = [top for top in tops if top.endswith(".dist-info")]
        own = [top for top in named if canonicalize_name(top.split("-")[0]) == expected]
        if len(own) != 1:
            raise LayerError(
                f"{self.filename}: needs exactly one .dist-info folder of its own, it has "
                f"{', '.join(sorted(named)) or 'none'}"
            )
        return own[0]

    def _read_record(self) -> Mapping[str, str]:
        """Path → sha256 in hex, out of the wheel's own RECORD."""
        record = {}
        for path, digest in self._record_rows():
            if not digest:
                continue
            algorithm, _, value = digest.partition("=")
            if algorithm != "sha256":
                raise LayerError(f"{self.filename}: RECORD has {algorithm} for {path}, not sha256")
            record[path] = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
        return record

    def _record_rows(self) -> Iterator[tuple[str, str]]:
        text = self._read(f"{self._dist_info}/RECORD").decode()
        rows = (row for row in csv.reader(io.StringIO(text)) if len(row) == 3)
        return ((path, digest) for path, digest, _ in rows)

    def _unproven(self, name: str) -> LayerError:
        """The refusal of a file that RECORD says no hash of."""
        if name not in dict(self._record_rows()):
            return LayerError(f"{self.filename}: {name} is not in its RECORD")
        return LayerError(
            f"{self.filename}: {name} has no hash in its RECORD",
            hint="a wheel states the sha256 of every file (PEP 427); take another version, or pack "
            "it anew with `wheel unpack` and `wheel pack`",
        )

    def _read(self, name: str) -> bytes:
        if name not in self._members:
            raise LayerError(f"{self.filename}: has no {name}")
        return self._whole(self._members[name])

    def _whole(self, member: zipfile.ZipInfo) -> bytes:
        """A text's bytes; zipfile reads no more of a member than it announces."""
        if member.file_size > _TEXT_MAX_BYTES:
            raise LayerError(
                f"{self.filename}: {member.filename} announces {member.file_size} bytes, "
                f"and may have {_TEXT_MAX_BYTES}"
            )
        return self._zip.read(member)

    def _placed(self, venv: Venv, *, replaced: Collection[str]) -> Iterator[Entry]:
        """The wheel's files where they go, without the scripts that entry points replace."""
        records = {f"{self._dist_info}/{name}" for name in _RECORDS}
        for name, member in self._members.items():
            if name in records:
                continue
            if name not in self._record:
                raise self._unproven(name)
            path, script = self._destination(name, venv)
            if not script:
                executable = bool((member.external_attr >> 16) & 0o111)
                yield self._entry(member, path, executable=executable)
            elif path not in replaced:
                yield self._script_file(member, path, venv)

    def _entry(self, member: zipfile.ZipInfo, path: str, *, executable: bool) -> Entry:
        return Entry(
            path=path,
            mode=0o755 if executable else 0o644,
            sha256=self._record[member.filename],
            size=member.file_size,
            member=member,
        )

    def _destination(self, name: str, venv: Venv) -> tuple[str, bool]:
        """Path under the prefix, and whether it is a script (PEP 427, "The .data directory")."""
        data, _, rest = name.partition("/")
        if not data.endswith(".data") or not rest:
            return f"{venv.site}/{name}", False
        scheme, _, path = rest.partition("/")
        distribution = canonicalize_name(data.split("-")[0])
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

    def _script_file(self, member: zipfile.ZipInfo, path: str, venv: Venv) -> Entry:
        """A script; where it begins with `#!python`, that line is made to name the venv's."""
        with self._zip.open(member) as file:
            if file.read(len(_PLACEHOLDER)) != _PLACEHOLDER:
                return self._entry(member, path, executable=True)
        data = self._whole(member)
        found = hashlib.sha256(data).hexdigest()
        self._compare(member.filename, found, self._record[member.filename])
        text = f"#!{venv.executable}\n".encode() + data.partition(b"\n")[2]
        return _made(path, text, 0o755)

    def _scripts(self, venv: Venv) -> Iterator[tuple[str, str]]:
        """Console and GUI scripts (entry points specification), as uv writes them."""
        name = f"{self._dist_info}/entry_points.txt"
        if name not in self._members:
            return
        parser = EntryPoints()
        parser.read_string(self._read(name).decode())
        for group in ("console_scripts", "gui_scripts"):
            for script, reference in parser.items(group) if parser.has_section(group) else ():
                yield script, self._script(script, reference, venv)

    def _script(self, name: str, reference: str, venv: Venv) -> str:
        try:
            return console_script(venv, name, reference)
        except ValueError as error:
            raise LayerError(f"{self.filename}: {error}") from None

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

    def _plain(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        with self._reading(), self._zip.open(member) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def _raw(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        """The entry's deflate stream as it lies in the file."""
        with self._reading():
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

"""Files by hash: fetched once, whole or not at all, resumed where a run was cut off.

A file lies at `files/<first two hex digits>/<sha256>` under the cache and is read-only. While it
is fetched it has the suffix `.part`; the part is locked, so two runs never write it together.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from builder.errors import ExternalError, UsageError
from builder.http import Http, redact
from builder.lock.model import LockedFile
from builder.pool import threads
from builder.progress import Advance, Progress

_SHA256 = re.compile(r"[0-9a-f]{64}")
_JOBS = 4
_BROKEN_OFF_TIMES = 3
_PROGRESS_BYTES = 8 << 20
_READ_BYTES = 1 << 20


class Store:
    """The folder of fetched files under `cache`."""

    def __init__(self, cache: Path) -> None:
        self._root = cache / "files"

    def find(self, file: LockedFile) -> Path | None:
        """Where the file lies if it is here, whole: its hash was checked on arrival."""
        path = self._path(file)
        try:
            return path if path.stat().st_size == file.size else None
        except FileNotFoundError:
            return None

    def get(self, file: LockedFile) -> Path:
        """Where the file lies; it must have been fetched."""
        path = self.find(file)
        if path is None:
            raise ExternalError(
                f"{file.filename}: not in the cache any more",
                hint="run the same command again; it is fetched anew",
            )
        return path

    def missing(self, files: Iterable[LockedFile]) -> tuple[LockedFile, ...]:
        """Those of `files` that are not here, each once."""
        return tuple({file.sha256: file for file in files if self.find(file) is None}.values())

    def fetch(self, files: Sequence[LockedFile], http: Http, progress: Progress, label: str) -> int:
        """Bring every file here and return how many bytes came over the network.

        Raises ExternalError where one cannot be had or does not have the locked hash; the files
        that came before stay.
        """
        wanted = self.missing(files)
        if not wanted:
            return 0
        total = sum(file.size for file in wanted)
        with progress.task(label, total) as advance, threads(_JOBS) as pool:
            # Large files first: a small one that comes last does not keep the others waiting.
            order = sorted(wanted, key=lambda file: -file.size)
            pending = [pool.submit(self._fetch_one, file, http, advance) for file in order]
            return sum(task.result() for task in as_completed(pending))

    def _path(self, file: LockedFile) -> Path:
        # It becomes a path: whoever made the lock, nothing else may get this far.
        if not _SHA256.fullmatch(file.sha256):
            raise UsageError(f"{file.filename}: {file.sha256!r} is no sha256 in small hex digits")
        return self._root / file.sha256[:2] / file.sha256

    def _fetch_one(self, file: LockedFile, http: Http, advance: Advance) -> int:
        path = self._path(file)
        part = path.with_name(path.name + ".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part) as handle:
            if self.find(file) is not None:  # another run brought it while we waited
                part.unlink(missing_ok=True)
                advance(file.size)
                return 0
            download = _Download(file, http, handle, advance)
            try:
                download.run()
            except _WrongFileError:
                part.unlink()
                raise
            handle.flush()
            os.fsync(handle.fileno())
            part.rename(path)
            path.chmod(0o444)  # not before: a part that is left must stay writable
        return download.received


class _WrongFileError(ExternalError):
    """The server has another file than the locked one; what came of it is of no use."""

    def __init__(self, file: LockedFile, found: str) -> None:
        super().__init__(
            f"{redact(file.url)}: what the server sends {found}",
            hint="the file was replaced there; `spark-build lock RECIPE --upgrade` locks what is "
            "there now",
        )


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """The open part, locked; opened anew where its last owner renamed it away meanwhile."""
    while True:
        with part.open("a+b") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            try:
                same = os.path.samestat(os.fstat(handle.fileno()), part.stat())
            except FileNotFoundError:
                same = False
            if same:
                yield handle
                return
            # It was renamed under us: what we opened is the whole file, or gone.


class _Download:
    """One file on its way into `handle`: its hash so far, and the bytes received for it."""

    def __init__(self, file: LockedFile, http: Http, handle: BinaryIO, advance: Advance) -> None:
        self._file, self._http, self._handle, self._advance = file, http, handle, advance
        self._hasher = hashlib.sha256()
        self.received = 0

    def run(self) -> None:
        """Fill the part up to the locked size, check its hash; one fresh start if that is wrong."""
        for fresh in (False, True):
            if fresh:
                self._advance(-self._handle.tell())
                self._handle.truncate(0)
            self._resume()
            self._append()
            if self._hasher.hexdigest() == self._file.sha256:
                return
        found = self._hasher.hexdigest()
        raise _WrongFileError(self._file, f"has sha256 {found}, the lock says {self._file.sha256}")

    def _resume(self) -> None:
        """Hash what is there already; the position is left at its end."""
        if os.fstat(self._handle.fileno()).st_size > self._file.size:
            self._handle.truncate(0)
        self._hasher = hashlib.sha256()
        self._handle.seek(0)
        while block := self._handle.read(_READ_BYTES):
            self._hasher.update(block)
        self._advance(self._handle.tell())

    def _append(self) -> None:
        broken_off = 0
        while (start := self._handle.tell()) < self._file.size:
            try:
                self._append_once()
            except _WrongFileError:
                raise
            except ExternalError:
                # A connection that brings much each time is slow, not hopeless.
                far = self._handle.tell() - start >= _PROGRESS_BYTES
                broken_off = 0 if far else broken_off + 1
                if broken_off >= _BROKEN_OFF_TIMES:
                    raise

    def _append_once(self) -> None:
        """One request, from where the part ends; without ranges what is here already is skipped."""
        file, start = self._file, self._handle.tell()
        with self._http.stream(file.url, start) as (first, chunks):
            skip = start - first
            if skip < 0:
                raise ExternalError(f"{redact(file.url)}: sent from byte {first}, not from {start}")
            for chunk in chunks:
                self.received += len(chunk)
                self._write(chunk[skip:])
                skip = max(0, skip - len(chunk))
        end = self._handle.tell()
        if end < file.size:
            raise ExternalError(f"{redact(file.url)}: ended after {end} of {file.size} bytes")

    def _write(self, data: bytes) -> None:
        self._handle.write(data)
        self._hasher.update(data)
        self._advance(len(data))
        if self._handle.tell() > self._file.size:
            raise _WrongFileError(self._file, f"is larger than the {self._file.size} bytes locked")

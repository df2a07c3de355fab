"""Files by hash: fetched once, whole or not at all, resumed where a run was cut off.

A file lies at `files/<first two hex digits>/<sha256>` under the cache and is read-only. While it
is fetched it has the suffix `.part`; the part is locked, so two runs never write it together.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from builder.errors import ExternalError
from builder.http import Http, redact
from builder.lock.model import LockedFile
from builder.pool import threads
from builder.progress import Advance, Progress

_JOBS = 4
_BROKEN_OFF_TIMES = 3
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
            try:
                received = _download(file, http, handle, advance)
            except _WrongFileError:
                part.unlink()
                raise
            handle.flush()
            os.fsync(handle.fileno())
            part.rename(path)
            path.chmod(0o444)  # not before: a part that is left must stay writable
        return received


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


def _download(file: LockedFile, http: Http, handle: BinaryIO, advance: Advance) -> int:
    """Fill `handle` up to the locked size and check the hash; one fresh start if it is wrong."""
    received = 0
    for fresh in (False, True):
        if fresh:
            handle.truncate(0)
        hasher = _resume(handle, file.size)
        advance(handle.tell())
        received += _append(file, http, handle, hasher, advance)
        if hasher.hexdigest() == file.sha256:
            return received
        advance(-handle.tell())
    raise _WrongFileError(file, f"has sha256 {hasher.hexdigest()}, the lock says {file.sha256}")


def _resume(handle: BinaryIO, size: int) -> hashlib._Hash:
    """A hash over what is there already; the position is left at its end."""
    if os.fstat(handle.fileno()).st_size > size:
        handle.truncate(0)
    hasher = hashlib.sha256()
    handle.seek(0)
    while block := handle.read(_READ_BYTES):
        hasher.update(block)
    return hasher


def _append(
    file: LockedFile, http: Http, handle: BinaryIO, hasher: hashlib._Hash, advance: Advance
) -> int:
    received = 0
    broken_off = 0
    while handle.tell() < file.size:
        try:
            received += _append_once(file, http, handle, hasher, advance)
        except _WrongFileError:
            raise
        except ExternalError:
            broken_off += 1
            if broken_off >= _BROKEN_OFF_TIMES:
                raise
    return received


def _append_once(
    file: LockedFile, http: Http, handle: BinaryIO, hasher: hashlib._Hash, advance: Advance
) -> int:
    """One request, from where the part ends; a server without ranges is read past that point."""
    start = handle.tell()
    received = 0
    with http.stream(file.url, start) as (first, chunks):
        skip = start - first
        if skip < 0:
            raise ExternalError(f"{redact(file.url)}: sent from byte {first}, not from {start}")
        for chunk in chunks:
            received += len(chunk)
            data = chunk[skip:] if skip else chunk
            skip = max(0, skip - len(chunk))
            handle.write(data)
            hasher.update(data)
            advance(len(data))
            if handle.tell() > file.size:
                raise _WrongFileError(file, f"is larger than the {file.size} bytes locked")
    if handle.tell() < file.size:
        raise ExternalError(f"{redact(file.url)}: ended after {handle.tell()} of {file.size} bytes")
    return received

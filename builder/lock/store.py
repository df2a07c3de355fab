"""Files by hash: fetched once, whole or not at all, resumed where a run was cut off.

A file lies at `files/<first two hex digits>/<sha256>` under the cache and is read-only. While it
is fetched it has the suffix `.part`; the part is locked, so two runs never write it together.

A vendor folder (see `vendor`) holds files in the same places. What is in one is used where it
lies, once its hash was seen to be right; where that is wrong, the run stops.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from builder.errors import ExternalError, UsageError
from builder.http import redact
from builder.lock.model import SHA256, LockedFile
from builder.oci.blobs import BlobCache
from builder.oci.image import digest_hex, digest_of_file
from builder.pool import threads
from builder.progress import Advance, Progress
from builder.scratch import publish, scratch_folder

_JOBS = 4
_BROKEN_OFF_TIMES = 3
_PROGRESS_BYTES = 8 << 20
_READ_BYTES = 1 << 20


class Streams(Protocol):
    """Where files come from: `Http`, a registry, or what stands before them."""

    def stream(
        self, url: str, start: int = 0
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """See `Http.stream`: where the body begins, and its chunks."""


class Store:
    """The folder of fetched files under `cache`, and the vendor folders that stand beside it."""

    def __init__(self, cache: Path, vendored: Sequence[Path] = ()) -> None:
        self._cache = cache
        self._vendored = tuple(vendored)
        self._blobs = BlobCache(cache)

    def find(self, file: LockedFile) -> Path | None:
        """Where the file lies if it is here, whole: its hash was checked on arrival.

        Raises ExternalError where a vendor folder holds another file in its place.
        """
        path = _place(self._cache, file.sha256)
        try:
            if path.stat().st_size == file.size:
                return path
        except FileNotFoundError:
            pass
        return self._find_vendored(file)

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
        once = {file.sha256: file for file in files}.values()
        with threads(_JOBS) as pool:  # a vendored file may have to be hashed
            return tuple(
                file
                for file, path in zip(once, pool.map(self.find, once), strict=True)
                if path is None
            )

    def put(self, data: bytes) -> str:
        """Keep a small file that came another way; returns its sha256 in hex digits."""
        sha256 = hashlib.sha256(data).hexdigest()
        if self.read(sha256) is None:
            with scratch_folder(self._cache) as folder:
                source = folder / "file"
                source.write_bytes(data)
                self.take(source)
        return sha256

    def take(self, source: Path) -> LockedFile:
        """Take in a file, out of a scratch folder of the cache, that was made here."""
        size = source.stat().st_size
        sha256 = digest_hex(digest_of_file(source))
        source.chmod(0o444)
        publish(source, _place(self._cache, sha256), self._cache)
        return LockedFile(url="", sha256=sha256, size=size)

    def read(self, sha256: str) -> bytes | None:
        """What a small file holds, None where it is not here; ExternalError as for `find`."""
        for folder in (self._cache, *self._vendored):
            path = _place(folder, sha256)
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            if hashlib.sha256(data).hexdigest() == sha256:
                return data
            if folder != self._cache:
                raise damaged(path)
        return None

    def fetch(
        self, files: Sequence[LockedFile], source: Streams, progress: Progress, label: str
    ) -> int:
        """Bring every file here that no vendor folder has; returns how many bytes came.

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
            pending = [pool.submit(self._fetch_one, file, source, advance) for file in order]
            return sum(task.result() for task in as_completed(pending))

    def _find_vendored(self, file: LockedFile) -> Path | None:
        for folder in self._vendored:
            path = _place(folder, file.sha256)
            if os.path.lexists(path):
                if not self._blobs.holds(path, f"sha256:{file.sha256}", file.size):
                    raise damaged(path, file)
                return path
        return None

    def _fetch_one(self, file: LockedFile, source: Streams, advance: Advance) -> int:
        path = _place(self._cache, file.sha256)
        part = path.with_name(path.name + ".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part) as handle:
            if self.find(file) is not None:  # another run brought it while we waited
                part.unlink(missing_ok=True)
                advance(file.size)
                return 0
            download = _Download(file, source, handle, advance)
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


def _place(folder: Path, sha256: str) -> Path:
    if not SHA256.fullmatch(sha256):
        raise UsageError(f"{sha256!r} is no sha256 in small hex digits")
    return folder / "files" / sha256[:2] / sha256


def damaged(path: Path, file: LockedFile | None = None) -> ExternalError:
    """What to tell of a vendored file that does not have its hash any more."""
    name = f" ({file.filename})" if file is not None else ""
    return ExternalError(
        f"{path}{name}: not the file that it was when it was vendored: its size or sha256 differs",
        hint="delete it and vendor again, or take the folder from where it came",
    )


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

    def __init__(
        self, file: LockedFile, source: Streams, handle: BinaryIO, advance: Advance
    ) -> None:
        self._file, self._source, self._handle, self._advance = file, source, handle, advance
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
        with self._source.stream(file.url, start) as (first, chunks):
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

"""Folders for what is not finished: nothing in them is ever taken for a result.

They lie under the cache. One whose owner was killed is removed by the next run: the owner holds a
lock on a file in it for as long as it lives, and the kernel lets go of that lock whatever happens.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder.errors import UsageError

_LOCK = ".lock"


@contextmanager
def scratch_folder(cache: Path) -> Iterator[Path]:
    """An empty folder of our own on the cache's file system; gone afterwards, however we end."""
    root = cache / "scratch"
    root.mkdir(parents=True, exist_ok=True)
    # One at a time: between being made and being locked, a folder looks like an abandoned one.
    with _locked(root.with_name("scratch.lock")):
        _sweep(root)
        folder = Path(tempfile.mkdtemp(dir=root))
        lock = (folder / _LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    with lock:
        try:
            inner = folder / "work"
            inner.mkdir()
            yield inner
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_whole(path: Path, data: bytes, cache: Path) -> None:
    """Write a file so that it is either the old one or the new one, never part of one.

    A symbolic link stays, and what it leads to is replaced, which keeps its permissions. A device
    or a pipe is written into.
    Raises UsageError where a folder is there.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path))
    with scratch_folder(cache) as folder:
        source = folder / "file"
        with source.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.is_file():
            source.chmod(stat.S_IMODE(path.stat().st_mode))
        publish(source, path, cache)


def publish(source: Path, destination: Path, cache: Path, *, mark: str | None = None) -> None:
    """Move a finished file or folder out of a scratch folder of `cache` to where it is looked for.

    It appears there whole; what was there before moves into the scratch folder. On another file
    system than the cache's, it is copied beside its destination first, under a hidden name.

    A folder is replaced only by a folder, and only where it is empty or holds a file of the name
    `mark`, by which it is known for one of the same kind; UsageError otherwise.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    if source.stat().st_dev == destination.parent.stat().st_dev:
        _move(source, destination, cache, mark)
    else:
        _carry_over(source, destination, cache, mark)


def _move(source: Path, destination: Path, cache: Path, mark: str | None) -> None:
    # One at a time: what another run puts there between our steps could not be replaced.
    with _locked(cache / "publish.lock"):
        _refuse_foreign(source, destination, mark)
        if source.is_dir() and os.path.lexists(destination):
            destination.rename(source.with_name(f".old-{source.name}"))
        source.replace(destination)


def _refuse_foreign(source: Path, destination: Path, mark: str | None) -> None:
    if not destination.is_dir():
        return
    if not source.is_dir():
        raise UsageError(
            f"{destination}: is a folder, and a file is to be written there",
            hint="name a file",
        )
    if any(destination.iterdir()) and not (mark and (destination / mark).is_file()):
        raise UsageError(
            f"{destination}: holds something else than what is to be written there",
            hint="move that folder away, or name another one",
        )


def _carry_over(source: Path, destination: Path, cache: Path, mark: str | None) -> None:
    parent, prefix = destination.parent, f".{destination.name}-"
    with tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as folder:
        beside = Path(folder) / source.name
        if source.is_dir():
            shutil.copytree(source, beside)
        else:
            shutil.copy2(source, beside)
        _move(beside, destination, cache, mark)


def _sweep(root: Path) -> None:
    """Remove the folders whose owner is no longer there."""
    for folder in root.iterdir():
        try:
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # alive, being made, or already gone
            continue

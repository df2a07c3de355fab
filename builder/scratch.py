"""Folders for what is not finished: nothing in them is ever taken for a result.

They lie under the cache. One whose owner was killed is removed by the next run: the owner holds a
lock on a file in it for as long as it lives, and the kernel lets go of that lock whatever happens.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = ".lock"


@contextmanager
def scratch_folder(cache: Path) -> Iterator[Path]:
    """An empty folder of our own on the cache's file system; gone afterwards, however we end."""
    root = cache / "scratch"
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    folder = Path(tempfile.mkdtemp(dir=root))
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            inner = folder / "work"
            inner.mkdir()
            yield inner
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_whole(path: Path, data: bytes, cache: Path) -> None:
    """Write a file so that it is either the old one or the new one, never part of one."""
    with scratch_folder(cache) as folder:
        source = folder / path.name
        with source.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        publish(source, path)


def publish(source: Path, destination: Path) -> None:
    """Move a finished file or folder out of a scratch folder to where it is looked for.

    It appears there whole; what was there before moves into the scratch folder. On another file
    system than the cache's, it is copied beside its destination first, under a hidden name.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    if source.stat().st_dev != destination.parent.stat().st_dev:
        source = _carry_over(source, destination)
    if destination.is_dir():
        destination.rename(source.with_name(f".old-{source.name}"))
    source.replace(destination)
    shutil.rmtree(source.with_name(f".old-{source.name}"), ignore_errors=True)


def _carry_over(source: Path, destination: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}-"))
    beside = folder.with_name(f"{folder.name}-whole")
    if source.is_dir():
        folder.rmdir()
        shutil.copytree(source, beside)
    else:
        shutil.copy2(source, folder / source.name)
        (folder / source.name).replace(beside)
        folder.rmdir()
    return beside


def _sweep(root: Path) -> None:
    """Remove the folders whose owner is no longer there."""
    for folder in root.iterdir():
        try:
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # alive, being made, or already gone
            continue

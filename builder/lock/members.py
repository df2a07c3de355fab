"""Single small files inside of locked wheels, read in place and kept.

A wheel that is in the store is read there; of any other one only its directory and the file itself
come over the network. Nobody checked the hash of what was read in part, so what is kept belongs to
the wheel's URL as well as to its hash.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from re import Pattern
from zipfile import ZipInfo

from builder.http import Http
from builder.lock.model import LockedWheel
from builder.lock.store import Store
from builder.remote import Source, WheelError, open_local, open_remote, read_directory, read_whole
from builder.scratch import write_whole

_MAX_BYTES = 4 << 20


def read_member(
    wheel: LockedWheel, name: Pattern[str], *, http: Http, store: Store, cache: Path
) -> bytes:
    """The first file of the wheel whose whole path `name` matches.

    Raises WheelError where there is none, where it is larger than 4 MiB, or where the wheel is no
    readable ZIP; ExternalError where it cannot be had.
    """
    key = hashlib.sha256(f"{wheel.sha256}\n{wheel.url}\n{name.pattern}".encode()).hexdigest()
    place = cache / "facts" / "members" / key
    try:
        return place.read_bytes()
    except FileNotFoundError:
        data = _read_wheel(wheel, name, http, store)
    write_whole(place, data, cache)
    return data


def _read_wheel(wheel: LockedWheel, name: Pattern[str], http: Http, store: Store) -> bytes:
    path = store.find(wheel)
    if path is None:
        return _read(open_remote(wheel.filename, http, wheel.url), name)
    with open_local(path, wheel.filename) as source:
        return _read(source, name)


def _read(source: Source, name: Pattern[str]) -> bytes:
    entry = _find(source, name)
    if entry.file_size > _MAX_BYTES:
        raise WheelError(f"{source.label}: {entry.filename} has {entry.file_size} bytes")
    return read_whole(source, entry)


def _find(source: Source, name: Pattern[str]) -> ZipInfo:
    for entry in read_directory(source):
        if name.fullmatch(entry.filename):
            return entry
    raise WheelError(f"{source.label}: holds no file {name.pattern}")

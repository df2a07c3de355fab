"""Blobs by digest, and which files are known to hold them.

A blob lies at `blobs/sha256/<hex>` under the cache. Hashing all of a large image takes seconds, so
a file whose hash was right leaves a stamp in `stamps/<hex>.json`, and is hashed again only where
its size, time of modification or inode is no longer the one that was seen then. Another hard link
changes none of these.
"""

from __future__ import annotations

import fcntl
import shutil
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from builder.oci.image import (
    LayerBlob,
    canonical_json,
    digest_hex,
    digest_of_file,
    verify_blob,
)
from builder.scratch import publish, scratch_folder, write_whole

_FICLONE = 0x40049409  # ioctl_ficlone(2)
_CHUNK_BYTES = 1 << 20
_STAMPS_MAX = 16

_Stamp = tuple[int, int, int]
"""A file's size in bytes, time of modification in ns, and inode."""

_STAMPS = TypeAdapter(list[_Stamp])


class BlobCache:
    """The blobs under `cache`; no file of theirs is shared with anything that a user keeps."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def place(self, digest: str) -> Path:
        """Where the blob lies if it is here; UsageError where `digest` is none."""
        return self._cache / "blobs" / "sha256" / digest_hex(digest)

    def is_sound(self, layer: LayerBlob) -> bool:
        """Whether the layer's file, in the cache or elsewhere, is there and has its digest."""
        return self.holds(layer.path, layer.digest, layer.size)

    def holds(self, path: Path, digest: str, size: int) -> bool:
        """Whether the file at `path` is there, has `size` bytes and this digest."""
        try:
            stamp = _stamp(path)
            if stamp[0] != size:
                return False
            if stamp in self._stamps(digest):
                return True
            if digest_of_file(path) != digest:
                return False
        except OSError:
            return False
        self._vouch(digest, stamp)
        return True

    def keep(self, temporary: Path, digest: str) -> Path:
        """Take in a file, out of a scratch folder, that was hashed as it was written."""
        temporary.chmod(0o444)
        stamp = _stamp(temporary)
        publish(temporary, self.place(digest), self._cache)
        self._vouch(digest, stamp)
        return self.place(digest)

    def adopt(self, layer: LayerBlob) -> LayerBlob:
        """A base's layer, copied here and checked where that was not done before.

        Raises UsageError where it does not have its digest.
        """
        kept = replace(layer, path=self.place(layer.digest))
        if not self.is_sound(kept):
            with scratch_folder(self._cache) as folder:
                copy = folder / "layer"
                _copy(layer.path, copy)
                verify_blob(layer, copy)
                self.keep(copy, layer.digest)
        return kept

    def _stamps(self, digest: str) -> list[_Stamp]:
        try:
            return _STAMPS.validate_json(self._record(digest).read_bytes())
        except (OSError, ValidationError):
            return []

    def _vouch(self, digest: str, stamp: _Stamp) -> None:
        stamps = [stamp, *(other for other in self._stamps(digest) if other != stamp)]
        write_whole(self._record(digest), canonical_json(stamps[:_STAMPS_MAX]), self._cache)

    def _record(self, digest: str) -> Path:
        return self._cache / "stamps" / f"{digest_hex(digest)}.json"


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def _copy(source: Path, destination: Path) -> None:
    """A file of its own with the same bytes, which share their blocks where the host can do that.

    Never a hard link: whoever changes the one must not change the other.
    """
    with source.open("rb") as read, destination.open("wb") as write:
        try:
            fcntl.ioctl(write, _FICLONE, read.fileno())
        except OSError:
            shutil.copyfileobj(read, write, _CHUNK_BYTES)

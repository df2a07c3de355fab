"""Layers by key: made once, shared by every image that has the same one.

The key says everything that the layer's bytes depend on, so a layer that is here is never made
again. What is known of one lies in `layers/<key>.json` under the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from builder.errors import UsageError
from builder.oci.blobs import BlobCache
from builder.oci.image import LAYER_GZIP, LayerBlob, canonical_json
from builder.oci.layer import LAYOUT_VERSION, LayerDigest, LayerWriter
from builder.progress import Advance
from builder.scratch import scratch_folder, write_whole

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeLayer:
    """A layer in the cache, what each of its paths is, and whether it is new.

    `files` has a file's sha256 in hex, or what a link leads to: equal where the entries are.
    """

    blob: LayerBlob
    files: Mapping[str, str]
    written: bool


class LayerCache:
    """The layers under `cache`, whose blobs are in `blobs`."""

    def __init__(self, cache: Path, blobs: BlobCache) -> None:
        self._cache = cache
        self._blobs = blobs

    def layer(
        self,
        key: Mapping[str, Any],
        write: Callable[[LayerWriter], Mapping[str, str]],
        written: Advance = lambda size_bytes: None,
    ) -> MadeLayer:
        """The layer for `key`; `write` makes it where it is not here, and returns its files.

        `written` is told of the bytes of a layer that is made.
        """
        name = hashlib.sha256(canonical_json({"layout": LAYOUT_VERSION, **key})).hexdigest()
        record = self._cache / "layers" / f"{name}.json"
        return self._find(record) or self._make(record, write, written)

    def _find(self, record: Path) -> MadeLayer | None:
        try:
            known = _KNOWN.validate_json(record.read_bytes())
            blob = self._blob(known.digest)
        except (OSError, ValidationError, UsageError):
            return None
        layer = MadeLayer(blob=blob, files=known.files, written=False)
        return layer if self._blobs.is_sound(blob) else None

    def _make(
        self,
        record: Path,
        write: Callable[[LayerWriter], Mapping[str, str]],
        written: Advance,
    ) -> MadeLayer:
        with scratch_folder(self._cache) as folder:
            temporary = folder / "layer"
            with temporary.open("wb", buffering=_BUFFER_BYTES) as file:
                writer = LayerWriter(file, written)
                files = write(writer)
                digest = writer.close()
            self._blobs.keep(temporary, digest.digest)
        known = {"digest": asdict(digest), "files": dict(files)}
        write_whole(record, canonical_json(known), self._cache)
        return MadeLayer(blob=self._blob(digest), files=files, written=True)

    def _blob(self, digest: LayerDigest) -> LayerBlob:
        return LayerBlob(
            digest=digest.digest,
            diff_id=digest.diff_id,
            size=digest.size,
            media_type=LAYER_GZIP,
            path=self._blobs.place(digest.digest),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    digest: LayerDigest
    files: dict[str, str]


_KNOWN = TypeAdapter(_Known)

"""Layers by key: made once, shared by every image that has the same one.

The key says everything that the layer's bytes depend on, so a layer that is here is never made
again. Blobs lie in `blobs/sha256/` under the cache, what is known of each in `layers/<key>.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from builder.oci.image import (
    LAYER_GZIP,
    LayerBlob,
    canonical_json,
    link_or_copy,
    verify_blob,
)
from builder.oci.layer import LAYOUT_VERSION, LayerDigest, LayerWriter
from builder.progress import Advance
from builder.scratch import publish, scratch_folder, write_whole

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeLayer:
    """A layer in the cache, the sha256 (hex) of each file in it, and whether it is new."""

    blob: LayerBlob
    files: Mapping[str, str]
    written: bool


class LayerCache:
    """The layers under `cache`."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

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

    def adopt(self, layer: LayerBlob) -> LayerBlob:
        """A base's layer; the first time it is seen it is checked by its digest, and kept."""
        kept = self._place(layer.digest)
        if not _is_whole(kept, layer.size):
            verify_blob(layer)
            with scratch_folder(self._cache) as folder:
                link_or_copy(layer.path, folder / "layer")
                publish(folder / "layer", kept)
        return replace(layer, path=kept)

    def _find(self, record: Path) -> MadeLayer | None:
        try:
            known = json.loads(record.read_bytes())
            blob = self._blob(LayerDigest(**known["digest"]))
            layer = MadeLayer(blob=blob, files=known["files"], written=False)
            return layer if _is_whole(blob.path, blob.size) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

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
            blob = self._blob(digest)
            temporary.chmod(0o444)
            publish(temporary, blob.path)
        known = {"digest": asdict(digest), "files": dict(files)}
        write_whole(record, canonical_json(known), self._cache)
        return MadeLayer(blob=blob, files=files, written=True)

    def _blob(self, digest: LayerDigest) -> LayerBlob:
        return LayerBlob(
            digest=digest.digest,
            diff_id=digest.diff_id,
            size=digest.size,
            media_type=LAYER_GZIP,
            path=self._place(digest.digest),
        )

    def _place(self, digest: str) -> Path:
        return self._cache / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _is_whole(path: Path, size: int) -> bool:
    """Whether the blob is here; it was checked when it came, and appeared whole."""
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False

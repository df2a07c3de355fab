"""Facts of layers, each layer read once: they belong to its digest, and are kept under it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from builder.oci.image import LayerBlob, digest_hex
from builder.pool import threads
from builder.progress import Progress
from builder.scratch import write_whole

_LAYERS_AT_ONCE = 2
_Facts = TypeVar("_Facts")


def read_each(
    layers: Sequence[LayerBlob],
    read: Callable[[LayerBlob], _Facts],
    adapter: TypeAdapter[_Facts],
    *,
    kind: str,
    label: str,
    cache: Path,
    progress: Progress,
) -> tuple[_Facts, ...]:
    """What `read` makes of each layer, from `cache` where it was read before; two at a time.

    `kind` is the first part of the names of the files, with the facts' format in it: a new one is
    not taken for an old one. `label` is what the progress is called.
    """
    places = {
        layer.digest: cache / "facts" / f"{kind}-{digest_hex(layer.digest)}.json"
        for layer in layers
    }
    found = {digest: _load(place, adapter) for digest, place in places.items()}
    wanted = {layer.digest: layer for layer in layers if found[layer.digest] is None}
    total = sum(layer.size for layer in wanted.values())
    with progress.task(label, total) as advance, threads(_LAYERS_AT_ONCE) as pool:
        tasks = {digest: pool.submit(read, layer) for digest, layer in wanted.items()}
        for digest, task in tasks.items():
            found[digest] = task.result()
            data = adapter.dump_json(task.result(), exclude_defaults=True)
            write_whole(places[digest], data, cache)
            advance(wanted[digest].size)
    return tuple(facts for layer in layers if (facts := found[layer.digest]) is not None)


def _load(place: Path, adapter: TypeAdapter[_Facts]) -> _Facts | None:
    try:
        return adapter.validate_json(place.read_bytes())
    except (OSError, ValidationError):
        return None

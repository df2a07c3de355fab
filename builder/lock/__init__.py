"""Recipe and target in, lock out: what goes into the image, every file by hash.

A lock that still answers the recipe is taken as it is, and nothing is resolved.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import StaleLockError
from builder.lock.closure import resolve_lock
from builder.lock.model import Lock, OciBase, lock_filename, plain
from builder.lock.pylock import read_lock, write_lock
from builder.lock.supply import Supply
from builder.lock.wheels import KEEP, Upgrade
from builder.oci.image import read_layout
from builder.recipe import LoadedRecipe
from builder.recipe import inputs as recipe_inputs
from builder.scratch import write_whole
from builder.targets import Target

__all__ = ["KEEP", "Locked", "Upgrade", "drift", "lock_recipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A lock, the file it is in, and whether that file is new."""

    lock: Lock
    path: Path
    written: bool


def lock_recipe(
    loaded: LoadedRecipe,
    target: Target,
    supply: Supply,
    *,
    upgrade: Upgrade = KEEP,
    frozen: bool = False,
) -> Locked:
    """The lock of the recipe for `target`, resolved where there is none that answers it.

    With `frozen` a missing or stale lock raises StaleLockError, which says what changed.
    """
    path = loaded.path.with_name(lock_filename(loaded.recipe.name, target.name))
    inputs = plain(recipe_inputs(loaded.recipe, target))
    earlier = read_lock(path) if path.exists() else None
    changes = ["there is no lock yet"]
    if earlier is not None:
        changes = [*drift(earlier.filename, path.name, "lock"), *_changes(loaded, earlier, inputs)]
    if earlier is not None and not changes and not upgrade:
        return Locked(lock=earlier, path=path, written=False)
    if frozen:
        raise StaleLockError(
            f"{path}: does not answer the recipe",
            changes,
            hint=f"run `spark-build lock {shlex.quote(str(loaded.path))}` and commit the lock",
        )
    lock = resolve_lock(loaded, target, supply, inputs=inputs, earlier=earlier, upgrade=upgrade)
    text = write_lock(lock).encode()
    written = not path.exists() or path.read_bytes() != text
    if written:
        write_whole(path, text, supply.context.cache)
    return Locked(lock=lock, path=path, written=written)


def drift(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """What differs between two plain values, one line each, with dotted paths."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from drift(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
    elif isinstance(old, list) and isinstance(new, list) and old != new:
        lines = [f"{where}: - {item}" for item in old if item not in new]
        lines += [f"{where}: + {item}" for item in new if item not in old]
        yield from lines or [f"{where}: the same in another order or number"]
    elif old != new:
        yield f"{where}: {_shown(old)} → {_shown(new)}"


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


def _changes(loaded: LoadedRecipe, earlier: Lock, inputs: Mapping[str, Any]) -> list[str]:
    """Why `earlier` does not answer the recipe any more; empty where it does."""
    changes = list(drift(earlier.inputs, inputs))
    if not changes and isinstance(earlier.base, OciBase):
        digest = read_layout(loaded.path.parent / earlier.base.path, earlier.platform).digest
        changes += drift(earlier.base.digest, digest, "base.oci")
    return changes

"""Recipe and target in, lock out: what goes into the image, every file by hash.

A lock that still answers the recipe is taken as it is, and nothing is resolved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import __version__
from builder.context import Context
from builder.errors import LockError, StaleLockError
from builder.http import Http
from builder.lock import debs
from builder.lock.inventory import inspect_base
from builder.lock.model import DebianBase, Lock, OciBase, lock_filename, plain
from builder.lock.pylock import read_lock, write_lock
from builder.lock.wheels import KEEP, Request, Upgrade, resolve, uv_version
from builder.oci.image import read_layout
from builder.recipe import Debian, LoadedRecipe, Recipe, Resolve, requirements
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    locked: DebianBase | OciBase
    python: str
    interpreter: str
    glibc: str


def lock_recipe(
    loaded: LoadedRecipe,
    target: Target,
    *,
    context: Context,
    http: Http,
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
            f"{path}: does not answer the recipe:\n" + "\n".join(f"  {line}" for line in changes),
            hint="run `spark-build lock RECIPE` and commit the lock",
        )
    lock = _resolve(
        loaded, target, inputs=inputs, earlier=earlier, upgrade=upgrade, context=context, http=http
    )
    text = write_lock(lock).encode()
    written = not path.exists() or path.read_bytes() != text
    if written:
        write_whole(path, text, context.cache)
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


def _resolve(
    loaded: LoadedRecipe,
    target: Target,
    *,
    inputs: Mapping[str, Any],
    earlier: Lock | None,
    upgrade: Upgrade,
    context: Context,
    http: Http,
) -> Lock:
    recipe = loaded.recipe
    base = _resolve_base(loaded, target, context)
    if recipe.python is not None and recipe.python != base.python:
        raise LockError(
            f"{loaded.path}: python: the recipe says {recipe.python}, its base has {base.python}",
            hint="leave `python` out to take the base's, or take another base",
        )
    request = _request(recipe, target, base)
    wheels = resolve(
        request,
        context=context,
        http=http,
        earlier=() if earlier is None else earlier.wheels,
        upgrade=upgrade,
    )
    return Lock(
        name=recipe.name,
        target=target.name,
        platform=target.platform,
        python=base.python,
        interpreter=base.interpreter,
        glibc=base.glibc,
        base=base.locked,
        wheels=wheels,
        inputs=inputs,
        tools={"spark-build": __version__, "uv": uv_version()},
    )


def _request(recipe: Recipe, target: Target, base: _Base) -> Request:
    index = None if recipe.torch is None else recipe.torch.index
    return Request(
        requirements=requirements(recipe),
        platform=target.platform,
        python=base.python,
        glibc=base.glibc,
        exclude=recipe.exclude,
        indexes=recipe.index_urls,
        pinned={"torch": index} if index else {},
        settings=_settings(recipe.resolve),
    )


def _settings(choice: Resolve) -> dict[str, Any]:
    """The recipe's `resolve` in the names of uv's configuration file."""
    newest = {} if choice.exclude_newer is None else {"exclude-newer": choice.exclude_newer}
    return {
        **newest,
        "prerelease": choice.prerelease,
        "constraint-dependencies": list(choice.constraints),
        "override-dependencies": list(choice.overrides),
    }


def _resolve_base(loaded: LoadedRecipe, target: Target, context: Context) -> _Base:
    base = loaded.recipe.base
    if base.debian is not None:
        return _debian_base(loaded.recipe, base.debian, target, context)
    if base.oci is not None:
        return _oci_base(loaded, base.oci, target)
    raise AssertionError("a recipe on a registry image is refused before it gets here")


def _debian_base(recipe: Recipe, debian: Debian, target: Target, context: Context) -> _Base:
    found = debs.resolve(
        debian.suite,
        [*debian.packages, *recipe.system],
        target.architecture,
        mirror=debian.mirror,
        context=context,
    )
    python = debs.python_version(found)
    if python is None:
        raise LockError(
            f"recipe {recipe.name}: base.debian.packages: no Python is among them",
            hint="add python3",
        )
    return _Base(
        locked=DebianBase(suite=debian.suite, debs=found),
        python=python,
        interpreter=f"/usr/bin/python{python}",
        glibc=debs.glibc_version(found),
    )


def _oci_base(loaded: LoadedRecipe, layout: str, target: Target) -> _Base:
    image = read_layout(loaded.path.parent / layout, target.platform)
    facts = inspect_base(image)
    if facts.python is None or facts.interpreter is None:
        raise LockError(
            f"{loaded.path}: base.oci: the image in {layout} has no python3.N in /usr/bin",
            hint="take a base with Python; spark-build adds none to an image layout",
        )
    return _Base(
        locked=OciBase(path=layout, digest=image.digest),
        python=facts.python,
        interpreter=facts.interpreter,
        glibc=facts.glibc,
    )

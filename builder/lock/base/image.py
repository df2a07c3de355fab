"""The base of an image, from the recipe's words to digests, and what it holds.

A base in a registry is locked by the digest of the manifest for the target's platform. Its blobs
lie in the store like every other locked file, so that whatever was fetched once is there for the
build, and a vendored copy of them is as good as the registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.context import Context
from builder.errors import ExternalError, LockError, UsageError
from builder.lock import debs
from builder.lock.base.inventory import Inventory, take_inventory
from builder.lock.model import Base, DebianBase, LockedFile, OciBase, RegistryBase
from builder.lock.store import Store
from builder.lock.supply import Supply
from builder.oci.image import Image, digest_hex, read_image, read_layout
from builder.oci.reference import parse_reference
from builder.oci.registry import RemoteImage
from builder.recipe import Debian, LoadedRecipe
from builder.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedBase:
    """A locked base with what the resolution asks of it.

    `python` is X.Y, `interpreter` its absolute path, `glibc` 2.N; `inventory` is None for a base
    of .debs, whose Python packages take no part.
    """

    locked: Base
    python: str
    interpreter: str
    glibc: str
    inventory: Inventory | None = None


def resolve_base(loaded: LoadedRecipe, target: Target, supply: Supply) -> ResolvedBase:
    """The base that the recipe names, as it is now.

    Raises LockError where it has no Python or no glibc. A registry image's layers are brought into
    the store to be read, and stay there for the build.
    """
    base, context = loaded.recipe.base, supply.context
    if base.debian is not None:
        return _debian_base(loaded, base.debian, target, context)
    if base.oci is not None:
        image = read_layout(loaded.folder / base.oci, target.platform)
        return _image_base(loaded, image, OciBase(path=base.oci, digest=image.digest), context)
    if base.image is None:
        raise AssertionError("a recipe has exactly one of the three")
    remote = supply.registry.image(parse_reference(base.image), target.platform)
    image = bring_image(remote, supply)
    locked = RegistryBase(
        image=base.image,
        index=remote.index,
        digest=remote.digest,
        size=sum(layer.size for layer in remote.layers),
    )
    return _image_base(loaded, image, locked, context)


def fetch_base(base: RegistryBase, platform: str, supply: Supply) -> int:
    """Bring the locked base's blobs into the store; returns how many bytes came for it.

    Raises ExternalError where the registry does not have that digest any more.
    """
    try:
        stored_image(base, supply.store)
    except ExternalError:
        pinned = parse_reference(base.image).with_digest(base.digest)
        return _bring(supply.registry.image(pinned, platform), supply)
    return 0


def bring_image(remote: RemoteImage, supply: Supply) -> Image:
    """The registry's image, whole, its files in the store."""
    _bring(remote, supply)
    return _read_stored(supply.store, remote.digest, str(remote.reference))


def _bring(remote: RemoteImage, supply: Supply) -> int:
    """Put a registry image's manifest, config and layers into the store; returns bytes fetched."""
    supply.store.put(remote.manifest)
    supply.store.put(remote.config)
    layers = [
        LockedFile(url=layer.url, sha256=digest_hex(layer.digest), size=layer.size)
        for layer in remote.layers
    ]
    return supply.store.fetch(layers, supply.registry, supply.context.progress, "base")


def stored_image(base: RegistryBase, store: Store) -> Image:
    """The locked base out of the store; ExternalError where a blob of it is not there."""
    return _read_stored(store, base.digest, base.image)


def _read_stored(store: Store, digest: str, shown: str) -> Image:
    try:
        manifest = _document(store, digest)
        config = _document(store, json.loads(manifest)["config"]["digest"])
        return read_image(manifest, config, lambda digest, size: _layer(store, digest, size))
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise UsageError(f"{shown}: not a sound image: {error}") from None


def base_files(base: RegistryBase, supply: Supply) -> Iterator[LockedFile]:
    """The locked base's blobs as files, all of them in the store: manifest, config, layers."""
    image = stored_image(base, supply.store)
    config = json.loads(image.manifest_bytes)["config"]["digest"]
    sizes = {base.digest: len(image.manifest_bytes), config: len(image.config_bytes)}
    reference = parse_reference(base.image)
    for digest, size in {**sizes, **{layer.digest: layer.size for layer in image.layers}}.items():
        url = supply.registry.blob_url(reference, digest)
        yield LockedFile(url=url, sha256=digest_hex(digest), size=size)


def _document(store: Store, digest: str) -> bytes:
    data = store.read(digest_hex(digest))
    if data is None:
        raise _absent(digest)
    return data


def _layer(store: Store, digest: str, size: int) -> Path:
    path = store.find(LockedFile(url="", sha256=digest_hex(digest), size=size))
    if path is None:
        raise _absent(digest)
    return path


def _absent(digest: str) -> ExternalError:
    return ExternalError(
        f"{digest}: a blob of the base, not in the cache",
        hint="run the same command again; it is fetched anew",
    )


def _debian_base(
    loaded: LoadedRecipe, debian: Debian, target: Target, context: Context
) -> ResolvedBase:
    at = ("base", "debian")
    try:
        found = debs.resolve(
            debian.suite,
            [*debian.packages, *loaded.recipe.system],
            target.architecture,
            mirror=debian.mirror,
            context=context,
        )
    except LockError as error:
        told = str(loaded.document.problem(at, error.message))
        raise LockError(told, hint=error.hint) from None
    python = debs.python_version(found)
    if python is None:
        raise LockError(
            str(loaded.document.problem((*at, "packages"), "no Python is among them")),
            hint="add python3",
        )
    return ResolvedBase(
        locked=DebianBase(suite=debian.suite, debs=found),
        python=python,
        interpreter=f"/usr/bin/python{python}",
        glibc=debs.glibc_version(found),
    )


def _image_base(
    loaded: LoadedRecipe, image: Image, locked: OciBase | RegistryBase, context: Context
) -> ResolvedBase:
    held = take_inventory(image, context.cache, context.progress)
    if held.python is None or held.interpreter is None:
        field, name = (
            ("oci", locked.path) if isinstance(locked, OciBase) else ("image", locked.image)
        )
        raise LockError(
            f"{loaded.path}: base.{field}: {name} has no python3.N in /usr/bin or /usr/local/bin",
            hint="take a base with Python; spark-build adds none to an image",
        )
    return ResolvedBase(
        locked=locked,
        python=held.python,
        interpreter=held.interpreter,
        glibc=held.glibc,
        inventory=held,
    )

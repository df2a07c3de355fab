"""Everything that a lock names, kept by hash in a folder or a registry of one's own.

So a build no longer needs the places that its files came from. The lock itself stays as it is, and
keeps their URLs: where a file is found does not change what it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from builder.errors import OfflineError, UsageError
from builder.http import redact
from builder.lock.git import Git
from builder.lock.model import Lock, LockedFile, LockedGit, RegistryBase
from builder.lock.shelf import Kept, Shelf, shelf_at
from builder.lock.store import Store
from builder.lock.supply import Supply
from builder.oci.image import digest_hex
from builder.oci.reference import Reference, parse_reference
from builder.progress import format_count, format_size
from builder.scratch import scratch_folder

_OCI = "oci://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """What is vendored at a `place`, a folder or an artifact in a registry."""

    place: Path | Reference
    files: tuple[Kept, ...]

    @property
    def folder(self) -> Path | None:
        """The folder, for a `Store` to look into; None for an artifact."""
        return self.place if isinstance(self.place, Path) else None

    def bundle(self, commit: str) -> LockedFile | None:
        """The git bundle with the commit, as a file that a `Store` finds; None if there is none."""
        bundles = (kept for kept in self.files if kept.kind == "git" and kept.commit == commit)
        return next((kept.file for kept in bundles), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendored:
    """How many files of a lock were kept, and how many of them were new there; sizes in bytes.

    `digest` is that of the artifact, None for a folder.
    """

    files: int
    size: int
    new_files: int
    new_size: int
    digest: str | None = None

    @property
    def summary(self) -> str:
        """One line for people."""
        new = f"{self.new_files} of them new ({format_size(self.new_size)})"
        text = f"{format_count(self.files, 'file')} ({format_size(self.size)}), {new}"
        return text if self.digest is None else f"{text}, {self.digest}"


def parse_place(text: str) -> Path | Reference:
    """A folder, or after `oci://` a name in a registry; UsageError where it is neither.

    What looks like a registry's `HOST:PORT` or a URL is not made into a folder of that name.
    """
    if text.startswith(_OCI):
        return parse_reference(text.removeprefix(_OCI))
    path, hint = Path(text), "name a folder, or oci://REF in a registry"
    if not text:
        raise UsageError("the place to vendor in has an empty name", hint=hint)
    if path.is_file():
        raise UsageError(f"{text}: is a file, not a folder", hint=hint)
    first = text.partition("/")[0]
    if ":" in first and not Path(first).exists():
        shown = redact(text) if "@" in text else text  # it may hold a password
        raise UsageError(
            f"{shown}: neither a folder nor a place in a registry",
            hint=f"{_OCI}{shown} for a registry, or ./{shown} for a folder",
        )
    return path


def vendor(
    lock: Lock, place: Path | Reference, *, supply: Supply, blobs: Sequence[LockedFile] = ()
) -> Vendored:
    """Keep at `place` everything that the lock names, and `blobs`, those of its registry base.

    What is there already, of this lock or of others, stays and is not sent again, so that a run
    that was cut off goes on where it was. Raises UsageError where a folder holds something else,
    ExternalError where a file cannot be had or kept.
    """
    shelf = shelf_at(place, supply)
    shelf.claim()
    locked = list(_locked_files(lock))
    new = list(shelf.missing([*(file for _, file in locked), *blobs]))
    _fetch(new, blobs, supply)
    bundles = _bundles(lock, shelf, supply)
    new += shelf.missing([kept.file for kept in bundles])
    shelf.add(new)
    kept = [*(kept for kept, _ in locked), *(_kept("blob", blob) for blob in blobs), *bundles]
    digest = shelf.finish(kept)
    sizes = {item.sha256: item.size for item in kept}
    return Vendored(
        files=len(sizes),
        size=sum(sizes.values()),
        new_files=len(new),
        new_size=sum(file.size for file in new),
        digest=digest,
    )


def open_vendor(place: Path | Reference, supply: Supply) -> Vendor:
    """What is vendored at `place`; UsageError where nothing is."""
    files = shelf_at(place, supply).index()
    if files is None:
        shown = place if isinstance(place, Path) else f"{_OCI}{place}"
        raise UsageError(
            f"{shown}: nothing is vendored there", hint="`spark-build vendor RECIPE --to PLACE`"
        )
    return Vendor(place=place, files=files)


def bring(lock: Lock, vendored: Vendor, supply: Supply) -> int:
    """Bring what is vendored of the lock to where a build looks; returns how many bytes came.

    What a registry keeps comes into the store, which looks into a folder by itself; commits come
    out of their bundles into the cache of repositories.
    """
    received = 0
    if isinstance(vendored.place, Reference):
        for files in _parts(lock, vendored, vendored.place, supply):
            progress = supply.context.progress
            received += supply.store.fetch(files, supply.registry, progress, "vendored")
    for git in lock.gits:
        file = vendored.bundle(git.commit)
        if file is not None and not _has_commit(git, supply):
            Git(supply.context).read_bundle(supply.store.get(file), git)
    return received


def _has_commit(git: LockedGit, supply: Supply) -> bool:
    try:
        Git(replace(supply.context, offline=True)).fetch(git.url, git.commit)
    except OfflineError:
        return False
    return True


def _parts(
    lock: Lock, vendored: Vendor, reference: Reference, supply: Supply
) -> Iterator[list[LockedFile]]:
    """What a registry has of the lock, as files there."""
    sizes = {kept.sha256: kept.size for kept in vendored.files}
    for hashes in _hashes(lock, vendored, supply.store):
        yield [
            LockedFile(
                url=supply.registry.blob_url(reference, f"sha256:{sha256}"),
                sha256=sha256,
                size=sizes[sha256],
            )
            for sha256 in hashes
            if sha256 in sizes
        ]


def _hashes(lock: Lock, vendored: Vendor, store: Store) -> Iterator[list[str]]:
    """The sha256 of all that the lock names; what an image's manifest names once that is here."""
    bundles = [vendored.bundle(git.commit) for git in lock.gits]
    first = [file.sha256 for _, file in _locked_files(lock)]
    first += [file.sha256 for file in bundles if file is not None]
    if not isinstance(lock.base, RegistryBase):
        yield first
        return
    base = digest_hex(lock.base.digest)
    yield [*first, base]
    manifest = store.read(base)
    if manifest is not None:
        yield _manifest_hashes(manifest, lock.base)


def _manifest_hashes(manifest: bytes, base: RegistryBase) -> list[str]:
    try:
        document = json.loads(manifest)
        parts = [document["config"], *document["layers"]]
        return [digest_hex(part["digest"]) for part in parts]
    except (ValueError, LookupError, TypeError):
        raise UsageError(f"{base.image}: {base.digest} is not an image's manifest") from None


def _locked_files(lock: Lock) -> Iterator[tuple[Kept, LockedFile]]:
    for wheel in lock.wheels:
        yield _kept("wheel", wheel, wheel.name, wheel.version), wheel
    for deb in lock.debs:
        yield _kept("deb", deb, deb.name, deb.version), deb


def _kept(
    kind: Literal["blob", "deb", "wheel"],
    file: LockedFile,
    name: str | None = None,
    version: str | None = None,
) -> Kept:
    return Kept(
        kind=kind,
        filename=file.filename,
        sha256=file.sha256,
        size=file.size,
        name=name,
        version=version,
    )


def _fetch(files: Sequence[LockedFile], blobs: Sequence[LockedFile], supply: Supply) -> None:
    store, progress = supply.store, supply.context.progress
    store.fetch([file for file in files if file not in blobs], supply.http, progress, "fetch")
    store.fetch([file for file in files if file in blobs], supply.registry, progress, "base")


def _bundles(lock: Lock, shelf: Shelf, supply: Supply) -> list[Kept]:
    """A git bundle for each package that is compiled, made anew only where the shelf has none."""
    known = {kept.commit: kept for kept in shelf.index() or () if kept.kind == "git"}
    lost = {file.sha256 for file in shelf.missing([kept.file for kept in known.values()])}
    there = {commit: kept for commit, kept in known.items() if kept.sha256 not in lost}
    return [there.get(git.commit) or _bundled(git, supply) for git in lock.gits]


def _bundled(git: LockedGit, supply: Supply) -> Kept:
    with scratch_folder(supply.context.cache) as folder:
        path = folder / "bundle"
        Git(supply.context).write_bundle(git, path)
        file = supply.store.take(path)
    return Kept(
        kind="git",
        filename=f"{git.name}-{git.commit}.bundle",
        sha256=file.sha256,
        size=file.size,
        name=git.name,
        version=git.version,
        commit=git.commit,
    )

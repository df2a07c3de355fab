"""What the world has changed since a lock was made: tags that moved, files that are gone.

Only what breaks the lock is told, or what would make another one of the same recipe. That a source
which was refused then would work now does neither.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder import process
from builder.errors import ExternalError
from builder.http import RefusedError, redact
from builder.lock.base.image import stored_image
from builder.lock.git import Git, UnknownRefError, shown
from builder.lock.model import (
    Lock,
    LockedDeb,
    LockedGit,
    LockedWheel,
    RegistryBase,
)
from builder.lock.supply import Supply
from builder.lock.wheels import Request, Served, pinned_files
from builder.oci.endpoint import UnknownImageError
from builder.oci.reference import parse_reference
from builder.pool import threads
from builder.process import Runner
from builder.recipe import Recipe

_JOBS = 8
_SHORT = 12
_GONE = frozenset({404, 410})
_NO_HEAD = frozenset({405, 501})
_KEPT = " (the cache still has it)"


def drift_of(
    lock: Lock, *, recipe: Recipe, supply: Supply, run: Runner = process.run
) -> tuple[str, ...]:
    """One line for each thing that is not as it was when `lock` was made, in the lock's order.

    The base comes first, then every package, then distribution packages and repositories. The
    indexes are those that `recipe` names. Raises ExternalError where a host cannot be reached or
    refuses: then nothing is known, which is no drift.
    """
    with threads(_JOBS) as pool:
        wheels = pool.map(lambda wheel: _file_line(wheel, supply), lock.wheels)
        debs = pool.map(lambda deb: _file_line(deb, supply), lock.debs)
        gits = pool.map(lambda git: _git_line(git, Git(supply.context, run)), lock.gits)
        base = tuple(_base_lines(lock, supply))
        listed = _index_drift(lock, recipe, supply, run)
        packages = [
            line
            for wheel, own in zip(lock.wheels, wheels, strict=True)
            for line in (own, *listed.get(wheel.name, ()))
        ]
        return tuple(line for line in (*base, *packages, *debs, *gits) if line is not None)


def _base_lines(lock: Lock, supply: Supply) -> Iterator[str]:
    base = lock.base
    if not isinstance(base, RegistryBase):
        return
    reference = parse_reference(base.image)
    if reference.digest is None:
        try:
            now = supply.registry.resolve(reference)
        except UnknownImageError:
            yield f"base {base.image}: the registry has no such tag any more"
        else:
            if now != base.index:
                yield f"base {base.image}: the tag names {now} now, the lock has {base.index}"
    try:
        supply.registry.resolve(reference.with_digest(base.digest))
    except UnknownImageError:
        kept = _KEPT if _is_stored(base, supply) else ""
        yield f"base {base.image}: the registry does not have {base.digest} any more{kept}"


def _is_stored(base: RegistryBase, supply: Supply) -> bool:
    try:
        stored_image(base, supply.store)
    except ExternalError:
        return False
    return True


def _direct(lock: Lock) -> set[str]:
    """The packages whose wheel has a URL of its own: no index answers for those."""
    return {source.name for source in lock.sources if source.kind == "wheel"}


def _file_line(file: LockedWheel | LockedDeb, supply: Supply) -> str | None:
    """What became of the file, where it is not where it was or not as large."""
    subject, url = f"{file.name} {file.version}", redact(file.url)
    try:
        size = _stated_size(file.url, supply)
    except RefusedError as error:
        if error.status not in _GONE:
            raise
        kept = _KEPT if supply.store.find(file) is not None else ""
        return f"{subject}: {url} is gone: the server answers {error.status}{kept}"
    if size is None or size == file.size:
        return None
    return f"{subject}: {url} has {size} bytes now, the lock has {file.size}"


def _stated_size(url: str, supply: Supply) -> int | None:
    """The size in bytes, None where the server has the file and does not say."""
    try:
        return supply.http.stated_size(url)
    except RefusedError as error:
        if error.status not in _NO_HEAD:
            raise
    with supply.http.stream(url):
        return None


def _git_line(git: LockedGit, client: Git) -> str | None:
    place = f"{git.name}: {shown(git.url)}"
    try:
        now = client.find_commit(git.url, git.ref)
    except UnknownRefError:
        return f"{place} has no tag or branch {git.ref} any more"
    if now != git.commit:
        moved = f"names {now[:_SHORT]} now, the lock has {git.commit[:_SHORT]}"
        return f"{place}: {git.ref} {moved}"
    if now == git.ref.lower() and not client.has_commit(git.url, now):
        return f"{place} does not have the commit {now} any more"
    return None


def _index_drift(
    lock: Lock, recipe: Recipe, supply: Supply, run: Runner
) -> dict[str, tuple[str, ...]]:
    """What the indexes say of the locked versions now, by package."""
    newest = recipe.resolve.exclude_newer
    request = Request(
        requirements=(),
        platform=lock.platform,
        python=lock.python,
        glibc=lock.glibc,
        indexes=recipe.index_urls,
        pinned=_pinned(lock, recipe),
        settings={} if newest is None else {"exclude-newer": newest},
    )
    asked = [wheel for wheel in lock.wheels if wheel.name not in _direct(lock)]
    pins = [(wheel.name, wheel.version) for wheel in asked]
    found = pinned_files(pins, request, context=supply.context, run=run)
    return {
        wheel.name: tuple(_index_lines(wheel, served))
        for wheel, served in zip(asked, found, strict=True)
    }


def _pinned(lock: Lock, recipe: Recipe) -> dict[str, str]:
    """The index that a package comes from, by name, where it is not the default one."""
    own = None if recipe.torch is None else recipe.torch.index
    named = {source.name: source.place for source in lock.sources if source.kind == "index"}
    pinned = {**({"torch": own} if own else {}), **named}
    # A name that the recipe has no more is the recipe's drift, and told as such.
    return {name: index for name, index in pinned.items() if index in recipe.index_urls}


def _index_lines(wheel: LockedWheel, served: Served) -> Iterator[str]:
    """What the index says of the locked version, beside what became of the file itself."""
    subject = f"{wheel.name} {wheel.version}"
    if served.missing is not None:
        yield f"{subject}: the index does not have it for this platform any more"
        return
    if served.yanked is not None:
        yield f"{subject}: yanked: {served.yanked or 'no reason is given'}"
    if any(found.sha256 == wheel.sha256 for found in served.wheels):
        return
    hashes = [found.sha256 for found in served.wheels if found.filename == wheel.filename]
    if not hashes:
        yield f"{subject}: the index does not list {wheel.filename} any more"
    elif None not in hashes:  # an index that states no hash cannot be found out so
        yield f"{subject}: the index has another file as {wheel.filename} now"

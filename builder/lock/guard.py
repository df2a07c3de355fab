"""What of a base no install may replace, and what a resolution is told of all the rest of it.

Which packages belong to torch's ABI set by their name is in `guard.yaml`; what the base compiled
against torch is told by its files.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache

from packaging.markers import Environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict

from builder.document import read_document, validate
from builder.errors import LockError
from builder.lock.base.inventory import Distribution, Inventory
from builder.lock.model import Guard, LockedWheel, Shadow
from builder.lock.platforms import marker_holds, markers
from builder.lock.stubs import Stub
from builder.resources import package_file

_TORCH = "torch"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    provides: str | None = None
    reason: str
    source: str


class _Law(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    members: tuple[_Entry, ...]
    apart: tuple[_Entry, ...]

    def find(self, name: str) -> _Entry | None:
        """The member that the normalised `name` belongs to, if any."""
        if any(fnmatchcase(name, entry.name) for entry in self.apart):
            return None
        return next((entry for entry in self.members if fnmatchcase(name, entry.name)), None)


@cache
def _law() -> _Law:
    return validate(_Law, read_document(package_file("guard.yaml")))


def protected(inventory: Inventory) -> Mapping[str, str]:
    """Torch's ABI set in the base: normalised names, each with its distribution's version.

    Empty where the base has no torch. Raises LockError where it has two, of which Python would
    import the one or the other, or a version that cannot be compared (PEP 440).
    """
    if len(inventory.torches) > 1:
        where = "\n".join(f"  {path}" for path in inventory.torches)
        raise LockError(
            f"the base has more than one torch, of which Python imports the first:\n{where}",
            hint="take another base; nothing can be checked against one of several",
        )
    found = inventory.distributions
    if not any(held.name == _TORCH for held in found):
        return {}
    members = [held for held in found if held.links_torch or _law().find(held.name)]
    for held in members:
        if _version(held.version) is None:
            raise LockError(
                f"the base's {held.name} has the version {held.version!r}, which nothing can be "
                "checked against (PEP 440)",
                hint="take another base",
            )
    return {held.name: held.version for held in members}


def stubs_of(inventory: Inventory, platform: str) -> tuple[Stub, ...]:
    """What a resolution is told of the base: every distribution whose version can be compared.

    The protected ones are pinned. Of the requirements of each only those count that the base
    itself meets: one that it leaves unmet was its maker's choice, and is no reason to replace
    anything. Their own extras are left out for the same reason; what stands under an extra stays,
    for whoever asks for it.
    """
    if inventory.python is None:
        return ()
    pinned = protected(inventory)
    versions = {held.name: _version(held.version) for held in inventory.distributions}
    held = {name: version for name, version in versions.items() if version is not None}
    environment = markers(platform, inventory.python)
    stubs = [
        Stub(
            name=found.name,
            version=str(held[found.name]),
            requires=tuple(_kept(found, held, environment)),
            pinned=found.name in pinned,
        )
        for found in inventory.distributions
        if found.name in held
    ]
    return tuple(sorted([*stubs, *_provided(pinned, held)], key=lambda stub: stub.name))


def base_guard(
    inventory: Inventory, wheels: Sequence[LockedWheel], accepted: Sequence[str]
) -> Guard:
    """The guard of an environment with `wheels` on a base whose torch it uses.

    A constraint of the base's on a package that `wheels` bring, or that the guard holds anyway,
    does not hold any more.
    """
    pinned = protected(inventory)
    moved = {*pinned, *(wheel.name for wheel in wheels)}
    versions = {held.name: held.version for held in inventory.distributions}
    return Guard(
        packages=pinned,
        constraints=tuple(line for line in inventory.constraints if not _about(line, moved)),
        scripts={
            script: target
            for held in inventory.distributions
            if held.name in pinned
            for script, target in held.scripts.items()
        },
        shadows=tuple(
            Shadow(name=wheel.name, base=versions[wheel.name], version=wheel.version)
            for wheel in wheels
            if wheel.name in versions
        ),
        accepted=tuple(accepted),
    )


def wheel_guard(wheels: Sequence[LockedWheel]) -> Guard:
    """The guard of an environment whose torch is a wheel: the ABI set among `wheels`, if any."""
    if not any(wheel.name == _TORCH for wheel in wheels):
        return Guard()
    return Guard(
        packages={wheel.name: wheel.version for wheel in wheels if _law().find(wheel.name)}
    )


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _about(line: str, names: Container[str]) -> bool:
    """Whether a line of a constraints file is about one of `names`, or about no version at all.

    One with a URL says where a package comes from, and pip puts the container's variables into it.
    """
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return True
    return requirement.url is not None or canonicalize_name(requirement.name) in names


def _kept(
    found: Distribution, held: Mapping[str, Version], environment: Environment
) -> Iterator[str]:
    """Those requirements of `found` that hold in the base, and those under an extra."""
    for line in found.requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        applies = marker_holds(requirement.marker, environment)
        if applies and _met(requirement, held):
            yield f"{requirement.name}{requirement.specifier}"
        elif not applies and requirement.url is None and "extra" in str(requirement.marker):
            yield str(requirement)


def _met(requirement: Requirement, held: Mapping[str, Version]) -> bool:
    """As pip and uv judge what is installed: pre-releases count like any other version."""
    version = held.get(canonicalize_name(requirement.name))
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _provided(pinned: Mapping[str, str], held: Mapping[str, Version]) -> Iterator[Stub]:
    """Stubs of names under which an index has the modules of something that is pinned."""
    for name, version in pinned.items():
        entry = _law().find(name)
        if entry is not None and entry.provides is not None and entry.provides not in held:
            yield Stub(name=entry.provides, version=str(Version(version)), pinned=True)

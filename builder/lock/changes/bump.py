"""Moving a recipe's pins to the newest that its policy admits, as a change of its text to review.

What moves is what names one version: `torch.version`, requirements with a single `==`, and the tag
of `base.image`. Ranges say by themselves what they admit, and what has a wheel or a repository
under `sources` is pinned there; both stay. Comments and layout stay as they are.

The base goes first, since what it holds takes part in the resolution:

    base = propose_base(loaded, targets, registry)
    moved = loaded if base is None else with_base(loaded, base)
    pins = propose(moved, [query(moved, target) for target in targets])
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.document import Where
from builder.errors import LockError
from builder.lock.base.facts import find_fact
from builder.lock.base.inventory import image_environment
from builder.lock.changes.edit import Change
from builder.lock.changes.tags import newer_tags
from builder.lock.model import LockedWheel
from builder.lock.wheels import Request
from builder.oci.reference import Reference, parse_reference
from builder.oci.registry import RemoteImage
from builder.recipe import LoadedRecipe, Recipe
from builder.recipe.fields import pinned_version
from builder.targets import Target

_CONSTRAINTS = "constraint-dependencies"
_EXACT = re.compile(r"(?P<head>[^=]*==\s*)(?P<version>[^\s;)]+)(?P<tail>.*)", re.DOTALL)
_BASE: Where = ("base", "image")


class Images(Protocol):
    """What is asked of a registry (`builder.oci.registry.Registry`)."""

    def tags(self, reference: Reference) -> tuple[str, ...]:
        """Every tag of the repository."""

    def image(self, reference: Reference, platform: str) -> RemoteImage:
        """The image for a platform; LockError where there is none of that name or for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What locking a recipe for one target resolves, and what resolves it.

    `resolve` gives one wheel for each package, and raises LockError where nothing satisfies.
    """

    request: Request
    resolve: Callable[[Request], Sequence[LockedWheel]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pin:
    """A text that names one version of one package: `head`, the version, `tail`."""

    at: Where
    name: str
    head: str
    version: str
    tail: str

    @property
    def text(self) -> str:
        return f"{self.head}{self.version}{self.tail}"

    def moved(self, version: str) -> str:
        """The text with another version; with its local part only where it had one."""
        stated = version if Version(self.version).local else Version(version).public
        return f"{self.head}{stated}{self.tail}"

    def states(self, requirement: Requirement) -> bool:
        """Whether `requirement` is what this pin asks for."""
        exact = SpecifierSet(f"=={self.version}")
        return canonicalize_name(requirement.name) == self.name and requirement.specifier == exact


def pinned_names(loaded: LoadedRecipe) -> tuple[str, ...]:
    """The packages whose pins may move, in the order of the recipe."""
    return tuple(dict.fromkeys(pin.name for pin in _pins(loaded)))


def propose(
    loaded: LoadedRecipe,
    queries: Sequence[Query],
    *,
    not_admitted: Mapping[str, Collection[str]] | None = None,
) -> tuple[Change, ...]:
    """The pins of packages to change so that they name the newest, in the order of the recipe.

    There is a query for each target; the versions proposed are one set that resolves for all of
    them. `not_admitted` are versions by package that must not be taken, because an audit refused
    them, say; what the recipe has now may always stay. Raises LockError where nothing resolves.
    """
    refused = {str(canonicalize_name(name)): texts for name, texts in (not_admitted or {}).items()}
    pins = tuple(_pins(loaded))
    if not pins or not queries:
        return ()
    newest = _newest(pins, [_without(query, pins, refused) for query in queries])
    changes = [
        Change(
            at=pin.at,
            line=loaded.document.line(pin.at),
            old=pin.text,
            new=pin.moved(newest[pin.name]),
            reason=_reason(newest[pin.name], refused.get(pin.name, ()), len(queries)),
        )
        for pin in pins
        if pin.name in newest and _public(newest[pin.name]) > _public(pin.version)
    ]
    return tuple(sorted(changes, key=lambda change: change.line))


def propose_base(
    loaded: LoadedRecipe,
    targets: Sequence[Target],
    registry: Images,
    *,
    not_admitted: Collection[str] = (),
) -> Change | None:
    """The change of `base.image` to the newest tag of its kind; None where there is no newer one.

    Such a tag differs in its release, and in the version after `cuda`, only; its image is there
    for every target's platform, and of the targets' CUDA major version as far as the tag or the
    image's CUDA_VERSION tells. Tags in `not_admitted` are not taken. A digest beside the tag
    moves along.
    """
    text = loaded.recipe.base.image
    now = None if text is None else parse_reference(text)
    if text is None or now is None or now.tag is None:
        return None
    major = targets[0].cuda.major
    tags = newer_tags(now.tag, registry.tags(now), now.repository, cuda_major=major)
    admitted = (now.with_tag(tag) for tag in tags if tag not in not_admitted)
    images = (_suitable(reference, targets, registry) for reference in admitted)
    image = next(filter(None, images), None)
    if image is None:
        return None
    name = text.partition("@")[0].removesuffix(now.tag)
    pin = f"@{image.index}" if now.digest else ""
    return Change(
        at=_BASE,
        line=loaded.document.line(_BASE),
        old=text,
        new=f"{name}{image.reference.tag}{pin}",
        reason=_base_reason(loaded, now, image, major),
    )


def with_base(loaded: LoadedRecipe, change: Change) -> LoadedRecipe:
    """The recipe as it is on the base that `propose_base` proposes; its file is not touched."""
    base = loaded.recipe.base.model_copy(update={"image": change.new})
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"base": base}))


def _base_reason(loaded: LoadedRecipe, now: Reference, image: RemoteImage, major: int) -> str:
    reason = f"the newest tag of its kind with CUDA {major}"
    if not loaded.recipe.uses_base_torch:
        return reason
    known = find_fact(str(now))
    before = known.torch.module if known and known.torch else "not known"
    return f"{reason}; its torch is {_torch_of(image)}, that of the present one is {before}"


def _torch_of(image: RemoteImage) -> str:
    fact = find_fact(str(image.reference))
    stated = _environment(image).get("PYTORCH_VERSION")
    return (fact.torch.module if fact and fact.torch else stated) or "not known"


def _environment(image: RemoteImage) -> dict[str, str]:
    try:
        return image_environment(json.loads(image.config))
    except (AttributeError, TypeError, ValueError):  # a stranger's document
        return {}


def _suitable(
    reference: Reference, targets: Sequence[Target], registry: Images
) -> RemoteImage | None:
    """The image, where it is there for every target and none of another CUDA major version."""
    for target in targets:
        try:
            image = registry.image(reference, target.platform)
        except LockError:
            return None
        fact = find_fact(str(reference))
        stated = _environment(image).get("CUDA_VERSION")
        cuda = stated or (fact.cuda if fact else None) or str(target.cuda.major)
        if cuda.partition(".")[0] != str(target.cuda.major):
            return None
    return image


def _pins(loaded: LoadedRecipe) -> Iterator[_Pin]:
    """The pins that may move, as the document has them."""
    pinned = set(_pinned_by_source(loaded.recipe))
    return (pin for pin in _stated(loaded.document.value) if pin.name not in pinned)


def _pinned_by_source(recipe: Recipe) -> Iterator[str]:
    for name, choices in recipe.sources.items():
        if any(source.index is None for source in choices):
            yield canonicalize_name(name)


def _stated(value: Mapping[str, Any]) -> Iterator[_Pin]:
    torch = value.get("torch", {})
    if "version" in torch:
        at = ("torch", "version")
        yield _Pin(at=at, name="torch", head="", version=torch["version"], tail="")
    for index, text in enumerate(value.get("packages", ())):
        match = _EXACT.fullmatch(text) if isinstance(text, str) else None
        if match is not None and (name := _pinned_name(text)) is not None:
            yield _Pin(at=("packages", index), name=name, **match.groupdict())


def _pinned_name(text: str) -> str | None:
    """The package that `text` pins to one version; None for a range, and for what is neither."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    exact = len(requirement.specifier) == 1 and pinned_version(requirement) is not None
    return canonicalize_name(requirement.name) if exact else None


def _without(query: Query, pins: Sequence[_Pin], refused: Mapping[str, Collection[str]]) -> Query:
    """`query` under the constraint that no refused version is taken."""
    stays = {pin.name: Version(pin.version) for pin in pins}
    constraints = [
        f"{name}!={version}"
        for name, versions in sorted(refused.items())
        for version in sorted(versions)
        if Version(version) != stays.get(name)
    ]
    given = query.request.settings.get(_CONSTRAINTS, ())
    settings = {**query.request.settings, _CONSTRAINTS: [*given, *constraints]}
    return replace(query, request=replace(query.request, settings=settings))


def _newest(pins: Sequence[_Pin], queries: Sequence[Query]) -> dict[str, str]:
    """The newest versions of the pinned packages that all queries can agree on.

    Where one platform lags behind, all are asked again for no more than it has.
    """
    limits: dict[str, str] = {}
    while True:
        answers = [_answer(query, pins, limits) for query in queries]
        names = {name for answer in answers for name in answer}
        lowest = {
            name: min((answer[name] for answer in answers if name in answer), key=_public)
            for name in names
        }
        if all(
            _public(version) == _public(lowest[name])
            for answer in answers
            for name, version in answer.items()
        ):
            return lowest
        limits = {name: Version(version).public for name, version in lowest.items()}


def _answer(query: Query, pins: Sequence[_Pin], limits: Mapping[str, str]) -> dict[str, str]:
    """The versions of the pinned packages as `query` resolves them."""
    names = {pin.name for pin in pins}
    wheels = query.resolve(_loosened(query.request, pins, limits))
    return {wheel.name: wheel.version for wheel in wheels if wheel.name in names}


def _public(version: str) -> Version:
    return Version(Version(version).public)


def _loosened(request: Request, pins: Sequence[_Pin], limits: Mapping[str, str]) -> Request:
    """`request` with every pin as the least that is wanted, and `limits` as the most."""
    texts = [_loosened_requirement(text, pins, limits) for text in request.requirements]
    return replace(request, requirements=tuple(texts))


def _loosened_requirement(text: str, pins: Sequence[_Pin], limits: Mapping[str, str]) -> str:
    requirement = Requirement(text)
    pin = next((pin for pin in pins if pin.states(requirement)), None)
    if pin is None:
        return text
    # A local part has a meaning after == and != only (PEP 440).
    most = f",<={limits[pin.name]}" if pin.name in limits else ""
    requirement.specifier = SpecifierSet(f">={Version(pin.version).public}{most}")
    return str(requirement)


def _reason(version: str, refused: Collection[str], targets: int) -> str:
    rest = "the rest of the recipe" + (", for every target" if targets > 1 else "")
    reason = f"the newest that resolves with {rest}"
    newer = sorted((text for text in refused if Version(text) > Version(version)), key=Version)
    return f"{reason}; not admitted: {', '.join(newer)}" if newer else reason

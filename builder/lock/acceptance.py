"""Requirements on what the base holds that the base does not meet, and which of them may stay so.

A requirement such as `torch==2.11.0` on a base with torch 2.10.0a0 fails the resolution, unless the
recipe accepts that very requirement and says why. Then whatever else is wanted of that package is
looked up in the metadata of every locked wheel, so that nothing slips through beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.markers import Environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder import process
from builder.context import Context
from builder.document import nearest
from builder.errors import BuilderError, LockError
from builder.http import Http
from builder.lock.base.metadata import METADATA, parse_requires
from builder.lock.members import read_member
from builder.lock.model import LockedWheel
from builder.lock.platforms import marker_holds, markers
from builder.lock.store import Store
from builder.lock.stubs import Stub
from builder.lock.uv import UnsatisfiableError
from builder.lock.wheels import KEEP, Request, Upgrade, resolve
from builder.pool import threads
from builder.process import Runner
from builder.recipe import Accept

_READ_JOBS = 8
_RECIPE = "the recipe"
_TORCH = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The locked wheels, and a line for each unmet requirement that the recipe accepts."""

    wheels: tuple[LockedWheel, ...]
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A requirement on the package `name` that is not met.

    `has` says what is there in its place, such as `the base has 2.10.0a0`. `by` is the package that
    states it, `version` that package's version; both are None where the recipe states it.
    """

    name: str
    requires: str
    has: str
    by: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        stated = _RECIPE if self.by is None else f"{self.by} {self.version}"
        return f"{stated} requires {self.requires}; {self.has}"


def resolve_on_base(
    request: Request,
    base: Sequence[Stub],
    accept: Sequence[Accept],
    *,
    context: Context,
    http: Http,
    store: Store,
    earlier: Sequence[LockedWheel] = (),
    upgrade: Upgrade = KEEP,
    run: Runner = process.run,
) -> Resolution:
    """`resolve`, where what `base` stands for is there already.

    Requirements on its pinned packages may stay unmet as `accept` says. Raises LockError where one
    is neither met nor accepted, with the lines to write, where an entry of `accept` accepts
    nothing, and for all that `resolve` does.
    """
    resolver = _Resolver(context, http, store, tuple(earlier), upgrade, run)
    request = replace(request, stubs=(*base, *request.stubs), accepted=_named(base, accept))
    try:
        wheels = resolver.resolve(request)
    except LockError as error:
        raise resolver.advised(error, replace(request, accepted=_pinned(base)), accept) from None
    if not accept:
        return Resolution(wheels=wheels)
    return Resolution(
        wheels=wheels, accepted=_accepted(resolver.find_unmet(request, wheels), accept)
    )


def _named(base: Sequence[Stub], accept: Sequence[Accept]) -> tuple[str, ...]:
    """The packages that `accept` is about; LockError for those that nothing holds in place."""
    held = _pinned(base)
    names = sorted({canonicalize_name(Requirement(entry.requires).name) for entry in accept})
    free = [name for name in names if name not in held]
    if free:
        lines = [
            f"accept: {name} does not belong to the base's torch, so a version that fits can be "
            "taken from an index"
            for name in free
        ]
        raise LockError("\n".join(lines), hint=_corrections((name, held) for name in free))
    return tuple(names)


def _pinned(base: Sequence[Stub]) -> tuple[str, ...]:
    return tuple(stub.key[0] for stub in base if stub.pinned)


@dataclass(frozen=True, slots=True)
class _Resolver:
    """What every resolution of one lock shares."""

    context: Context
    http: Http
    store: Store
    earlier: tuple[LockedWheel, ...]
    upgrade: Upgrade
    run: Runner

    def resolve(self, request: Request) -> tuple[LockedWheel, ...]:
        """See `wheels.resolve`."""
        return resolve(
            request,
            context=self.context,
            http=self.http,
            earlier=self.earlier,
            upgrade=self.upgrade,
            run=self.run,
        )

    def advised(self, error: LockError, request: Request, accept: Sequence[Accept]) -> LockError:
        """`error`, with the entries that would let it through where the base is in the way.

        That is told by resolving without any requirement on what is pinned, not by uv's words;
        where there is no solution then either, it says what else is in the way.
        """
        try:
            unmet = self.find_unmet(request, self.resolve(request))
        except UnsatisfiableError as further:
            held = [stub for stub in request.stubs if stub.key[0] in request.accepted]
            return _twofold(error, further, held)
        except BuilderError:
            return error
        rest = [item for item in unmet if _find(item, accept) is None]
        return LockError(error.message, hint=_advice(rest)) if rest else error

    def find_unmet(self, request: Request, wheels: Sequence[LockedWheel]) -> tuple[Unmet, ...]:
        """The requirements on `request.accepted` that the pinned stubs do not meet."""
        with threads(_READ_JOBS) as pool:
            read = list(pool.map(self._requires, wheels))
        stated = [
            _Stated(by=None, version=None, lines=request.requirements),
            *(
                _Stated(by=stub.name, version=stub.version, lines=stub.requires)
                for stub in request.stubs
            ),
            *(
                _Stated(by=wheel.name, version=wheel.version, lines=lines)
                for wheel, lines in zip(wheels, read, strict=True)
            ),
        ]
        return tuple(dict.fromkeys(_unmet(request, stated)))

    def _requires(self, wheel: LockedWheel) -> tuple[str, ...]:
        cache = self.context.cache
        data = read_member(wheel, METADATA, http=self.http, store=self.store, cache=cache)
        return parse_requires(data)


@dataclass(frozen=True, slots=True)
class _Stated:
    """The requirements of one package, or of the recipe where `by` is None."""

    by: str | None
    version: str | None
    lines: tuple[str, ...]


def _unmet(request: Request, stated: Sequence[_Stated]) -> Iterator[Unmet]:
    environment = markers(request.platform, request.python)
    held = {stub.key[0]: stub for stub in request.stubs if stub.key[0] in request.accepted}
    asked = _asked_extras(stated, environment)
    for package in stated:
        for requirement in _active(package, asked, environment):
            name = canonicalize_name(requirement.name)
            stub = held.get(name)
            if stub and not requirement.specifier.contains(stub.version, prereleases=True):
                yield Unmet(
                    name=name,
                    requires=f"{name}{requirement.specifier}",
                    has=f"{stub.origin} has {stub.version}",
                    by=package.by,
                    version=package.version,
                )


def _asked_extras(
    stated: Sequence[_Stated], environment: Environment
) -> Mapping[str | None, set[str]]:
    """The extras of each package that anything locked asks for, directly or by other extras."""
    asked: dict[str | None, set[str]] = {}
    while True:
        before = sum(map(len, asked.values()))
        for package in stated:
            for requirement in _active(package, asked, environment):
                extras = asked.setdefault(canonicalize_name(requirement.name), set())
                extras.update(canonicalize_name(extra) for extra in requirement.extras)
        if sum(map(len, asked.values())) == before:  # an extra may ask for further ones
            return asked


def _active(
    package: _Stated, asked: Mapping[str | None, set[str]], environment: Environment
) -> list[Requirement]:
    """Those requirements of a package that hold on the platform, with the extras asked for."""
    extras = ("", *sorted(asked.get(package.by, ())))
    found = [requirement for line in package.lines for requirement in _parsed(line)]
    return [
        requirement
        for requirement in found
        if any(marker_holds(requirement.marker, environment, extra) for extra in extras)
    ]


def _parsed(line: str) -> Iterator[Requirement]:
    try:
        yield Requirement(line)
    except InvalidRequirement:  # of an old package; uv has read it in its own way
        return


def _find(unmet: Unmet, accept: Iterable[Accept]) -> Accept | None:
    return next((entry for entry in accept if _covers(entry, unmet)), None)


def _covers(entry: Accept, unmet: Unmet) -> bool:
    """Whether they are of one package, and the same in the spelling that compares (PEP 440)."""
    mine, stated = Requirement(entry.requires), Requirement(unmet.requires)
    return (
        canonicalize_name(mine.name) == unmet.name
        and mine.specifier == stated.specifier
        and (entry.by is None or canonicalize_name(entry.by) == unmet.by)
    )


def _accepted(unmet: Sequence[Unmet], accept: Sequence[Accept]) -> tuple[str, ...]:
    """A line for each unmet requirement; LockError where one has no entry, or an entry has none."""
    found = [(item, _find(item, accept)) for item in unmet]
    refused = [item for item, entry in found if entry is None]
    idle = [entry for entry in accept if not any(_covers(entry, item) for item in unmet)]
    if refused or idle:
        raise _mismatch(refused, idle)
    return tuple(f"{item}: {entry.reason}" for item, entry in found if entry is not None)


def _mismatch(refused: Sequence[Unmet], idle: Sequence[Accept]) -> LockError:
    """Everything in which the entries of `accept` and what is unmet differ, in one error."""
    lines, hints = [], []
    for entry in idle:
        who = "nothing" if entry.by is None else f"no {entry.by}"
        lines.append(f"accept: {who} requires {entry.requires} any more, or the base meets it now")
    if idle:
        others = [item.by for item in refused if item.by is not None]
        hints.append(_corrections((entry.by, others) for entry in idle))
    if refused:
        lines.append("the recipe accepts no such unmet requirement:")
        lines += [f"  {item}" for item in refused]
        hints.append(_advice(refused))
    return LockError("\n".join(lines), hint="\n".join(hints))


def _corrections(misses: Iterable[tuple[str | None, Sequence[str]]]) -> str:
    """What to do about each name in `accept` that fits nothing, and the names it may have meant."""
    meant = [(name, nearest(name, known) if name else None) for name, known in misses]
    lines = [
        f"`{name}`: did you mean `{one}`?" if one else "take the entry out" for name, one in meant
    ]
    return "\n".join(dict.fromkeys(lines))


def _twofold(error: LockError, further: LockError, held: Sequence[Stub]) -> LockError:
    """`error`, where `further` is in the way even if no requirement on `held` counts.

    Whether the base is in the way as well shows in the words: `error` is another than `further`
    and names something of the base.
    """
    named = [stub for stub in held if _names(error.message, stub.key[0])]
    both = bool(named) and error.message != further.message
    shown = named if both else [stub for stub in held if stub.key[0] == _TORCH]
    if not shown:
        return error
    kept = ", ".join(f"{stub.name} {stub.version}" for stub in shown)
    hint = (
        f"the base has {kept}, which must stay; where a package requires another version and this "
        "one will do, `accept` says so"
    )
    hints = "\n".join(filter(None, (further.hint, hint)))
    if not both:
        return LockError(error.message, hint=hints)
    names = ", ".join(stub.name for stub in named)
    return LockError(
        f"{error.message}\n"
        f"{names} is not all that is in the way: even without any requirement on what the base "
        f"must keep ({kept}), {further.message}",
        hint=hints,
    )


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None


def _advice(unmet: Sequence[Unmet]) -> str:
    """The entries to write, ready to be copied."""
    held = dict.fromkeys(f"for {item.name} {item.has}" for item in unmet)
    lines = [f"{', '.join(held)}, which must stay; where that will do, write", "accept:"]
    for item in unmet:
        lines.append(f"  - requires: {item.requires}")
        lines += [] if item.by is None else [f"    by: {item.by}"]
        lines.append("    reason: WHY IT WILL DO")
    return "\n".join(lines)

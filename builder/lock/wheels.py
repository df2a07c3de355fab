"""Requirements in, wheels out: uv resolves for the target's platform and Python, on any host."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.pylock import Package, PackageArchive, PackageWheel, Pylock, PylockSelectError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder import process
from builder.context import Context
from builder.document import nearest
from builder.errors import LockError, UsageError
from builder.http import Http, redact, without_credentials
from builder.lock.model import LockedWheel, url_filename
from builder.lock.platforms import marker_holds, markers, uv_platform, wheel_tags, wheel_version
from builder.lock.stubs import BASE, UNKNOWN_VERSION, Stub, must_stay, pinned_by_name, write_stubs
from builder.lock.uv import Question, compile_lock
from builder.pool import threads
from builder.process import Runner
from builder.scratch import scratch_folder

_Chosen = tuple[str, str, PackageWheel | PackageArchive]

_STUBS = "stubs"
_OVERRIDES = "override-dependencies"
_SIZE_JOBS = 8
_PIN = "pin a version that has a wheel for it; packages are not compiled here"
_YANKED = re.compile(r"^warning: `(?P<name>[^`=]+)==[^`]+` is yanked(?P<rest>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be resolved: PEP 508 `requirements` for CPython `python` (X.Y) on `platform`.

    `exclude` names packages that are dropped wherever they are required; `indexes` maps a name to
    a URL; `pinned` maps a package to the index (by name) that it alone comes from, `direct` one to
    the URL of its wheel; `settings` are uv's own (`exclude-newer`, `prerelease`,
    `constraint-dependencies`, `override-dependencies`). `stubs` are there already, whatever their
    wheels would be; `accepted` names those pinned ones that every requirement is taken to be met
    by.
    """

    requirements: tuple[str, ...]
    platform: str
    python: str
    glibc: str
    exclude: tuple[str, ...] = ()
    indexes: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    direct: Mapping[str, str] = field(default_factory=dict)
    stubs: tuple[Stub, ...] = ()
    accepted: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """Which of the earlier versions may move: `every` package, or only those in `packages`."""

    every: bool = False
    packages: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is to move at all."""
        return self.every or bool(self.packages)

    def moves(self, name: str) -> bool:
        """Whether the version of the package may move."""
        return self.every or canonicalize_name(name) in map(canonicalize_name, self.packages)


KEEP = Upgrade()
"""Nothing moves that does not have to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWheel:
    """A wheel that an index offers now; `sha256` is None where the index does not say it."""

    url: str
    sha256: str | None

    @property
    def filename(self) -> str:
        """The last part of the URL's path, percent-decoded."""
        return url_filename(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the index has for one pin now: the `wheels` that fit the platform, best or not.

    `yanked` is the reason that was given (PEP 592), empty where none was, None where the version
    is not yanked; `missing` is what uv says where it cannot be had any more, None where it can.
    """

    name: str
    version: str
    wheels: tuple[ServedWheel, ...] = ()
    yanked: str | None = None
    missing: str | None = None


def pinned_files(
    pins: Sequence[tuple[str, str]],
    request: Request,
    *,
    context: Context,
    run: Runner = process.run,
) -> tuple[Served, ...]:
    """What the indexes serve now for exactly these names and versions, in the order of `pins`.

    Only platform, Python, glibc, indexes, `pinned` and `exclude-newer` of `request` count. Nothing
    is taken from uv's cache, and what a package requires is not looked at. Raises ExternalError
    where an index cannot be asked.
    """
    if not pins:
        return ()
    try:
        return _look_up(pins, request, context, run)
    except LockError as error:
        if len(pins) == 1:
            [(name, version)] = pins
            return (Served(name=name, version=version, missing=error.message),)
    # uv tells of one that cannot be had; halving finds all of them in few runs.
    half = len(pins) // 2
    first = pinned_files(pins[:half], request, context=context, run=run)
    return (*first, *pinned_files(pins[half:], request, context=context, run=run))


def _look_up(
    pins: Sequence[tuple[str, str]], request: Request, context: Context, run: Runner
) -> tuple[Served, ...]:
    newest = {key: value for key, value in request.settings.items() if key == "exclude-newer"}
    names = {canonicalize_name(name) for name, _ in pins}
    pinned = {name: at for name, at in request.pinned.items() if canonicalize_name(name) in names}
    question = Question(
        dependencies=tuple(f"{name}=={version}" for name, version in pins),
        platform=request.platform,
        python=request.python,
        glibc=request.glibc,
        tool=_tool(request.indexes, _sources(pinned)),
        settings={"prerelease": "allow", **newest},
        flags=("--no-deps", "--refresh"),
    )
    with scratch_folder(context.cache) as folder:
        answer = compile_lock(question, folder, context=context, run=run)
    found = {package.name: tuple(_served(package)) for package in answer.pylock.packages}
    yanked = {match["name"]: match["rest"] for match in _YANKED.finditer(answer.said)}
    return tuple(
        Served(
            name=name,
            version=version,
            wheels=found.get(canonicalize_name(name), ()),
            yanked=_reason(yanked.get(canonicalize_name(name))),
        )
        for name, version in pins
    )


def _served(package: Package) -> Iterator[ServedWheel]:
    for wheel in package.wheels or ():
        if wheel.url is not None:
            url = without_credentials(wheel.url)
            yield ServedWheel(url=url, sha256=wheel.hashes.get("sha256"))


def _reason(rest: str | None) -> str | None:
    """Out of ` (reason: "…")`, which may be absent, and is cut where it has several lines."""
    return None if rest is None else rest.removeprefix(' (reason: "').removesuffix('")')


def resolve(
    request: Request,
    *,
    context: Context,
    http: Http,
    earlier: Sequence[LockedWheel] = (),
    upgrade: Upgrade = KEEP,
    run: Runner = process.run,
) -> tuple[LockedWheel, ...]:
    """One wheel for each package, in name order, with its hash and its size in bytes.

    What a stub stands for is not among them. Versions in `earlier`, else those of the stubs, stay
    where they still satisfy the requirements, `upgrade` apart. Raises LockError where the
    requirements cannot be satisfied by wheels for the platform, UsageError where `upgrade` names a
    package that has no part in it.
    """
    request = _settled(request)
    wheels: tuple[LockedWheel, ...] = ()
    if request.requirements or request.direct or request.pinned or request.stubs:
        with scratch_folder(context.cache) as folder:
            write_stubs(folder / _STUBS, request.stubs, _stub_tag(request))
            question = _question(request, folder.resolve() / _STUBS, earlier, upgrade)
            pylock = compile_lock(question, folder, context=context, run=run).pylock
        wheels = _lock_wheels(_choose(request, pylock), earlier, http)
    _check_upgrade(upgrade, wheels, request.stubs)
    return wheels


def _settled(request: Request) -> Request:
    """`request` without the stubs that its own sources replace; LockError where they must not."""
    chosen = {canonicalize_name(name) for name in (*request.direct, *request.pinned)}
    guarded = pinned_by_name(request.stubs)
    for name in sorted(chosen & guarded.keys()):
        raise must_stay(f"sources.{name}: takes {name} from elsewhere", guarded[name])
    for text in request.settings.get(_OVERRIDES, ()):
        name = canonicalize_name(Requirement(text).name)
        if name in guarded:
            raise must_stay(f"resolve.overrides: `{text}` is about {name}", guarded[name])
    _check_fixed(request, guarded)
    stubs = {stub.key[0]: stub for stub in request.stubs} | guarded
    kept = tuple(stub for name, stub in stubs.items() if name not in chosen)
    return replace(request, stubs=kept)


def _check_fixed(request: Request, guarded: Mapping[str, Stub]) -> None:
    """What the recipe itself requires of packages that are there, or come from one URL.

    Asked here because uv forgets a direct requirement's version where the package has a source.
    """
    environment = markers(request.platform, request.python)
    free = {canonicalize_name(name) for name in request.accepted}
    held = {name: (stub.version, stub.origin) for name, stub in guarded.items() if name not in free}
    for name, url in request.direct.items():
        held[canonicalize_name(name)] = (_direct_version(name, url, request), redact(url))
    for text in request.requirements:
        requirement = Requirement(text)
        version, where = held.get(canonicalize_name(requirement.name), (UNKNOWN_VERSION, ""))
        if version == UNKNOWN_VERSION or not marker_holds(requirement.marker, environment):
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            raise LockError(
                f"the recipe requires {text}; {where} has {version}",
                hint="correct the version in the recipe",
            )


def _question(
    request: Request, stubs: Path, earlier: Sequence[LockedWheel], upgrade: Upgrade
) -> Question:
    """The upgrade is said by leaving preferences out: uv's own flag would forget the base's too."""
    pinned = {
        stub.key: stubs / stub.filename(_stub_tag(request)) for stub in request.stubs if stub.pinned
    }
    moving = {canonicalize_name(name) for name in upgrade.packages}
    paths = {name: {"path": str(path)} for (name, _), path in pinned.items()}
    urls = {name: {"url": url} for name, url in request.direct.items()}
    refresh = ["--refresh"] if upgrade.every else []
    refresh += [part for name in sorted(moving) for part in ("--refresh-package", name)]
    return Question(
        dependencies=(
            *request.requirements,
            *_unnamed(request),
            *("==".join(key) for key in pinned),
        ),
        platform=request.platform,
        python=request.python,
        glibc=request.glibc,
        tool=_tool(request.indexes, {**_sources(request.pinned), **urls, **paths}),
        settings=_settings(request, pinned),
        preferences=tuple(_preferences(request, () if upgrade.every else earlier, moving)),
        flags=("--quiet", *refresh),
    )


def _unnamed(request: Request) -> list[str]:
    """Packages with a source that are not required by name; uv minds sources of no others."""
    named = {canonicalize_name(Requirement(text).name) for text in request.requirements}
    sourced = {canonicalize_name(name) for name in (*request.direct, *request.pinned)}
    return sorted(sourced - named)


def _tool(indexes: Mapping[str, str], sources: Mapping[str, Any]) -> dict[str, Any]:
    entries = [
        {"name": name, "url": url, "explicit": True} for name, url in sorted(indexes.items())
    ]
    tool = {"index": entries, "sources": dict(sources)}
    return {key: value for key, value in tool.items() if value}


def _sources(pinned: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"index": index} for name, index in pinned.items()}


def _settings(request: Request, pinned: Mapping[tuple[str, str], Path]) -> dict[str, Any]:
    """What goes into uv's configuration: the recipe's settings, and where the stubs lie.

    An override drops the source of what it replaces, so it names the stub by its own URL.
    """
    names = {canonicalize_name(name) for name in request.accepted}
    let_through = [
        f"{name} @ {path.as_uri()}" for (name, _), path in pinned.items() if name in names
    ]
    overrides = [*request.settings.get(_OVERRIDES, ()), *let_through]
    return {
        "exclude-dependencies": list(request.exclude),
        **request.settings,
        **({"find-links": [_STUBS]} if request.stubs else {}),
        **({_OVERRIDES: overrides} if overrides else {}),
    }


def _stub_tag(request: Request) -> str:
    """The best tag of the platform, as far as uv knows it (PEP 425)."""
    machine, _, system = uv_platform(request.platform, request.glibc).partition("-")
    interpreter = f"cp{request.python.replace('.', '')}"
    return f"{interpreter}-{interpreter}-{system}_{machine}"


def _preferences(
    request: Request, earlier: Sequence[LockedWheel], moving: Container[str]
) -> Iterator[Mapping[str, Any]]:
    """Earlier versions, so that what was replaced before stays so; else what is there already."""
    kept = {wheel.name: _preference(wheel) for wheel in earlier}
    there = {
        stub.key[0]: dict(zip(("name", "version"), stub.key, strict=True)) for stub in request.stubs
    }
    for name, entry in sorted({**there, **kept}.items()):
        if name not in moving:
            yield entry


def _preference(wheel: LockedWheel) -> dict[str, Any]:
    wheels = [{"url": wheel.url, "hashes": {"sha256": wheel.sha256}}]
    return {"name": wheel.name, "version": wheel.version, "wheels": wheels}


def _direct_version(name: str, url: str, request: Request) -> str:
    """The version of the wheel at `url`; LockError where it is another package's or platform's."""
    version = wheel_version(
        url_filename(url),
        name,
        platform=request.platform,
        python=request.python,
        glibc=request.glibc,
    )
    return str(version)


def _check_upgrade(upgrade: Upgrade, wheels: Sequence[LockedWheel], stubs: Sequence[Stub]) -> None:
    """A mistyped name must not pass for one that has nothing newer.

    One that is compiled is moved where its source is chosen.
    """
    known = {wheel.name for wheel in wheels}
    there = {stub.key[0]: stub for stub in stubs}
    for name in map(canonicalize_name, upgrade.packages):
        if name in there and there[name].pinned and there[name].origin == BASE:
            raise UsageError(
                f"--upgrade-package {name}: {there[name].version} is there already and must stay",
                hint="another base brings another one",
            )
        if name not in known | there.keys():
            meant = nearest(name, known)
            raise UsageError(
                f"--upgrade-package {name}: nothing in the lock is called so",
                hint=f"did you mean `{meant}`?" if meant else "the lock names every package",
            )


def _lock_wheels(
    chosen: Sequence[_Chosen], earlier: Sequence[LockedWheel], http: Http
) -> tuple[LockedWheel, ...]:
    known = {wheel.sha256: wheel.size for wheel in earlier}
    with threads(_SIZE_JOBS) as pool:
        return tuple(pool.map(lambda item: _locked(item, known, http), chosen))


def _choose(request: Request, pylock: Pylock) -> list[_Chosen]:
    """Name, version and the best wheel of every package (PEP 751, "Installation")."""
    environment = markers(request.platform, request.python)
    tags = wheel_tags(request.platform, request.python, request.glibc)
    there = {stub.key[0]: Version(stub.version) for stub in request.stubs}
    try:
        selected = list(pylock.select(environment=environment, tags=tags))
    except PylockSelectError as error:
        raise LockError(
            f"{error}: nothing runs on {request.platform} with glibc {request.glibc}", hint=_PIN
        ) from None
    chosen = []
    for package, source in selected:
        if package.name in there and package.version == there[package.name]:
            continue
        if not isinstance(source, PackageWheel | PackageArchive) or package.version is None:
            raise LockError(
                f"{package.name}: has no wheel for {request.platform} and Python {request.python}",
                hint=_PIN,
            )
        chosen.append((str(package.name), str(package.version), source))
    return sorted(chosen, key=lambda item: item[0])


def _locked(item: _Chosen, known: Mapping[str, int], http: Http) -> LockedWheel:
    name, version, wheel = item
    sha256 = wheel.hashes.get("sha256")
    if wheel.url is None or sha256 is None:
        raise LockError(f"{name} {version}: the index gives no URL or no sha256 for its wheel")
    if not wheel.url.startswith(("http://", "https://")):
        raise LockError(
            f"{name} {version}: comes from {redact(wheel.url)}, which other hosts do not have",
            hint="take an index that is reached by https",
        )
    size = wheel.size if wheel.size is not None else known.get(sha256)
    return LockedWheel(
        name=name,
        version=version,
        url=without_credentials(wheel.url),
        sha256=sha256,
        size=http.size(wheel.url) if size is None else size,
    )

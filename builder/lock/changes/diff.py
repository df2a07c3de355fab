"""What differs between two locks, in meaning: the weightiest change leads, a hash comes last.

Only what goes into an image counts. Where its files were found and which uv resolved them makes
two locks different files, and still the same image.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from packaging.version import InvalidVersion, Version

from builder.lock.model import (
    Base,
    DebianBase,
    Lock,
    LockedWheel,
    OciBase,
    RegistryBase,
    Shadow,
)

Kind = Literal["changed", "added", "removed"]
KINDS: tuple[Kind, ...] = ("changed", "added", "removed")
"""In the order of their weight."""

Codes = Mapping[str, Sequence[str]]
"""GPU code (`sm_121`, `compute_120`) by a wheel's sha256, for the wheels that an audit has read."""

_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?")
_LOCAL_CUDA = re.compile(r"cu(?P<major>\d{2})(?P<minor>\d)")
_CPU = "CPU build"
_SHORT = 12
_MARKS = ("major", "minor")


class Area(StrEnum):
    """What a change is about, the weightiest first."""

    TORCH = "torch"
    CUDA = "cuda"
    BASE = "base"
    PLATFORM = "platform"
    GUARD = "guard"
    SOURCE = "source"
    SYSTEM = "system"
    PACKAGE = "package"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that is not as it was; what was not there, or is no more, is None.

    `detail` says in words what the two values do not; sizes are of the files, where known.
    """

    area: Area
    subject: str
    old: str | None
    new: str | None
    detail: tuple[str, ...] = ()
    old_bytes: int | None = None
    new_bytes: int | None = None

    @property
    def kind(self) -> Kind:
        """Whether the subject changed, or is on one side only."""
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"

    def __str__(self) -> str:
        told = {
            "added": f"{self.subject} {self.new} added",
            "removed": f"{self.subject} {self.old} removed",
            "changed": f"{self.subject} {self.old} → {self.new}",
        }[self.kind]
        if self.old == self.new:
            told = f"{self.subject} {self.new}"
        return f"{told}: {'; '.join(self.detail)}" if self.detail else told


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two locks side by side; `old` and `new` name them, as `NAME for TARGET`.

    The sizes are of all the files that the locks name, a base in a local layout apart. `identical`
    locks are the same file; others without `changes` still give the same image.
    """

    old: str
    new: str
    changes: tuple[Change, ...]
    old_bytes: int
    new_bytes: int
    identical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Torch:
    version: str
    cuda: str
    inferred: bool
    origin: str
    module: str | None
    contents: str
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Package:
    version: str
    contents: str
    size: int | None


def compare(old: Lock, new: Lock, *, codes: Codes | None = None) -> Difference:
    """What changed from `old` to `new`, the weightiest first.

    A lock that does not state its torch's CUDA is judged by the names and versions in it, and the
    change says that this is inferred.
    """
    changes = [
        *_torch_changes(old, new, codes or {}),
        *_cuda_changes(old, new),
        *_base_changes(old.base, new.base),
        *_platform_changes(old, new),
        *_guard_changes(old, new),
        *_source_changes(old, new),
        *_deb_changes(old.base, new.base),
        *_package_changes(old, new, codes or {}),
    ]
    return Difference(
        old=f"{old.name} for {old.target}",
        new=f"{new.name} for {new.target}",
        changes=tuple(changes),
        old_bytes=_total(old),
        new_bytes=_total(new),
        identical=old == new,
    )


def as_dict(difference: Difference) -> dict[str, object]:
    """The difference as JSON-ready values, in a fixed key order."""
    return {
        "old": difference.old,
        "new": difference.new,
        "identical": difference.identical,
        "size_bytes": {"old": difference.old_bytes, "new": difference.new_bytes},
        "changes": [_change_dict(change) for change in difference.changes],
    }


def _change_dict(change: Change) -> dict[str, object]:
    return {
        "area": str(change.area),
        "kind": change.kind,
        "subject": change.subject,
        "old": change.old,
        "new": change.new,
        "detail": list(change.detail),
        "size_bytes": {"old": change.old_bytes, "new": change.new_bytes},
    }


def _torch_changes(old: Lock, new: Lock, codes: Codes) -> Iterator[Change]:
    was, now = _torch(old), _torch(new)
    detail = tuple(_torch_detail(was, now, codes))
    if not detail and (was and was.version) == (now and now.version):
        return
    yield Change(
        area=Area.TORCH,
        subject="torch",
        old=was.version if was else None,
        new=now.version if now else None,
        detail=detail,
        old_bytes=was.size if was else None,
        new_bytes=now.size if now else None,
    )


def _torch(lock: Lock) -> _Torch | None:
    """The lock's torch: as its identity says, else as its packages do."""
    identity, package = lock.torch, _packages(lock).get("torch")
    if identity is not None and identity.origin == "base":
        return _Torch(
            version=identity.version,
            cuda=_cuda_words(identity.cuda),
            inferred=False,
            origin="the base",
            module=identity.module,
            contents=identity.sha256 or "",
            size=None,
        )
    if package is None:
        return None
    return _Torch(
        version=package.version,
        cuda=_inferred_cuda(lock) if identity is None else _cuda_words(identity.cuda),
        inferred=identity is None,
        origin="a wheel" if package.size is not None else "a repository",
        module=None if identity is None else identity.module,
        contents=package.contents,
        size=package.size,
    )


def _cuda_words(cuda: str | None) -> str:
    return _CPU if cuda is None else f"CUDA {cuda}"


def _inferred_cuda(lock: Lock) -> str:
    """The CUDA of torch's build, by its local version, else by the CUDA runtime beside it."""
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    local = versions.get("torch", "").partition("+")[2]
    if match := _LOCAL_CUDA.match(local):
        return f"CUDA {match['major']}.{match['minor']}"
    if local.startswith("cpu"):
        return _CPU
    runtimes = [Version(text) for name, text in versions.items() if _RUNTIME.fullmatch(name)]
    if not runtimes:
        return _CPU
    return f"CUDA {max(runtimes).major}.{max(runtimes).minor}"


def _torch_detail(was: _Torch | None, now: _Torch | None, codes: Codes) -> Iterator[str]:
    if was is None or now is None:
        if one := was or now:
            yield f"{one.cuda}{' (inferred)' if one.inferred else ''}, from {one.origin}"
        return
    if was.cuda != now.cuda:
        inferred = " (inferred from the packages)" if was.inferred or now.inferred else ""
        yield f"{was.cuda} → {now.cuda}{inferred}"
    if was.origin != now.origin:
        yield f"from {was.origin} → from {now.origin}"
    elif was.version == now.version and was.contents != now.contents:
        yield "other files under the same version"
    if was.module and now.module and _named_apart(was, now):
        yield f"torch.__version__ {was.module} → {now.module}"
    yield from _code_changes(was.contents, now.contents, codes)


def _named_apart(was: _Torch, now: _Torch) -> bool:
    """Whether the module's version says something that the distribution's does not."""
    return was.module != now.module and (was.module, now.module) != (was.version, now.version)


def _cuda_changes(old: Lock, new: Lock) -> Iterator[Change]:
    was, now = _runtimes(old), _runtimes(new)
    if was != now:
        yield Change(area=Area.CUDA, subject="CUDA runtime", old=was, new=now)


def _runtimes(lock: Lock) -> str | None:
    found = [f"{wheel.name} {wheel.version}" for wheel in lock.wheels if _is_runtime(wheel)]
    return ", ".join(found) or None


def _is_runtime(wheel: LockedWheel) -> bool:
    return _RUNTIME.fullmatch(wheel.name) is not None


def _base_changes(old: Base, new: Base) -> Iterator[Change]:
    was, now = _base_words(old), _base_words(new)
    detail = tuple(_base_detail(old, new))
    if was != now or detail:
        yield Change(
            area=Area.BASE,
            subject="base",
            old=was,
            new=now,
            detail=detail,
            old_bytes=_base_bytes(old),
            new_bytes=_base_bytes(new),
        )


def _base_words(base: Base) -> str:
    if isinstance(base, DebianBase):
        return f"debian {base.suite}"
    return base.path if isinstance(base, OciBase) else base.image


def _base_detail(old: Base, new: Base) -> Iterator[str]:
    if isinstance(old, DebianBase) or isinstance(new, DebianBase):
        return
    if old.digest != new.digest:
        yield f"{_short(old.digest)} → {_short(new.digest)}"
    elif isinstance(old, RegistryBase) and isinstance(new, RegistryBase) and old.index != new.index:
        yield "the tag names another index, in which this platform's image is the same"


def _short(digest: str) -> str:
    algorithm, _, value = digest.rpartition(":")
    return f"{algorithm}:{value[:_SHORT]}".removeprefix(":")


def _platform_changes(old: Lock, new: Lock) -> Iterator[Change]:
    fields: Mapping[str, Callable[[Lock], str]] = {
        "target": lambda lock: lock.target,
        "platform": lambda lock: lock.platform,
        "python": lambda lock: lock.python,
        "interpreter": lambda lock: lock.interpreter,
        "glibc": lambda lock: lock.glibc,
    }
    for subject, value in fields.items():
        was, now = value(old), value(new)
        implied = subject == "interpreter" and old.python != new.python
        if was != now and not implied:
            yield Change(area=Area.PLATFORM, subject=subject, old=was, new=now)


def _guard_changes(old: Lock, new: Lock) -> Iterator[Change]:
    """Base packages that are shadowed, requirements taken on, what the base's ABI set is."""
    yield from _pairs(Area.GUARD, "shadow of {}", _shadows(old), _shadows(new))
    accepted = [dict.fromkeys(lock.guard.accepted) for lock in (old, new)]
    for side, other, kind in ((0, 1, "removed"), (1, 0, "added")):
        for text in accepted[side]:
            if text not in accepted[other]:
                was, now = (text, None) if kind == "removed" else (None, text)
                yield Change(area=Area.GUARD, subject="accepted:", old=was, new=now)
    yield from _pairs(Area.GUARD, "guarded {}", _guarded(old), _guarded(new))


def _shadows(lock: Lock) -> dict[str, str]:
    return {shadow.name: _shadow_words(shadow) for shadow in lock.guard.shadows}


def _shadow_words(shadow: Shadow) -> str:
    return f"{shadow.version} over the base's {shadow.base}"


def _guarded(lock: Lock) -> dict[str, str]:
    """The part of the guarded set that the base brings; torch and the wheels lead elsewhere."""
    locked = _packages(lock).keys() | {"torch"}
    return {name: text for name, text in lock.guard.packages.items() if name not in locked}


def _pairs(
    area: Area, subject: str, old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[Change]:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            was, now = old.get(name), new.get(name)
            yield Change(area=area, subject=subject.format(name), old=was, new=now)


def _source_changes(old: Lock, new: Lock) -> Iterator[Change]:
    """Of the packages on both sides, those that come from elsewhere now, and why."""
    refused = {
        source.name: tuple(f"{item.source}: {item.reason}" for item in source.refused)
        for source in new.sources
    }
    was, now = _sources(old), _sources(new)
    for name in sorted(_packages(old).keys() & _packages(new).keys()):
        before, after = was.get(name, "the index"), now.get(name, "the index")
        if before != after:
            detail = refused.get(name, ())
            subject = f"source of {name}"
            yield Change(area=Area.SOURCE, subject=subject, old=before, new=after, detail=detail)


def _sources(lock: Lock) -> dict[str, str]:
    """Where each package that is not simply from an index comes from, a commit included."""
    words = {source.name: source.source for source in lock.sources}
    for git in lock.gits:
        place = words.get(git.name, f"git {git.url}@{git.ref}")
        words[git.name] = f"{place} at {git.commit[:_SHORT]}"
    return words


def _deb_changes(old: Base, new: Base) -> Iterator[Change]:
    if isinstance(old, DebianBase) and isinstance(new, DebianBase):
        yield from _ordered(Area.SYSTEM, _debs(old), _debs(new), lambda was, now: ())


def _debs(base: DebianBase) -> dict[str, _Package]:
    return {
        deb.name: _Package(version=deb.version, contents=deb.sha256, size=deb.size)
        for deb in base.debs
    }


def _package_changes(old: Lock, new: Lock, codes: Codes) -> Iterator[Change]:
    def detail(was: _Package, now: _Package) -> tuple[str, ...]:
        return (
            *_marks(was.version, now.version),
            *_code_changes(was.contents, now.contents, codes),
        )

    was, now = _packages(old), _packages(new)
    yield from _ordered(Area.PACKAGE, was, now, detail, leave="torch")


def _packages(lock: Lock) -> dict[str, _Package]:
    packages = {
        wheel.name: _Package(version=wheel.version, contents=wheel.sha256, size=wheel.size)
        for wheel in lock.wheels
    }
    for git in lock.gits:
        version = git.version or f"git {git.commit[:_SHORT]}"
        packages[git.name] = _Package(version=version, contents=git.commit, size=None)
    return packages


def _ordered(
    area: Area,
    old: Mapping[str, _Package],
    new: Mapping[str, _Package],
    detail: Callable[[_Package, _Package], tuple[str, ...]],
    *,
    leave: str | None = None,
) -> Iterator[Change]:
    """Changed packages, major steps first, then added ones, then removed ones; each by name."""
    changes = [
        _package_change(area, name, old.get(name), new.get(name), detail)
        for name in old.keys() | new.keys()
        if old.get(name) != new.get(name) and name != leave
    ]
    yield from sorted(
        changes, key=lambda item: (KINDS.index(item.kind), _weight(item), item.subject)
    )


def _package_change(
    area: Area,
    name: str,
    was: _Package | None,
    now: _Package | None,
    detail: Callable[[_Package, _Package], tuple[str, ...]],
) -> Change:
    said: tuple[str, ...] = ()
    if was is not None and now is not None:
        said = detail(was, now)
        if was.version == now.version:
            said = ("another file under the same version", *said)
    return Change(
        area=area,
        subject=name,
        old=was.version if was else None,
        new=now.version if now else None,
        detail=said,
        old_bytes=was.size if was else None,
        new_bytes=now.size if now else None,
    )


def _weight(change: Change) -> int:
    marks = [index for index, mark in enumerate(_MARKS) if mark in change.detail]
    return marks[0] if marks else len(_MARKS)


def _marks(old: str, new: str) -> tuple[str, ...]:
    """`major` or `minor` by the part of the release that moved, `older` for a step back."""
    try:
        was, now = Version(old), Version(new)
    except InvalidVersion:  # a commit stands for the version
        return ()
    parts = [(was.epoch, was.major) != (now.epoch, now.major), was.minor != now.minor]
    step = next((mark for mark, moved in zip(_MARKS, parts, strict=True) if moved), None)
    return (*([step] if step else []), *(["older"] if now < was else []))


def _code_changes(was: str, now: str, codes: Codes) -> Iterator[str]:
    """GPU code lost and gained, where the audit has read both files."""
    if was not in codes or now not in codes:
        return
    old, new = set(codes[was]), set(codes[now])
    if lost := sorted(old - new):
        yield f"lost {', '.join(lost)}"
    if gained := sorted(new - old):
        yield f"gained {', '.join(gained)}"


def _base_bytes(base: Base) -> int | None:
    if isinstance(base, DebianBase):
        return sum(deb.size for deb in base.debs)
    return base.size if isinstance(base, RegistryBase) else None


def _total(lock: Lock) -> int:
    return sum(wheel.size for wheel in lock.wheels) + (_base_bytes(lock.base) or 0)

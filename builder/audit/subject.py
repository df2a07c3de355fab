"""What is audited: our own lock, or a `pylock.toml` (PEP 751) that another tool wrote.

https://packaging.python.org/en/latest/specifications/pylock-toml/
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.markers import Environment
from packaging.pylock import (
    Package,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockValidationError,
)
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.version import InvalidVersion, Version

from builder.errors import UsageError
from builder.guard import guarded_packages
from builder.http import redact
from builder.lock.model import SHA256, Lock, TorchIdentity
from builder.lock.platforms import markers, wheel_tags
from builder.lock.pylock import parse_lock

_STRONG_HASHES = ("sha256", "sha384", "sha512", "sha3_", "blake2")
_NO_HASH = "none"
_PYTHON = re.compile(r"[23]\.[0-9]{1,2}")
_DEFAULT_PYTHON = "3.12"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectWheel:
    """A wheel to be judged: at `url`, or at `path` on disk.

    `hashed` is set where the lock holds a strong hash of any kind; `sha256` where it is that one.
    `size` is in bytes, None where the lock does not say.
    """

    name: str
    version: str
    filename: str
    url: str | None
    path: Path | None
    hashed: bool
    sha256: str | None
    size: int | None

    @property
    def label(self) -> str:
        """What messages call the wheel."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectOther:
    """A package that has no wheel to read; `kind` is `sdist`, `vcs`, `archive` or `directory`."""

    name: str
    version: str | None
    kind: str
    hashed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """All packages of one lock for one platform (`linux/arm64`).

    `source` names the lock in messages; `target` is the GPU that it is for, where it says so, and
    `torch` the torch that it chose. `kept` are packages that stay as the base has them, by
    normalised name, with their versions.
    """

    source: str
    platform: str
    target: str | None = None
    wheels: tuple[SubjectWheel, ...]
    others: tuple[SubjectOther, ...] = ()
    torch: TorchIdentity | None = None
    kept: Mapping[str, str] = field(default_factory=dict)


def subject_of(lock: Lock) -> Subject:
    """Our own lock as a subject."""
    return Subject(
        source=lock.filename,
        platform=lock.platform,
        target=lock.target,
        wheels=tuple(
            SubjectWheel(
                name=wheel.name,
                version=wheel.version,
                filename=wheel.filename,
                url=wheel.url,
                path=_local_path(wheel.url),
                hashed=True,
                sha256=wheel.sha256,
                size=wheel.size,
            )
            for wheel in lock.wheels
        ),
        others=tuple(
            SubjectOther(name=git.name, version=git.version, kind="vcs", hashed=True)
            for git in lock.gits
        ),
        torch=lock.torch,
        kept=guarded_packages(lock) if lock.uses_base_torch else {},
    )


def read_subject(
    path: Path, *, platform: str = "linux/arm64", python: str | None = None, glibc: str = "2.39"
) -> Subject:
    """The lock in the file at `path`, for a platform, a Python X.Y and a glibc 2.N.

    A lock of ours knows these itself. Elsewhere `python` is by default the oldest that the lock
    allows. Raises UsageError where the file cannot be read or is no pylock.toml.
    """
    text, document = _read_document(path)
    tool = document.get("tool")
    if isinstance(tool, dict) and "spark-build" in tool:
        return subject_of(parse_lock(text, source=str(path)))
    pylock = _parse(path, document)
    version = python or _oldest_python(path, pylock.requires_python)
    tags, environment = wheel_tags(platform, version, glibc), markers(platform, version)
    chosen = tuple(_choose(pylock, tags, environment))
    return Subject(
        source=str(path),
        platform=platform,
        wheels=tuple(
            _wheel(path, package, file)
            for package, file in chosen
            if isinstance(file, PackageWheel)
        ),
        others=tuple(
            _other(package, file) for package, file in chosen if not isinstance(file, PackageWheel)
        ),
    )


def _read_document(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    # ValueError: TOML that is none, no UTF-8, or a number beyond what Python takes in.
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}") from None


def _parse(path: Path, document: dict[str, Any]) -> Pylock:
    try:
        return Pylock.from_dict(_mark_unhashed(document))
    except (PylockValidationError, RecursionError) as error:
        raise UsageError(
            f"{path}: not a pylock.toml: {error}",
            hint="`uv export --format pylock.toml` and `pip lock` write one",
        ) from None


def _mark_unhashed(value: Any) -> Any:
    """The document with a mark where hashes are missing: that is to be judged, not refused."""
    if isinstance(value, list):
        return [_mark_unhashed(item) for item in value]
    if not isinstance(value, dict):
        return value
    marked = {key: _mark_unhashed(item) for key, item in value.items() if key != "tool"}
    for key in ("wheels", "sdist", "archive"):
        files = marked.get(key, ())
        for file in files if isinstance(files, list) else [files]:
            if isinstance(file, dict) and not file.get("hashes"):
                file["hashes"] = {_NO_HASH: _NO_HASH}
    return marked


def _oldest_python(path: Path, requires: SpecifierSet | None) -> str:
    """The X.Y of the lowest version that is allowed: `>=3.13.2` gives 3.13."""
    try:
        bounds = [
            Version(specifier.version.removesuffix(".*"))
            for specifier in requires or ()
            if specifier.operator in (">=", "==", "~=", "===")
        ]
    except InvalidVersion:  # `===` may stand before any text (PEP 440)
        raise UsageError(f"{path}: requires-python: {requires} names no version") from None
    lowest = max(bounds, default=Version(_DEFAULT_PYTHON))
    version = f"{lowest.major}.{lowest.minor}"
    if not _PYTHON.fullmatch(version):
        raise UsageError(f"{path}: requires-python: {requires} allows no Python that there is")
    return version


def _choose(
    pylock: Pylock, tags: Sequence[Tag], environment: Environment
) -> Iterator[tuple[Package, Any]]:
    """Of each package that the target takes, the file that it takes.

    Package by package: where none fits, the first wheel is taken all the same, so that the
    verdict says which package it is and what it was made for.
    """
    for package in pylock.packages:
        single = replace(pylock, packages=[package], environments=None, requires_python=None)
        try:
            yield from single.select(environment=environment, tags=tags)
        except PylockSelectError:
            if package.wheels:
                yield package, package.wheels[0]


def _wheel(lock: Path, package: Package, wheel: PackageWheel) -> SubjectWheel:
    path = None if wheel.path is None else lock.parent / wheel.path
    if path is None and wheel.url is not None:
        path = _local_path(wheel.url)
    sha256 = wheel.hashes.get("sha256")
    if sha256 is not None and not SHA256.fullmatch(sha256):
        raise UsageError(
            f"{lock}: {package.name}: {sha256!r} is no sha256 in small hex digits",
            hint="let the tool that wrote the lock write it anew",
        )
    return SubjectWheel(
        name=package.name,
        version=str(package.version or "unknown"),
        filename=wheel.filename,
        url=wheel.url,
        path=path,
        hashed=_is_hashed(wheel.hashes),
        sha256=sha256,
        size=wheel.size,
    )


def _other(package: Package, file: Any) -> SubjectOther:
    kind = type(file).__name__.removeprefix("Package").lower()
    # A commit is a hash of its own; a folder on somebody's disk has none by nature.
    hashed = _is_hashed(file.hashes) if kind in ("sdist", "archive") else True
    version = None if package.version is None else str(package.version)
    return SubjectOther(name=package.name, version=version, kind=kind, hashed=hashed)


def _is_hashed(hashes: Mapping[str, str]) -> bool:
    return any(kind.startswith(_STRONG_HASHES) for kind in hashes)


def _local_path(url: str) -> Path | None:
    """The file that a `file:` URL names (RFC 8089)."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(f"{redact(url)}: not a URL") from None
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None

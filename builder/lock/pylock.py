"""The file that a lock is kept in, `pylock.<name>-<target>.toml`.

It is a standard one (PEP 751,
https://packaging.python.org/en/latest/specifications/pylock-toml/), which uv and pip can install
by themselves; `[tool.spark-build]` adds what an image needs beyond wheels.

The same lock always gives the same bytes, and only these bytes are taken back: whatever was
changed by hand, a comment even, is told from what was resolved.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from packaging.markers import Marker
from packaging.pylock import Package, PackageVcs, PackageWheel, Pylock, PylockValidationError
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import StringConstraints, TypeAdapter, ValidationError

from builder.errors import LockError
from builder.lock.model import (
    SHA256,
    Base,
    ChosenSource,
    DebianBase,
    Guard,
    Lock,
    LockedGit,
    LockedWheel,
    RegistryBase,
    TorchIdentity,
    plain,
)
from builder.lock.platforms import MACHINES
from builder.oci.image import DIGEST

FORMAT = 2
_MAX_BYTES = 64 << 20
_TOOL = "spark-build"
_ALWAYS = ("inputs", "tools")
_DEB_KEYS = ("name", "version", "architecture", "url", "size", "sha256")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_WORD = re.compile(r"[A-Za-z0-9]\S*")
_INDEX = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")


def _text(pattern: str) -> Any:
    return StringConstraints(pattern=rf"^(?:{pattern})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extra:
    """The table `[tool.spark-build]`; some of its texts become paths and lines of a file."""

    name: Annotated[str, _text(r"[a-z0-9_-]+")]
    target: Annotated[str, _text(r"[a-z0-9-]+")]
    platform: Annotated[str, _text(r"linux/(arm64|amd64)")]
    python: Annotated[str, _text(r"3\.[0-9]{1,3}")]
    interpreter: Annotated[str, _text(r"(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)+")]
    glibc: Annotated[str, _text(r"2\.[0-9]{1,3}")]
    base: Base
    inputs: dict[str, Any]
    tools: dict[str, str]
    torch: TorchIdentity | None = None
    guard: Guard = field(default_factory=Guard)
    sources: tuple[ChosenSource, ...] = ()
    gits: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What each package that is compiled requires; the rest of it is in the standard table."""


_EXTRA = TypeAdapter(_Extra)


def write_lock(lock: Lock) -> str:
    """The file's text: the same lock always gives the same bytes."""
    document = _document(lock)
    document["tool"][_TOOL]["digest"] = _digest(document)
    return tomli_w.dumps(document)


def parse_lock(text: str, *, source: str) -> Lock:
    """The lock in a file's text; `source` is its path, for messages.

    Raises LockError where the text is no lock of ours or was changed by hand.
    """
    try:
        document = tomllib.loads(text)
        pylock = Pylock.from_dict(document)
        extra = _read_extra(document, source)
        lock = _lock(extra, pylock)
        _check(lock)
    except (
        tomllib.TOMLDecodeError,
        PylockValidationError,
        ValidationError,
        RecursionError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        ours = Path(source).name.startswith("pylock.")
        raise LockError(
            f"{source}: not a lock that spark-build wrote: {_said(error)}",
            hint="delete the file and run `spark-build lock RECIPE`" if ours else None,
        ) from None
    if write_lock(lock) != text:
        raise LockError(
            f"{source}: not as spark-build wrote it; the file was changed by hand",
            hint="restore it from version control, or delete it and run `spark-build lock RECIPE`",
        )
    return lock


def read_lock(path: Path) -> Lock:
    """The lock in the file at `path`; LockError where it cannot be used."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise LockError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB, as no lock is")
        text = data.decode().replace("\r\n", "\n")
    except FileNotFoundError:
        raise LockError(f"{path}: no such lock", hint="run `spark-build lock RECIPE`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{path}: cannot be read: {error}") from None
    return parse_lock(text, source=str(path))


def _said(error: Exception) -> str:
    """One line; pydantic's own text would quote whole values."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _document(lock: Lock) -> dict[str, Any]:
    packages = [*map(_write_wheel, lock.wheels), *map(_write_git, lock.gits)]
    extra = {
        "format": FORMAT,
        "name": lock.name,
        "target": lock.target,
        "platform": lock.platform,
        "python": lock.python,
        "interpreter": lock.interpreter,
        "glibc": lock.glibc,
        "tools": dict(lock.tools),
        "inputs": lock.inputs,
        "torch": None if lock.torch is None else asdict(lock.torch),
        "sources": [asdict(source) for source in lock.sources],
        "gits": {git.name: git.requires for git in lock.gits},
        "guard": {key: value for key, value in asdict(lock.guard).items() if value},
        "base": _write_base(lock.base),
    }
    pylock = Pylock(
        lock_version=Version("1.0"),
        environments=[Marker(_environment(lock.platform))],
        requires_python=SpecifierSet(f"=={lock.python}.*"),
        created_by=_TOOL,
        packages=packages,
        tool={
            _TOOL: {key: value for key, value in plain(extra).items() if value or key in _ALWAYS}
        },
    )
    return dict(pylock.to_dict())


def _write_base(base: Base) -> dict[str, Any]:
    """The name of each .deb first, for those who read a lock's diff."""
    if not isinstance(base, DebianBase):
        return asdict(base)
    debs = [{key: getattr(deb, key) for key in _DEB_KEYS} for deb in base.debs]
    return {"suite": base.suite, "debs": debs}


def _environment(platform: str) -> str:
    return f"sys_platform == 'linux' and platform_machine == '{MACHINES[platform]}'"


def _digest(document: Mapping[str, Any]) -> str:
    """`sha256:` over the body of the file, its own digest line left out."""
    extra = dict(document["tool"][_TOOL])
    extra.pop("digest", None)
    body = {**document, "tool": {_TOOL: extra}}
    return "sha256:" + hashlib.sha256(tomli_w.dumps(body).encode()).hexdigest()


def _read_extra(document: Mapping[str, Any], source: str) -> _Extra:
    """The table that is ours, of the format that this version writes."""
    tools = document.get("tool")
    table = tools.get(_TOOL) if isinstance(tools, dict) else None
    if not isinstance(table, dict):
        raise TypeError(f"it has no table [tool.{_TOOL}]")
    if table.get("format") != FORMAT:
        raise LockError(
            f"{source}: written in format {table.get('format')}, this spark-build reads {FORMAT}",
            hint="delete the file and run `spark-build lock RECIPE`",
        )
    return _EXTRA.validate_python(table)


def _lock(extra: _Extra, pylock: Pylock) -> Lock:
    compiled = [package for package in pylock.packages if package.vcs is not None]
    return Lock(
        name=extra.name,
        target=extra.target,
        platform=extra.platform,
        python=extra.python,
        interpreter=extra.interpreter,
        glibc=extra.glibc,
        base=extra.base,
        wheels=tuple(_read_wheel(package) for package in pylock.packages if package.vcs is None),
        inputs=extra.inputs,
        gits=tuple(_read_git(package, extra.gits) for package in compiled),
        torch=extra.torch,
        guard=extra.guard,
        sources=extra.sources,
        tools=extra.tools,
    )


def _check(lock: Lock) -> None:
    """A hash becomes a path in the store, and so must be nothing but a hash."""
    for file in (*lock.wheels, *lock.debs):
        if not SHA256.fullmatch(file.sha256) or file.size < 0:
            raise ValueError(f"{file.filename}: no sha256 in small hex digits, or no size in bytes")
    for git in lock.gits:
        _check_git(git)
    for source in lock.sources:
        _check_source(source, {git.name for git in lock.gits})
    if isinstance(lock.base, RegistryBase) and (
        not DIGEST.fullmatch(lock.base.index) or lock.base.size < 0
    ):
        raise ValueError("base.index: no sha256 digest, or no size in bytes")
    if not isinstance(lock.base, DebianBase) and not DIGEST.fullmatch(lock.base.digest):
        raise ValueError("base.digest: no sha256 digest")


def _check_git(git: LockedGit) -> None:
    """These are words of git's command line, and of a comment in a Containerfile."""
    if not _COMMIT.fullmatch(git.commit):
        raise ValueError(f"{git.name}: {git.commit!r} is no commit")
    for text in (git.url, git.ref):
        if not _WORD.fullmatch(text) or not text.isprintable():
            raise ValueError(f"{git.name}: {text!r} is no repository or no ref in one")
    inside = git.subdirectory or "."
    if not inside.isprintable() or inside.startswith("/") or ".." in inside.split("/"):
        raise ValueError(f"{git.name}: {inside!r} is no folder in a repository")


def _check_source(source: ChosenSource, gits: Container[str]) -> None:
    """An index's name becomes part of a URL; a repository is looked up among those locked."""
    fits = {"wheel": True, "index": _INDEX.fullmatch(source.place), "git": source.name in gits}
    if not fits.get(source.kind):
        raise ValueError(f"sources: {source.source!r} is no source of {source.name}")


def _write_wheel(wheel: LockedWheel) -> Package:
    return Package(
        name=canonicalize_name(wheel.name),
        version=Version(wheel.version),
        wheels=[
            PackageWheel(
                name=wheel.filename,
                url=wheel.url,
                size=wheel.size,
                hashes={"sha256": wheel.sha256},
            )
        ],
    )


def _read_wheel(package: Package) -> LockedWheel:
    wheels = list(package.wheels or ())
    if len(wheels) != 1 or package.version is None:
        raise ValueError(f"package {package.name} does not have exactly one wheel and a version")
    wheel = wheels[0]
    if wheel.url is None or wheel.size is None:
        raise ValueError(f"the wheel of {package.name} has no URL or no size")
    return LockedWheel(
        name=package.name,
        version=str(package.version),
        url=wheel.url,
        sha256=wheel.hashes["sha256"],
        size=wheel.size,
    )


def _write_git(git: LockedGit) -> Package:
    return Package(
        name=canonicalize_name(git.name),
        version=None if git.version is None else Version(git.version),
        vcs=PackageVcs(
            type="git",
            url=git.url,
            requested_revision=git.ref,
            commit_id=git.commit,
            subdirectory=git.subdirectory,
        ),
    )


def _read_git(package: Package, requires: Mapping[str, tuple[str, ...]]) -> LockedGit:
    vcs = package.vcs
    if vcs is None or vcs.url is None or vcs.requested_revision is None:
        raise ValueError(f"package {package.name} names no repository or no ref in it")
    return LockedGit(
        name=package.name,
        version=None if package.version is None else str(package.version),
        url=vcs.url,
        ref=vcs.requested_revision,
        commit=vcs.commit_id,
        subdirectory=vcs.subdirectory,
        requires=requires.get(package.name, ()),
    )

"""Stub wheels: what is there already, as a resolver sees it. They hold metadata and nothing else.

A resolution checks every requirement against them; they never get into a lock or an image.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.errors import LockError
from builder.lock.model import LockedGit
from builder.recipe.fields import pinned_version

UNKNOWN_VERSION = "0"
"""The version of a stub where only a build of the package can tell it.

What the recipe asks of that package is then left to the build; whoever else requires a version of
it is not satisfied.
"""

BASE = "the base"

_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")
_BUILD = "999"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stub:
    """A package that is there already, or will be: a distribution of the base, or one compiled.

    `requires` are its requirements (PEP 508). One that is `pinned` cannot come from anywhere else
    nor in another version; any other may be replaced by a newer one where a requirement asks so.
    `origin` says in words what has it.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    pinned: bool
    origin: str = BASE

    @property
    def key(self) -> tuple[str, str]:
        """Name and version in the spelling that compares (PEP 503, PEP 440)."""
        return str(canonicalize_name(self.name)), str(Version(self.version))

    @property
    def stem(self) -> str:
        """How names of the wheel and of its folder begin (PEP 427)."""
        name, version = self.key
        return f"{name.replace('-', '_')}-{version}"

    def filename(self, tag: str) -> str:
        """The wheel's name.

        uv takes the metadata of a version from the wheel that fits best, so for the stub's to count
        and not an index's, `tag` is the best one of the platform, and the build number high.
        """
        return f"{self.stem}-{_BUILD}-{tag}.whl"


def compiled_stub(git: LockedGit, requirements: Iterable[str]) -> Stub:
    """What a resolution is told of a package that is yet to be compiled.

    Where its repository does not say its version, it is the one that the recipe's `requirements`
    pin, else UNKNOWN_VERSION.
    """
    return Stub(
        name=git.name,
        version=git.version or _exact(git.name, requirements) or UNKNOWN_VERSION,
        requires=git.requires,
        pinned=True,
        origin="its repository",
    )


def _exact(name: str, requirements: Iterable[str]) -> str | None:
    """The version that `requirements` pin the package to, if they do."""
    parsed = map(Requirement, requirements)
    own = (one for one in parsed if canonicalize_name(one.name) == canonicalize_name(name))
    return next(filter(None, map(pinned_version, own)), None)


def pinned_by_name(stubs: Iterable[Stub]) -> dict[str, Stub]:
    """The pinned ones; LockError where two of them stand for one package."""
    found: dict[str, Stub] = {}
    for stub in stubs:
        name = stub.key[0]
        if stub.pinned and name in found:
            raise must_stay(f"{stub.origin} has {name} {stub.version}", found[name])
        if stub.pinned:
            found[name] = stub
    return found


def must_stay(what: str, stub: Stub) -> LockError:
    """The refusal of `what`, which would put another package in the place of `stub`."""
    return LockError(
        f"{what}, and {stub.origin} has {stub.version}, which nothing may replace",
        hint="take it out of the recipe; if a requirement on it is not met, `accept` says so",
    )


def write_stubs(folder: Path, stubs: Iterable[Stub], tag: str) -> None:
    """A wheel for each of `stubs` in the new folder `folder`: the same stub, the same bytes."""
    folder.mkdir()
    for stub in stubs:
        with zipfile.ZipFile(folder / stub.filename(tag), "w") as archive:
            for name, text in _members(stub, tag):
                archive.writestr(zipfile.ZipInfo(name), text)  # its time is 1980, always


def _members(stub: Stub, tag: str) -> Iterator[tuple[str, str]]:
    info = f"{stub.stem}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: spark-build\nBuild: {_BUILD}\nTag: {tag}\n"
    files = {f"{info}/METADATA": _metadata(stub), f"{info}/WHEEL": wheel}
    yield from files.items()
    yield f"{info}/RECORD", _record(files, f"{info}/RECORD")


def _metadata(stub: Stub) -> str:
    """Core metadata 2.1, which uv reads without more fields than these."""
    name, version = stub.key
    extras = sorted({extra for line in stub.requires for extra in _EXTRA.findall(line)})
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    lines += [f"Provides-Extra: {extra}\n" for extra in extras]
    lines += [f"Requires-Dist: {line}\n" for line in stub.requires]
    return "".join(lines)


def _record(files: Mapping[str, str], own: str) -> str:
    lines = []
    for name, text in files.items():
        data = text.encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own},,\n"])

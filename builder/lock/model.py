"""What a lock says: everything that goes into one image, by hash. `pylock` keeps it in a file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

SHA256 = re.compile(r"[0-9a-f]{64}")
"""A hash as it stands in a lock; it becomes a file's name, so nothing else may pass for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedFile:
    """A file that is named by its hash: where it is, what it hashes to, how many bytes it has."""

    url: str
    sha256: str
    size: int

    @property
    def filename(self) -> str:
        """The last part of the URL's path, percent-decoded."""
        return url_filename(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWheel(LockedFile):
    """One wheel of the image; `name` is normalised (PEP 503)."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedGit:
    """A package that is compiled from a repository, at a commit (PEP 751, `packages.vcs`).

    `version` is None where only its build can tell; `requires` are the requirements (PEP 508) that
    took part in the resolution in its stead, and `subdirectory` is where in the repository it is.
    """

    name: str
    url: str
    ref: str
    commit: str
    version: str | None = None
    subdirectory: str | None = None
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedDeb(LockedFile):
    """One distribution package; `architecture` is Debian's word (`arm64`, `all`)."""

    name: str
    version: str
    architecture: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianBase:
    """A base that is laid out from .debs; `debs` are in name order."""

    suite: str
    debs: tuple[LockedDeb, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OciBase:
    """A base in a local OCI layout; `path` as the recipe spells it, `digest` of its manifest."""

    path: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryBase:
    """A base in a registry; `image` as the recipe spells it.

    `index` is the digest that its tag names, of an index or of a manifest; `digest` that of the
    manifest for the lock's platform, and `size` the bytes of all its layers as they are stored.
    """

    image: str
    index: str
    digest: str
    size: int


Base = DebianBase | OciBase | RegistryBase


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchIdentity:
    """Which torch the image has: the invariant that lock, image and verification hold.

    `version` is the distribution's (`importlib.metadata`), `module` is `torch.__version__`, which
    may be spelt otherwise; both without a claim where None. `cuda` is `torch.version.cuda` (X.Y),
    None for a build without CUDA. A torch of the base has the `folder` that it lies in and
    `sha256` over all of its files (see `inventory`).
    """

    origin: Literal["wheel", "base"]
    version: str
    module: str | None = None
    cuda: str | None = None
    folder: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """A package of the base that the environment holds in another version, which goes first."""

    name: str
    base: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What no install may replace: torch and its ABI set, each with the version that must stay.

    `constraints` are the base's own pip constraints that still hold; `scripts` the console scripts
    of guarded packages of the base (name → `module:function`), which must run in the environment;
    `accepted` says, one line each, which unmet requirements the recipe took upon itself, and why.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)
    shadows: tuple[Shadow, ...] = ()
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A source that was tried and could not be taken, and why."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSource:
    """Where a package comes from, of the sources that the recipe lists for it, in words.

    `source` reads `wheel URL`, `index NAME` or `git URL@REF`; `refused` are those before it.
    """

    name: str
    source: str
    refused: tuple[Refusal, ...] = ()

    @property
    def kind(self) -> str:
        """`wheel`, `index` or `git`."""
        return self.source.partition(" ")[0]

    @property
    def place(self) -> str:
        """The URL, the index's name, or `URL@REF`."""
        return self.source.partition(" ")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Everything that goes into one image, by hash.

    `python` is X.Y, `interpreter` its absolute path and `glibc` 2.N, all as the base has them;
    `inputs` is the part of the recipe and target that the resolution answers, which is what
    staleness is judged by; `tools` names the versions that resolved it.
    """

    name: str
    target: str
    platform: str
    python: str
    interpreter: str
    glibc: str
    base: Base
    wheels: tuple[LockedWheel, ...]
    inputs: Mapping[str, Any]
    gits: tuple[LockedGit, ...] = ()
    torch: TorchIdentity | None = None
    guard: Guard = field(default_factory=Guard)
    sources: tuple[ChosenSource, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict)

    @property
    def filename(self) -> str:
        """The lock file's name; its middle part holds no dots (PEP 751, "File Name")."""
        return lock_filename(self.name, self.target)

    @property
    def debs(self) -> tuple[LockedDeb, ...]:
        """The distribution packages of the base, if it is laid out from them."""
        return self.base.debs if isinstance(self.base, DebianBase) else ()

    @property
    def uses_base_torch(self) -> bool:
        """Whether torch is the base's own, below the environment and not in it."""
        return self.torch is not None and self.torch.origin == "base"

    @property
    def contents(self) -> str:
        """`sha256:` over what goes into an image: names, versions and hashes.

        Where the files were found and what resolved them is not in it, so that the same files by
        way of a mirror are the same contents, and give the same image.
        """
        held = {
            "image": [self.name, self.target, self.platform],
            "python": [self.python, self.interpreter, self.glibc],
            "base": _held_base(self.base),
            "wheels": [[wheel.name, wheel.version, wheel.sha256] for wheel in self.wheels],
            **({"gits": [[git.name, git.commit] for git in self.gits]} if self.gits else {}),
        }
        return f"sha256:{hashlib.sha256(json.dumps(held).encode()).hexdigest()}"


def url_filename(url: str) -> str:
    """The last part of a URL's path, percent-decoded."""
    return unquote(urlsplit(url).path).rpartition("/")[2]


def lock_filename(name: str, target: str) -> str:
    """`pylock.<name>-<target>.toml`; names and targets hold no dots."""
    return f"pylock.{name}-{target}.toml"


def plain(value: Any) -> Any:
    """`value` as TOML gives it back: tuples as lists, absent values left out."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _held_base(base: Base) -> list[Any]:
    if isinstance(base, DebianBase):
        debs = [[deb.name, deb.version, deb.architecture, deb.sha256] for deb in base.debs]
        return [base.suite, debs]
    return [base.digest]

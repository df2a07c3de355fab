"""What a lock says, and the file it is kept in.

The file is a standard `pylock.<name>-<target>.toml` (PEP 751,
https://packaging.python.org/en/latest/specifications/pylock-toml/) that uv and pip can install by
themselves; `[tool.spark-build]` adds what an image needs beyond wheels. No resolving happens here.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

import tomli_w
from packaging.markers import Marker
from packaging.pylock import Package, PackageWheel, Pylock, PylockValidationError
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.errors import LockError
from builder.lock.platforms import MACHINES

FORMAT = 1
_TOOL = "spark-build"
_TEXTS = {
    "name": r"[a-z0-9_-]+",
    "target": r"[a-z0-9-]+",
    "platform": r"linux/[a-z0-9]+",
    "python": r"3\.[0-9]{1,3}",
    "interpreter": r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._+-]+)+",
    "glibc": r"2\.[0-9]{1,3}",
}
"""The texts of our table, and what each may look like: some become paths and lines of a file."""
_DEB_TEXTS = ("name", "version", "architecture", "url", "sha256")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedFile:
    """A file that is named by its hash: where it is, what it hashes to, how many bytes it has."""

    url: str
    sha256: str
    size: int

    @property
    def filename(self) -> str:
        """The last part of the URL's path, percent-decoded."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


_File = TypeVar("_File", bound=LockedFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWheel(LockedFile):
    """One wheel of the image; `name` is normalised (PEP 503)."""

    name: str
    version: str


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
    base: DebianBase | OciBase
    wheels: tuple[LockedWheel, ...]
    inputs: Mapping[str, Any]
    tools: Mapping[str, str] = field(default_factory=dict)

    @property
    def filename(self) -> str:
        """The lock file's name; its middle part holds no dots (PEP 751, "File Name")."""
        return lock_filename(self.name, self.target)

    def to_toml(self) -> str:
        """The file's text: the same lock always gives the same bytes."""
        document = self._document()
        document["tool"][_TOOL]["digest"] = _digest(document)
        return tomli_w.dumps(document)

    @property
    def digest(self) -> str:
        """`sha256:` over the body of the file, its own digest line left out."""
        return _digest(self._document())

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
        }
        return f"sha256:{hashlib.sha256(json.dumps(held).encode()).hexdigest()}"

    @classmethod
    def from_toml(cls, text: str, *, source: str) -> Self:
        """Read a lock file's text back; `source` is its path, for messages.

        Raises LockError where the text is no lock of ours or was changed by hand.
        """
        try:
            document = tomllib.loads(text)
            pylock = Pylock.from_dict(document)
            extra = _extra(document)
            _check(document, source)
            return cls(
                **{key: _text(extra, key) for key in _TEXTS},
                base=_read_base(_typed(extra, "base", dict)),
                wheels=tuple(_read_wheel(package) for package in pylock.packages),
                inputs=_typed(extra, "inputs", dict),
                tools=_typed(extra, "tools", dict),
            )
        except (
            tomllib.TOMLDecodeError,
            PylockValidationError,
            RecursionError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:
            ours = Path(source).name.startswith("pylock.")
            raise LockError(
                f"{source}: not a lock that spark-build wrote: {error}",
                hint="delete the file and run `spark-build lock RECIPE`" if ours else None,
            ) from None

    def _document(self) -> dict[str, Any]:
        pylock = Pylock(
            lock_version=Version("1.0"),
            environments=[Marker(_environment(self.platform))],
            requires_python=SpecifierSet(f"=={self.python}.*"),
            created_by=_TOOL,
            packages=[_write_wheel(wheel) for wheel in self.wheels],
            tool={
                _TOOL: {
                    "format": FORMAT,
                    **{key: getattr(self, key) for key in _TEXTS},
                    "tools": dict(self.tools),
                    "inputs": plain(self.inputs),
                    "base": _write_base(self.base),
                }
            },
        )
        return dict(pylock.to_dict())


def lock_filename(name: str, target: str) -> str:
    """`pylock.<name>-<target>.toml`; names and targets hold no dots."""
    return f"pylock.{name}-{target}.toml"


def read_lock(path: Path) -> Lock:
    """The lock in the file at `path`; LockError where it cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LockError(f"{path}: no such lock", hint="run `spark-build lock RECIPE`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{path}: cannot be read: {error}") from None
    return Lock.from_toml(text, source=str(path))


def _environment(platform: str) -> str:
    return f"sys_platform == 'linux' and platform_machine == '{MACHINES[platform]}'"


def _extra(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table that is ours."""
    tools = document.get("tool")
    extra = tools.get(_TOOL) if isinstance(tools, dict) else None
    if not isinstance(extra, dict):
        raise TypeError(f"it has no table [tool.{_TOOL}]")
    return extra


def _typed(table: object, key: str, kind: type[_Kind]) -> _Kind:
    value = table.get(key) if isinstance(table, dict) else None
    if not isinstance(value, kind):
        raise TypeError(f"{key!r} is missing, or not a {kind.__name__}")
    return value


def _text(extra: Mapping[str, Any], key: str) -> str:
    value = _typed(extra, key, str)
    if re.fullmatch(_TEXTS[key], value) is None:
        raise ValueError(f"{key!r} cannot be {value!r}")
    return value


def _digest(document: Mapping[str, Any]) -> str:
    """sha256 of the canonical text, without the digest itself."""
    extra = {key: value for key, value in document["tool"][_TOOL].items() if key != "digest"}
    body = {**document, "tool": {**document["tool"], _TOOL: extra}}
    return "sha256:" + hashlib.sha256(tomli_w.dumps(body).encode()).hexdigest()


def _check(document: Mapping[str, Any], source: str) -> None:
    extra = _extra(document)
    if extra.get("format") != FORMAT:
        raise LockError(
            f"{source}: written in format {extra.get('format')}, this spark-build reads {FORMAT}",
            hint="delete the file and run `spark-build lock RECIPE`",
        )
    platform = _typed(extra, "platform", str)
    if platform not in MACHINES:
        raise ValueError(f"no platform is called {platform!r}")
    if extra.get("digest") != _digest(document):
        raise LockError(
            f"{source}: the body does not match its digest; the file was changed by hand",
            hint="restore it from version control, or delete it and run `spark-build lock RECIPE`",
        )


def plain(value: Any) -> Any:
    """`value` as TOML gives it back: tuples as lists, absent values left out."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


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
    return _checked(
        LockedWheel(
            name=package.name,
            version=str(package.version),
            url=wheel.url,
            sha256=wheel.hashes["sha256"],
            size=wheel.size,
        )
    )


def _checked(file: _File) -> _File:
    """The file, whose hash becomes a path in the store and so must be nothing but a hash."""
    if not _SHA256.fullmatch(file.sha256) or file.size < 0:
        raise ValueError(f"{file.filename}: no sha256 in small hex digits, or no size in bytes")
    return file


def _write_base(base: DebianBase | OciBase) -> dict[str, Any]:
    if isinstance(base, OciBase):
        return {"oci": base.path, "digest": base.digest}
    return {
        "debian": base.suite,
        "debs": [
            {
                "name": deb.name,
                "version": deb.version,
                "architecture": deb.architecture,
                "url": deb.url,
                "size": deb.size,
                "sha256": deb.sha256,
            }
            for deb in base.debs
        ],
    }


def _held_base(base: DebianBase | OciBase) -> list[Any]:
    if isinstance(base, OciBase):
        return [base.digest]
    debs = [[deb.name, deb.version, deb.architecture, deb.sha256] for deb in base.debs]
    return [base.suite, debs]


def _read_base(value: Mapping[str, Any]) -> DebianBase | OciBase:
    if "oci" in value:
        return OciBase(path=_typed(value, "oci", str), digest=_typed(value, "digest", str))
    debs = tuple(_read_deb(deb) for deb in _typed(value, "debs", list))
    return DebianBase(suite=_typed(value, "debian", str), debs=debs)


def _read_deb(value: Mapping[str, Any]) -> LockedDeb:
    texts = {key: _typed(value, key, str) for key in _DEB_TEXTS}
    return _checked(LockedDeb(**texts, size=_typed(value, "size", int)))

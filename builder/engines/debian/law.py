"""What packages' scripts do, and what is done instead: `debs.yaml`, and who it refuses.

The law is data, one entry for each package whose scripts say something that `scripts.py` does not
understand by itself. A package with such a script and no entry is refused, and so is a script that
its entry does not name: nobody has read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from builder import resources
from builder.engines.debian.deb import Deb
from builder.engines.debian.scripts import Alternative, read_script
from builder.errors import UsageError

LAW_FILE = "engines/debs.yaml"

_SCRIPTS = ("preinst", "postinst")
"""What runs at a first installation; `config` only asks questions, whose defaults hold here."""

ScriptName = Literal["preinst", "postinst"]
Task = Literal["certificates", "ld-cache", "shadow", "shells"]
Mode = Annotated[int, BeforeValidator(lambda text: int(text, 8))]
AbsolutePath = Annotated[str, Field(pattern=r"^/")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Folder(_Model):
    """A folder that is made where it is not there, or given this mode and group where it is."""

    path: AbsolutePath
    mode: Mode = 0o755
    group: str = "root"


class File(_Model):
    """A file with this text, made where it is not there."""

    path: AbsolutePath
    text: str = ""
    mode: Mode = 0o644
    group: str = "root"


class Copy(_Model):
    """A file that a package ships elsewhere, copied with its mode where there is none yet."""

    source: AbsolutePath
    to: AbsolutePath


class Link(_Model):
    """A symbolic link."""

    path: AbsolutePath
    target: str


class User(_Model):
    """A system user who cannot log in; `group` is made where it is not there."""

    name: str
    group: str
    home: AbsolutePath = "/nonexistent"
    comment: str = ""


class Change(_Model):
    """Another mode and group for a file that a package ships."""

    path: AbsolutePath
    mode: Mode
    group: str = "root"


class Covered(_Model):
    """One package of the law: `does` is what its scripts do, `covered` how that is met here.

    `read` names the versions whose scripts were read. The package is refused all the same where
    a folder in `empty` holds anything, because then its scripts would have had work to do.
    Paths and texts may hold {triplet}, {architecture} and {stem}, what `*` in the key stood for.
    """

    scripts: tuple[ScriptName, ...]
    does: str
    covered: str
    read: str
    tasks: tuple[Task, ...] = ()
    empty: tuple[AbsolutePath, ...] = ()
    groups: tuple[str, ...] = ()
    users: tuple[User, ...] = ()
    folders: tuple[Folder, ...] = ()
    files: tuple[File, ...] = ()
    copies: tuple[Copy, ...] = ()
    links: tuple[Link, ...] = ()
    changes: tuple[Change, ...] = ()
    alternatives: tuple[Alternative, ...] = ()


class Law(_Model):
    """The whole file: debhelper's tools whose blocks count for nothing, and the packages."""

    debhelper: dict[str, str]
    packages: dict[str, Covered]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What is to be done for one package: an entry of the law or none, and its alternatives."""

    deb: Deb
    covered: Covered | None
    stem: str
    alternatives: tuple[Alternative, ...]


@cache
def load_law() -> Law:
    """The law that this version ships."""
    text = resources.package_file(LAW_FILE).read_text(encoding="utf-8")
    return Law.model_validate(yaml.safe_load(text))


def judge(debs: Sequence[Deb], law: Law) -> tuple[Ruling, ...]:
    """What to do for each package, in name order.

    Raises UsageError that names every package with a script that nothing here can stand in for.
    """
    rulings: list[Ruling] = []
    refused: list[str] = []
    for deb in sorted(debs, key=lambda deb: deb.name):
        covered, stem = _find(law, deb.name)
        alternatives: list[Alternative] = list(covered.alternatives) if covered else []
        for script in _SCRIPTS:
            text = deb.control.get(script, b"").decode("utf-8", "replace")
            reading = read_script(text, law.debhelper)
            alternatives += reading.alternatives
            if reading.telling and (covered is None or script not in covered.scripts):
                refused.append(f"{deb.name}: its {script} script says: {reading.telling}")
        rulings.append(
            Ruling(deb=deb, covered=covered, stem=stem, alternatives=tuple(alternatives))
        )
    if refused:
        raise refusal(refused)
    return tuple(rulings)


def refusal(reasons: Sequence[str]) -> UsageError:
    """The error for packages that have to be installed rather than laid out."""
    return UsageError(
        "these packages do work at installation that cannot be done without running it:\n"
        + "\n".join(f"  {reason}" for reason in reasons),
        hint="leave them out, or build with podman, buildah or docker, which run the scripts",
    )


def _find(law: Law, name: str) -> tuple[Covered | None, str]:
    """The entry for a package, and the number that the `*` of its key stands for."""
    if name in law.packages:
        return law.packages[name], ""
    for pattern, covered in law.packages.items():
        head, star, tail = pattern.partition("*")
        stem = name.removeprefix(head).removesuffix(tail)
        if star and stem.isdecimal() and name == head + stem + tail:
            return covered, stem
    return None, ""

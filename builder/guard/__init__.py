"""What keeps torch in a running container: files, settings, and two programs that say so.

    guard_files(lock)        the files, with their places
    guard_programs(lock)     the programs in front of pip and uv
    guard_environment(lock)  the variables that name the files

pip and uv each have two nets, variables and configuration files, so that an environment that was
scrubbed (ssh, sudo, a batch system) is still guarded, and so is one that reads no configuration
(`uv --no-config`). Measured with pip 26.3 and uv 0.4.30, 0.8.22 and 0.13.8:

- pip obeys PIP_CONSTRAINT (https://pip.pypa.io/en/stable/user_guide/#constraints-files); with
  `--isolated` it reads no variables, and still the environment's own pip.conf. A version is pinned
  with `===`, since `==2.13.0` also lets 2.13.0+cpu in.
- uv ignores both, does not see what a base has below the environment, and with `-U` replaces even
  a torch that satisfies everything. An exclusion (UV_EXCLUDE, uv 0.9.8) makes it pass torch over;
  an override that never holds does the same with older ones, and in /etc/uv/uv.toml, where an
  older uv refuses keys that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from string import Template
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, is_normalized_name
from packaging.version import InvalidVersion, Version

from builder.errors import LockError
from builder.lock.model import Lock, TorchIdentity
from builder.resources import package_file

BIN = "/opt/spark-build/bin"
"""Where the programs lie: before everything else on PATH."""

FOLDER = "/opt/spark-build/guard"
"""Where the files lie that pip and uv are told of."""

_NEVER = "sys_platform == 'never'"
_PIP_CONFIG = "/opt/venv/pip.conf"
_UV_CONFIG = "/etc/uv/uv.toml"


class GuardFile(NamedTuple):
    """A text file of the image."""

    path: str
    text: str
    mode: int = 0o644


def guarded_packages(lock: Lock) -> dict[str, str]:
    """Normalised name → version of all that must stay, torch first; empty without a torch."""
    if lock.torch is None:
        return {}
    packages = {_name(name): text for name, text in lock.guard.packages.items()}
    return {"torch": lock.torch.version, **dict(sorted(packages.items()))}


def guard_environment(lock: Lock) -> dict[str, str]:
    """The variables by which pip and uv find the files; empty where nothing is guarded.

    UV_SYSTEM_PYTHON, where a base sets it, would lead uv past the environment into the base.
    """
    if lock.torch is None:
        return {}
    return {
        "PIP_CONSTRAINT": f"{FOLDER}/constraints.txt",
        "UV_CONSTRAINT": f"{FOLDER}/constraints.txt",
        "UV_EXCLUDE": f"{FOLDER}/exclude.txt",
        "UV_OVERRIDE": f"{FOLDER}/override.txt",
        "UV_SYSTEM_PYTHON": "0",
    }


def guard_files(lock: Lock) -> tuple[GuardFile, ...]:
    """Every file of the guard; empty where nothing is guarded.

    Raises LockError where the lock has a line or a version that cannot stand in such a file.
    """
    packages = guarded_packages(lock)
    torch = lock.torch
    if torch is None:
        return ()
    constraints = [*(f"{name}==={_exact(text)}" for name, text in packages.items())]
    constraints += map(_constraint, lock.guard.constraints)
    overrides = [f"{name} ; {_NEVER}" for name in packages]
    return (
        GuardFile(f"{FOLDER}/README", _readme(packages)),
        GuardFile(f"{FOLDER}/constraints.txt", _lines(constraints)),
        GuardFile(f"{FOLDER}/exclude.txt", _lines(packages)),
        GuardFile(f"{FOLDER}/guard.json", _record(lock, torch, packages)),
        GuardFile(f"{FOLDER}/notice", f"spark-build: {_notice(packages)}\n"),
        GuardFile(f"{FOLDER}/override.txt", _lines(overrides)),
        GuardFile(f"{FOLDER}/report.py", _template("report.py")),
        GuardFile(f"{FOLDER}/wrapper", _template("wrapper.sh"), 0o755),
        GuardFile(_PIP_CONFIG, f"[global]\nconstraint = {FOLDER}/constraints.txt\n"),
        GuardFile(_UV_CONFIG, f"override-dependencies = {json.dumps(overrides)}\n"),
    )


def guard_programs(lock: Lock) -> tuple[str, ...]:
    """The programs in `BIN`, all of them links to `FOLDER`/wrapper; empty where nothing is kept."""
    return () if lock.torch is None else ("pip", "pip3", f"pip{lock.python}", "uv")


def _name(text: str) -> str:
    name = canonicalize_name(text)
    # Python's `$` lets a line break at the end through.
    if not is_normalized_name(name) or not name.isprintable():
        raise LockError(f"guard: {text!r} is not the name of a package")
    return name


def _exact(version: str) -> str:
    """The version as pip compares it after `===`, which is text by text."""
    try:
        parsed = Version(version) if version == version.strip() else None
    except InvalidVersion:
        parsed = None
    if parsed is None:
        raise LockError(f"guard: {version!r} is not a version (PEP 440)")
    return str(parsed)


def _constraint(text: str) -> str:
    """One line of constraints; pip would follow an option in it, or a URL with a variable."""
    try:
        sound = text.isprintable() and Requirement(text).url is None
    except InvalidRequirement:
        sound = False
    if not sound:
        raise LockError(f"guard: {text!r} is not one line of constraints")
    return text


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _readme(packages: dict[str, str]) -> str:
    listed = "\n".join(f"    {name} {text}" for name, text in packages.items())
    return Template(_template("README.txt")).substitute(packages=listed)


def _notice(packages: dict[str, str]) -> str:
    others = len(packages) - 1
    what = {0: "stays", 1: "and 1 package that belongs to it stay"}.get(
        others, f"and {others} packages that belong to it stay"
    )
    return f"torch {packages['torch']} {what} as the image has it; see {FOLDER}/README"


def _record(lock: Lock, torch: TorchIdentity, packages: dict[str, str]) -> str:
    """What `report.py` compares with; requirements of locked packages were judged by the lock."""
    value = {
        "torch": {"origin": torch.origin, "module": torch.module, "folder": torch.folder},
        "packages": packages,
        "locked": {canonicalize_name(wheel.name): wheel.version for wheel in lock.wheels},
    }
    return json.dumps(value, indent=1) + "\n"


@cache
def _template(name: str) -> str:
    return package_file(f"guard/{name}").read_text(encoding="utf-8")

"""What a source tree says of itself in its files, read without running any of it.

That is the static part of pyproject.toml (PEP 621,
https://packaging.python.org/en/latest/specifications/pyproject-toml/), setuptools' own words for
files that list requirements, and setup.cfg; what setup.py would compute stays unknown.
"""

from __future__ import annotations

import configparser
import posixpath
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.errors import ExternalError, RecipeError
from builder.recipe.fields import canonical_requirement
from builder.recipe.requirements_file import parse_requirements

Read = Callable[[str], str | None]
"""Path in a repository → the file's text, None where there is no such file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The facts of one package; each is None where no file states it.

    `requires` are its requirements (PEP 508), `extras` those of each extra by normalised name.
    """

    name: str | None = None
    version: str | None = None
    requires_python: str | None = None
    requires: tuple[str, ...] | None = None
    extras: Mapping[str, tuple[str, ...]] | None = field(default=None)

    def requires_with(self, extras: Iterable[str]) -> tuple[str, ...]:
        """What it requires with these extras; extras that refer to others are followed.

        Raises ExternalError where no file tells.
        """
        if self.requires is None:
            raise ExternalError(
                "its requirements are known only by running its build; name the files that list "
                "them under `requirements`"
            )
        found = list(self.requires)
        pending = [canonicalize_name(extra) for extra in extras]
        for extra in pending:
            for text in self._extra(extra):
                requirement = Requirement(text)
                if self.name is None or canonicalize_name(requirement.name) != self.name:
                    found.append(text)
                    continue
                names = map(canonicalize_name, sorted(requirement.extras))
                pending += [name for name in names if name not in pending]
        return tuple(dict.fromkeys(found))

    def _extra(self, name: str) -> tuple[str, ...]:
        if self.extras is None:
            raise ExternalError(
                f"what its extra `{name}` requires is known only by running its build; name those "
                "packages under `packages`, and leave the extra out"
            )
        if name not in self.extras:
            raise ExternalError(f"it has no extra `{name}`")
        return self.extras[name]


def read_project(read: Read, *, folder: str = "", files: Sequence[str] = ()) -> Project:
    """The facts of the package in `folder` of a repository.

    `files` list its requirements where pyproject.toml does not state them, as paths from the
    repository's root. Raises ExternalError where a file is not there or cannot be read.
    """
    path = posixpath.join(folder, "pyproject.toml")
    document = _toml(read(path), path)
    table = _table(document, "project", path)
    dynamic = _texts(table, "dynamic", path)
    stated = bool(table)
    requires: tuple[str, ...] | None
    if stated and "dependencies" not in dynamic:
        requires = _requirements(_texts(table, "dependencies", path), path)
    elif files:
        requires = _listed(read, files)
    else:
        requires = _setuptools(read, document, folder)
    name = _text(table, "name", path)
    return Project(
        name=None if name is None else canonicalize_name(name),
        version=_text(table, "version", path),
        requires_python=_text(table, "requires-python", path),
        requires=requires,
        extras=_extras(table, path) if stated and "optional-dependencies" not in dynamic else None,
    )


def _toml(text: str | None, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text or "")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ExternalError(f"{path}: is no TOML: {error}") from None


def _extras(table: Mapping[str, Any], path: str) -> dict[str, tuple[str, ...]]:
    extras = _table(table, "optional-dependencies", path)
    return {
        canonicalize_name(name): _requirements(_texts(extras, name, path), path) for name in extras
    }


def _setuptools(read: Read, document: Mapping[str, Any], folder: str) -> tuple[str, ...] | None:
    """What setuptools would read of its own settings (its user guide, "Dynamic Metadata")."""
    path = posixpath.join(folder, "pyproject.toml")
    table = document
    for key in ("tool", "setuptools", "dynamic", "dependencies"):
        table = _table(table, key, path)
    files = table.get("file")
    if files is not None:
        named = [files] if isinstance(files, str) else _texts(table, "file", path)
        return _listed(read, [posixpath.join(folder, name) for name in named])
    return _setup_cfg(read, folder)


def _setup_cfg(read: Read, folder: str) -> tuple[str, ...] | None:
    path = posixpath.join(folder, "setup.cfg")
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(read(path) or "", path)
    except configparser.Error as error:
        raise ExternalError(f"{path}: {' '.join(str(error).split())}") from None
    value = parser.get("options", "install_requires", fallback=None)
    if value is None:
        return None
    if value.lstrip().startswith("file:"):
        names = value.strip().removeprefix("file:").replace("\n", ",").split(",")
        return _listed(read, [posixpath.join(folder, n.strip()) for n in names if n.strip()])
    parts = value.splitlines() if "\n" in value else value.split(";")
    return _requirements([part.strip() for part in parts if part.strip()], path)


def _listed(read: Read, files: Sequence[str]) -> tuple[str, ...]:
    def include(path: str) -> str:
        text = None if path.startswith(("/", "../")) else read(path)
        if text is None:
            raise FileNotFoundError(2, "there is no such file")
        return text

    found: list[str] = []
    for name in map(posixpath.normpath, files):
        try:
            text = include(name)
            found += parse_requirements(text, source=name, include=include, options="ignore")
        except FileNotFoundError:
            raise ExternalError(f"{name}: there is no such file") from None
        except RecipeError as error:
            raise ExternalError("; ".join(map(str, error.problems))) from None
    return tuple(dict.fromkeys(found))


def _requirements(texts: Sequence[str], path: str) -> tuple[str, ...]:
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            raise ExternalError(f"{path}: `{text}` is not a requirement") from None
        if requirement.url is not None:
            raise ExternalError(f"{path}: `{requirement.name}` comes from a URL")
    return tuple(dict.fromkeys(map(canonical_requirement, texts)))


def _table(table: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise ExternalError(f"{path}: `{key}` is not a table")
    return value


def _text(table: Mapping[str, Any], key: str, path: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise ExternalError(f"{path}: `{key}` is not text")
    return value


def _texts(table: Mapping[str, Any], key: str, path: str) -> list[str]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ExternalError(f"{path}: `{key}` is not a list of texts")
    return value

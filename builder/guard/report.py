"""Runs inside the image: is torch, with what belongs to it, still what the image was built with?

Needs nothing but the standard library of Python 3.8. What must be there is in `guard.json` beside
this file. Requirements are read by `packaging`, or by pip's copy of it, where one is installed.
The exit status is 1 where something was replaced.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

_VERSION = re.compile(r"^__version__(?:\s*:\s*\w+)?\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


class Installed(NamedTuple):
    """A distribution on Python's path: its normalised name, and the folder that it is in."""

    name: str
    version: str
    folder: str
    requires: Sequence[str]


def main(record: Path) -> int:
    """Say on stderr what was replaced and what is not met; 1 where something was replaced."""
    guard = json.loads(record.read_text(encoding="utf-8"))
    installed = list(find_installed())
    replaced = [
        line
        for name, version in guard["packages"].items()
        for line in judge(name, version, installed)
    ]
    replaced = replaced or list(judge_import(guard["torch"]))
    if replaced:
        replaced.append(f"to go back: {_remedy(guard['torch'])}")
    for line in (*replaced, *find_unmet(guard, installed)):
        sys.stderr.write(f"spark-build: {line}\n")
    return 1 if replaced else 0


def find_installed() -> Iterator[Installed]:
    """Every distribution on the path, in its order, each folder looked at once."""
    seen = set()
    for found in importlib.metadata.distributions():
        name, folder = found.metadata["Name"], os.path.realpath(str(found.locate_file("")))
        if name and found.version and (name, folder, found.version) not in seen:
            seen.add((name, folder, found.version))
            yield Installed(_normalise(name), found.version, folder, found.requires or ())


def judge(name: str, version: str, installed: Sequence[Installed]) -> Iterator[str]:
    """What is wrong with a guarded package: gone, in another version, or torch there twice."""
    found = [item for item in installed if item.name == name]
    if not found:
        yield f"{name} is gone, the image was built with {version}"
    elif not _same_version(found[0].version, version):
        yield (
            f"{name} was replaced: Python takes {found[0].version} from {found[0].folder}, "
            f"the image was built with {version}"
        )
    elif name == "torch" and len(found) > 1:
        places = ", ".join(f"{item.version} in {item.folder}" for item in found)
        yield f"torch was replaced: it is there {len(found)} times ({places})"


def judge_import(torch: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with what `import torch` takes, whatever the distributions say."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        yield "torch was replaced: `import torch` finds nothing"
        return
    package = Path(os.path.realpath(spec.origin)).parent
    folder, module = torch["folder"], _module_version(package)
    if folder is not None and str(package) != os.path.realpath(folder):
        yield f"torch was replaced: `import torch` takes {package}, the image's is {folder}"
    elif torch["module"] not in (None, module):
        yield (
            f"torch was replaced: {package} says that it is {module}, "
            f"the image was built with {torch['module']}"
        )


def find_unmet(guard: Mapping[str, Any], installed: Sequence[Installed]) -> Iterator[str]:
    """Requirements on guarded packages that are not met, of what came after the build."""
    own = os.path.realpath(sys.prefix) + os.sep
    added = [
        item
        for item in installed
        if item.folder.startswith(own) and guard["locked"].get(item.name) != item.version
    ]
    requirements = _import("packaging.requirements", "pip._vendor.packaging.requirements")
    if added and requirements is None:
        yield "whether requirements are met is not known: there is neither packaging nor pip"
        return
    versions = {item.name: item.version for item in reversed(installed)}
    for item in added:
        for text in item.requires:
            required = _parse(requirements, text)
            name = None if required is None else _normalise(required.name)
            if name not in guard["packages"] or name not in versions:
                continue
            if not required.specifier.contains(versions[name], prereleases=True):
                yield (
                    f"{item.name} {item.version} requires {name}{required.specifier}, and "
                    f"{versions[name]} stays: it may not work"
                )


def _normalise(name: str) -> str:
    """PEP 503, "Normalized Names"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _parse(requirements: Any, text: str) -> Any:
    """A requirement that holds here; None for one of an extra, or of another platform."""
    try:
        required = requirements.Requirement(text)
    except requirements.InvalidRequirement:
        return None
    holds = required.marker is None or required.marker.evaluate({"extra": ""})
    return required if holds else None


def _module_version(package: Path) -> str | None:
    try:
        text = (package / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _VERSION.search(text)
    return None if found is None else found.group(1)


def _same_version(one: str, other: str) -> bool:
    versions = _import("packaging.version", "pip._vendor.packaging.version")
    if versions is None:
        return one.lower() == other.lower()
    try:
        return bool(versions.Version(one) == versions.Version(other))
    except versions.InvalidVersion:
        return one == other


def _import(*names: str) -> ModuleType | None:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _remedy(torch: Mapping[str, Any]) -> str:
    if torch["origin"] == "base":
        return "`pip uninstall` of what is named here takes it out of /opt/venv; the base's stays"
    return "start the container anew, or build the image again"


if __name__ == "__main__":
    sys.exit(main(Path(__file__).with_name("guard.json")))

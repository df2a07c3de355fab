"""The Python packages in an image, by the names of their dist-info folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.verify.tree import Directory, Tree

SITE = re.compile(r"(?P<site>.*/(?:site|dist)-packages)/(?P<rest>.+)", re.DOTALL)
"""A path below a package folder."""

_DIST_INFO = re.compile(r"(?P<name>[^-/]+)-(?P<version>[^-/]+)\.dist-info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """An installed distribution: `path` is its dist-info folder, `site` the folder above."""

    site: str
    path: str
    name: NormalizedName
    version: str

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{self.name} {self.version}"


def find_distributions(tree: Tree) -> Iterator[Distribution]:
    """Every distribution in the image, whether any Python sees it or not."""
    for path, node in tree.walk():
        match = SITE.fullmatch(path) if isinstance(node, Directory) else None
        info = _DIST_INFO.fullmatch(match["rest"]) if match else None
        if match and info:
            name, version = canonicalize_name(info["name"]), info["version"]
            yield Distribution(site=match["site"], path=path, name=name, version=version)


def same_version(one: str, other: str) -> bool:
    """Whether a folder's version is the other one; the folder has `_` for `-` (PEP 427)."""
    try:
        return Version(one.replace("_", "-")) == Version(other)
    except InvalidVersion:
        return one == other

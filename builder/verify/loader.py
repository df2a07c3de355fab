"""Where the dynamic loader finds a library, by ld.so(8), in an image that is not run."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum

from builder.elf import ElfFacts
from builder.verify.tree import File, Symlink, Tree


class Met(StrEnum):
    """How a library that a file needs is there."""

    FOUND = "found"
    """The loader finds it by itself."""
    PRELOADED = "preloaded"
    """It is in the image, where only a program that loads it first makes it found."""


class Loader:
    """Looks libraries up in a tree.

    `search` is the image's LD_LIBRARY_PATH, `defaults` where the platform's loader looks last.
    The RPATH of whatever will load a file is not known here; that is what `PRELOADED` is for.
    """

    def __init__(self, tree: Tree, *, search: Sequence[str], defaults: Sequence[str]) -> None:
        self._tree = tree
        self._search = tuple(search)
        self._defaults = tuple(defaults)
        self._found: dict[str, ElfFacts | None] = {}
        self.elfs = _elf_files(tree)
        self._names = _names(tree, self.elfs)

    def meet(self, path: str, library: str) -> Met | None:
        """How the file at `path` gets `library`; None where the image does not have it."""
        facts = self.elfs[path]
        if "/" in library:
            return Met.FOUND if self._fits(library, facts) else None
        if any(self._fits(f"{folder}/{library}", facts) for folder in self._folders(path, facts)):
            return Met.FOUND
        cached = self._tree.libraries.get(library)
        if cached is not None and self._fits(cached, facts):
            return Met.FOUND
        if any(self._fits(f"{folder}/{library}", facts) for folder in self._defaults):
            return Met.FOUND
        same = (other.machine == facts.machine for other in self._names.get(library, ()))
        return Met.PRELOADED if any(same) else None

    def _folders(self, path: str, facts: ElfFacts) -> list[str]:
        """The folders before the cache; RPATH counts only where there is no RUNPATH."""
        origin = posixpath.dirname(path)
        rpath = () if facts.runpath else facts.rpath
        return [
            *(_expand(part, origin) for part in rpath),
            *self._search,
            *(_expand(part, origin) for part in facts.runpath),
        ]

    def _fits(self, path: str, facts: ElfFacts) -> bool:
        """Whether there is a library for the same machine; the loader passes over others."""
        if path not in self._found:
            found = self._tree.find(path)
            node = None if found is None else found[1]
            self._found[path] = node.elf if isinstance(node, File) else None
        other = self._found[path]
        return other is not None and (other.machine, other.bits) == (facts.machine, facts.bits)


def _expand(part: str, origin: str) -> str:
    return part.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)


def _elf_files(tree: Tree) -> Mapping[str, ElfFacts]:
    return {
        path: node.elf
        for path, node in tree.walk()
        if isinstance(node, File) and node.elf is not None
    }


def _names(tree: Tree, elfs: Mapping[str, ElfFacts]) -> Mapping[str, list[ElfFacts]]:
    """Every name that a library of the image goes by: its file's, its SONAME, links to it."""
    names: dict[str, list[ElfFacts]] = defaultdict(list)
    for path, facts in elfs.items():
        for name in {posixpath.basename(path), facts.soname or ""}:
            names[name].append(facts)
    for path, node in tree.walk():
        if isinstance(node, Symlink) and ".so" in path:
            found = tree.find(path)
            if found is not None and found[0] in elfs:
                names[posixpath.basename(path)].append(elfs[found[0]])
    return names

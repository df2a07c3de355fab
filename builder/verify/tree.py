"""The file system that an image's layers make when they are put on top of each other.

Symbolic links are followed as in the running container: a base's `lib -> usr/lib` holds for what
upper layers put under `lib/`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from builder.elf import ElfFacts
from builder.verify.static import Entry, Kind, LayerFacts

_LINKS_MAX = 40  # Linux's own bound, path_resolution(7)


@dataclass(slots=True)
class Directory:
    """A folder and what is in it, by name."""

    children: dict[str, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class File:
    """Anything that is neither a folder nor a symbolic link; `elf` for an ELF file."""

    elf: ElfFacts | None = None


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link."""

    target: str


Node = Directory | File | Symlink


class Tree:
    """The merged file system; paths are absolute."""

    def __init__(self, layers: Sequence[LayerFacts]) -> None:
        self._root = Directory()
        self.libraries: dict[str, str] = {}
        for layer in layers:
            self._hide(layer)
            for entry in layer.entries:
                self._put(entry, layer)
            if layer.libraries is not None:
                self.libraries = dict(layer.libraries)

    def find(self, path: str) -> tuple[str, Node] | None:
        """What `path` leads to, links followed, and its path without links; None if nothing."""
        found = self._walk(path)
        return None if found is None else ("/" + "/".join(found[0]), found[1])

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Every path and what is there, links not followed, in the order of the names."""
        pending: list[tuple[str, Node]] = [("", self._root)]
        while pending:
            path, node = pending.pop()
            if path:
                yield path, node
            if isinstance(node, Directory):
                below = sorted(node.children.items(), reverse=True)
                pending.extend((f"{path}/{name}", child) for name, child in below)

    def _hide(self, layer: LayerFacts) -> None:
        """Whiteouts speak of lower layers only, wherever they stand in their own."""
        for entry in layer.entries:
            if entry.kind is Kind.OPAQUE:
                found = self._walk(entry.path)
                if found is not None and isinstance(found[1], Directory):
                    found[1].children.clear()
            elif entry.kind is Kind.WHITEOUT:
                folder, _, name = entry.path.rpartition("/")
                found = self._walk(folder)
                if found is not None and isinstance(found[1], Directory):
                    found[1].children.pop(name, None)

    def _put(self, entry: Entry, layer: LayerFacts) -> None:
        folder, _, name = entry.path.rpartition("/")
        found = self._walk(folder, make=True)
        if found is None or not isinstance(found[1], Directory):
            return
        siblings = found[1].children
        match entry.kind:
            case Kind.DIRECTORY:
                if not isinstance(siblings.get(name), Directory):
                    siblings[name] = Directory()
            case Kind.SYMLINK:
                siblings[name] = Symlink(entry.target)
            case Kind.HARDLINK:
                same = self._walk(entry.target)
                # No kernel links a folder: the tree would hold itself and never end.
                linked = None if same is None else same[1]
                siblings[name] = linked if isinstance(linked, File) else File()
            case Kind.FILE:
                siblings[name] = File(layer.elfs.get(entry.path))

    def _walk(self, path: str, *, make: bool = False) -> tuple[list[str], Node] | None:
        """Follow `path`, links included; `make` makes the folders that are not there."""
        todo = deque(part for part in path.split("/") if part not in ("", "."))
        trail: list[tuple[str, Node]] = []
        links = 0
        while todo:
            part = todo.popleft()
            if part == "..":
                del trail[-1:]
                continue
            here = trail[-1][1] if trail else self._root
            if not isinstance(here, Directory):
                return None
            if make:
                here.children.setdefault(part, Directory())
            node = here.children.get(part)
            if node is None:
                return None
            if not isinstance(node, Symlink):
                trail.append((part, node))
                continue
            links += 1
            if links > _LINKS_MAX:
                return None
            if node.target.startswith("/"):
                trail.clear()
            todo.extendleft(
                step for step in reversed(node.target.split("/")) if step not in ("", ".")
            )
        return [name for name, _ in trail], trail[-1][1] if trail else self._root

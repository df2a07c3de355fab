"""The files of an image that an inventory asks about, as its layers make them together."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_LINKS_MAX = 40  # Linux's own bound, path_resolution(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What is kept of a file or link.

    `sha256` (hex) is that of a file of torch, `link` a symbolic link's target as it is written,
    `text` what is kept of a file that is read: of METADATA its header, of RECORD the paths of
    programs and libraries, of a C library its newest version (`2.41`). `links_torch` says that it
    is an ELF file which needs a library of torch's.
    """

    sha256: str | None = None
    link: str | None = None
    text: str | None = None
    links_torch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContents:
    """What one layer holds, and does to the lower ones; paths are relative to the root.

    `hidden` are the paths that its whiteouts take away, `emptied` the folders that keep nothing of
    lower layers (image-spec, layer.md, "Whiteouts"). `others` are files that are there, and replace
    what lower layers have in their place, but say nothing themselves.
    """

    hidden: tuple[str, ...]
    emptied: tuple[str, ...]
    files: Mapping[str, FileFacts]
    others: tuple[str, ...]


_Folder: TypeAlias = "dict[str, _Folder | FileFacts]"


class Tree:
    """The files that are left when layers are put on top of each other, lowest first."""

    def __init__(self, layers: Sequence[LayerContents]) -> None:
        self._root: _Folder = {}
        nothing = FileFacts()
        for layer in layers:
            self._hide(layer)
            for path in layer.others:
                self._put(path, nothing)
            for path, facts in layer.files.items():
                self._put(path, facts)

    def names(self, folder: str) -> list[str]:
        """What lies in `folder`, an absolute path, in order."""
        found = self._find(folder)
        return sorted(found) if isinstance(found, dict) else []

    def has(self, path: str) -> bool:
        """Whether a file or link lies at `path`, an absolute path."""
        return isinstance(self._find(path), FileFacts)

    def file(self, path: str) -> FileFacts | None:
        """The file at `path`, an absolute one; symbolic links to files are followed."""
        for _ in range(_LINKS_MAX):
            found = self._find(path)
            if not isinstance(found, FileFacts) or found.link is None:
                return found if isinstance(found, FileFacts) else None
            path = posixpath.join(posixpath.dirname(path), found.link)
        return None

    def text(self, path: str) -> str | None:
        """What is kept of the text at `path`; None where there is none."""
        found = self.file(path)
        return None if found is None else found.text

    def walk(self, folder: str = "/") -> Iterator[tuple[str, FileFacts]]:
        """Every file below `folder`, by its path relative to it, in no particular order."""
        start = self._find(folder)
        pending = [("", start)] if isinstance(start, dict) else []
        while pending:
            prefix, here = pending.pop()
            for name, node in here.items():
                if isinstance(node, dict):
                    pending.append((f"{prefix}{name}/", node))
                else:
                    yield prefix + name, node

    def _find(self, path: str) -> _Folder | FileFacts | None:
        node: _Folder | FileFacts | None = self._root
        for part in _parts(path):
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def _hide(self, layer: LayerContents) -> None:
        """Whiteouts speak of lower layers only, wherever they stand in their own."""
        for path in layer.hidden:
            above = self._find(posixpath.dirname(path))
            if isinstance(above, dict):
                above.pop(posixpath.basename(path), None)
        for path in layer.emptied:
            folder = self._find(path)
            if isinstance(folder, dict):
                folder.clear()

    def _put(self, path: str, facts: FileFacts) -> None:
        *above, name = _parts(path)
        here = self._root
        for part in above:
            node = here.get(part)
            if not isinstance(node, dict):
                node = here[part] = {}
            here = node
        here[name] = facts


def _parts(path: str) -> list[str]:
    return [part for part in posixpath.normpath(f"/{path}").split("/") if part]

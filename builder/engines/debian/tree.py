"""A file system in memory: names and where their content lies, from many packages to one layer.

Every path is relative to the root. The tree has a merged /usr (the file hierarchy of Debian 12 and
later, https://www.freedesktop.org/wiki/Software/systemd/TheCaseForTheUsrMerge/): what a package
ships under /bin, /sbin or /lib* lies under /usr, and the top-level names are links, added once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from typing import BinaryIO

from builder.engines.debian.deb import Deb, Entry, Kind, Span, Spool
from builder.errors import UsageError
from builder.oci.layer import ROOT, LayerWriter, Owner, sort_key

_MERGED = frozenset({"bin", "sbin", "lib", "lib32", "lib64", "libo32", "libx32"})
_ALWAYS_LINKED = frozenset({"bin", "sbin", "lib"})
_LINKS_MAX = 40  # as Linux has it, path_resolution(7)


class Tree:
    """The file system that is being put together; `spool` holds the packages' content."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._entries: dict[str, Entry] = {}
        self._owners: dict[str, Deb] = {}
        self._lost: dict[str, set[str]] = {}

    def add_package(self, deb: Deb) -> None:
        """Lay a package over what is there.

        A folder keeps the mode that the first package gives it, as dpkg has it. A file that two
        packages bring must be the same in both, or one must say that it replaces the other
        (Debian Policy 7.6.1). Raises UsageError otherwise.
        """
        for shipped, entry in deb.files:
            if shipped in _MERGED:
                continue  # a folder in old suites, a link in new ones; see merge_usr
            path = merged(shipped)
            if self._takes(path, entry, deb):
                self._add_parents(path)
                self._entries[path] = entry
                self._owners[path] = deb

    def merge_usr(self) -> None:
        """Add the top-level links that lead to the folders of the same name under /usr."""
        for name in _MERGED:
            if name in _ALWAYS_LINKED or f"usr/{name}" in self._entries:
                self.put(f"usr/{name}", self._entries.get(f"usr/{name}", _FOLDER))
                self._entries[name] = Entry(kind=Kind.SYMLINK, target=f"usr/{name}")

    def put(self, path: str, entry: Entry) -> None:
        """Set one name; the folders on the way are made where they are not there."""
        path = merged(path)
        self._add_parents(path)
        self._entries[path] = entry

    def put_file(self, path: str, data: bytes, mode: int = 0o644, owner: Owner = ROOT) -> None:
        """A file of ours."""
        self.put(path, Entry(kind=Kind.FILE, mode=mode, owner=owner, content=data))

    def put_link(self, path: str, target: str) -> None:
        """A symbolic link of ours."""
        self.put(path, Entry(kind=Kind.SYMLINK, mode=0o777, target=target))

    def change(self, path: str, mode: int, owner: Owner) -> None:
        """Another mode and owner for a file and its hard links, or for a folder."""
        path = merged(path)
        changed = self._entries[path]
        names = [path]
        if isinstance(changed.content, Span):
            names = [name for name, e in self._entries.items() if e.content == changed.content]
        for name in names:
            self._entries[name] = replace(self._entries[name], mode=mode, owner=owner)

    def get(self, path: str) -> Entry | None:
        """What has this name itself, links not followed; None where nothing has."""
        return self._entries.get(merged(path))

    def lost_by(self, deb: Deb) -> frozenset[str]:
        """The paths that `deb` ships, and that a package which replaces it has taken over."""
        return frozenset(self._lost.get(deb.name, ()))

    def find(self, path: str) -> tuple[str, Entry] | None:
        """The name and entry that `path` leads to when links are followed inside the tree."""
        parts = path.strip("/").split("/")
        done: list[str] = []
        links = 0
        while parts:
            part = parts.pop(0)
            if part in {"", "."}:
                continue
            if part == "..":
                done = done[:-1]
                continue
            entry = self._entries.get("/".join([*done, part]))
            if entry is None:
                return None
            if entry.kind is not Kind.SYMLINK:
                done.append(part)
                continue
            links += 1
            if links > _LINKS_MAX:
                return None
            done = [] if entry.target.startswith("/") else done
            parts = [*entry.target.split("/"), *parts]
        real = "/".join(done)
        return (real, self._entries[real]) if real else None

    def open(self, path: str) -> BinaryIO | None:
        """The file that `path` leads to, to be read; None where it leads to no file."""
        found = self.find(path)
        if found is None or found[1].kind is not Kind.FILE:
            return None
        content = found[1].content
        return self._spool.open(content) if isinstance(content, Span) else BytesIO(content)

    def read(self, path: str) -> bytes:
        """The whole file that `path` leads to; nothing where it leads to no file."""
        file = self.open(path)
        return b"" if file is None else file.read()

    def children(self, path: str) -> Iterator[tuple[str, Entry]]:
        """The names right below a folder, sorted by their bytes."""
        prefix = merged(path) + "/"
        names = [
            name[len(prefix) :]
            for name in self._entries
            if name.startswith(prefix) and "/" not in name[len(prefix) :]
        ]
        for name in sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape")):
            yield name, self._entries[prefix + name]

    def write(self, writer: LayerWriter) -> None:
        """Everything, in the order of a layer; the first name of a file carries its content."""
        first: dict[int, str] = {}
        for path in sorted(self._entries, key=sort_key):
            entry = self._entries[path]
            match entry.kind, entry.content:
                case Kind.DIRECTORY, _:
                    writer.directory(path, entry.mode, entry.owner)
                case Kind.SYMLINK, _:
                    writer.symlink(path, entry.target)
                case Kind.FILE, bytes(data):
                    writer.file(path, data, entry.mode, entry.owner)
                case Kind.FILE, Span() as span if span.offset in first:
                    writer.hardlink(path, first[span.offset], entry.mode, entry.owner)
                case Kind.FILE, Span() as span:
                    first[span.offset] = path
                    chunks = self._spool.chunks(span)
                    writer.stream(path, span.size, chunks, entry.mode, entry.owner)

    def _takes(self, path: str, entry: Entry, deb: Deb) -> bool:
        """Whether `entry` of `deb` is what `path` shall be from now on."""
        there, other = self._entries.get(path), self._owners.get(path)
        if there is None or (other is None and there.kind is entry.kind):
            return True
        if there.kind is entry.kind is Kind.DIRECTORY or self._same(there, entry):
            return False
        if other is not None and Kind.DIRECTORY not in {there.kind, entry.kind}:
            ours, theirs = _replaces(deb, other), _replaces(other, deb)
            if ours != theirs:
                self._lost.setdefault((other if ours else deb).name, set()).add(path)
                return ours
        raise UsageError(
            f"/{path}: the packages {other.name if other else 'before'} and {deb.name} "
            "both bring it, and differ",
            hint="leave one of the packages out",
        )

    def _same(self, one: Entry, other: Entry) -> bool:
        if replace(one, content=b"") != replace(other, content=b""):
            return False
        return self._content(one) == self._content(other)

    def _content(self, entry: Entry) -> bytes:
        content = entry.content
        return self._spool.open(content).read() if isinstance(content, Span) else content

    def _add_parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if not parent:
            return
        entry = self._entries.get(parent)
        if entry is None:
            self._add_parents(parent)
            self._entries[parent] = _FOLDER
        elif entry.kind is not Kind.DIRECTORY:
            raise UsageError(
                f"/{path}: lies below /{parent}, which another package brings as a "
                f"{entry.kind.value}",
                hint="leave one of the packages out",
            )


_FOLDER = Entry(kind=Kind.DIRECTORY)


def merged(path: str) -> str:
    """Where `path` lies in a merged /usr, as a relative path."""
    path = path.strip("/")
    return f"usr/{path}" if path.partition("/")[0] in _MERGED and "/" in path else path


def _replaces(deb: Deb, other: Deb) -> bool:
    """Whether `deb` names `other` in Replaces; its version relation is apt's to keep."""
    return other.name in relation_names(deb.fields, "Replaces")


def relation_names(fields: Mapping[str, str], field: str) -> frozenset[str]:
    """The package names in a relationship field (Debian Policy 7.1)."""
    clauses = re.split(r"[,|]", fields.get(field, ""))
    names = (re.match(r"\s*([a-z0-9][a-z0-9+.-]+)", clause) for clause in clauses)
    return frozenset(match[1] for match in names if match)

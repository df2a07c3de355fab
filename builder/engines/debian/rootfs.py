"""From .debs to one layer: the packages' files, and what their installation would have left.

Nothing here depends on the host, the time or the order of the arguments: the same .debs give the
same bytes anywhere. What a system that booted would make for itself (a machine id, a host name,
caches of debconf and ldconfig, byte-compiled Python) is not made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from builder import resources
from builder.engines.debian.accounts import read_accounts
from builder.engines.debian.alternatives import install_alternatives
from builder.engines.debian.certificates import install_certificates
from builder.engines.debian.database import install_database
from builder.engines.debian.deb import Deb, Entry, Kind, Spool, open_spool, read_deb
from builder.engines.debian.law import LAW_FILE, Covered, Ruling, judge, load_law, refusal
from builder.engines.debian.ldcache import MACHINES, install_cache
from builder.engines.debian.scripts import Alternative
from builder.engines.debian.tree import Tree
from builder.errors import ExternalError
from builder.lock.model import LockedDeb
from builder.oci.layer import LayerWriter

_LAYOUT_VERSION = 1
"""Goes up whenever the same .debs would give other bytes."""

_SHELLS = "usr/share/debianutils/shells"

_FIRST = "base-files"
"""Unpacked first on every system, so that its modes are the ones that folders keep."""


def write_rootfs(
    writer: LayerWriter, debs: Sequence[tuple[LockedDeb, Path]], workdir: Path
) -> None:
    """Lay out every package of `debs` (what is locked, and the file it was fetched to).

    The decompressed archives pass through an anonymous file under `workdir`.

    Raises ExternalError where a file is not the package that is locked, UsageError where packages
    contradict each other or one has scripts that would have to be run.
    """
    with open_spool(workdir) as spool:
        packages = [_read(locked, path, spool) for locked, path in debs]
        rulings = judge(packages, load_law())
        tree = Tree(spool)
        for package in sorted(packages, key=lambda deb: (deb.name != _FIRST, deb.name)):
            tree.add_package(package)
        tree.merge_usr()
        _Configuration(tree, rulings).apply()
        install_database(tree, packages)
        tree.write(writer)


def layout_key() -> str:
    """Names the rules by which packages are laid out: part of the key of a cached layer."""
    law = resources.package_file(LAW_FILE).read_bytes()
    return hashlib.sha256(b"%d\n%s" % (_LAYOUT_VERSION, law)).hexdigest()


def _read(locked: LockedDeb, path: Path, spool: Spool) -> Deb:
    deb = read_deb(path, locked.filename, spool)
    found = (deb.name, deb.version, deb.architecture)
    if found != (locked.name, locked.version, locked.architecture):
        raise ExternalError(
            f"{locked.filename}: holds {' '.join(found)}, and the lock says "
            f"{locked.name} {locked.version} {locked.architecture}",
            hint="lock again: `spark-build lock RECIPE --upgrade`",
        )
    return deb


class _Configuration:
    """Does for a tree what the law says in place of the packages' scripts."""

    def __init__(self, tree: Tree, rulings: Sequence[Ruling]) -> None:
        self._tree = tree
        self._rulings = rulings
        self._accounts = read_accounts(tree)
        debs = {ruling.deb.name: ruling.deb for ruling in rulings}
        self._versions = {name: deb.version for name, deb in debs.items()}
        self._architecture = next(
            (deb.architecture for deb in debs.values() if deb.architecture in MACHINES), "all"
        )

    def apply(self) -> None:
        """Everything, in an order in which nothing is needed before it is there."""
        laws = [(ruling.covered, ruling) for ruling in self._rulings if ruling.covered]
        self._refuse(laws)
        self._add_accounts([law for law, _ in laws])
        for law, ruling in laws:
            self._add_files(law, ruling)
        install_alternatives(self._tree, self._alternatives())
        for law, ruling in laws:
            for change in law.changes:
                owner = (0, self._accounts.group_id(change.group))
                self._tree.change(self._fill(change.path, ruling), change.mode, owner)
        for task in sorted({task for law, _ in laws for task in law.tasks}):
            self._tasks()[task]()

    def _tasks(self) -> dict[str, Callable[[], None]]:
        return {
            "certificates": lambda: install_certificates(self._tree),
            "ld-cache": self._install_ld_cache,
            "shadow": lambda: self._accounts.write(self._tree, shadow=True),
            "shells": lambda: _install_shells(self._tree),
        }

    def _refuse(self, laws: Sequence[tuple[Covered, Ruling]]) -> None:
        """Packages whose scripts would find something to work on."""
        reasons = [
            f"{ruling.deb.name}: has to work on {path}: {law.does}"
            for law, ruling in laws
            for path in (self._fill(pattern, ruling) for pattern in law.empty)
            if any(self._tree.children(path))
        ]
        if reasons:
            raise refusal(reasons)

    def _add_accounts(self, laws: Sequence[Covered]) -> None:
        for law in laws:
            for group in law.groups:
                self._accounts.add_group(group)
            for user in law.users:
                self._accounts.add_user(
                    user.name, group=user.group, home=user.home, comment=user.comment
                )
        self._accounts.write(self._tree, shadow=False)

    def _add_files(self, law: Covered, ruling: Ruling) -> None:
        tree = self._tree
        for folder in law.folders:
            path, owner = (
                self._fill(folder.path, ruling),
                (0, self._accounts.group_id(folder.group)),
            )
            tree.put(path, Entry(kind=Kind.DIRECTORY, mode=folder.mode, owner=owner))
        for copy in law.copies:
            found = tree.find(copy.source)
            if found is not None and tree.get(copy.to) is None:
                data = tree.read(copy.source)
                tree.put(copy.to, replace(found[1], content=data))
        for file in law.files:
            path = self._fill(file.path, ruling)
            if tree.get(path) is None:
                owner = (0, self._accounts.group_id(file.group))
                tree.put_file(path, self._fill(file.text, ruling).encode(), file.mode, owner)
        for link in law.links:
            tree.put_link(self._fill(link.path, ruling), self._fill(link.target, ruling))

    def _alternatives(self) -> list[Alternative]:
        return [alternative for ruling in self._rulings for alternative in ruling.alternatives]

    def _install_ld_cache(self) -> None:
        if self._architecture in MACHINES:
            install_cache(self._tree, self._architecture, self._versions["libc-bin"])

    def _fill(self, text: str, ruling: Ruling) -> str:
        machine = MACHINES.get(self._architecture)
        values = {
            "{triplet}": machine.triplet if machine else "",
            "{architecture}": self._architecture,
            "{stem}": ruling.stem,
        }
        for name, value in values.items():
            text = text.replace(name, value)
        return text


def _install_shells(tree: Tree) -> None:
    """/etc/shells and its state as update-shells(8) makes them: each shell under its real name too.

    debianutils' own list comes first, comments and all, then what packages add.
    """
    template = tree.read(_SHELLS).decode().splitlines()
    listed = list(template)
    for name, _ in tree.children(f"{_SHELLS}.d"):
        listed += tree.read(f"{_SHELLS}.d/{name}").decode().splitlines()
    known: dict[str, None] = {}
    for shell in (line.partition("#")[0] for line in listed):
        folder, _, name = shell.rpartition("/")
        found = tree.find(folder)
        if shell:
            known[shell] = None
            known[f"/{found[0]}/{name}" if found else shell] = None
    added = [shell for shell in known if shell not in template]
    tree.put_file("etc/shells", "".join(f"{line}\n" for line in [*template, *added]).encode())
    tree.put_file("var/lib/shells.state", "".join(f"{shell}\n" for shell in known).encode())

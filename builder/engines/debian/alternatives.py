"""The alternatives system: which of several programs a name such as `awk` means.

Written as update-alternatives(1) leaves it in automatic mode: links through /etc/alternatives, and
its records in /var/lib/dpkg/alternatives, so that a later installation goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable

from builder.engines.debian.scripts import Alternative
from builder.engines.debian.tree import Tree

_RECORDS = "var/lib/dpkg/alternatives"


def install_alternatives(tree: Tree, alternatives: Iterable[Alternative]) -> None:
    """Set every group's links to its best candidate, and record the group."""
    groups: dict[str, list[Alternative]] = {}
    for alternative in alternatives:
        if tree.find(alternative.path) is not None:
            groups.setdefault(alternative.name, []).append(alternative)
    for name in sorted(groups):
        candidates = sorted(groups[name], key=lambda candidate: candidate.path)
        best = max(candidates, key=lambda candidate: candidate.priority)
        _link(tree, best.link, name, best.path)
        for slave in best.slaves:
            if tree.find(slave.path) is not None:
                _link(tree, slave.link, slave.name, slave.path)
        tree.put_file(f"{_RECORDS}/{name}", _record(best.link, candidates).encode())


def _link(tree: Tree, link: str, name: str, path: str) -> None:
    tree.put_link(link, f"/etc/alternatives/{name}")
    tree.put_link(f"etc/alternatives/{name}", path)


def _record(link: str, candidates: list[Alternative]) -> str:
    """The group's file, as update-alternatives writes it (altdb_print in its source)."""
    slaves = {slave.name: slave for candidate in candidates for slave in candidate.slaves}
    names = sorted(slaves)
    lines = ["auto", link]
    for name in names:
        lines += [name, slaves[name].link]
    lines.append("")
    for candidate in candidates:
        lines += [candidate.path, str(candidate.priority)]
        own = {slave.name: slave.path for slave in candidate.slaves}
        lines += [own.get(name, "") for name in names]
    return "\n".join([*lines, "", ""])

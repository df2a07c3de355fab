"""dpkg's own records, so that `dpkg -l`, `-S` and `-V` work inside and a later install goes on.

The files are those of dpkg 1.18 and later (/var/lib/dpkg, format 1): the status file with every
field of the packages, one list of files a package, and its control files beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from builder.engines.debian.deb import Deb
from builder.engines.debian.tree import Tree, merged

_ADMIN = "var/lib/dpkg"
_FIELD_ORDER = (
    *("Package", "Essential", "Protected", "Status", "Priority", "Section", "Installed-Size"),
    *("Origin", "Maintainer", "Bugs", "Architecture", "Multi-Arch", "Source", "Version"),
    *("Replaces", "Provides", "Depends", "Pre-Depends", "Recommends", "Suggests", "Breaks"),
    *("Conflicts", "Enhances", "Conffiles", "Description"),
)
"""The order of dpkg's lib/dpkg/parse.c; every other field follows in the package's own order."""

_SCRIPTS = frozenset({"preinst", "postinst", "prerm", "postrm", "config"})


def install_database(tree: Tree, debs: Sequence[Deb]) -> None:
    """Record every package as installed and configured."""
    ordered = sorted(debs, key=lambda deb: deb.name)
    stanzas = [_stanza(tree, deb) for deb in ordered]
    tree.put_file(f"{_ADMIN}/status", "".join(stanzas).encode("utf-8", "surrogateescape"))
    for name in ("lock", "lock-frontend"):
        tree.put_file(f"{_ADMIN}/{name}", b"", 0o640)
    tree.put_file(f"{_ADMIN}/info/format", b"1\n")
    for deb in ordered:
        _install_info(tree, deb)
    _install_triggers(tree, ordered)


def conffiles(deb: Deb) -> Iterator[tuple[str, bool]]:
    """A package's configuration files, and whether one is only to be removed (deb-conffiles(5))."""
    lines = deb.control.get("conffiles", b"").decode("utf-8", "surrogateescape").splitlines()
    for line in lines:
        flag, slash, path = line.strip().partition("/")
        if slash:
            yield f"/{path}", flag.strip() == "remove-on-upgrade"


def _stanza(tree: Tree, deb: Deb) -> str:
    fields = {**deb.fields, "Status": "install ok installed"}
    lines = [f"\n {path} {_conffile_state(tree, path, gone=gone)}" for path, gone in conffiles(deb)]
    if lines:
        fields["Conffiles"] = "".join(lines)
    rest = [name for name in fields if name not in _FIELD_ORDER]
    names = [*(name for name in _FIELD_ORDER if name in fields), *rest]
    return "".join(f"{name}:{_value(fields[name])}\n" for name in names) + "\n"


def _conffile_state(tree: Tree, path: str, *, gone: bool) -> str:
    if gone:
        return "newconffile remove-on-upgrade"
    return hashlib.md5(tree.read(path), usedforsecurity=False).hexdigest()


def _value(value: str) -> str:
    return value if value.startswith("\n") else f" {value}"


def _install_info(tree: Tree, deb: Deb) -> None:
    """`info/<package>.*`; a package that can stand beside itself has its architecture in it."""
    same = deb.fields.get("Multi-Arch") == "same"
    stem = f"{_ADMIN}/info/{deb.name}" + (f":{deb.architecture}" if same else "")
    for name, data in deb.control.items():
        tree.put_file(f"{stem}.{name}", data, 0o755 if name in _SCRIPTS else 0o644)
    tree.put_file(f"{stem}.list", _file_list(tree, deb).encode("utf-8", "surrogateescape"))


def _file_list(tree: Tree, deb: Deb) -> str:
    """What the package brought, in its own spelling; what another replaced is that one's."""
    lost = tree.lost_by(deb)
    lines = ["/.", *(f"/{path}" for path, _ in deb.files if merged(path) not in lost)]
    return "\n".join(lines) + "\n"


def _install_triggers(tree: Tree, debs: Iterable[Deb]) -> None:
    """Who waits for which path or event (deb-triggers(5)), as dpkg indexes it."""
    paths: list[str] = []
    events: dict[str, list[str]] = {}
    for deb in debs:
        for line in deb.control.get("triggers", b"").decode().splitlines():
            words = line.partition("#")[0].split()
            if len(words) != 2 or not words[0].startswith("interest"):
                continue
            same = deb.fields.get("Multi-Arch") == "same"
            who = f"{deb.name}:{deb.architecture}" if same else deb.name
            waiting = who + ("/noawait" if words[0].endswith("-noawait") else "")
            if words[1].startswith("/"):
                paths.append(f"{words[1]} {waiting}\n")
            else:
                events.setdefault(words[1], []).append(f"{waiting}\n")
    tree.put_file(f"{_ADMIN}/triggers/File", "".join(paths).encode())
    for name, waiting_lines in events.items():
        tree.put_file(f"{_ADMIN}/triggers/{name}", "".join(waiting_lines).encode())
    tree.put_file(f"{_ADMIN}/triggers/Unincorp", b"")
    tree.put_file(f"{_ADMIN}/triggers/Lock", b"", 0o600)

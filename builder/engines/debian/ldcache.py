"""/etc/ld.so.cache as glibc's ldconfig(8) would write it, byte for byte, for aarch64 and x86-64.

The format is sysdeps/generic/dl-cache.h of glibc, the one that ldconfig has written by default
since 2.32; which files it takes, and under which names, is search_dir in elf/ldconfig.c. The
folder of hardware capabilities (glibc-hwcaps) is not entered: the plain library is found instead.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from builder.elf import ElfError, dynamic_span, read_elf
from builder.engines.debian.deb import Kind
from builder.engines.debian.tree import Tree

_CONF = "/etc/ld.so.conf"
_HEADER = struct.Struct("<17s3sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_EXTENSION = struct.Struct("<6I")
_EXTENSION_MAGIC = 0xEAA42174
_LITTLE_ENDIAN = 2
_ELF_LIBC6 = 0x0003

_PROGRAM_HEADERS_BYTES = 4096
"""Enough for the header and 72 program headers, which linkers write right after it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One architecture as ldconfig knows it: its number in ELF, its flag in the cache."""

    elf: int
    flag: int
    triplet: str


MACHINES = {
    "arm64": Machine(elf=183, flag=0x0A00 | _ELF_LIBC6, triplet="aarch64-linux-gnu"),
    "amd64": Machine(elf=62, flag=0x0300 | _ELF_LIBC6, triplet="x86_64-linux-gnu"),
}
"""By Debian's word for the architecture."""


@dataclass(slots=True)
class _Library:
    """What one SONAME is served by, while a folder is searched."""

    filename: str
    is_link: bool


def install_cache(tree: Tree, architecture: str, version: str) -> None:
    """Write the cache, and the links from SONAMEs to files that are not there yet.

    `version` is libc-bin's, which the cache names as its generator.
    """
    machine = MACHINES[architecture]
    entries: list[tuple[str, str]] = []
    for folder in _folders(tree, machine):
        for soname, library in _search(tree, folder, machine).items():
            path = f"{folder}/{soname}"
            if not library.is_link and tree.get(path) is None:
                tree.put_link(path, library.filename)
            entries.append((soname, path))
    generator = f"ldconfig (Debian GLIBC {version}) stable release version {_upstream(version)}"
    tree.put_file("etc/ld.so.cache", render(entries, machine, generator))


def render(entries: list[tuple[str, str]], machine: Machine, generator: str) -> bytes:
    """The cache's bytes for (SONAME, absolute path) pairs, in the order they were found."""
    ordered = sorted(entries, key=lambda entry: library_key(entry[0]), reverse=True)
    base = _HEADER.size + _ENTRY.size * len(ordered)
    strings, offsets = _string_table({text for entry in ordered for text in entry})
    rows = b"".join(
        _ENTRY.pack(machine.flag, base + offsets[soname], base + offsets[path], 0, 0)
        for soname, path in ordered
    )
    end = base + len(strings)
    extension = end + -end % 4
    header = _HEADER.pack(
        b"glibc-ld.so.cache", b"1.1", len(ordered), len(strings), _LITTLE_ENDIAN, extension
    )
    place = extension + _EXTENSION.size
    section = _EXTENSION.pack(_EXTENSION_MAGIC, 1, 0, 0, place, len(generator))
    return header + rows + strings + b"\0" * (-end % 4) + section + generator.encode()


def library_key(name: str) -> tuple[tuple[int, int], ...]:
    """Sorts names as _dl_cache_libcmp compares them: runs of digits as numbers, above letters.

    ldconfig lists libraries by it in descending order, and the loader searches by halves.
    """
    tokens = re.findall(rb"[0-9]+|[^0-9]", name.encode("utf-8", "surrogateescape"), re.DOTALL)
    return tuple((1, int(token)) if token.isdigit() else (0, token[0]) for token in tokens)


def soname_of(tree: Tree, path: str, machine: Machine) -> str | None:
    """The name that a shared library goes by; None where the file is no such library.

    One without a DT_SONAME goes by its file name, which is "" here.
    """
    file = tree.open(path)
    if file is None:
        return None
    try:
        if dynamic_span(file.read(_PROGRAM_HEADERS_BYTES)) is None:
            return None
        facts = read_elf(file)
    except ElfError:
        return None
    fits = (facts.machine, facts.bits) == (machine.elf, 64)
    return facts.soname or "" if fits else None


def _folders(tree: Tree, machine: Machine) -> list[str]:
    """The folders that are searched, each once, spelled as they are first named.

    What /etc/ld.so.conf lists comes first, then the two built-in pairs (Debian's is multiarch).
    """
    builtin = [f"/lib/{machine.triplet}", f"/usr/lib/{machine.triplet}", "/lib", "/usr/lib"]
    spelled: dict[str, str] = {}
    for folder in [*_listed(tree, _CONF), *builtin]:
        found = tree.find(folder)
        if found is not None and found[1].kind is Kind.DIRECTORY:
            spelled.setdefault(found[0], folder.rstrip("/"))
    return list(spelled.values())


def _listed(tree: Tree, path: str) -> Iterator[str]:
    """The folders in one configuration file and those that it includes (ldconfig(8))."""
    for line in tree.read(path).decode("utf-8", "surrogateescape").splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                folder, _, name = pattern.rpartition("/")
                for child, _ in tree.children(folder):
                    if fnmatchcase(child, name) and not child.startswith("."):
                        yield from _listed(tree, f"{folder}/{child}")
        elif words and words[0].startswith("/"):
            yield words[0]


def _search(tree: Tree, folder: str, machine: Machine) -> dict[str, _Library]:
    """What the libraries in one folder are called, and which file serves each name."""
    real = tree.find(folder)
    found: dict[str, _Library] = {}
    for name, entry in tree.children(real[0] if real else folder):
        if entry.kind is Kind.DIRECTORY or not _looks_like_library(name):
            continue
        soname = soname_of(tree, f"{folder}/{name}", machine)
        if soname is None:
            continue
        soname = soname or name
        is_link = entry.kind is Kind.SYMLINK and _is_own_link(name, soname)
        key = name if is_link else soname
        _prefer(found, key, _Library(name, is_link))
    return found


def _looks_like_library(name: str) -> bool:
    """`_dl_is_dso` in glibc: lib*.so*, ld-*.so*, ld.so.*, ld64.so.*."""
    plain = name.startswith(("lib", "ld-")) and ".so" in name
    return plain or name.startswith(("ld.so.", "ld64.so."))


def _is_own_link(name: str, soname: str) -> bool:
    """Whether a link stands for itself: it is the SONAME, or the linker's `libfoo.so` for it."""
    return name == soname or (name.endswith(".so") and soname.startswith(name))


def _prefer(found: dict[str, _Library], soname: str, library: _Library) -> None:
    """Of two files with one SONAME, a file goes before a link, then the higher name."""
    there = found.get(soname)
    if (
        there is None
        or (there.is_link and not library.is_link)
        or (
            there.is_link == library.is_link
            and library_key(there.filename) < library_key(library.filename)
        )
    ):
        found[soname] = library


def _string_table(texts: set[str]) -> tuple[bytes, dict[str, int]]:
    """The strings, NUL after each; one that another ends with lies inside it.

    stringtable_finalize in glibc: in descending order of the strings read backwards.
    """
    encoded = {text: text.encode("utf-8", "surrogateescape") for text in texts}
    table = bytearray()
    offsets: dict[str, int] = {}
    last = b""
    start = 0
    for text, data in sorted(encoded.items(), key=lambda item: item[1][::-1], reverse=True):
        if not last.endswith(data):
            start, last = len(table), data
            table += data + b"\0"
        offsets[text] = start + len(last) - len(data)
    return bytes(table), offsets


def _upstream(version: str) -> str:
    """2.41 out of 2.41-12+deb13u4."""
    return version.rpartition("-")[0].rpartition(":")[2] or version

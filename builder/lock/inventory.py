"""What a base image in a local OCI layout has: its digest, its Python, its glibc.

Its layers are read as they lie there; nothing of the image is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from builder.errors import LockError
from builder.oci.image import Image
from builder.oci.reader import open_members

_PYTHON = re.compile(r"(usr/local/bin|usr/bin)/python(3\.\d{1,3})", re.ASCII)
_LIBC = re.compile(r"libc(\.so\.6|-2\.\d{1,3}\.so)", re.ASCII)  # the second until glibc 2.33
_GLIBC = re.compile(rb"\0GLIBC_2\.(\d{1,3})(?=\0)")
_LIBC_MAX_BYTES = 64 << 20  # some 2 MB, with its symbols some 20
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFacts:
    """`python` is X.Y, None where the base has none; `interpreter` its path; `glibc` is 2.N."""

    python: str | None
    interpreter: str | None
    glibc: str


def inspect_base(image: Image) -> BaseFacts:
    """Read the layers of `image` from the lowest up; raises LockError where there is no glibc.

    Raises ExternalError for a layer that is broken or does not match its digest.
    """
    pythons: set[str] = set()
    glibc = None
    for layer in image.layers:
        added: set[str] = set()
        with open_members(layer.path, layer.digest) as members:
            for member, content in members:
                path = member.name.removeprefix("./").lstrip("/")
                folder, _, name = path.rpartition("/")
                if name.startswith(_WHITEOUT):
                    pythons -= _hidden(folder, name, pythons)
                elif _PYTHON.fullmatch(path) and (member.isreg() or member.issym()):
                    added.add(path)
                elif _LIBC.fullmatch(name) and content is not None:
                    glibc = _newest_version(content) or glibc
        pythons |= added
    if glibc is None:
        raise LockError(
            "the base has no libc.so.6 of GNU's, which manylinux wheels need (PEP 600)",
            hint="take a base with glibc, such as Debian or Ubuntu",
        )
    return _facts(pythons, glibc)


def _hidden(folder: str, name: str, paths: Iterable[str]) -> set[str]:
    """Those of the lower layers' `paths` that a whiteout takes away (OCI layer.md, "Whiteouts")."""
    gone = folder if name == _OPAQUE else f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
    return {path for path in paths if f"{path}/".startswith(f"{gone}/" if gone else "")}


def _newest_version(content: IO[bytes]) -> str | None:
    """2.N out of the version names that the library defines (`GLIBC_2.41`)."""
    found = [int(minor) for minor in _GLIBC.findall(content.read(_LIBC_MAX_BYTES))]
    return f"2.{max(found)}" if found else None


def _facts(pythons: Iterable[str], glibc: str) -> BaseFacts:
    """/usr/local goes before /usr, as it does on PATH; then the newest."""
    found = [(f"/{path}", _version(path)) for path in pythons]
    found.sort(key=lambda item: (item[0].startswith("/usr/local/"), item[1]))
    if not found:
        return BaseFacts(python=None, interpreter=None, glibc=glibc)
    path, version = found[-1]
    return BaseFacts(python=f"{version[0]}.{version[1]}", interpreter=path, glibc=glibc)


def _version(path: str) -> tuple[int, int]:
    major, minor = path.rpartition("python")[2].split(".")
    return int(major), int(minor)

"""Wheels that a test makes itself, whole and true, with whatever metadata it needs."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO

from tests.builders import record_hash


def pack_wheel(
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    entry_points: str = "",
    python: str = ">=3.9",
) -> tuple[str, bytes]:
    """The file name and the bytes of a wheel; `files` are by their paths in site-packages."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Python: {python}", *(f"Requires-Dist: {text}" for text in requires)]
    python_tag, abi_tag, platforms = tag.split("-")
    tags = [f"Tag: {python_tag}-{abi_tag}-{platform}" for platform in platforms.split(".")]
    pure = str(tag == "py3-none-any").lower()
    kind = ["Wheel-Version: 1.0", "Generator: test", f"Root-Is-Purelib: {pure}", *tags]
    members = dict(files)
    members[f"{info}/METADATA"] = ("\n".join(lines) + "\n").encode()
    members[f"{info}/WHEEL"] = ("\n".join(kind) + "\n").encode()
    if entry_points:
        members[f"{info}/entry_points.txt"] = entry_points.encode()
    rows = [f"{path},{record_hash(data)},{len(data)}" for path, data in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    return f"{stem}-{tag}.whl", _zipped(members)


def _zipped(members: Mapping[str, bytes]) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in members.items():
            member = zipfile.ZipInfo(path)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o100644 << 16
            archive.writestr(member, data)
    return out.getvalue()

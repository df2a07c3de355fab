"""What a base has, told from its layers: the newest Python that is still there, and the glibc."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.errors import ExternalError, LockError
from builder.lock import inventory as images
from builder.lock.inventory import BaseFacts, inspect_base
from builder.oci.image import LAYER_GZIP, Image, LayerBlob, digest_of
from builder.oci.layer import sort_key
from tests.builders import image_of, python_layer, write_layer

GLIBC = b"\x7fELF\0GLIBC_2.17\0GLIBC_2.41\0GLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_2.4x\0"
LIBC = "usr/lib/aarch64-linux-gnu/libc.so.6"
PYTHON = "usr/bin/python3.13"
LOCAL = "usr/local/bin/python3.12"

Content = bytes | str | None
"""A file's bytes, a link's target, or a folder."""


def write_tar(path: Path, entries: Mapping[str, Content]) -> LayerBlob:
    """A layer as others write it: ours holds no whiteouts."""
    with tarfile.open(path, "w") as archive:
        for name in sorted(entries, key=sort_key):
            info = tarfile.TarInfo(name)
            match entries[name]:
                case bytes() as data:
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
                    continue
                case str() as target:
                    info.type, info.linkname = tarfile.SYMTYPE, target
                case None:
                    info.type = tarfile.DIRTYPE
            archive.addfile(info)
    raw = path.read_bytes()
    digest = digest_of(raw)
    return LayerBlob(digest=digest, diff_id=digest, size=len(raw), media_type=LAYER_GZIP, path=path)


def image(tmp_path: Path, *layers: Mapping[str, Content]) -> Image:
    return image_of(
        [write_tar(tmp_path / f"layer-{number}", entries) for number, entries in enumerate(layers)]
    )


def facts(tmp_path: Path, *layers: Mapping[str, Content]) -> BaseFacts:
    return inspect_base(image(tmp_path, {LIBC: GLIBC}, *layers))


def python(tmp_path: Path, *layers: Mapping[str, Content]) -> str | None:
    return facts(tmp_path, *layers).interpreter


def test_the_shared_base_of_the_tests_is_told(tmp_path: Path) -> None:
    base = image_of([write_layer(tmp_path / "layer", python_layer)])
    assert inspect_base(base) == BaseFacts(
        python="3.13", interpreter="/usr/bin/python3.13", glibc="2.41"
    )


def test_a_base_without_python_is_told(tmp_path: Path) -> None:
    assert facts(tmp_path) == BaseFacts(python=None, interpreter=None, glibc="2.41")


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ({PYTHON: b""}, PYTHON),
        ({PYTHON: "python3.13-real"}, PYTHON),
        ({PYTHON: None}, None),
        ({PYTHON: b"", "usr/bin/python3.9": b""}, PYTHON),
        ({"usr/bin/python3.9": b"", "usr/bin/python3.10": b""}, "usr/bin/python3.10"),
        ({PYTHON: b"", LOCAL: b""}, LOCAL),
        ({"usr/bin/python3": "python3.13"}, None),
        ({"usr/bin/python3.13-config": b""}, None),
        ({"usr/bin/python3.13t": b""}, None),
        ({"usr/bin/python3.\u0661": b""}, None),
        ({"usr/bin/python3.9999": b""}, None),
        ({"opt/usr/bin/python3.13": b""}, None),
    ],
)
def test_the_newest_python_is_taken_and_usr_local_first(
    tmp_path: Path, entries: Mapping[str, Content], found: str | None
) -> None:
    assert python(tmp_path, entries) == (f"/{found}" if found else None)


@pytest.mark.parametrize(
    "whiteout",
    [
        "usr/bin/.wh.python3.13",
        "usr/bin/.wh..wh..opq",
        "usr/.wh.bin",
        ".wh.usr",
        ".wh..wh..opq",
    ],
)
def test_a_python_that_a_later_layer_takes_away_is_gone(tmp_path: Path, whiteout: str) -> None:
    assert python(tmp_path, {PYTHON: b"", LOCAL: b""}, {whiteout: b""}) in (None, f"/{LOCAL}")
    assert python(tmp_path, {PYTHON: b""}, {whiteout: b""}) is None


@pytest.mark.parametrize(
    "whiteout", ["usr/bin/.wh.python3.1", "usr/.wh.bi", "usr/local/.wh..wh..opq", "opt/.wh.usr"]
)
def test_whiteouts_of_other_paths_take_nothing_away(tmp_path: Path, whiteout: str) -> None:
    assert python(tmp_path, {PYTHON: b""}, {whiteout: b""}) == f"/{PYTHON}"


def test_a_whiteout_hides_lower_layers_only(tmp_path: Path) -> None:
    """OCI layer.md, "Whiteouts": wherever in its layer it stands."""
    own = {"usr/bin/.wh..wh..opq": b"", "usr/bin/python3.12": b""}
    assert python(tmp_path, {PYTHON: b""}, own) == "/usr/bin/python3.12"
    again = {"usr/bin/.wh.python3.13": b"", PYTHON: b""}
    assert python(tmp_path, {PYTHON: b""}, again) == f"/{PYTHON}"


@pytest.mark.parametrize(
    ("entries", "glibc"),
    [
        ({"lib/x86_64-linux-gnu/libc.so.6": GLIBC}, "2.41"),
        ({"lib64/libc.so.6": "libc-2.28.so", "lib64/libc-2.28.so": b"\0GLIBC_2.28\0"}, "2.28"),
        ({LIBC: b"\0GLIBC_2.9\0GLIBC_2.39\0"}, "2.39"),
        ({LIBC: GLIBC, "usr/share/doc/libc.so.6": b"text"}, "2.41"),
        ({LIBC: GLIBC + b"GLIBC_2.999999999\0"}, "2.41"),
        ({LIBC: GLIBC + b"GLIBC_2." + b"9" * 5000 + b"\0"}, "2.41"),
    ],
)
def test_the_glibc_is_the_newest_version_that_it_defines(
    tmp_path: Path, entries: Mapping[str, Content], glibc: str
) -> None:
    assert inspect_base(image(tmp_path, entries)).glibc == glibc


@pytest.mark.parametrize(
    "entries", [{}, {"lib/ld-musl-aarch64.so.1": b""}, {LIBC: b"no versions"}, {LIBC: "nowhere"}]
)
def test_a_base_without_glibc_is_refused(tmp_path: Path, entries: Mapping[str, Content]) -> None:
    with pytest.raises(LockError, match="PEP 600"):
        inspect_base(image(tmp_path, entries))


def test_a_layer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    base = image(tmp_path, {LIBC: GLIBC})
    base.layers[0].path.write_bytes(b"nonsense")
    with pytest.raises(ExternalError, match="layer-0"):
        inspect_base(base)


def test_a_library_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kB of a layer may inflate to more than there is memory."""
    monkeypatch.setattr(images, "_LIBC_MAX_BYTES", 1000)
    data = GLIBC + bytes(1000) + b"GLIBC_2.99\0"
    assert inspect_base(image(tmp_path, {LIBC: data})).glibc == "2.41"


def test_a_layer_of_another_digest_is_refused(tmp_path: Path) -> None:
    base = image(tmp_path, {LIBC: GLIBC})
    write_tar(base.layers[0].path, {LIBC: GLIBC, PYTHON: b""})
    with pytest.raises(ExternalError, match="does not match its digest"):
        inspect_base(base)

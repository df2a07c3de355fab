"""The layers' cache: made once for each key, and made again where anything of it is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from builder.engines import layers
from builder.engines.layers import LayerCache, MadeLayer
from builder.oci.blobs import BlobCache
from builder.oci.image import digest_of_file
from builder.oci.layer import LAYOUT_VERSION, LayerError, LayerWriter

Write = Callable[[LayerWriter], Mapping[str, str]]


def layer_cache(cache: Path) -> LayerCache:
    return LayerCache(cache, BlobCache(cache))


def writing(data: bytes, calls: list[bytes]) -> Write:
    def write(writer: LayerWriter) -> Mapping[str, str]:
        calls.append(data)
        writer.file("a", data)
        return {"a": data.hex()}

    return write


def make(cache: Path, key: Mapping[str, object], data: bytes = b"x") -> tuple[MadeLayer, int]:
    """The layer, and how often it had to be written."""
    calls: list[bytes] = []
    return layer_cache(cache).layer(key, writing(data, calls)), len(calls)


def test_a_layer_is_made_once(tmp_path: Path) -> None:
    first, written = make(tmp_path, {"k": 1})
    again, rewritten = make(tmp_path, {"k": 1})
    assert (written, rewritten) == (1, 0)
    assert (first.written, again.written) == (True, False)
    assert (again.blob, again.files) == (first.blob, first.files) == (first.blob, {"a": "78"})
    assert again.blob.path.stat().st_mode & 0o777 == 0o444
    assert again.blob.path.name == again.blob.digest.removeprefix("sha256:")


def test_the_order_of_a_key_has_no_part_in_it(tmp_path: Path) -> None:
    make(tmp_path, {"a": 1, "b": {"c": 2, "d": 3}})
    assert make(tmp_path, {"b": {"d": 3, "c": 2}, "a": 1})[1] == 0


@pytest.mark.parametrize("key", [{}, {"k": 2}, {"k": "1"}, {"k": [1]}, {"k": 1, "l": 1}])
def test_another_key_is_another_layer(tmp_path: Path, key: Mapping[str, object]) -> None:
    make(tmp_path, {"k": 1})
    assert make(tmp_path, key)[1] == 1


def test_another_layout_version_makes_every_layer_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, {"k": 1})
    monkeypatch.setattr(layers, "LAYOUT_VERSION", LAYOUT_VERSION + 1)
    assert make(tmp_path, {"k": 1})[1] == 1


def test_two_keys_with_the_same_bytes_share_the_blob(tmp_path: Path) -> None:
    one, two = make(tmp_path, {"k": 1})[0], make(tmp_path, {"k": 2})[0]
    assert one.blob == two.blob
    assert len(list((tmp_path / "blobs" / "sha256").iterdir())) == 1


@pytest.mark.parametrize("damage", ["gone", "cut", "changed", "record gone"])
def test_a_damaged_layer_is_made_anew(tmp_path: Path, damage: str) -> None:
    layer, _ = make(tmp_path, {"k": 1})
    [record] = (tmp_path / "layers").iterdir()
    path = record if damage == "record gone" else layer.blob.path
    path.chmod(0o644)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
    again, written = make(tmp_path, {"k": 1})
    assert (written, again.blob) == (1, layer.blob)
    assert digest_of_file(again.blob.path) == again.blob.digest


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "[]", "{}", "null", "\xff", "[" * 100_000),
        *('{"digest": {}}', '{"digest": 7, "files": {}}'),
    ],
)
def test_a_record_that_cannot_be_read_is_made_anew(tmp_path: Path, text: str) -> None:
    make(tmp_path, {"k": 1})
    [record] = (tmp_path / "layers").iterdir()
    record.write_bytes(text.encode("latin-1"))
    assert make(tmp_path, {"k": 1})[1] == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("files", []),
        ("files", {"a": 5}),
        ("files", {"a": None}),
        ("digest", 5),
        ("digest", []),
        ("digest.digest", 5),
        ("digest.digest", "sha256:../../../layer"),
        ("digest.diff_id", None),
        ("digest.size", "many"),
    ],
)
def test_a_record_of_other_types_is_made_anew(tmp_path: Path, key: str, value: object) -> None:
    make(tmp_path, {"k": 1})
    [record] = (tmp_path / "layers").iterdir()
    known = json.loads(record.read_text())
    outer, _, inner = key.partition(".")
    if inner:
        known[outer][inner] = value
    else:
        known[outer] = value
    record.write_text(json.dumps(known))
    assert make(tmp_path, {"k": 1})[1] == 1


def test_a_record_without_its_files_is_made_anew(tmp_path: Path) -> None:
    make(tmp_path, {"k": 1})
    [record] = (tmp_path / "layers").iterdir()
    known = json.loads(record.read_text())
    del known["files"]
    record.write_text(json.dumps(known))
    assert make(tmp_path, {"k": 1})[1] == 1


def test_a_layer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(writer: LayerWriter) -> Mapping[str, str]:
        writer.file("a", bytes(3_000_000))
        raise LayerError("no")

    with pytest.raises(LayerError):
        layer_cache(tmp_path).layer({"k": 1}, fail)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_progress_is_told_of_what_is_written_only(tmp_path: Path) -> None:
    told: list[int] = []
    first = layer_cache(tmp_path).layer({"k": 1}, writing(b"x", []), told.append)
    assert sum(told) == first.blob.size
    layer_cache(tmp_path).layer({"k": 1}, writing(b"x", []), told.append)
    assert sum(told) == first.blob.size

"""Blobs: hashed when they come and whenever their file changed, never merely trusted."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.oci import blobs
from builder.oci.blobs import BlobCache
from builder.oci.image import LayerBlob, digest_of_file
from tests.builders import write_layer


@pytest.fixture
def layer(tmp_path: Path) -> LayerBlob:
    return write_layer(tmp_path / "base" / "layer", lambda writer: writer.file("a", b"x"))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which files are hashed to judge them."""
    seen: list[Path] = []

    def digest(path: Path) -> str:
        seen.append(path)
        return digest_of_file(path)

    monkeypatch.setattr(blobs, "digest_of_file", digest)
    return seen


def change(path: Path) -> None:
    """Other bytes of the same number, some time later."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000_000))


def test_a_bases_layer_is_checked_once_and_kept(tmp_path: Path, layer: LayerBlob) -> None:
    kept = BlobCache(tmp_path / "cache").adopt(layer)
    assert kept.path.read_bytes() == layer.path.read_bytes()
    assert kept.path.stat().st_mode & 0o777 == 0o444
    layer.path.unlink()
    assert BlobCache(tmp_path / "cache").adopt(layer) == kept


def test_a_bases_layer_is_no_file_of_the_cache(tmp_path: Path, layer: LayerBlob) -> None:
    kept = BlobCache(tmp_path / "cache").adopt(layer)
    assert not kept.path.samefile(layer.path)
    change(layer.path)
    assert digest_of_file(kept.path) == kept.digest


def test_a_bases_layer_may_be_a_link(tmp_path: Path, layer: LayerBlob) -> None:
    link = tmp_path / "base" / "link"
    link.symlink_to("layer")
    kept = BlobCache(tmp_path / "cache").adopt(replace(layer, path=link))
    assert not kept.path.is_symlink()
    assert digest_of_file(kept.path) == layer.digest


def test_a_bases_layer_with_other_bytes_is_refused(tmp_path: Path, layer: LayerBlob) -> None:
    change(layer.path)
    with pytest.raises(UsageError, match="the blob's digest is") as caught:
        BlobCache(tmp_path / "cache").adopt(layer)
    assert str(layer.path) in caught.value.message
    assert not list((tmp_path / "cache").glob("blobs/**/*"))


def test_a_bases_layer_that_was_changed_in_the_cache_is_copied_anew(
    tmp_path: Path, layer: LayerBlob
) -> None:
    cache = BlobCache(tmp_path / "cache")
    change(cache.adopt(layer).path)
    assert digest_of_file(cache.adopt(layer).path) == layer.digest


def test_a_file_is_hashed_once(tmp_path: Path, layer: LayerBlob, hashed: list[Path]) -> None:
    for _ in range(3):
        assert BlobCache(tmp_path / "cache").is_sound(layer)
    assert hashed == [layer.path]
    linked = tmp_path / "linked"
    linked.hardlink_to(layer.path)
    assert BlobCache(tmp_path / "cache").is_sound(replace(layer, path=linked))
    assert hashed == [layer.path]


def test_two_files_of_one_blob_are_both_known(
    tmp_path: Path, layer: LayerBlob, hashed: list[Path]
) -> None:
    cache = BlobCache(tmp_path / "cache")
    kept = cache.adopt(layer)
    for _ in range(3):
        assert cache.is_sound(layer)
        assert cache.is_sound(kept)
    assert hashed == [layer.path]


def test_a_file_that_changed_is_hashed_again(tmp_path: Path, layer: LayerBlob) -> None:
    cache = BlobCache(tmp_path / "cache")
    assert cache.is_sound(layer)
    change(layer.path)
    assert not cache.is_sound(layer)
    change(layer.path)
    assert cache.is_sound(layer)


@pytest.mark.parametrize("damage", ["gone", "cut", "folder"])
def test_a_file_that_cannot_be_it_is_not(tmp_path: Path, layer: LayerBlob, damage: str) -> None:
    cache = BlobCache(tmp_path / "cache")
    assert cache.is_sound(layer)
    data = layer.path.read_bytes()
    layer.path.unlink()
    if damage == "cut":
        layer.path.write_bytes(data[:-1])
    elif damage == "folder":
        layer.path.mkdir()
    assert not cache.is_sound(layer)


@pytest.mark.parametrize("text", ["", "{}", "[5]", "[[1,2]]", '[["a",1,2]]', "[" * 100_000])
def test_stamps_that_cannot_be_read_are_taken_anew(
    tmp_path: Path, layer: LayerBlob, text: str
) -> None:
    cache = BlobCache(tmp_path / "cache")
    assert cache.is_sound(layer)
    [record] = (tmp_path / "cache" / "stamps").iterdir()
    good = record.read_text()
    record.write_text(text)
    assert cache.is_sound(layer)
    assert record.read_text() == good


def test_what_is_no_digest_is_no_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a sha256 digest"):
        BlobCache(tmp_path).place("sha256:../../etc/passwd")


def test_a_copy_goes_also_where_blocks_cannot_be_shared(
    tmp_path: Path, layer: LayerBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: object, request: int, source: int) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.ioctl", refuse)
    assert digest_of_file(BlobCache(tmp_path / "cache").adopt(layer).path) == layer.digest

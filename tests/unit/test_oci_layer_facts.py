"""Facts of layers: read once for a digest and a format, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from builder.errors import ExternalError
from builder.oci.image import LayerBlob
from builder.oci.layer_facts import read_each
from builder.progress import Advance, Progress
from tests.builders import write_tar


class _Counting(Progress):
    def __init__(self) -> None:
        self.totals: list[int] = []

    @contextmanager
    def task(self, label: str, total_bytes: int) -> Iterator[Advance]:
        self.totals.append(total_bytes)
        yield lambda size_bytes: None


def sizes(*layers: LayerBlob, cache: Path, kind: str = "sizes-1") -> tuple[list[int], ...]:
    """The size of each file, as a fact that is easily told."""
    return read_each(
        layers,
        lambda layer: [layer.path.stat().st_size],
        TypeAdapter(list[int]),
        kind=kind,
        label="sizes",
        cache=cache,
        progress=Progress(),
    )


def test_a_layer_is_read_once(tmp_path: Path) -> None:
    layer = write_tar(tmp_path / "layer", {"a": b"1"})
    first = sizes(layer, layer, cache=tmp_path)
    assert first == ([layer.size], [layer.size])
    layer.path.unlink()
    assert sizes(layer, cache=tmp_path) == first[:1]


def test_facts_of_another_format_are_not_taken(tmp_path: Path) -> None:
    layer = write_tar(tmp_path / "layer", {"a": b"1"})
    sizes(layer, cache=tmp_path)
    layer.path.unlink()
    with pytest.raises(FileNotFoundError):
        sizes(layer, cache=tmp_path, kind="sizes-2")


@pytest.mark.parametrize("kept", ["", "{", '["one"]'])
def test_a_broken_file_is_read_anew(tmp_path: Path, kept: str) -> None:
    layer = write_tar(tmp_path / "layer", {"a": b"1"})
    first = sizes(layer, cache=tmp_path)
    (file,) = (tmp_path / "facts").iterdir()
    file.write_text(kept)
    assert sizes(layer, cache=tmp_path) == first
    assert file.read_text() == f"[{layer.size}]"


def test_the_progress_is_of_what_has_to_be_read(tmp_path: Path) -> None:
    known = write_tar(tmp_path / "known", {"a": b"1"})
    sizes(known, cache=tmp_path)
    new, progress = write_tar(tmp_path / "new", {"b": b"2"}), _Counting()
    read_each(
        [known, new, new],
        lambda layer: [layer.size],
        TypeAdapter(list[int]),
        kind="sizes-1",
        label="sizes",
        cache=tmp_path,
        progress=progress,
    )
    assert progress.totals == [new.size]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    layer = write_tar(tmp_path / "layer", {"a": b"1"})

    def read(layer: LayerBlob) -> list[int]:
        raise ExternalError(f"{layer.path}: is broken")

    with pytest.raises(ExternalError, match="is broken"):
        read_each(
            [layer],
            read,
            TypeAdapter(list[int]),
            kind="sizes-1",
            label="sizes",
            cache=tmp_path,
            progress=Progress(),
        )
    assert not (tmp_path / "facts").exists()

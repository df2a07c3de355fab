"""What layers hold, each read once: texts, hashes, links, libraries that need torch's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import ExternalError
from builder.lock.base import contents
from builder.lock.base.contents import read_contents, read_layer
from builder.lock.base.tree import FileFacts, LayerContents, Tree
from builder.oci import elf_stream
from builder.progress import Progress
from tests.binaries import Elf
from tests.builders import NGC_SITE as SITE
from tests.builders import Content, Hardlink, write_tar

TORCH = Elf(needed=["libtorch_python.so", "libc.so.6"])
OTHER = Elf(needed=["libc.so.6", "libtorchaudio.so"])
METADATA = b"Name: a\nVersion: 1\n\n" + b"A long description.\n" * 1000


def read(tmp_path: Path, entries: Mapping[str, Content]) -> LayerContents:
    return read_layer(write_tar(tmp_path / "layer", entries))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_what_is_kept_of_a_layer(tmp_path: Path) -> None:
    library = TORCH.write()
    found = read(
        tmp_path,
        {
            "usr": None,
            f"{SITE}/a-1.dist-info/METADATA": METADATA,
            f"{SITE}/a-1.dist-info/RECORD": b"a.py,,\nlib/a.so.1,,\n\nbin/a,,\na.py,,\n",
            f"{SITE}/a/_c.so": library,
            f"{SITE}/a/a.py": b"import torch",
            f"./{SITE}/torch/lib/libtorch.so": OTHER.write(),
            f"{SITE}/torch/link": "lib",
            "etc/pip/constraint.txt": b"torch==1\n",
            "usr/bin/python3.12": b"",
            "usr/bin/other": b"",
            "opt/x.dist-info/METADATA": METADATA,
            "opt/.wh.gone": b"",
            f"{SITE}/.wh..wh..opq": b"",
        },
    )
    assert found.files == {
        f"{SITE}/a-1.dist-info/METADATA": FileFacts(text="Name: a\nVersion: 1"),
        f"{SITE}/a-1.dist-info/RECORD": FileFacts(text="lib/a.so.1\nbin/a"),
        f"{SITE}/a/_c.so": FileFacts(links_torch=True),
        f"{SITE}/torch/lib/libtorch.so": FileFacts(sha256=sha256(OTHER.write())),
        f"{SITE}/torch/link": FileFacts(link="lib"),
        "etc/pip/constraint.txt": FileFacts(text="torch==1\n"),
    }
    assert found.others == (f"{SITE}/a/a.py", "usr/bin/python3.12")
    assert (found.hidden, found.emptied) == (("opt/gone",), (SITE,))


@pytest.mark.parametrize(
    "name",
    ["libtorch.so", "libtorch_cuda.so", "libtorch_python.so", "libc10.so", "libc10_cuda.so.1"],
)
def test_libraries_of_torch(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, {f"{SITE}/a.so": Elf(needed=["libm.so.6", name]).write()})
    assert found.files == {f"{SITE}/a.so": FileFacts(links_torch=True)}


@pytest.mark.parametrize("name", ["libtorchaudio.so", "libtorchvision.so", "libc10a.so", "libc.so"])
def test_libraries_that_are_not_torchs(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, {f"{SITE}/a.so": Elf(needed=[name]).write()})
    assert found.others == (f"{SITE}/a.so",)


def test_a_broken_library_needs_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, {f"{SITE}/a.so": b"\x7fELF" + b"\xff" * 100})
    assert found.others == (f"{SITE}/a.so",)


def test_hard_links_hold_what_their_file_holds(tmp_path: Path) -> None:
    """As where an installer links from its cache, whose files come first in the layer."""
    cached = "root/.cache/uv"
    found = read(
        tmp_path,
        {
            f"{cached}/METADATA": METADATA,
            f"{cached}/c": TORCH.write(),
            f"{cached}/t": b"torch",
            f"{SITE}/a-1.dist-info/METADATA": Hardlink(f"{cached}/METADATA"),
            f"{SITE}/a/c.so": Hardlink(f"./{cached}/c"),
            f"{SITE}/torch/c.so": Hardlink(f"{SITE}/a/c.so"),
            f"{SITE}/torch/t": Hardlink(f"{cached}/t"),
            f"{SITE}/torch/u": Hardlink(f"{SITE}/torch/t"),
            f"{SITE}/a/lost": Hardlink("nowhere"),
            f"{SITE}/a/one": Hardlink(f"{SITE}/a/two"),
            f"{SITE}/a/two": Hardlink(f"{SITE}/a/one"),
        },
    )
    assert found.files == {
        f"{SITE}/a-1.dist-info/METADATA": FileFacts(text="Name: a\nVersion: 1"),
        f"{SITE}/a/c.so": FileFacts(links_torch=True),
        f"{SITE}/torch/c.so": FileFacts(sha256=sha256(TORCH.write()), links_torch=True),
        f"{SITE}/torch/t": FileFacts(sha256=sha256(b"torch")),
        f"{SITE}/torch/u": FileFacts(sha256=sha256(b"torch")),
    }
    assert set(found.others) == {f"{SITE}/a/{name}" for name in ("lost", "one", "two")}


def test_a_hard_link_that_is_read_already_costs_no_second_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: dict[str, Content] = {
        f"{SITE}/a/a.so": OTHER.write(),
        f"{SITE}/a/b.so": Hardlink(f"{SITE}/a/a.so"),
        f"{SITE}/a/c.so": TORCH.write(),
        f"{SITE}/a/d.so": Hardlink(f"{SITE}/a/c.so"),
    }
    monkeypatch.delattr(contents._Scan, "_read_again")
    found = read(tmp_path, entries)
    assert set(found.files) == {f"{SITE}/a/c.so", f"{SITE}/a/d.so"}


def test_a_library_whose_tables_are_not_kept_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elf_stream, "_HEAD_BYTES", 600)
    monkeypatch.setattr(elf_stream, "_TAIL_BYTES", 600)
    data = Elf(needed=["libtorch.so"], filler=100_000).write() + bytes(50_000)
    found = read(
        tmp_path,
        {
            f"{SITE}/a.so": data,
            f"{SITE}/b.so": Hardlink(f"{SITE}/a.so"),
            f"{SITE}/torch/a.so": data,
        },
    )
    assert found.files == {
        f"{SITE}/a.so": FileFacts(links_torch=True),
        f"{SITE}/b.so": FileFacts(links_torch=True),
        f"{SITE}/torch/a.so": FileFacts(links_torch=True, sha256=sha256(data)),
    }


def test_of_two_entries_for_a_path_the_later_one_counts(tmp_path: Path) -> None:
    name = f"{SITE}/a.so"
    blob = write_tar(tmp_path / "layer", {name: TORCH.write(), f"./{name}": b"text"})
    assert read_layer(blob).files == {}
    assert read_layer(blob).others == (name,)


def test_texts_are_read_up_to_a_bound(tmp_path: Path) -> None:
    """A few kB of a layer may inflate to more than there is memory."""
    large = b"torch==1\n" * 200_000
    found = read(tmp_path, {"etc/constraint.txt": large, f"{SITE}/torch/version.py": large})
    assert found.files == {f"{SITE}/torch/version.py": FileFacts(sha256=sha256(large))}


def test_a_layer_with_too_much_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_TEXTS_MAX_BYTES", 50)
    with pytest.raises(ExternalError, match="package metadata"):
        read(tmp_path, {f"{SITE}/{name}-1.dist-info/METADATA": METADATA for name in "abc"})


@pytest.mark.parametrize("data", [b'"' + b"a" * 200_000 + b'"', b"\xff\xfe,,\n", b"\0"])
def test_a_record_that_is_none_names_nothing(tmp_path: Path, data: bytes) -> None:
    path = f"{SITE}/a-1.dist-info/RECORD"
    found = read(tmp_path, {path: data}).files[path].text
    assert found is not None
    assert ".so" not in found


def test_names_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    name = f"{SITE}/torch/".encode() + b"\xff"
    layer = write_tar(tmp_path / "layer", {name.decode("utf-8", "surrogateescape"): b"1"})
    (found,) = read_contents([layer], tmp_path / "cache", Progress())
    assert set(found.files) == {f"{SITE}/torch/\\xff"}


def test_what_was_found_is_kept_by_digest(tmp_path: Path) -> None:
    layer = write_tar(tmp_path / "layer", {f"{SITE}/a/_c.so": TORCH.write(), f"{SITE}/b": "c"})
    first = read_contents([layer, layer], tmp_path / "cache", Progress())
    layer.path.unlink()
    assert read_contents([layer], tmp_path / "cache", Progress()) == first[:1] == first[1:]


def test_an_older_format_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = write_tar(tmp_path / "layer", {f"{SITE}/a/_c.so": TORCH.write()})
    read_contents([layer], tmp_path, Progress())
    layer.path.unlink()
    monkeypatch.setattr(contents, "FORMAT", contents.FORMAT + 1)
    with pytest.raises(FileNotFoundError):
        read_contents([layer], tmp_path, Progress())


def test_a_layer_of_another_digest_leaves_nothing(tmp_path: Path) -> None:
    layer = write_tar(tmp_path / "layer", {f"{SITE}/a/_c.so": TORCH.write()})
    write_tar(tmp_path / "layer", {f"{SITE}/a/_c.so": b"other"})
    with pytest.raises(ExternalError, match="does not match its digest"):
        read_contents([layer], tmp_path / "cache", Progress())
    assert not (tmp_path / "cache").exists()


def _layer(
    *others: str, hidden: tuple[str, ...] = (), emptied: tuple[str, ...] = ()
) -> LayerContents:
    return LayerContents(hidden=hidden, emptied=emptied, files={}, others=others)


@pytest.mark.parametrize(
    ("upper", "left"),
    [
        (_layer(hidden=("a/b",)), {"c"}),
        (_layer(hidden=("a",)), {"c"}),
        (_layer(hidden=("a/x", "d/e/f", "c/x", "")), {"a/b/1", "a/b/2", "c"}),
        (_layer(emptied=("a/b",)), {"c"}),
        (_layer(emptied=("c",)), {"a/b/1", "a/b/2", "c"}),
        (_layer(emptied=("",)), set()),
        (_layer("a/b/1", hidden=("a",)), {"a/b/1", "c"}),
        (_layer("a/b"), {"a/b", "c"}),
        (_layer("c/d"), {"a/b/1", "a/b/2", "c/d"}),
    ],
)
def test_layers_on_top_of_each_other(upper: LayerContents, left: set[str]) -> None:
    tree = Tree([_layer("a/b/1", "a/b/2", "c"), upper])
    assert {path for path, _ in tree.walk()} == left


def test_links_are_followed_to_files() -> None:
    texts = {
        "etc/a": FileFacts(link="pip/b"),
        "etc/pip/b": FileFacts(link="../../opt/c"),
        "opt/c": FileFacts(text="found"),
        "opt/loop": FileFacts(link="/opt/loop"),
        "opt/lost": FileFacts(link="nowhere"),
    }
    tree = Tree([LayerContents(hidden=(), emptied=(), files=texts, others=())])
    assert tree.text("/etc/a") == "found"
    assert tree.text("/opt/loop") is None
    assert tree.text("/opt/lost") is None
    assert tree.text("/opt") is None
    assert (tree.has("/etc/a"), tree.has("/etc"), tree.has("/etc/a/b")) == (True, False, False)
    assert tree.names("/opt") == ["c", "loop", "lost"]
    assert tree.names("/opt/c") == []


@given(st.lists(st.lists(st.sampled_from(["a", "a/b", "a/b/c", "b", "b/c"])), max_size=4))
def test_the_last_layer_with_a_path_wins(layers: list[list[str]]) -> None:
    tree = Tree([_layer(*paths) for paths in layers])
    left = {path for path, _ in tree.walk()}
    assert left == {
        path
        for at, paths in enumerate(layers)
        for place, path in enumerate(paths)
        if not any(
            other.startswith(f"{path}/") or path.startswith(f"{other}/")
            for other in [*paths[place + 1 :], *(p for later in layers[at + 1 :] for p in later)]
        )
    }


def test_a_layer_of_endless_entries_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_ENTRIES_MAX", 3)
    entries: dict[str, Content] = {f"{SITE}/a{number}": b"" for number in range(3)}
    assert len(read(tmp_path, entries).others) == 3
    with pytest.raises(ExternalError, match="more than 3 entries"):
        read(tmp_path, {**entries, "etc/.wh.x": b""})


def test_hard_links_to_hard_links_are_followed_so_far_only(tmp_path: Path) -> None:
    links: dict[str, Content] = {
        f"{SITE}/torch/{number:04}.so": Hardlink(f"{SITE}/torch/{number + 1:04}.so")
        for number in range(3000)
    }
    assert len(read(tmp_path, links).others) == 3000

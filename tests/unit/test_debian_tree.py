"""Packages over each other: a merged /usr, hard links, and who may bring what another brings."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.engines.debian.deb import Deb, Spool, open_spool, read_deb
from builder.engines.debian.tree import Tree, merged, relation_names
from builder.errors import UsageError

from .debian_packages import Layer, deb_bytes, member, written


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with open_spool(tmp_path) as opened:
        yield opened


def _deb(
    spool: Spool,
    folder: Path,
    name: str,
    *entries: tuple[tarfile.TarInfo, bytes],
    replaces: str = "",
) -> Deb:
    path = folder / f"{name}.deb"
    fields = {"Replaces": replaces} if replaces else {}
    path.write_bytes(deb_bytes(name, entries, fields=fields))
    return read_deb(path, path.name, spool)


def _layer(*debs: Deb, spool: Spool) -> Layer:
    tree = Tree(spool)
    for deb in debs:
        tree.add_package(deb)
    tree.merge_usr()
    return Layer(written(tree.write))


def test_old_and_new_layouts_come_out_merged(spool: Spool, tmp_path: Path) -> None:
    old = _deb(
        spool,
        tmp_path,
        "old",
        member("bin"),
        member("bin/sh", b"sh", mode=0o755),
        member("lib"),
        member("lib/libx.so.1", b"x"),
        member("lib64", link="usr/lib64"),
        member("usr"),
        member("usr/lib64"),
    )
    new = _deb(spool, tmp_path, "new", member("bin", link="usr/bin"), member("usr/bin/tool", b""))
    layer = _layer(old, new, spool=spool)
    links = {name: layer[name].linkname for name in layer.names if layer[name].issym()}
    assert links == {f: f"usr/{f}" for f in ("bin", "lib", "lib64", "sbin")}
    assert layer.read("usr/bin/sh") == b"sh"
    assert layer["usr/bin/sh"].mode == 0o755
    assert layer["usr/sbin"].isdir()
    assert layer.names == sorted(layer.names, key=lambda name: name.split("/"))


def test_hard_links_follow_the_first_name(spool: Spool, tmp_path: Path) -> None:
    deb = _deb(
        spool,
        tmp_path,
        "a",
        member("usr/z", b"content", mode=0o4755, gid=42),
        member("usr/b", hardlink="usr/z"),
        member("usr/c", b""),
        member("usr/d", b""),
    )
    layer = _layer(deb, spool=spool)
    assert layer.read("usr/b") == b"content"
    assert (layer["usr/z"].islnk(), layer["usr/z"].linkname) == (True, "usr/b")
    for name in ("usr/b", "usr/z"):
        assert (layer[name].mode, layer[name].gid, layer[name].mtime) == (0o4755, 42, 315532800)
    assert layer["usr/c"].isreg()
    assert layer["usr/d"].isreg()


def test_a_change_reaches_every_hard_link(spool: Spool, tmp_path: Path) -> None:
    deb = _deb(spool, tmp_path, "a", member("usr/a", b"x"), member("usr/b", hardlink="usr/a"))
    tree = Tree(spool)
    tree.add_package(deb)
    tree.change("/usr/b", 0o2755, (0, 101))
    layer = Layer(written(tree.write))
    assert {(layer[n].mode, layer[n].gid) for n in ("usr/a", "usr/b")} == {(0o2755, 101)}


def test_the_first_package_decides_a_folders_mode(spool: Spool, tmp_path: Path) -> None:
    first = _deb(spool, tmp_path, "a", member("tmp", mode=0o1777))
    second = _deb(spool, tmp_path, "b", member("tmp"))
    assert _layer(first, second, spool=spool)["tmp"].mode == 0o1777


def test_the_same_file_twice_is_no_conflict(spool: Spool, tmp_path: Path) -> None:
    debs = [_deb(spool, tmp_path, name, member("usr/x", b"same")) for name in "ab"]
    assert _layer(*debs, spool=spool).read("usr/x") == b"same"


@pytest.mark.parametrize("replacing_first", [True, False])
def test_who_replaces_wins_in_either_order(
    spool: Spool, tmp_path: Path, *, replacing_first: bool
) -> None:
    old = _deb(spool, tmp_path, "old", member("usr/x", b"old"))
    new = _deb(spool, tmp_path, "new", member("usr/x", b"new"), replaces="other, old (<< 2)")
    tree = Tree(spool)
    for deb in (new, old) if replacing_first else (old, new):
        tree.add_package(deb)
    assert tree.read("usr/x") == b"new"
    assert tree.lost_by(old) == {"usr/x"}
    assert not tree.lost_by(new)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (member("usr/x", b"one"), member("usr/x", b"two")),
        (member("usr/x", b"one"), member("usr/x", b"one", mode=0o755)),
        (member("usr/x", b"one"), member("usr/x", link="y")),
        (member("usr/x"), member("usr/x", link="y")),
        (member("usr/x", link="y"), member("usr/x/below", b"")),
        (member("usr/x", b"file"), member("usr/x/below", b"")),
    ],
)
def test_contradictions_are_refused(
    spool: Spool,
    tmp_path: Path,
    first: tuple[tarfile.TarInfo, bytes],
    second: tuple[tarfile.TarInfo, bytes],
) -> None:
    debs = [_deb(spool, tmp_path, "one", first), _deb(spool, tmp_path, "two", second)]
    with pytest.raises(UsageError, match="/usr/x"):
        _layer(*debs, spool=spool)


def test_links_are_followed_inside_and_never_out(spool: Spool) -> None:
    tree = Tree(spool)
    tree.put_file("usr/share/data", b"data")
    tree.put_link("etc/absolute", "/usr/share/data")
    tree.put_link("etc/relative", "../usr/share/data")
    tree.put_link("etc/climbing", "../../../../usr/share/data")
    tree.put_link("etc/dangling", "nowhere")
    tree.put_link("etc/loop", "loop")
    for name in ("absolute", "relative", "climbing"):
        assert tree.read(f"/etc/{name}") == b"data"
    assert tree.find("/etc/dangling") is None
    assert tree.find("/etc/loop") is None


def test_merged_paths() -> None:
    assert merged("/bin/sh") == "usr/bin/sh"
    assert merged("lib") == "lib"
    assert merged("etc/bin/x") == "etc/bin/x"


def test_relation_names() -> None:
    fields = {"Replaces": "aa (<< 1.0), bb | cc:any,\n d-e+f"}
    assert relation_names(fields, "Replaces") == {"aa", "bb", "cc", "d-e+f"}
    assert relation_names(fields, "Breaks") == frozenset()

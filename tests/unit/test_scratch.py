"""Scratch folders: gone however their owner ends; what is published appears whole."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from builder import scratch
from builder.errors import UsageError
from builder.pool import threads
from builder.scratch import publish, scratch_folder, write_whole


def left_in(cache: Path) -> list[Path]:
    return list((cache / "scratch").iterdir())


def owner_killed(cache: Path) -> None:
    """A child of ours takes a scratch folder and is killed in it."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with scratch_folder(cache) as folder:
                (folder / "half").write_bytes(bytes(1000))
                os.write(writes, b"x")
                signal.pause()
        finally:
            os._exit(1)
    os.close(writes)
    assert os.read(reads, 1) == b"x"
    os.close(reads)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_the_folder_is_ours_empty_and_gone_afterwards(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        assert list(folder.iterdir()) == []
        assert folder.is_relative_to(tmp_path)
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("x")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit])
def test_it_goes_however_we_end(tmp_path: Path, kind: type[BaseException]) -> None:
    with pytest.raises(kind), scratch_folder(tmp_path):
        raise kind
    assert left_in(tmp_path) == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_what_a_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    owner_killed(tmp_path)
    [left] = left_in(tmp_path)
    assert (left / "work" / "half").exists()
    with scratch_folder(tmp_path):
        assert not left.exists()
    assert left_in(tmp_path) == []


def test_what_a_living_run_has_stays(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as first:
        (first / "file").write_text("mine")
        with scratch_folder(tmp_path) as second:
            assert first != second
        assert (first / "file").read_text() == "mine"


def test_a_folder_that_is_being_made_is_not_taken_for_dead(tmp_path: Path) -> None:
    def use(number: int) -> bool:
        with scratch_folder(tmp_path) as folder:
            (folder / "file").write_text(str(number))
            return (folder / "file").read_text() == str(number)

    with threads(8) as pool:
        assert all(pool.map(use, range(200)))
    assert left_in(tmp_path) == []


def test_a_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file.json"
    write_whole(path, b"one", tmp_path / "cache")
    inode = path.stat().st_ino
    write_whole(path, b"two", tmp_path / "cache")
    assert path.read_bytes() == b"two"
    assert path.stat().st_ino != inode
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "file"
    write_whole(path, b"old", tmp_path / "cache")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new", tmp_path / "cache")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    assert left_in(tmp_path / "cache") == []


def make(path: Path, kind: str, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
        (path / text).write_text(text)
    else:
        path.write_text(text)
    return path


def text_of(path: Path) -> str:
    return next(path.iterdir()).name if path.is_dir() else path.read_text()


def on_another_device(folder: Path) -> Callable[..., os.stat_result]:
    """`Path.stat` as it would be if `folder` were another file system's."""
    stat = Path.stat

    def elsewhere(path: Path, **options: bool) -> os.stat_result:
        found = stat(path, **options)
        device = found.st_dev + (path == folder)
        return os.stat_result((*found[:2], device, *found[3:10]))

    return elsewhere


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nothing", "file"),
        ("file", "file"),
        ("nothing", "folder"),
        ("file", "folder"),
        ("folder", "folder"),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same", "another"])
def test_publishing_replaces_whatever_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, *, elsewhere: bool
) -> None:
    destination = tmp_path / "out" / "result"
    if old != "nothing":
        make(destination, old, "old")
    with scratch_folder(tmp_path / "cache") as folder:
        source = make(folder / "made", new, "new")
        if elsewhere:
            monkeypatch.setattr(Path, "stat", on_another_device(destination.parent))
        publish(source, destination, tmp_path / "cache", mark="old")
        monkeypatch.undo()
    assert text_of(destination) == "new"
    assert destination.is_dir() == (new == "folder")
    assert [entry.name for entry in destination.parent.iterdir()] == ["result"]


@pytest.mark.parametrize(("new", "mark"), [("file", "old"), ("folder", "other"), ("folder", None)])
def test_a_folder_of_another_kind_is_never_replaced(
    tmp_path: Path, new: str, mark: str | None
) -> None:
    destination = make(tmp_path / "out" / "result", "folder", "old")
    with scratch_folder(tmp_path / "cache") as folder:
        source = make(folder / "made", new, "new")
        with pytest.raises(UsageError) as caught:
            publish(source, destination, tmp_path / "cache", mark=mark)
    assert str(destination) in caught.value.message
    assert text_of(destination) == "old"


def test_an_empty_folder_may_be_replaced(tmp_path: Path) -> None:
    destination = tmp_path / "result"
    destination.mkdir()
    publish(make(tmp_path / "cache" / "made", "folder", "new"), destination, tmp_path / "cache")
    assert text_of(destination) == "new"


def test_a_file_is_never_written_over_a_folder(tmp_path: Path) -> None:
    folder = make(tmp_path / "mine", "folder", "precious")
    with pytest.raises(UsageError, match="is a folder"):
        write_whole(folder, b"new", tmp_path / "cache")
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(UsageError, match="is a folder"):
        write_whole(link, b"new", tmp_path / "cache")
    assert text_of(folder) == "precious"
    with pytest.raises(UsageError, match="is a folder"):
        write_whole(Path("/"), b"new", tmp_path / "cache")


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real/file")
    for text in (b"one", b"two"):
        write_whole(link, text, tmp_path / "cache")
        assert (tmp_path / "real" / "file").read_bytes() == text
    assert link.is_symlink()


def test_a_pipe_is_written_into_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"text", tmp_path / "cache")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_runs_that_publish_the_same_folder_do_not_meet(tmp_path: Path) -> None:
    cache, destination = tmp_path / "cache", tmp_path / "result"

    def replace(number: int) -> None:
        with scratch_folder(cache) as folder:
            made = make(folder / "made", "folder", "mark")
            (made / "mark").write_text(str(number))
            publish(made, destination, cache, mark="mark")

    with threads(8) as pool:
        list(pool.map(replace, range(200)))
    assert [entry.name for entry in destination.iterdir()] == ["mark"]


def test_a_copy_to_another_file_system_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = make(tmp_path / "out" / "result", "folder", "old")
    source = make(tmp_path / "cache" / "made", "folder", "new")

    def full(source: Path, destination: Path) -> None:
        destination.mkdir()
        (destination / "part").write_text("part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(OSError, match="No space"):
        scratch._carry_over(source, destination, tmp_path / "cache", "old")
    assert text_of(destination) == "old"
    assert [entry.name for entry in destination.parent.iterdir()] == ["result"]


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o664)
    write_whole(path, b"new", tmp_path / "cache")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o664)

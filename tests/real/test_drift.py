"""Drift, difference and bump by the real uv: against an index on loopback, and the real one."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from builder import process
from builder.context import Context
from builder.errors import ExternalError
from builder.lock.changes.bump import Query, propose
from builder.lock.changes.check import drift_of
from builder.lock.changes.diff import compare
from builder.lock.changes.diff_text import headline, lines
from builder.lock.changes.edit import apply
from builder.lock.closure import ask
from builder.lock.git import Git
from builder.lock.model import Lock
from builder.lock.pylock import read_lock
from builder.lock.supply import open_supply
from builder.lock.wheels import resolve
from builder.recipe import load_recipe
from builder.targets import find_target
from tests.builders import WheelText

from .builds import base_layout, spark_build

pytestmark = [pytest.mark.real("index")]

RECIPE = "name: demo\ntarget: gb10\nbase: {oci: ./base}\npackages:\n- one==1.0 # tested\n- two\n"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any, **more: Any) -> None:
        pass


@dataclass
class Index:
    """A package index of static files (PEP 503, PEP 592) in `folder`, served at `url`."""

    folder: Path
    url: str
    yanked: dict[str, str] = field(default_factory=dict)

    def add(self, wheel: WheelText, data: bytes | None = None) -> Path:
        """Put the wheel, or `data` under its name, where the index lists it."""
        path = self.folder / "files" / wheel.name / wheel.filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wheel.zipped() if data is None else data)
        self.list(wheel.name)
        return path

    def list(self, name: str, hashes: Mapping[str, str] | None = None) -> None:
        """Write the page of a project; `hashes` by file name, where not the files' own."""
        links = []
        for path in sorted((self.folder / "files" / name).iterdir()):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            link = f"../../files/{name}/{path.name}#sha256={(hashes or {}).get(path.name, digest)}"
            reason = self.yanked.get(path.name)
            mark = "" if reason is None else f' data-yanked="{reason}"'
            links.append(f'<a href="{link}"{mark}>{path.name}</a>')
        page = self.folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<!DOCTYPE html>\n" + "\n".join(links))


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    folder = tmp_path / "index"
    folder.mkdir()
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Index(folder, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


ONE, TWO = WheelText(name="one"), WheelText(name="two", files={"two.py": b""})


@dataclass
class Project:
    """A recipe that was locked against an index."""

    folder: Path
    index: Index
    environ: Mapping[str, str]

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.yaml"

    @property
    def context(self) -> Context:
        return Context(environ=self.environ, cache=self.folder / "cache")

    def lock(self) -> Lock:
        done = spark_build(
            "lock", self.recipe, cache=self.context.cache, cwd=self.folder, env=self.environ
        )
        assert done.returncode == 0, done.stderr
        return read_lock(self.folder / "pylock.demo-gb10.toml")

    def drift(self, lock: Lock) -> list[str]:
        """What drifted, with the index's own address left out."""
        with open_supply(self.context) as supply:
            found = drift_of(lock, recipe=load_recipe(self.recipe).recipe, supply=supply)
        return [line.replace(self.index.url, "") for line in found]


@pytest.fixture
def project(tmp_path: Path, index: Index) -> Project:
    index.add(ONE)
    index.add(TWO)
    base_layout(tmp_path / "base", "3.13")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    own = {"UV_DEFAULT_INDEX": f"{index.url}/simple", "UV_CACHE_DIR": str(tmp_path / "uv")}
    return Project(tmp_path, index, {**os.environ, **own})


def yank(index: Index) -> None:
    index.yanked[ONE.filename] = "does not start on arm64"
    index.list("one")


def remove(index: Index) -> None:
    (index.folder / "files" / "one" / ONE.filename).unlink()
    index.list("one")


def lose(index: Index) -> None:
    """The file goes, and the index still lists it."""
    (index.folder / "files" / "one" / ONE.filename).unlink()
    page = index.folder / "simple" / "one" / "index.html"
    page.write_text(f'<a href="../../files/one/{ONE.filename}#sha256={sha256(ONE)}">one</a>')


def unlist(index: Index) -> None:
    """The index offers another file of that version, and the old one stays where it was."""
    other = ONE.filename.replace("py3", "py2.py3")
    path = index.folder / "files" / "one" / ONE.filename
    path.rename(path.with_name(other))
    index.list("one", {other: "e" * 64})
    path.with_name(other).rename(path)


def replace_file(index: Index) -> None:
    index.add(ONE, WheelText(name="one", files={"more.py": b"more = 1\n"}).zipped())


def sha256(wheel: WheelText) -> str:
    return hashlib.sha256(wheel.zipped()).hexdigest()


GONE = f"one 1.0: /files/one/{ONE.filename} is gone: the server answers 404"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda index: None, []),
        (yank, ["one 1.0: yanked: does not start on arm64"]),
        (remove, [GONE, "one 1.0: the index does not have it for this platform any more"]),
        (lose, [GONE]),
        (unlist, [f"one 1.0: the index does not list {ONE.filename} any more"]),
    ],
    ids=["nothing", "yanked", "removed", "lost", "unlisted"],
)
def test_what_drifts(
    project: Project, change: Callable[[Index], None], expected: list[str]
) -> None:
    lock = project.lock()
    change(project.index)
    assert project.drift(lock) == expected


def test_a_file_that_was_replaced(project: Project) -> None:
    lock = project.lock()
    replace_file(project.index)
    size, other = project.drift(lock)
    assert size.startswith(f"one 1.0: /files/one/{ONE.filename} has ")
    assert other == f"one 1.0: the index has another file as {ONE.filename} now"


def test_a_host_that_does_not_answer_is_no_drift(project: Project) -> None:
    lock = project.lock()
    nowhere = {**project.environ, "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple"}
    with pytest.raises(ExternalError):
        Project(project.folder, project.index, nowhere).drift(lock)


def test_a_pin_is_bumped_as_far_as_the_rest_goes(project: Project) -> None:
    """The newest of all is refused; what is taken has to go with the package that stays."""
    for version in ("1.5", "2.0", "3.0"):
        project.index.add(WheelText(name="one", version=version))
    loaded, target = load_recipe(project.recipe), find_target("gb10")
    with open_supply(project.context) as supply:
        request = ask(loaded, target, supply).request
        query = Query(
            request=request,
            resolve=partial(resolve, context=supply.context, http=supply.http),
        )
        changes = propose(loaded, [query], not_admitted={"one": {"3.0"}})
    assert [(change.line, change.new) for change in changes] == [(5, "one==2.0")]
    assert apply(RECIPE, changes) == RECIPE.replace("one==1.0 #", "one==2.0 #")


@pytest.mark.real("git")
def test_a_commit_that_a_repository_lost(tmp_path: Path, context: Context) -> None:
    """A commit given as such is asked for itself: no list of refs tells whether it is there."""

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org")
        return process.run(["git", *who, *arguments], cwd=tmp_path).stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    for message in ("one", "two"):
        git("commit", "--quiet", "--allow-empty", f"--message={message}")
    second, url = git("rev-parse", "HEAD"), tmp_path.as_uri()
    assert Git(context).has_commit(url, second)
    git("reset", "--quiet", "--hard", "HEAD~1")
    git("reflog", "expire", "--expire=now", "--all")
    git("prune", "--expire=now")
    assert not Git(context).has_commit(url, second)
    with pytest.raises(ExternalError):
        Git(context).has_commit((tmp_path / "nowhere").as_uri(), second)


def test_the_difference_of_two_torches_leads_with_cuda(tmp_path: Path) -> None:
    """On arm64 the default index has CPU builds of torch up to 2.10, for CUDA 13 since 2.11."""
    base_layout(tmp_path / "base", "3.13")
    locks = []
    for version in ("2.10.0", "2.13.0"):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(
            "name: demo\ntarget: gb10\nbase: {oci: ./base}\n"
            f"torch: {{from: wheel, version: {version}}}\n"
        )
        done = spark_build("lock", recipe, cache=tmp_path / "cache", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        locks.append(read_lock(tmp_path / "pylock.demo-gb10.toml"))
    difference = compare(*locks)
    assert headline(difference).startswith("torch 2.10.0 → 2.13.0: CPU build → CUDA 13.0")
    assert "CUDA runtime nvidia-cuda-runtime 13.0" in lines(difference)[1]
    assert difference.new_bytes > 10 * difference.old_bytes

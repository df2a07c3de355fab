"""A wheel at a URL that may go, with a repository behind it: natolambert/dgx-spark-setup's vLLM."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.process import Completed

from .builds import spark_build
from .standins import StandIns
from .vllm import (
    REPOSITORY,
    TAG,
    WHEEL_PATH,
    WHEEL_URL,
    torch_wheel,
    vllm_repository,
    vllm_wheel,
)

pytestmark = [pytest.mark.real("apt", "docker-registry", "git", "index", "openssl")]

_GIT = f"https://github.com/{REPOSITORY}"
_RECIPE = f"""\
name: vllm-serve
target: gb10
base:
  debian: {{suite: bookworm, packages: [python3, libstdc++6, libgomp1]}}
torch: {{from: wheel, version: 2.9.0, index: cu130}}
packages: [vllm==0.13.0]
sources:
  vllm:
    - wheel: {WHEEL_URL}
    - git: {_GIT}
      ref: {TAG}
      requirements: [requirements/cuda.txt]
exclude: [flash-attn]
"""


class Project:
    """The recipe in its folder, and the command run on it."""

    def __init__(self, folder: Path, standins: StandIns) -> None:
        self.recipe = folder / "vllm-serve.yaml"
        self.recipe.write_text(_RECIPE)
        self.lock_file = folder / "pylock.vllm-serve-gb10.toml"
        self._folder, self._environ = folder, standins.environ

    def run(self, verb: str, *options: str, cache: str = "cache") -> Completed:
        where = {"cache": self._folder / cache, "cwd": self._folder}
        return spark_build(verb, self.recipe, *options, **where, env=self._environ)

    def package(self, name: str) -> dict[str, Any]:
        packages = tomllib.loads(self.lock_file.read_text())["packages"]
        [found] = [package for package in packages if package["name"] == name]
        assert isinstance(found, dict)
        return found

    def source(self) -> dict[str, Any]:
        own = tomllib.loads(self.lock_file.read_text())["tool"]["spark-build"]
        [source] = own["sources"]
        assert isinstance(source, dict)
        return source


@pytest.fixture(scope="module")
def commit(standins: StandIns) -> str:
    """The hosts as they are; returns the repository's commit."""
    standins.vllm.pages[WHEEL_PATH] = vllm_wheel()
    standins.pytorch.add_index("/whl/cu130", dict([torch_wheel("cp311")]))
    return standins.github.add(REPOSITORY, vllm_repository(), TAG)


@pytest.fixture(scope="module")
def project(standins: StandIns, commit: str, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The recipe, locked while the wheel is there."""
    project = Project(tmp_path_factory.mktemp("seed"), standins)
    done = project.run("lock")
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def gone(standins: StandIns) -> Iterator[None]:
    """The wheel's URL answers 404 from now on."""
    standins.vllm.statuses[WHEEL_PATH] = 404
    yield
    del standins.vllm.statuses[WHEEL_PATH]


def test_it_locks_the_wheel(project: Project) -> None:
    [wheel] = project.package("vllm")["wheels"]
    assert wheel["url"] == WHEEL_URL
    assert wheel["hashes"]["sha256"] == hashlib.sha256(vllm_wheel()).hexdigest()
    assert project.source()["source"] == f"wheel {WHEEL_URL}"
    [torch] = project.package("torch")["wheels"]
    assert torch["url"].startswith("https://download.pytorch.org/whl/cu130/torch-2.9.0")
    assert project.run("lock", "--check").returncode == 0


@pytest.mark.usefixtures("gone")
def test_check_names_the_url_that_went(project: Project) -> None:
    before = project.lock_file.read_bytes()
    done = project.run("lock", "--check")
    assert done.returncode == 3
    assert WHEEL_URL in done.stderr
    assert project.lock_file.read_bytes() == before


@pytest.mark.usefixtures("gone")
def test_a_build_falls_through_to_nothing(project: Project, standins: StandIns) -> None:
    """The lock says the wheel, so a machine without it gets no image, and no other source."""
    before = project.lock_file.read_bytes()
    asked = len(standins.requests("github.com"))
    done = project.run("build", cache="elsewhere")
    assert done.returncode == 5
    assert WHEEL_URL in done.stderr
    assert project.lock_file.read_bytes() == before
    assert not (project.recipe.parent / "build" / "vllm-serve" / "oci").exists()
    assert len(standins.requests("github.com")) == asked


@pytest.mark.usefixtures("gone")
def test_locking_anew_takes_the_repository_and_says_why(project: Project, commit: str) -> None:
    """Only when it is told to: without --upgrade the lock stays as it is."""
    before = project.lock_file.read_bytes()
    assert project.run("lock").returncode == 0
    assert project.lock_file.read_bytes() == before
    done = project.run("lock", "--upgrade")
    assert done.returncode == 0, done.stderr
    vllm = project.package("vllm")
    assert "wheels" not in vllm
    assert (vllm["vcs"]["type"], vllm["vcs"]["url"]) == ("git", _GIT)
    assert vllm["vcs"]["commit-id"] == commit
    source = project.source()
    assert source["source"] == f"git {_GIT}@{TAG}"
    [refused] = source["refused"]
    assert refused["source"] == f"wheel {WHEEL_URL}"
    assert "404" in refused["reason"]
    # What the repository requires took part, by way of its requirements files.
    assert project.package("numba")["version"] == "0.61.2"
    assert project.package("torch")["version"].startswith("2.9.0")
    assert project.package("tiktoken")
    project.lock_file.write_bytes(before)

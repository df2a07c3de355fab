"""Vendoring with real files, a real registry and a real git: all of it comes back, offline."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder import process
from builder.context import Context
from builder.errors import OfflineError
from builder.lock import lock_recipe
from builder.lock.git import Git
from builder.lock.model import DebianBase, Lock, LockedFile, LockedGit
from builder.lock.supply import open_supply
from builder.lock.vendor import bring, open_vendor, vendor
from builder.oci.reference import parse_reference
from builder.recipe import load_recipe
from builder.targets import find_target

from .builds import base_layout
from .standins.registry import registry

_RECIPE = "name: small\ntarget: gb10\nbase: {oci: ./base}\npackages: [pygments, numpy]\n"
_DEBIAN = """\
name: debs
target: gb10
base: {debian: {suite: trixie, packages: [python3]}}
packages: [pygments]
"""


def locked(folder: Path, text: str, context: Context) -> Lock:
    recipe = folder / "recipe.yaml"
    recipe.write_text(text)
    base_layout(folder / "base", "3.13")
    with open_supply(context) as supply:
        return lock_recipe(load_recipe(recipe), find_target("gb10"), supply).lock


def files_of(lock: Lock) -> list[LockedFile]:
    debs = lock.base.debs if isinstance(lock.base, DebianBase) else ()
    return [*debs, *lock.wheels]


def elsewhere(context: Context, tmp_path: Path, *, offline: bool = True) -> Context:
    """Another host: nothing is in its cache yet."""
    return replace(context, cache=tmp_path / "elsewhere", offline=offline)


@pytest.mark.real("apt", "index")
def test_a_folder_of_wheels_and_debs_serves_a_host_without_network(
    context: Context, tmp_path: Path
) -> None:
    lock = locked(tmp_path, _DEBIAN, context)
    folder = tmp_path / "vendor"
    with open_supply(context) as supply:
        done = vendor(lock, folder, supply=supply)
    files = files_of(lock)
    assert done.files == done.new_files == len(files) > 5
    shutil.rmtree(context.cache)
    there = elsewhere(context, tmp_path)
    with open_supply(there, vendored=[folder]) as supply:
        assert bring(lock, open_vendor(folder, supply), supply) == 0
        assert supply.store.fetch(files, supply.http, there.progress, "fetch") == 0
        for file in files:
            found = supply.store.get(file)
            assert (found.is_relative_to(folder), found.stat().st_size) == (True, file.size)
    with open_supply(there) as supply, pytest.raises(OfflineError):
        supply.store.fetch(files, supply.http, there.progress, "fetch")


@pytest.mark.real("docker-registry", "index")
def test_a_registry_serves_a_host_that_reaches_nothing_else(
    context: Context, tmp_path: Path
) -> None:
    lock = locked(tmp_path, _RECIPE, context)
    with registry(tmp_path / "registry") as port:
        place = parse_reference(f"127.0.0.1:{port}/team/vendor:small")
        with open_supply(context) as supply:
            first = vendor(lock, place, supply=supply)
            second = vendor(lock, place, supply=supply)
        assert (first.new_files, second.new_files) == (2, 0)
        assert first.digest == second.digest
        there = elsewhere(context, tmp_path, offline=False)
        with open_supply(there) as supply:
            assert supply.registry.resolve(place) == first.digest
            assert bring(lock, open_vendor(place, supply), supply) == first.size
            assert supply.store.missing(files_of(lock)) == ()


@pytest.mark.real("docker-registry", "index", "skopeo")
def test_other_clients_pull_the_artifact(context: Context, tmp_path: Path) -> None:
    lock = locked(tmp_path, _RECIPE, context)
    with registry(tmp_path / "registry") as port:
        name = f"127.0.0.1:{port}/team/vendor:small"
        with open_supply(context) as supply:
            vendor(lock, parse_reference(name), supply=supply)
            vendor(lock, tmp_path / "folder", supply=supply)
        argv = ["skopeo", "copy", "--src-tls-verify=false", f"docker://{name}"]
        process.run([*argv, f"oci:{tmp_path / 'pulled'}:small"])
    index = json.loads((tmp_path / "pulled" / "index.json").read_text())
    blobs = tmp_path / "pulled" / "blobs" / "sha256"
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_text())
    for layer in manifest["layers"]:
        title = layer["annotations"]["org.opencontainers.image.title"]
        assert (blobs / layer["digest"][7:]).read_bytes() == (
            tmp_path / "folder" / title
        ).read_bytes()
    assert len(manifest["layers"]) == 3


def commit(folder: Path, run: Callable[..., str]) -> str:
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\nname = 'pkg'\nversion = '1.0'\n")
    run("init", "--quiet", "--initial-branch=main")
    run("add", ".")
    run("-c", "user.name=x", "-c", "user.email=x@y.example", "commit", "--quiet", "--message=one")
    return run("rev-parse", "HEAD")


@pytest.mark.real("git", "index")
def test_a_commit_survives_its_repository(context: Context, tmp_path: Path) -> None:
    repository = tmp_path / "repository"

    def run(*arguments: str) -> str:
        return process.run(["git", *arguments], env=context.environ, cwd=repository).stdout.strip()

    git = LockedGit(
        name="pkg",
        url=repository.as_uri(),
        ref="main",
        commit=commit(repository, run),
        version="1.0",
    )
    lock = replace(locked(tmp_path, _RECIPE, context), gits=(git,))
    folder = tmp_path / "vendor"
    with open_supply(context) as supply:
        assert vendor(lock, folder, supply=supply).new_files == 3
    shutil.rmtree(repository)
    shutil.rmtree(context.cache)
    there = elsewhere(context, tmp_path)
    with pytest.raises(OfflineError):
        Git(there).fetch(git.url, git.commit)
    with open_supply(there, vendored=[folder]) as supply:
        assert vendor(lock, folder, supply=supply).new_files == 0
        bring(lock, open_vendor(folder, supply), supply)
    found = Git(there).fetch(git.url, git.commit)
    text = Git(there).read(found, git.commit, "pyproject.toml")
    assert text == "[project]\nname = 'pkg'\nversion = '1.0'\n"

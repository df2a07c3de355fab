"""Exports, taken by the real uv and pip: a project, requirements with hashes, a bare pylock."""

from __future__ import annotations

import sys
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from uv import find_uv_bin

from builder import process
from builder.context import Context
from builder.errors import ToolError
from builder.lock import lock_recipe
from builder.lock.export import export
from builder.lock.model import Lock
from builder.lock.supply import open_supply
from builder.recipe import Recipe, load_recipe
from builder.targets import find_target

from .builds import base_layout
from .standins.wheels import pack_wheel

pytestmark = [pytest.mark.real("index")]

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_PLATFORM = "aarch64-manylinux_2_39"
_FIRST = "name: first\ntarget: gb10\nbase: {oci: ./base}\npackages: [pygments]\n"
_RECIPE = """\
name: exported
target: gb10
base: {{oci: ./base}}
indexes: {{ours: "{index}"}}
packages: [numpy, rich>=14, pygments, inhouse]
sources:
  inhouse: [{{index: ours}}]
  pygments: [{{wheel: "{wheel}"}}]
exclude: [mdurl]
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder's URL on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def write_index(folder: Path) -> None:
    """A simple index (PEP 503) with one package, of a version that no other index has."""
    name, data = pack_wheel("inhouse", "1.0+cu130", {"inhouse.py": b""}, requires=["rich"])
    project = folder / "simple" / "inhouse"
    project.mkdir(parents=True)
    (project / name).write_bytes(data)
    link = name.replace("+", "%2B")
    (project / "index.html").write_text(f'<!DOCTYPE html><a href="{link}">{name}</a>')


def locked(recipe: Path, context: Context) -> tuple[Recipe, Lock]:
    loaded = load_recipe(recipe)
    with open_supply(context, indexes=loaded.recipe.index_urls) as supply:
        return loaded.recipe, lock_recipe(loaded, find_target("gb10"), supply).lock


@pytest.fixture
def exported(tmp_path: Path, context: Context) -> Iterator[tuple[Recipe, Lock]]:
    """A recipe with a package of every kind of place, and its lock; its index stays up."""
    base_layout(tmp_path / "base", _PYTHON)
    (tmp_path / "first.yaml").write_text(_FIRST)
    _, first = locked(tmp_path / "first.yaml", context)
    write_index(tmp_path / "index")
    with served(tmp_path / "index") as url:
        text = _RECIPE.format(index=f"{url}/simple", wheel=first.wheels[0].url)
        (tmp_path / "exported.yaml").write_text(text)
        yield locked(tmp_path / "exported.yaml", context)


def uv(context: Context, cwd: Path, *arguments: str) -> process.Completed:
    return process.run([find_uv_bin(), *arguments], env=context.environ, cwd=cwd)


def installed(site: Path) -> set[str]:
    """Names and versions of what lies in a site-packages folder."""
    return {path.name.removesuffix(".dist-info") for path in site.glob("*.dist-info")}


def stems(lock: Lock) -> set[str]:
    return {f"{wheel.name.replace('-', '_')}-{wheel.version}" for wheel in lock.wheels}


def test_uv_locks_the_project_alike(
    exported: tuple[Recipe, Lock], context: Context, tmp_path: Path
) -> None:
    recipe, lock = exported
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(export(recipe, [lock], "pyproject"))
    uv(context, project, "lock", "--python", sys.executable)
    packages = tomllib.loads((project / "uv.lock").read_text())["package"]
    found = {package["name"]: package for package in packages}
    wanted = {wheel.name: wheel for wheel in lock.wheels}
    assert found.keys() - {"exported"} == wanted.keys()
    assert "mdurl" not in found
    for name, wheel in wanted.items():
        assert found[name]["version"] == wheel.version
    assert found["pygments"]["source"] == {"url": wanted["pygments"].url}
    assert found["inhouse"]["source"] == {"registry": recipe.index_url("ours")}


def test_uv_tells_platforms_apart(
    exported: tuple[Recipe, Lock], context: Context, tmp_path: Path
) -> None:
    recipe, arm = exported
    chosen = [
        replace(source, source="wheel") if source.name == "inhouse" else source
        for source in arm.sources
    ]
    x86 = replace(arm, target="rtx-pro-x86", platform="linux/amd64", sources=tuple(chosen))
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(export(recipe, [arm, x86], "pyproject"))
    uv(context, project, "lock", "--python", sys.executable)
    packages = tomllib.loads((project / "uv.lock").read_text())["package"]
    sources = [package["source"] for package in packages if package["name"] == "inhouse"]
    [wheel] = [wheel for wheel in arm.wheels if wheel.name == "inhouse"]
    assert {"url": wheel.url} in sources
    assert {"registry": recipe.index_url("ours")} in sources


_UV = ("pip", "install", "--python", sys.executable, "--python-platform", _PLATFORM)
_PIP = (
    *("run", "--no-project", "--python", sys.executable, "--with", "pip"),
    *("python", "-m", "pip", "install", "--only-binary=:all:"),
    *("--platform", "manylinux_2_28_aarch64", "--python-version", _PYTHON),
)


@pytest.mark.parametrize("installer", [_UV, _PIP], ids=["uv", "pip"])
def test_installers_take_the_requirements_with_their_hashes(
    installer: Sequence[str], exported: tuple[Recipe, Lock], context: Context, tmp_path: Path
) -> None:
    recipe, lock = exported
    text = export(recipe, [lock], "requirements")
    (tmp_path / "requirements.txt").write_text(text)
    options = ("--no-deps", "--require-hashes", "-r", "requirements.txt")
    uv(context, tmp_path, *installer, *options, "--target", "site")
    assert installed(tmp_path / "site") == stems(lock)
    for wheel in lock.wheels:
        if wheel.name in {"inhouse", "rich"}:  # by its URL, and from the index
            (tmp_path / "requirements.txt").write_text(text.replace(wheel.sha256, "0" * 64))
            with pytest.raises(ToolError, match=r"(?i)hash"):
                uv(context, tmp_path, *installer, *options, "--target", f"no-{wheel.name}")


def test_uv_installs_the_bare_pylock(
    exported: tuple[Recipe, Lock], context: Context, tmp_path: Path
) -> None:
    recipe, lock = exported
    (tmp_path / "pylock.toml").write_text(export(recipe, [lock], "pylock"))
    uv(context, tmp_path, *_UV, "--target", "site", "-r", "pylock.toml")
    assert installed(tmp_path / "site") == stems(lock)

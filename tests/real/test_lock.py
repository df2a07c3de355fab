"""Locks by the real uv: others accept them, the caller's settings do not move them."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.pylock import Pylock
from uv import find_uv_bin

from builder import process
from builder.lock.platforms import markers, wheel_tags

from .builds import base_layout, recipe_in, spark_build

pytestmark = [pytest.mark.real("apt", "index")]

_SETTINGS = {
    "UV_PRERELEASE": "allow",
    "UV_RESOLUTION": "lowest-direct",
    "UV_EXCLUDE_NEWER": "2024-01-01",
    "UV_CONSTRAINT": "/nowhere",
    "UV_NO_BINARY": "1",
    "UV_INDEX_STRATEGY": "unsafe-best-match",
    "PIP_CONSTRAINT": "/nowhere",
    "PIP_EXTRA_INDEX_URL": "https://127.0.0.1:9/simple",
    "PIP_PRE": "1",
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small recipe's lock for arm64."""
    folder = tmp_path_factory.mktemp("locked")
    recipe = recipe_in(folder, "small")
    done = spark_build("lock", recipe, cache=folder / "cache", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "pylock.small-gb10.toml"


def test_packaging_selects_every_wheel(locked: Path) -> None:
    pylock = Pylock.from_dict(tomllib.loads(locked.read_text()))
    tags = wheel_tags("linux/arm64", "3.13", "2.41")
    chosen = list(pylock.select(environment=markers("linux/arm64", "3.13"), tags=tags))
    assert [package.name for package, _ in chosen] == ["numpy", "pygments"]


def test_uv_installs_it(tmp_path: Path) -> None:
    """Under the lock's own Python, which here is this one."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    base_layout(tmp_path / "base", python)
    recipe = tmp_path / "own.yaml"
    recipe.write_text("name: own\ntarget: gb10\nbase: {oci: ./base}\npackages: [numpy, rich]\n")
    locked = spark_build("lock", recipe, cache=tmp_path / "cache", cwd=tmp_path)
    assert locked.returncode == 0, locked.stderr
    argv = [find_uv_bin(), "pip", "sync", "pylock.own-gb10.toml", "--no-config"]
    argv += ["--python", sys.executable, "--target", "site"]
    process.run([*argv, "--python-platform", "aarch64-manylinux_2_39"], cwd=tmp_path)
    installed = {path.name for path in (tmp_path / "site").iterdir()}
    assert {"numpy", "rich", "pygments"} <= installed
    assert list((tmp_path / "site").glob("numpy.libs/*.so*"))


def test_the_callers_settings_change_nothing(locked: Path, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, "small")
    (tmp_path / "uv.toml").write_text('prerelease = "allow"\nno-binary = true\n')
    (tmp_path / "xdg" / "uv").mkdir(parents=True)
    (tmp_path / "xdg" / "uv" / "uv.toml").write_text('exclude-dependencies = ["numpy"]\n')
    env = {**_SETTINGS, "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    arguments = ("lock", recipe, "--target", "gb10")
    done = spark_build(*arguments, cache=tmp_path / "cache", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / locked.name).read_bytes() == locked.read_bytes()


def test_an_unchanged_recipe_is_not_resolved_again(locked: Path) -> None:
    before = locked.stat().st_mtime_ns
    arguments = ("lock", locked.parent / "small.yaml", "--json", "--offline")
    done = spark_build(*arguments, cache=locked.parent / "empty", cwd=locked.parent)
    assert done.returncode == 0, done.stderr
    assert [lock["written"] for lock in json.loads(done.stdout)["locks"]] == [False, False]
    assert locked.stat().st_mtime_ns == before


def test_a_stale_lock_says_what_changed(locked: Path, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, "small")
    shutil.copy(locked, tmp_path)
    text = recipe.read_text()
    recipe.write_text(text.replace("[numpy, pygments]", "[numpy<3, rich]"))
    arguments = ("build", recipe, "--target", "gb10", "--locked")
    done = spark_build(*arguments, cache=tmp_path / "cache", cwd=tmp_path)
    assert done.returncode == 3
    for line in ("requirements: - pygments", "requirements: + rich", "requirements: + numpy<3"):
        assert line in done.stderr
    assert (tmp_path / locked.name).read_bytes() == locked.read_bytes()

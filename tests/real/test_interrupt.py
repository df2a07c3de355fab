"""A build that is cut off leaves nothing half done, and the next one goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .builds import build

pytestmark = [pytest.mark.real("apt", "index", "slow")]

_RECIPE = """\
name: cut
target: gb10
base:
  debian: {suite: trixie, packages: [python3, libstdc++6]}
packages: [triton==3.7.1, scipy, numpy]
exclude: [setuptools]
"""
_WAIT_SECONDS = 120.0


def fetching(cache: Path) -> bool:
    """One file is whole, another is on its way."""
    parts = [path for path in cache.glob("files/*/*.part") if path.stat().st_size > 1 << 20]
    return bool(parts) and any(path.suffix != ".part" for path in cache.glob("files/*/*"))


def assembling(cache: Path) -> bool:
    """A layer is being written."""
    return any(path.stat().st_size > 1 << 20 for path in cache.glob("scratch/*/work/layer"))


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, fetching),
        (signal.SIGKILL, fetching),
        (signal.SIGTERM, assembling),
        (signal.SIGKILL, assembling),
    ],
)
def test_cut_off(number: signal.Signals, moment: Callable[[Path], bool], tmp_path: Path) -> None:
    recipe = tmp_path / "cut.yaml"
    recipe.write_text(_RECIPE)
    cache = tmp_path / "cache"
    status = cut_off(recipe, cache, number, moment)
    assert status == (-number if number is signal.SIGKILL else 130)
    whole = {path for path in cache.glob("files/*/*") if path.suffix != ".part"}
    held = sum(path.stat().st_size for path in cache.glob("files/*/*"))
    assert whole
    assert_nothing_half_done(tmp_path / "build")

    image = build(recipe, cache=cache, cwd=tmp_path)

    lock = json.loads((tmp_path / "build" / "cut" / "audit.json").read_text())
    assert lock["counts"]["wheels"] == 3
    everything = sum(path.stat().st_size for path in cache.glob("files/*/*"))
    assert image["fetch"]["bytes"] == everything - held
    assert list(cache.glob("scratch/*")) == []
    assert list(cache.glob("files/*/*.part")) == []


def cut_off(
    recipe: Path, cache: Path, number: signal.Signals, moment: Callable[[Path], bool]
) -> int:
    """Start a build, send it `number` as soon as `moment` has come, and return its status."""
    environ = {**os.environ, "SPARK_BUILD_CACHE": str(cache)}
    child = subprocess.Popen(
        [sys.executable, "-m", "builder", str(recipe)],
        cwd=recipe.parent,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not moment(cache):
            assert child.poll() is None, "the build ended before it could be cut off"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        child.send_signal(number)
        return child.wait(timeout=20)
    finally:
        child.kill()
        child.wait()


def assert_nothing_half_done(folder: Path) -> None:
    """Only whole files: no layout without its index, nothing hidden or temporary."""
    for path in folder.rglob("*"):
        assert not path.name.startswith("."), path
        if path.suffix == ".json":
            json.loads(path.read_text())
    for layout in folder.glob("*/oci"):
        index = json.loads((layout / "index.json").read_text())
        assert (layout / "blobs" / index["manifests"][0]["digest"].replace(":", "/")).is_file()

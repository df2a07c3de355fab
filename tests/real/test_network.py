"""A vendored build with the network cut: in a namespace without a route, not even to itself."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder import process
from builder.process import Completed

from .bases import IMAGE, NgcBase
from .builds import build, spark_build
from .standins import StandIns

pytestmark = [
    pytest.mark.real("aarch64-linux-gnu-gcc", "apt", "docker-registry", "git", "index"),
    pytest.mark.real("mmdebstrap", "openssl", "skopeo"),
]

_BASES = {
    "debian": "{debian: {suite: trixie, packages: [python3, libstdc++6]}}",
    "registry": f'{{image: "{IMAGE}"}}\ntorch: {{from: base}}',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendored:
    """A recipe with its lock, what was built of it with the network, and all of its files."""

    recipe: Path
    lock: Path
    digest: str
    files: Path


@pytest.fixture(scope="module", params=_BASES)
def vendored(
    request: pytest.FixtureRequest,
    standins: StandIns,
    ngc_base: NgcBase,
    tmp_path_factory: pytest.TempPathFactory,
) -> Vendored:
    folder = tmp_path_factory.mktemp("vendored")
    recipe = folder / "cut.yaml"
    recipe.write_text(
        f"name: cut\ntarget: gb10\nbase: {_BASES[request.param]}\npackages: [rich, markupsafe]\n"
    )
    cache, environ = folder / "cache", standins.environ
    image = build(recipe, cache=cache, cwd=folder, env=environ)
    kept = folder / "kept"
    done = spark_build("vendor", recipe, "--to", kept, cache=cache, cwd=folder, env=environ)
    assert done.returncode == 0, done.stderr
    return Vendored(
        recipe=recipe,
        lock=folder / "pylock.cut-gb10.toml",
        digest=image["image"]["digest"],
        files=kept,
    )


def build_without_network(vendored: Vendored, folder: Path, *options: str | Path) -> Completed:
    """Build recipe and lock in `folder`, as on another machine: with an empty cache."""
    folder.mkdir()
    for path in (vendored.recipe, vendored.lock):
        shutil.copy(path, folder)
    argv = ["unshare", "--net", sys.executable, "-m", "builder", "build", "cut.yaml", "--json"]
    environ = {**os.environ, "SPARK_BUILD_CACHE": str(folder / "cache")}
    return process.run([*argv, *map(str, options)], cwd=folder, env=environ, check=False)


def test_with_its_files_it_gives_the_same_image(vendored: Vendored, tmp_path: Path) -> None:
    done = build_without_network(vendored, tmp_path / "there", "--vendor", vendored.files)
    assert done.returncode == 0, done.stderr
    [image] = json.loads(done.stdout)["images"]
    assert image["image"]["digest"] == vendored.digest


def test_without_them_there_is_no_image(vendored: Vendored, tmp_path: Path) -> None:
    done = build_without_network(vendored, tmp_path / "there")
    assert done.returncode == 5
    assert not (tmp_path / "there" / "build" / "cut" / "oci").exists()


def test_a_file_that_was_tampered_with_is_not_taken(vendored: Vendored, tmp_path: Path) -> None:
    files = tmp_path / "files"
    shutil.copytree(vendored.files, files)
    for path in [path for path in files.rglob("*") if path.is_file() and path.suffix != ".json"]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
    done = build_without_network(vendored, tmp_path / "there", "--vendor", files)
    assert done.returncode == 5
    assert not (tmp_path / "there" / "build" / "cut" / "oci").exists()

"""The small recipe from end to end: built, read by others' tools, run, built again."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder import process

from .builds import (
    build,
    hollow_files,
    recipe_in,
    record_faults,
    run_in,
    spark_build,
    unpack,
)

pytestmark = [pytest.mark.real("apt", "index")]


@dataclass(frozen=True)
class Small:
    """The small image for arm64, and where everything of it lies."""

    recipe: Path
    cache: Path
    cwd: Path
    image: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.cwd / "build" / "small" / "gb10"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    cwd = tmp_path_factory.mktemp("small")
    recipe, cache = recipe_in(cwd, "small"), cwd / "cache"
    image = build(recipe, "--target", "gb10", cache=cache, cwd=cwd)
    return Small(recipe=recipe, cache=cache, cwd=cwd, image=image)


@pytest.fixture(scope="module")
def root(small: Small) -> Iterator[Path]:
    """The image's root file system."""
    bundle = small.cwd / "bundle"
    yield unpack(small.folder / "oci", bundle)
    shutil.rmtree(bundle)


@pytest.fixture
def storage() -> Iterator[Path]:
    """A folder for podman, which takes paths of 50 characters at most."""
    with tempfile.TemporaryDirectory(prefix="podman-") as folder:
        yield Path(folder)


def test_everything_is_in_the_build_folder(small: Small) -> None:
    names = {path.name for path in small.folder.iterdir()}
    lock = "pylock.small-gb10.toml"
    assert names == {lock, "Containerfile", "image.def", "oci", "audit.json", "verify.json"}
    assert (small.folder / lock).read_bytes() == (small.cwd / lock).read_bytes()


def test_the_device_part_is_pending(small: Small) -> None:
    report = json.loads((small.folder / "verify.json").read_text())
    assert report["device"] == "pending"
    assert report["image"] == small.image["image"]["digest"]


@pytest.mark.real("skopeo")
def test_skopeo_reads_the_layout(small: Small) -> None:
    done = process.run(["skopeo", "inspect", f"oci:{small.folder / 'oci'}"])
    found = json.loads(done.stdout)
    assert (found["Os"], found["Architecture"]) == ("linux", "arm64")
    assert found["Digest"] == small.image["image"]["digest"]


@pytest.mark.real("umoci")
def test_every_record_is_true(root: Path) -> None:
    assert list(record_faults(root)) == []
    assert len(list(root.glob("opt/venv/lib/python3.13/site-packages/*.dist-info"))) == 2


@pytest.mark.real("umoci", "emulation")
def test_the_image_runs(root: Path) -> None:
    done = run_in(root, "/opt/venv/bin/python", "-c", "import numpy; print(numpy.ones(3).sum())")
    assert done.stdout.strip() == "3.0"
    done = run_in(root, "/opt/venv/bin/pygmentize", "-V")
    assert "Pygments" in done.stdout


@pytest.mark.real("podman", "emulation")
def test_podman_takes_the_layout(small: Small, storage: Path) -> None:
    podman = ["podman", "--root", str(storage / "root"), "--runroot", str(storage / "run")]
    podman += ["--storage-driver", "vfs"]
    pulled = process.run([*podman, "pull", "--quiet", f"oci:{small.folder / 'oci'}"])
    name = pulled.stdout.strip()
    config = process.run([*podman, "image", "inspect", name])
    [image] = json.loads(config.stdout)
    assert image["Architecture"] == "arm64"
    assert image["Config"]["Entrypoint"] == ["pygmentize", "-V"]
    process.run([*podman, "rmi", "--force", name])


def test_built_again_nothing_is_read_or_written(small: Small) -> None:
    layout = small.folder / "oci"
    before = {path: path.stat().st_mtime_ns for path in layout.rglob("*")}
    options = ("--target", "gb10", "--offline")
    with hollow_files(small.cache):
        again = build(small.recipe, *options, cache=small.cache, cwd=small.cwd)
    assert again["image"]["digest"] == small.image["image"]["digest"]
    assert (again["image"]["wheels_read"], again["image"]["layers_written"]) == (0, 0)
    assert (again["audit"]["bytes_read"], again["fetch"]["bytes"]) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in layout.rglob("*")} == before


def test_the_same_digest_from_an_empty_cache(small: Small, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, "small")
    shutil.copy(small.cwd / "pylock.small-gb10.toml", tmp_path)
    options = ("--target", "gb10", "--locked")
    again = build(recipe, *options, cache=tmp_path / "cache", cwd=tmp_path)
    assert again["image"]["digest"] == small.image["image"]["digest"]
    assert again["image"]["layers_written"] > 0


def test_both_platforms_come_from_one_recipe(small: Small) -> None:
    done = spark_build(small.recipe, "--json", cache=small.cache, cwd=small.cwd)
    assert done.returncode == 0, done.stderr
    images = json.loads(done.stdout)["images"]
    assert [image["target"] for image in images] == ["gb10", "rtx-pro-x86"]
    configs = [small.cwd / "build" / "small" / image["target"] / "oci" for image in images]
    found = [json.loads((layout / "index.json").read_text()) for layout in configs]
    platforms = [index["manifests"][0]["platform"]["architecture"] for index in found]
    assert platforms == ["arm64", "amd64"]

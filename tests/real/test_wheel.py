"""spark-build as others get it: built as a wheel, installed, run away from the checkout."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from builder import process
from tests.projects import make_project

from .builds import ROOT

pytestmark = [pytest.mark.real("slow")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with only our wheel in it; what it depends on comes from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "__pycache__"))
    argv = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    process.run([*argv, "--no-index", "--wheel-dir", str(folder), str(tree)])
    [wheel] = folder.glob("spark_build-*.whl")
    target = folder / "site"
    argv = [find_uv_bin(), "pip", "install", "--no-config", "--no-deps", "--offline"]
    process.run([*argv, "--python", sys.executable, "--target", str(target), str(wheel)])
    return target


def run(site: Path, *arguments: str, cwd: Path) -> process.Completed:
    env = {**os.environ, "PYTHONPATH": str(site), "SPARK_BUILD_CACHE": str(cwd / "cache")}
    return process.run([sys.executable, "-m", "builder", *arguments], env=env, cwd=cwd)


def test_the_wheel_is_what_runs(site: Path, tmp_path: Path) -> None:
    code = "import builder; print(builder.__file__)"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = process.run([sys.executable, "-c", code], env=env, cwd=tmp_path)
    assert done.stdout.startswith(str(site))


def test_the_wheel_holds_templates_and_recipes(site: Path) -> None:
    names = {path.name for path in (site / "builder" / "containerfiles").iterdir()}
    assert names == {path.name for path in (ROOT / "containerfiles").iterdir()}
    assert (site / "builder" / "recipes" / "quickstart.yaml").is_file()


def test_an_installed_copy_builds(site: Path, tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.stock(tmp_path / "cache")
    text = run(site, "render", "demo.yaml", "--offline", cwd=tmp_path).stdout
    assert "FROM base AS runtime" in text
    done = run(site, "demo.yaml", "--offline", "--json", cwd=tmp_path)
    [image] = json.loads(done.stdout)["images"]
    assert image["verify"]["device"] == "pending"

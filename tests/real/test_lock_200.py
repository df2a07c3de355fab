"""A lock of a few hundred packages: the same bytes everywhere, taken by others, kept from hands."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.pylock import Pylock
from uv import find_uv_bin

from builder import process
from builder.lock.platforms import markers, wheel_tags

from .builds import base_layout, spark_build

pytestmark = [pytest.mark.real("index", "slow")]

_PYTHON, _GLIBC = "3.12", "2.39"
_RECIPE = """\
name: llm
target: gb10
base: {oci: ./base}
packages: [vllm==0.32.0, transformers, peft, trl]
"""
_NAME = "pylock.llm-gb10.toml"
_UV_TOML = """\
prerelease = "allow"
resolution = "lowest"
index-strategy = "unsafe-best-match"
exclude-dependencies = ["numpy"]
constraint-dependencies = ["transformers<5"]
"""


def project(folder: Path) -> Path:
    """A folder with the recipe and its base; returns the recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    base_layout(folder / "base", _PYTHON)
    recipe = folder / "llm.yaml"
    recipe.write_text(_RECIPE)
    return recipe


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def locked(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lock, beside its recipe."""
    folder = tmp_path_factory.mktemp("plain")
    done = spark_build("lock", project(folder), cache=cache, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / _NAME


def unsettle(folder: Path) -> dict[str, str]:
    """Settings of uv's and pip's, in files and variables, each of which would change the lock."""
    constraint = folder / "constraint.txt"
    constraint.write_text("transformers<5\nnumpy<2\n")
    home = folder / "home"
    for place in (folder / "uv.toml", home / ".config" / "uv" / "uv.toml"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_UV_TOML)
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\n')
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_PRERELEASE": "allow",
        "UV_RESOLUTION": "lowest-direct",
        "UV_TORCH_BACKEND": "cpu",
        "UV_CONSTRAINT": str(constraint),
        "UV_EXCLUDE_NEWER": "2025-06-01",
        "UV_PYTHON": "3.9",
        "PIP_CONSTRAINT": str(constraint),
        "PIP_PRE": "1",
        "PIP_EXTRA_INDEX_URL": "https://127.0.0.1:9/simple",
    }


def test_it_locks_the_same_elsewhere_and_otherwise(
    locked: Path, cache: Path, tmp_path: Path
) -> None:
    recipe = project(tmp_path / "other")
    environ = unsettle(recipe.parent)
    done = spark_build("lock", recipe, cache=cache, cwd=recipe.parent, env=environ)
    assert done.returncode == 0, done.stderr
    assert (recipe.parent / _NAME).read_bytes() == locked.read_bytes()


def test_it_is_large_and_for_cuda(locked: Path) -> None:
    packages = tomllib.loads(locked.read_text())["packages"]
    versions = {package["name"]: package["version"] for package in packages}
    assert len(versions) > 150
    assert (versions["vllm"], versions["torch"]) == ("0.32.0", "2.13.0")
    assert {"nvidia-cuda-runtime", "peft", "trl"} <= versions.keys()
    assert all(package["wheels"] for package in packages)


def test_packaging_takes_it(locked: Path) -> None:
    pylock = Pylock.from_dict(tomllib.loads(locked.read_text()))
    tags = wheel_tags("linux/arm64", _PYTHON, _GLIBC)
    chosen = list(pylock.select(environment=markers("linux/arm64", _PYTHON), tags=tags))
    assert len(chosen) == len(pylock.packages)


def test_uv_takes_it(locked: Path, tmp_path: Path) -> None:
    """Under Python 3.12; where there is none, under this one, for 3.12.

    uv holds `requires-python` against the Python that it runs with, not against --python-version:
    in the second case that line has to go.
    """
    given, text = tmp_path / _NAME, locked.read_text()
    python = shutil.which(f"python{_PYTHON}")
    if python is None or process.run([python, "-c", ""], check=False).returncode != 0:
        python = sys.executable
        text = text.replace(f'requires-python = "=={_PYTHON}.*"\n', "")
    given.write_text(text)
    argv = [find_uv_bin(), "pip", "sync", str(given), "--no-config", "--dry-run"]
    argv += ["--python", python, "--python-version", _PYTHON, "--target", str(tmp_path / "site")]
    done = process.run(
        [*argv, "--python-platform", f"aarch64-manylinux_{_GLIBC.replace('.', '_')}"]
    )
    count = len(tomllib.loads(text)["packages"])
    assert f"Would install {count} packages" in done.stderr


def _first(pattern: str, new: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, new, text, count=1)


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(_first(r'sha256 = "[0-9a-f]{8}', 'sha256 = "01234567'), id="hash"),
        pytest.param(_first(r'url = "https://[^/"]+', 'url = "https://files.example'), id="url"),
        pytest.param(_first(r'version = "[^"]+"', 'version = "0.0.1"'), id="version"),
        pytest.param(lambda text: f"{text}# reviewed\n", id="comment"),
    ],
)
def test_edited_by_hand_it_is_refused(
    edit: Callable[[str], str], locked: Path, cache: Path, tmp_path: Path
) -> None:
    recipe = project(tmp_path / "edited")
    text = locked.read_text()
    edited = edit(text)
    assert edited != text
    own = recipe.parent / _NAME
    own.write_text(edited)
    for verb in (("lock",), ("lock", "--check"), ("build", "--locked")):
        done = spark_build(*verb, recipe, cache=cache, cwd=recipe.parent)
        assert done.returncode == 3, (verb, done.stderr)
        assert str(own.name) in done.stderr
        assert "hint: " in done.stderr
        assert "spark-build lock" in done.stderr
        assert own.read_text() == edited

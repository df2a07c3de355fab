"""The quickstart recipe: PyTorch for CUDA 13 on arm64, proven as far as that goes without a GPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder import process

from .builds import build, recipe_in, record_faults, run_in, unpack

pytestmark = [pytest.mark.real("apt", "index", "umoci", "slow")]

_MATMUL = "import torch; torch.randn(64, 64) @ torch.randn(64, 64); print(torch.__version__)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where quickstart was built: build/quickstart, and beside it `root`, its file system."""
    cwd = tmp_path_factory.mktemp("quickstart")
    recipe = recipe_in(cwd, "quickstart")
    build(recipe, cache=cwd / "cache", cwd=cwd)
    unpack(cwd / "build" / "quickstart" / "oci", cwd / "bundle").rename(cwd / "root")
    yield cwd
    shutil.rmtree(cwd)


def test_every_record_is_true(folder: Path) -> None:
    assert list(record_faults(folder / "root")) == []


def test_everything_it_needs_is_there(folder: Path) -> None:
    report = json.loads((folder / "build" / "quickstart" / "verify.json").read_text())
    assert [finding for finding in report["findings"] if finding["severity"] == "error"] == []
    assert report["device"] == "pending"


@pytest.mark.real("skopeo")
def test_skopeo_reads_the_layout(folder: Path) -> None:
    layout = folder / "build" / "quickstart" / "oci"
    found = json.loads(process.run(["skopeo", "inspect", f"oci:{layout}"]).stdout)
    assert (found["Os"], found["Architecture"]) == ("linux", "arm64")


@pytest.mark.real("emulation")
def test_torch_multiplies(folder: Path) -> None:
    """Minutes: importing torch is slow under emulation."""
    done = run_in(folder / "root", "/opt/venv/bin/python", "-c", _MATMUL)
    assert done.stdout.strip() == "2.13.0+cu130"

"""The audit on real wheels, by way of the real uv and the real index."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from uv import find_uv_bin

from builder import process
from builder.audit import Report, audit, read_subject
from builder.context import Context
from builder.errors import Severity
from builder.http import Http
from builder.lock.store import Store

from .builds import spark_build

pytestmark = pytest.mark.real("index")

Auditor = Callable[..., Report]


@pytest.fixture
def http(context: Context) -> Iterator[Http]:
    with Http(context.environ) as client:
        yield client


@pytest.fixture
def auditor(tmp_path: Path, context: Context, http: Http) -> Auditor:
    """Lock requirements for arm64 with uv, and audit the pylock.toml for CUDA 13."""

    def lock(requirements: str, *, dependencies: bool) -> Path:
        wanted = tmp_path / "requirements.in"
        wanted.write_text(requirements)
        path = tmp_path / "pylock.toml"
        argv = [find_uv_bin(), "pip", "compile", "--no-config", "--quiet", "--no-header"]
        argv += ["--python-platform", "aarch64-manylinux_2_40", "--python-version", "3.13"]
        argv += ["--only-binary", ":all:", "--format", "pylock.toml", "--output-file", str(path)]
        argv += [] if dependencies else ["--no-deps"]
        process.run([*argv, str(wanted)], env={**context.environ, "UV_PYTHON_DOWNLOADS": "never"})
        return path

    def run(requirements: str, *, dependencies: bool = True, deep: bool = False) -> Report:
        return audit(
            read_subject(lock(requirements, dependencies=dependencies), glibc="2.40"),
            cuda_major=13,
            exclude=["flash-attn"],
            http=http,
            store=Store(context.cache),
            context=context,
            deep=deep,
        )

    return run


def _errors(report: Report) -> list[str]:
    return [item.message for item in report.findings if item.severity is Severity.ERROR]


def test_a_wheel_for_cuda_12_is_told_from_under_a_hundredth_of_it(auditor: Auditor) -> None:
    """Its dependencies have no wheels for Python 3.13; uv would refuse the whole."""
    report = auditor("vllm==0.12.0", dependencies=False)
    assert report.bytes_read < report.size_bytes / 100
    (finding,) = report.findings
    assert finding.rule == "cuda-runtime-mismatch"
    assert finding.message.startswith("vllm 0.12.0: vllm/_C.abi3.so (and 5 more) needs ")
    assert finding.evidence["library"] == "libcudart.so.12"


def test_a_closure_for_cuda_13_passes(auditor: Auditor) -> None:
    """Nearly two hundred wheels, 4 GB; one carries a CUDA 12 runtime of its own."""
    report = auditor("vllm==0.32.0")
    assert _errors(report) == []
    assert {item.rule for item in report.findings} <= {"bundled-cuda-runtime"}
    assert report.bytes_read < report.size_bytes / 100
    (vllm,) = (item for item in report.facts if item.filename.startswith("vllm-"))
    assert vllm.bytes_read < vllm.size_bytes / 100


def test_torch_passes_by_the_allowances_that_it_needs(auditor: Auditor) -> None:
    report = auditor("torch==2.13.0\nnumpy\n")
    assert report.findings == ()
    assert {(item.subject.split()[0], item.what) for item in report.allowed} == {
        ("triton", "libcupti.so.12")
    }
    again = auditor("torch==2.13.0\nnumpy\n")
    assert again.bytes_read == 0


def test_quick_and_deep_agree_on_what_is_needed(auditor: Auditor) -> None:
    """On wheels with patchelf'd, stripped and large files."""
    wanted = "nvidia-cusparse==12.6.3.3\nnumpy==2.4.6\nnvidia-nvshmem-cu13==3.4.5\n"
    quick = auditor(wanted, dependencies=False)
    deep = auditor(wanted, dependencies=False, deep=True)
    assert deep.bytes_read > quick.bytes_read
    for one, other in zip(quick.facts, deep.facts, strict=True):
        assert [file.path for file in one.files] == [file.path for file in other.files]
        for part, whole in zip(one.files, other.files, strict=True):
            if part.facts.version_needs:
                assert part.facts.version_needs == whole.facts.version_needs
            known = {*whole.facts.needed, whole.facts.soname}
            assert set(part.facts.candidates) <= known


@pytest.mark.real("apt")
def test_a_recipe_with_a_wheel_for_cuda_12_is_not_built(tmp_path: Path) -> None:
    """On bookworm, whose Python 3.11 all of its dependencies have wheels for."""
    recipe = tmp_path / "old.yaml"
    recipe.write_text(
        "name: old\ntarget: gb10\npackages: [vllm==0.12.0]\n"
        "base: {debian: {suite: bookworm, packages: [python3]}}\n"
    )
    done = spark_build(recipe, cache=tmp_path / "cache", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    line = r"^error: cuda-runtime-mismatch: vllm 0\.12\.0: vllm/_C\.abi3\.so .*libcudart\.so\.12"
    assert re.search(line, done.stdout, re.MULTILINE)
    report = json.loads((tmp_path / "build" / "old" / "audit.json").read_text())
    (vllm,) = (wheel for wheel in report["wheels"] if wheel["filename"].startswith("vllm-"))
    assert 0 < vllm["bytes_read"] < vllm["size_bytes"] / 100
    assert [path.name for path in (tmp_path / "build" / "old").iterdir()] == ["audit.json"]
    assert not (tmp_path / "cache" / "files").exists()

"""Stub wheels: their names, their bytes, and whose word they are."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from packaging.metadata import parse_email
from packaging.utils import parse_wheel_filename

from builder.errors import LockError
from builder.lock.model import LockedGit
from builder.lock.stubs import UNKNOWN_VERSION, Stub, compiled_stub, pinned_by_name, write_stubs
from tests.builders import record_hash

TAG = "cp312-cp312-manylinux_2_39_aarch64"
TORCH = Stub(
    name="Torch_TensorRT",
    version="2.10.0A0+nv25.08",
    requires=(
        "numpy>=1.20",
        "opt-einsum>=3.3; extra == 'opt-einsum'",
        'x; extra=="b" or extra=="a"',
    ),
    pinned=True,
)


def test_names_are_those_of_wheels() -> None:
    assert TORCH.key == ("torch-tensorrt", "2.10.0a0+nv25.8")
    name, version, build, tags = parse_wheel_filename(TORCH.filename(TAG))
    assert (name, str(version)) == TORCH.key
    assert build == (999, "")
    assert [str(tag) for tag in tags] == [TAG]


def test_a_stub_is_a_wheel_of_metadata_with_a_true_record(tmp_path: Path) -> None:
    write_stubs(tmp_path / "stubs", [TORCH], TAG)
    info = "torch_tensorrt-2.10.0a0+nv25.8.dist-info"
    with zipfile.ZipFile(tmp_path / "stubs" / TORCH.filename(TAG)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    record = files.pop(f"{info}/RECORD").decode()
    assert record == "".join(
        [f"{name},{record_hash(data)},{len(data)}\n" for name, data in files.items()]
        + [f"{info}/RECORD,,\n"]
    )
    metadata, unknown = parse_email(files[f"{info}/METADATA"])
    assert unknown == {}
    assert metadata["name"] == "torch-tensorrt"
    assert metadata["version"] == "2.10.0a0+nv25.8"
    assert tuple(metadata["requires_dist"]) == TORCH.requires
    assert metadata["provides_extra"] == ["a", "b", "opt-einsum"]
    assert set(files) == {f"{info}/METADATA", f"{info}/WHEEL"}


def test_the_same_stub_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_stubs(tmp_path / name, [TORCH], TAG)
    first, second = (tmp_path / name / TORCH.filename(TAG) for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("version", "requirements", "told"),
    [
        ("0.13.1", ["vllm==0.13.0"], "0.13.1"),
        (None, ["torch==2.10", "VLLM[audio] >=0.1, ==0.13.0"], "0.13.0"),
        (None, ["vllm==0.13.*", "other==1"], UNKNOWN_VERSION),
        (None, [], UNKNOWN_VERSION),
    ],
)
def test_a_package_that_is_compiled_has_the_best_known_version(
    version: str | None, requirements: list[str], told: str
) -> None:
    git = LockedGit(
        name="vllm",
        url="https://git.example/vllm",
        ref="main",
        commit="a" * 40,
        version=version,
        requires=("numpy",),
    )
    assert compiled_stub(git, requirements) == Stub(
        name="vllm", version=told, requires=("numpy",), pinned=True, origin="its repository"
    )


def test_only_the_pinned_ones_are_found_by_name() -> None:
    free = Stub(name="numpy", version="1.26.4", pinned=False)
    assert pinned_by_name([TORCH, free, free]) == {"torch-tensorrt": TORCH}


def test_two_that_are_pinned_under_one_name_are_refused() -> None:
    other = Stub(name="torch.tensorrt", version="3", pinned=True, origin="its repository")
    with pytest.raises(LockError) as caught:
        pinned_by_name([TORCH, other])
    assert caught.value.message == (
        "its repository has torch-tensorrt 3, and the base has 2.10.0A0+nv25.08, which nothing "
        "may replace"
    )

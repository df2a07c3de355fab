"""Verdicts on images that are made on the spot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.context import Context
from builder.errors import Severity
from builder.lock.model import Lock, LockedWheel
from builder.oci.layer import LayerWriter, sort_key
from builder.verify import VerifyReport, verify
from tests.binaries import X86_64, Elf
from tests.builders import demo_lock, image_of, write_layer

_SITE = "opt/venv/lib/python3.13/site-packages"
_LIB = "usr/lib/aarch64-linux-gnu"
_LIBC = Elf(soname="libc.so.6").write()


class Kitchen:
    """Makes an image of files, one layer, and verifies it."""

    def __init__(self, folder: Path, context: Context) -> None:
        self._folder = folder
        self._context = context

    def verify(
        self,
        files: Mapping[str, bytes | str],
        *,
        env: tuple[str, ...] = (),
        lock: Lock | None = None,
        exclude: tuple[str, ...] = (),
        cuda_major: int | None = 13,
    ) -> VerifyReport:
        """`files` by path; where the value is a text, it is a symbolic link's target."""

        def write(writer: LayerWriter) -> None:
            for path in sorted(files, key=sort_key):
                data = files[path]
                if isinstance(data, str):
                    writer.symlink(path, data)
                else:
                    writer.file(path, data)

        layer = write_layer(self._folder / "layer", write)
        image = image_of([layer], config={"Env": list(env)})
        return verify(
            image, context=self._context, lock=lock, exclude=exclude, cuda_major=cuda_major
        )


@pytest.fixture
def kitchen(tmp_path: Path, context: Context) -> Kitchen:
    return Kitchen(tmp_path, context)


def _counted(report: VerifyReport) -> dict[str, int]:
    return {name: count for name, count in report.counts.items() if count}


def test_libraries_in_the_loaders_folders_are_found(kitchen: Kitchen) -> None:
    files = {f"{_LIB}/libc.so.6": _LIBC, "usr/bin/tool": Elf(needed=["libc.so.6"]).write()}
    report = kitchen.verify(files)
    assert report.findings == ()
    assert _counted(report) == {"elf": 2, "needed": 1, "found": 1}


def test_a_library_that_is_nowhere_is_a_finding(kitchen: Kitchen) -> None:
    elf = Elf(needed=["libgomp.so.1"]).write()
    report = kitchen.verify({f"{_SITE}/a.so": elf, f"{_SITE}/b.so": elf})
    (finding,) = report.findings
    assert (finding.rule, finding.severity) == ("unmet-library", Severity.ERROR)
    assert finding.message == (
        f"/{_SITE}/a.so (and 1 more) needs libgomp.so.1, which is nowhere in the image"
    )
    assert report.counts["unmet"] == 2
    assert not report.passed


@pytest.mark.parametrize(
    ("elf", "place", "count"),
    [
        (Elf(needed=["libx.so.1"], runpath="$ORIGIN/../deep"), "opt/deep/libx.so.1", "found"),
        (Elf(needed=["libx.so.1"], rpath="${ORIGIN}"), "opt/lib/libx.so.1", "found"),
        (Elf(needed=["libx.so.1"], rpath="$ORIGIN", runpath="/none"), "opt/lib/libx.so.1", "pre"),
        (Elf(needed=["libx.so.1"]), "srv/libx.so.1", "found"),
        (Elf(needed=["libx.so.1"]), "home/libx.so.1", "pre"),
        (Elf(needed=["libx.so.1"]), "home/libother.so", "pre"),
        (Elf(needed=["/home/libx.so.1"]), "home/libx.so.1", "found"),
    ],
)
def test_where_the_loader_looks(elf: Elf, place: str, count: str, kitchen: Kitchen) -> None:
    files = {"opt/lib/user.so": elf.write(), place: Elf(soname="libx.so.1").write()}
    report = kitchen.verify(files, env=("PATH=/bin", "LD_LIBRARY_PATH=/srv:"))
    assert _counted(report) == {
        "elf": 2,
        "needed": 1,
        {"pre": "preloaded"}.get(count, count): 1,
    }


def test_a_library_is_found_by_a_link_and_through_one(kitchen: Kitchen) -> None:
    files: dict[str, bytes | str] = {
        "lib": "usr/lib",
        f"{_LIB}/libx.so.1": "libx.so.1.2.3",
        f"{_LIB}/libx.so.1.2.3": Elf().write(),
        "usr/bin/tool": Elf(needed=["libx.so.1"]).write(),
    }
    assert kitchen.verify(files).counts["found"] == 1


def test_a_library_for_another_machine_is_passed_over(kitchen: Kitchen) -> None:
    files = {
        f"{_LIB}/libx.so.1": Elf(machine=X86_64).write(),
        "usr/bin/tool": Elf(needed=["libx.so.1"]).write(),
    }
    report = kitchen.verify(files)
    assert [finding.rule for finding in report.findings] == ["wrong-architecture", "unmet-library"]


def test_driver_libraries_and_optional_plug_ins_are_no_findings(kitchen: Kitchen) -> None:
    plugin = f"{_SITE}/nvidia/nvshmem/lib/nvshmem_transport_libfabric.so.3"
    files = {
        f"{_SITE}/torch/lib/libc10_cuda.so": Elf(needed=["libcuda.so.1"]).write(),
        plugin: Elf(needed=["libfabric.so.1"]).write(),
    }
    report = kitchen.verify(files)
    assert report.findings == ()
    assert report.driver_libraries == ("libcuda.so.1",)
    assert [(item.subject, item.what) for item in report.allowed] == [
        (f"/{plugin}", "libfabric.so.1")
    ]
    assert _counted(report) == {"elf": 2, "needed": 2, "driver": 1, "allowed": 1}


@pytest.mark.parametrize("cuda_major", [13, None])
def test_one_cuda_runtime(cuda_major: int | None, kitchen: Kitchen) -> None:
    files = {
        f"{_SITE}/nvidia/libcudart.so.13": Elf(soname="libcudart.so.13").write(),
        f"{_SITE}/nvidia/libcusparse.so.12": Elf(soname="libcusparse.so.12").write(),
        f"{_SITE}/old/libcudart.so.12": Elf(soname="libcudart.so.12").write(),
        f"{_SITE}/codec.libs/libcudart-f795754c.so.12.9": Elf().write(),
        f"{_SITE}/codec/_c.so": Elf(needed=["libcudart-f795754c.so.12.9"]).write(),
    }
    report = kitchen.verify(files, cuda_major=cuda_major)
    assert [(finding.rule, finding.subject) for finding in report.findings] == [
        ("cuda-runtime-mismatch", f"/{_SITE}/old/libcudart.so.12"),
        ("bundled-cuda-runtime", f"/{_SITE}/codec/_c.so"),
    ]


def test_packages_of_another_cuda(kitchen: Kitchen) -> None:
    info = "1.0.dist-info/METADATA"
    files = {
        f"{_SITE}/nvidia_cuda_runtime_cu12-{info}": b"",
        f"{_SITE}/nvidia_cutlass_dsl_libs_cu12-{info}": b"",
    }
    report = kitchen.verify(files)
    (finding,) = report.findings
    assert finding.message == (
        "nvidia-cuda-runtime-cu12 1.0 is a package for CUDA 12, the target has CUDA 13"
    )
    assert [item.subject for item in report.allowed] == ["nvidia-cutlass-dsl-libs-cu12 1.0"]


def _lock(*wheels: tuple[str, str]) -> Lock:
    return demo_lock(
        *(
            LockedWheel(name=name, version=version, url="https://x/x.whl", sha256="0", size=1)
            for name, version in wheels
        )
    )


def test_the_environment_has_what_the_lock_has(kitchen: Kitchen) -> None:
    files = {
        f"{_SITE}/Typing_Extensions-4.16.0.dist-info/METADATA": b"",
        f"{_SITE}/vllm-0.13.0+cu130.dist-info/METADATA": b"",
        f"{_SITE}/setuptools/_vendor/wheel-0.1.dist-info/METADATA": b"",
        "usr/lib/python3/dist-packages/base-1.0.dist-info/METADATA": b"",
    }
    lock = _lock(("typing-extensions", "4.16"), ("vllm", "0.13.0+cu130"))
    assert kitchen.verify(files, lock=lock).findings == ()


def test_the_environment_differs_from_the_lock(kitchen: Kitchen) -> None:
    files = {
        f"{_SITE}/numpy-2.4.0.dist-info/METADATA": b"",
        f"{_SITE}/extra-1.0.dist-info/METADATA": b"",
    }
    report = kitchen.verify(files, lock=_lock(("numpy", "2.5.0"), ("torch", "2.13.0")))
    assert [finding.message for finding in report.findings] == [
        "extra 1.0 is in the image and not in the lock",
        "numpy 2.4.0 is in the image, the lock has 2.5.0",
        "torch 2.13.0 is in the lock and not in the image",
    ]
    assert {finding.rule for finding in report.findings} == {"lock-mismatch"}


def test_excluded_packages_count_in_the_environment_only(kitchen: Kitchen) -> None:
    files = {
        f"{_SITE}/flash_attn-2.8.dist-info/METADATA": b"",
        "usr/lib/python3/dist-packages/flash_attn-2.7.dist-info/METADATA": b"",
    }
    (finding,) = kitchen.verify(files, exclude=("Flash.Attn",)).findings
    assert (finding.rule, finding.subject) == ("excluded-package", "flash-attn 2.8")


def test_a_static_pass_never_reads_as_a_device_pass(kitchen: Kitchen) -> None:
    report = kitchen.verify({"usr/bin/tool": Elf().write()})
    shown = json.loads(json.dumps(report.as_dict()))
    assert (shown["static"], shown["device"]) == ("passed", "pending")
    assert "device: pending" in report.summary
    assert list(shown) == [
        "format",
        "platform",
        "static",
        "device",
        "findings",
        "allowed",
        "driver_libraries",
        "unknown",
        "counts",
    ]


def test_what_cannot_be_read_is_counted(kitchen: Kitchen) -> None:
    report = kitchen.verify({"opt/broken.so": b"\x7fELF" + b"\xff" * 100})
    assert report.unknown == ("/opt/broken.so",)
    assert report.counts["elf_unknown"] == 1

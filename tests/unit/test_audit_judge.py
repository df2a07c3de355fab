"""The audit from a lock to its report, over a server that counts, and its verdicts one by one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from builder.audit import Report, audit
from builder.audit.subject import Subject, SubjectOther, SubjectWheel
from builder.context import Context
from builder.errors import ExternalError, Finding, Severity
from builder.http import Http
from builder.lock.model import TorchIdentity
from builder.lock.store import Store
from tests.binaries import CUDA, X86_64, Elf, RangeServer
from tests.builders import WheelText

_CUDA_12 = Elf(
    needed=["libcudart.so.12"],
    versions={"libc.so.6": ["GLIBC_2.17"], "libcudart.so.12": ["libcudart.so.12"]},
    filler=300_000,
).write()
_CUDA_13 = Elf(needed=["libcudart.so.13", "libcusparse.so.12", "libcufft.so.12"]).write()
_ARM = "cp313-cp313-manylinux_2_28_aarch64"


class Shop:
    """Locks of wheels made on the spot, and the server that has them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.server = RangeServer({})
        self.wheels: list[SubjectWheel] = []

    def add(
        self, name: str, files: Mapping[str, bytes], *, tag: str = _ARM, hashed: bool = True
    ) -> None:
        """One more wheel in the lock."""
        data = WheelText(name=name, files=files).zipped()
        filename = f"{name.replace('-', '_')}-1.0-{tag}.whl"
        self.server.files = {**self.server.files, f"/{filename}": data}
        wheel = SubjectWheel(
            name=name,
            version="1.0",
            filename=filename,
            url=f"https://files.example/{filename}",
            path=None,
            hashed=hashed,
            sha256=hashlib.sha256(data).hexdigest() if hashed else None,
            size=len(data),
        )
        self.wheels.append(wheel)

    def audit(
        self,
        *,
        exclude: Sequence[str] = (),
        others: Sequence[SubjectOther] = (),
        deep: bool = False,
        offline: bool = False,
        torch: TorchIdentity | None = None,
        kept: Mapping[str, str] | None = None,
    ) -> Report:
        """Audit the lock, for CUDA 13."""
        subject = Subject(
            source="pylock.toml",
            platform="linux/arm64",
            wheels=tuple(self.wheels),
            others=tuple(others),
            torch=torch,
            kept=kept or {},
        )
        with Http({}, offline=offline, transport=httpx.MockTransport(self.server)) as http:
            return audit(
                subject,
                cuda_major=13,
                exclude=exclude,
                http=http,
                store=Store(self.context.cache),
                context=self.context,
                deep=deep,
            )

    def findings(self) -> list[Finding]:
        """What the audit finds."""
        return list(self.audit().findings)


@pytest.fixture
def shop(context: Context) -> Shop:
    return Shop(context)


def test_a_wheel_for_another_cuda_is_named_with_file_and_library(shop: Shop) -> None:
    shop.add("vllm", {"vllm/_C.abi3.so": _CUDA_12, "vllm/_moe_C.abi3.so": _CUDA_12})
    report = shop.audit()
    (finding,) = report.findings
    assert finding.rule == "cuda-runtime-mismatch"
    assert finding.severity is Severity.ERROR
    assert finding.subject == "vllm 1.0"
    assert finding.message == (
        "vllm 1.0: vllm/_C.abi3.so (and 1 more) needs libcudart.so.12, the target has CUDA 13"
    )
    assert finding.evidence["files"] == ["vllm/_C.abi3.so", "vllm/_moe_C.abi3.so"]
    assert finding.evidence["known"] == "prefix"
    assert report.bytes_read == shop.server.sent < report.size_bytes / 2


def test_libraries_of_cuda_13_with_another_number_are_no_finding(shop: Shop) -> None:
    shop.add("torch", {"torch/lib/libtorch_cuda.so": _CUDA_13})
    assert shop.findings() == []


def test_a_package_for_another_cuda_is_one_finding(shop: Shop) -> None:
    files = {"nvidia/lib/libcublas.so.12": Elf(soname="libcublas.so.12").write()}
    shop.add("nvidia-cublas-cu12", files)
    (finding,) = shop.findings()
    assert finding.message == (
        "nvidia-cublas-cu12 1.0: is a package for CUDA 12, the target has CUDA 13"
    )


def test_a_library_that_is_carried_openly_is_a_finding(shop: Shop) -> None:
    shop.add("torch", {"torch/lib/libcudart.so.12": Elf(soname="libcudart.so.12").write()})
    (finding,) = shop.findings()
    assert finding.message.endswith(
        "torch/lib/libcudart.so.12 is libcudart.so.12, the target has CUDA 13"
    )


def test_a_private_copy_is_a_warning(shop: Shop) -> None:
    name = "libcudart-f795754c.so.12.9.79"
    files = {
        "codec/_codec.so": Elf(needed=[name]).write(),
        f"codec.libs/{name}": Elf(soname=name).write(),
    }
    shop.add("codec", files)
    (finding,) = shop.findings()
    assert (finding.rule, finding.severity) == ("bundled-cuda-runtime", Severity.WARNING)
    assert "codec/_codec.so needs its own copy of libcudart.so.12" in finding.message


def test_what_is_allowed_is_told_and_the_rest_still_weighs(shop: Shop) -> None:
    needs = Elf(needed=["libcudart.so.12"]).write()
    files = {"bitsandbytes/libbitsandbytes_cuda126.so": needs, "bitsandbytes/other.so": needs}
    shop.add("bitsandbytes", files)
    report = shop.audit()
    (finding,) = report.findings
    assert finding.evidence["files"] == ["bitsandbytes/other.so"]
    (allowed,) = report.allowed
    assert (allowed.subject, allowed.what) == ("bitsandbytes 1.0", "libcudart.so.12")


@pytest.mark.parametrize("tag", ["py3-none-any", _ARM])
def test_a_file_for_another_processor(tag: str, shop: Shop) -> None:
    shop.add("demo", {"demo/_x.so": Elf(machine=X86_64).write()}, tag=tag)
    (finding,) = shop.findings()
    assert finding.rule == "wrong-architecture"
    assert finding.message == "demo 1.0: demo/_x.so is for x86_64, the target is linux/arm64"


def test_a_wheel_for_another_platform(shop: Shop) -> None:
    shop.add("demo", {}, tag="cp313-cp313-manylinux_2_28_x86_64")
    (finding,) = shop.findings()
    assert finding.message == (
        "demo 1.0: the wheel is for manylinux_2_28_x86_64, the target is linux/arm64"
    )


def test_gpu_code_in_elf_clothes_is_no_finding(shop: Shop) -> None:
    shop.add("demo", {"demo/kernel.so": Elf(machine=CUDA).write()})
    assert shop.findings() == []


def test_excluded_and_unhashed_packages(shop: Shop) -> None:
    shop.add("Flash_Attn", {}, hashed=False)
    other = SubjectOther(name="demo", version=None, kind="sdist", hashed=False)
    report = shop.audit(exclude=["flash-attn"], others=[other])
    assert [(finding.rule, finding.subject) for finding in report.findings] == [
        ("excluded-package", "Flash_Attn 1.0"),
        ("unhashed", "Flash_Attn 1.0"),
        ("unhashed", "demo"),
    ]


def test_a_second_run_needs_neither_network_nor_wheels(shop: Shop) -> None:
    shop.add("vllm", {"vllm/_C.abi3.so": _CUDA_12})
    first = shop.audit()
    sent = shop.server.sent
    second = shop.audit(offline=True)
    assert shop.server.sent == sent
    assert second.bytes_read == 0
    assert (second.findings, second.facts) == (first.findings, first.facts)


def test_wheels_in_the_store_are_not_asked_for(shop: Shop, context: Context) -> None:
    shop.add("vllm", {"vllm/_C.abi3.so": _CUDA_12})
    (wheel,) = shop.wheels
    assert wheel.sha256 is not None
    place = context.cache / "files" / wheel.sha256[:2] / wheel.sha256
    place.parent.mkdir(parents=True)
    place.write_bytes(shop.server.files[f"/{wheel.filename}"])
    report = shop.audit(offline=True)
    assert [finding.rule for finding in report.findings] == ["cuda-runtime-mismatch"]
    assert report.bytes_read == 0


def test_a_wheel_that_cannot_be_had_ends_the_audit(shop: Shop) -> None:
    shop.add("demo", {})
    shop.server.files = {}
    with pytest.raises(ExternalError, match="404"):
        shop.audit()


def test_a_deep_audit_knows_what_a_quick_one_does_not(shop: Shop) -> None:
    data = Elf(needed=["libcudart.so.12"], filler=800_000).write()
    shop.add("demo", {"demo/_x.so": data})
    quick = shop.audit()
    assert quick.findings == ()
    assert quick.as_dict()["unknown"] == [{"wheel": f"demo-1.0-{_ARM}.whl", "file": "demo/_x.so"}]
    assert "(1 not known)" in quick.summary
    (finding,) = shop.audit(deep=True).findings
    assert finding.rule == "cuda-runtime-mismatch"


def test_the_report_is_json_of_a_fixed_shape(shop: Shop) -> None:
    shop.add("vllm", {"vllm/_C.abi3.so": _CUDA_12})
    other = SubjectOther(name="one", version="1", kind="vcs", hashed=True)
    report = json.loads(json.dumps(shop.audit(others=[other]).as_dict()))
    assert list(report) == [
        "format",
        "source",
        "platform",
        "cuda",
        "findings",
        "allowed",
        "not_read",
        "unknown",
        "wheels",
        "counts",
    ]
    assert report["not_read"] == [{"name": "one", "version": "1", "kind": "vcs"}]
    assert report["counts"]["elf"] == {"dynamic": 0, "prefix": 1, "hashes": 0, "unknown": 0}
    assert report["wheels"][0]["access"] == "ranges"
    assert report["counts"]["bytes_read"] == shop.server.sent


def test_findings_come_in_the_order_of_the_law(shop: Shop) -> None:
    shop.add("one", {"one.so": Elf(machine=X86_64).write()})
    shop.add("two", {"two.so": Elf(needed=["libnvrtc.so.12"]).write()})
    rules = [finding.rule for finding in shop.findings()]
    assert rules == ["cuda-runtime-mismatch", "wrong-architecture"]


def test_a_wheel_of_another_hash_is_refused(shop: Shop, tmp_path: Path) -> None:
    """Where the whole of it is at hand: on disk, or from a server without ranges."""
    shop.add("vllm", {"vllm/_C.abi3.so": _CUDA_12})
    (wheel,) = shop.wheels
    clean = WheelText(name="vllm").write(tmp_path)
    shop.wheels = [replace(wheel, path=clean)]
    with pytest.raises(ExternalError, match="the lock says"):
        shop.audit()
    shop.server.files = {f"/{wheel.filename}": clean.read_bytes()}
    shop.server.ranges = False
    shop.wheels = [wheel]
    with pytest.raises(ExternalError, match="the lock says"):
        shop.audit()
    assert not (shop.context.cache / "facts").exists()


def test_another_file_in_place_of_a_wheel_says_nothing_about_it(shop: Shop) -> None:
    """A foreign lock may give a clean file the hash of a bad one."""
    shop.add("vllm", {"vllm/_C.abi3.so": _CUDA_12})
    (wheel,) = shop.wheels
    clean = WheelText(name="vllm").zipped()
    shop.server.files = {**shop.server.files, f"/clean/{wheel.filename}": clean}
    shop.wheels = [replace(wheel, url=f"https://files.example/clean/{wheel.filename}")]
    assert shop.findings() == []
    shop.wheels = [wheel]
    assert [finding.rule for finding in shop.findings()] == ["cuda-runtime-mismatch"]


def test_the_same_wheel_by_another_name_is_judged_by_that_name(shop: Shop) -> None:
    shop.add("vllm", {"vllm/_C.abi3.so": _CUDA_13})
    assert shop.findings() == []
    (wheel,) = shop.wheels
    shop.wheels = [replace(wheel, filename="vllm-1.0-cp313-cp313-win_amd64.whl")]
    assert [finding.rule for finding in shop.findings()] == ["wrong-architecture"]


# ── torch ────────────────────────────────────────────────────────────────────────────────────────


def version_file(cuda: str | None) -> dict[str, bytes]:
    return {"torch/version.py": f"__version__ = '1.0+x'\ncuda = {cuda!r}\n".encode()}


@pytest.mark.parametrize(
    ("cuda", "rule", "said"),
    [
        (None, "cpu-only-torch", "torch 1.0: torch 1.0+x was built without CUDA"),
        (
            "12.8",
            "cuda-runtime-mismatch",
            "torch 1.0: was built for CUDA 12.8, the target has CUDA 13",
        ),
        ("13.2", None, ""),
    ],
)
def test_which_cuda_a_torch_is_for(shop: Shop, cuda: str | None, rule: str, said: str) -> None:
    """By its own word, or by the lock's, which then counts."""
    shop.add("torch", version_file(cuda))
    report = shop.audit()
    assert [(finding.rule, finding.message) for finding in report.findings] == (
        [(rule, said)] if rule else []
    )
    assert all(finding.severity is Severity.ERROR for finding in report.findings)
    assert "not known" not in report.summary.replace("(0 not known)", "")
    other = TorchIdentity(origin="wheel", version="1.0", cuda="13.0")
    assert shop.audit(torch=other).findings == ()


@pytest.mark.parametrize(
    "text", [None, b"__version__ = open('/etc/passwd').read()", b"\0" * 20_000]
)
def test_a_torch_that_does_not_say_is_not_known(shop: Shop, text: bytes | None) -> None:
    shop.add("torch", {} if text is None else {"torch/version.py": text})
    shop.add("torchvision", {})
    report = shop.audit()
    assert report.findings == ()
    assert ", torch's CUDA not known; " in report.summary
    named = {"wheel": shop.wheels[0].filename, "file": "torch/version.py"}
    assert report.as_dict()["unknown"] == [named]
    chosen = TorchIdentity(origin="wheel", version="1.0", module="1.0+cpu")
    assert [item.message for item in shop.audit(torch=chosen).findings] == [
        "torch 1.0: torch 1.0+cpu was built without CUDA"
    ]


def test_nothing_comes_in_place_of_what_the_base_keeps(shop: Shop) -> None:
    shop.add("Triton", {})
    shop.add("numpy", {})
    kept = {"torch": "2.10.0a0", "triton": "3.5.0"}
    others = [SubjectOther(name="torch", version=None, kind="vcs", hashed=True)]
    found = shop.audit(others=others, kept=kept).findings
    said = "stays, and the lock brings another one"
    assert [(item.rule, item.message) for item in found] == [
        ("torch-replaced", f"Triton 1.0: the base's own 3.5.0 {said}"),
        ("torch-replaced", f"torch: the base's own 2.10.0a0 {said}"),
    ]

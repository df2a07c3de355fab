"""The law: that its file is whole, and what CUDA's names say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from builder.audit.policy import CudaLibrary, Policy, explain, load_policy, rule_dict
from builder.elf import ElfFacts, Known, VersionNeed, elf_hash
from builder.errors import Severity, UsageError

_POLICY = load_policy()
_ELF = ElfFacts(known=Known.DYNAMIC, machine=183, bits=64)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("libcudart.so.12", CudaLibrary("libcudart", 12)),
        ("libcudart.so.11.0", CudaLibrary("libcudart", 11)),
        ("libcublasLt.so.13", CudaLibrary("libcublasLt", 13)),
        ("libcudart-f795754c.so.12.9.79", CudaLibrary("libcudart", 12, private=True)),
        # CUDA 13's own, whatever their number.
        ("libcufft.so.12", None),
        ("libcusparse.so.12", None),
        ("libcusolver.so.12", None),
        ("libcudart.so", None),
        ("libcudart_static.so.12", None),
        ("libcuda.so.1", None),
    ],
)
def test_what_a_library_is_called(name: str, expected: CudaLibrary | None) -> None:
    assert _POLICY.cuda_library(name) == expected


@pytest.mark.parametrize(
    ("name", "major"),
    [
        ("nvidia-cuda-runtime-cu12", 12),
        ("nvidia_cublas_cu13", 13),
        ("nvidia-cuda-runtime", None),
        ("cupy-cuda12x", None),
        ("nvidia-cu12-extras", None),
    ],
)
def test_what_a_package_is_called(name: str, major: int | None) -> None:
    assert _POLICY.cuda_package_major(name) == major


def test_cuda_libraries_are_seen_however_they_are_known() -> None:
    library = CudaLibrary("libcudart", 12)
    need = VersionNeed(library="libcudart.so.12", versions=("libcudart.so.12",))
    for facts in (
        replace(_ELF, needed=("libc.so.6", "libcudart.so.12")),
        replace(_ELF, soname="libcudart.so.12"),
        replace(_ELF, version_needs=(need,)),
        replace(_ELF, candidates=("libcudart.so.12",)),
        replace(_ELF, version_hashes=(1, elf_hash("libcudart.so.12"))),
    ):
        assert _POLICY.cuda_libraries(facts) == (library,)
    assert _POLICY.cuda_libraries(replace(_ELF, needed=("libcufft.so.12",))) == ()


@pytest.mark.parametrize(
    ("library", "driver"),
    [
        ("libcuda.so.1", True),
        ("libnvidia-ml.so.1", True),
        ("libnvcuvid.so.1", True),
        ("libcudart.so.13", False),
        ("libcudnn.so.9", False),
    ],
)
def test_what_the_driver_brings(*, library: str, driver: bool) -> None:
    assert _POLICY.is_driver(library) is driver


def test_an_allowance_needs_every_pattern_to_match() -> None:
    def allowed(path: str, library: str, rule: str = "unmet-library") -> bool:
        return _POLICY.allowance(rule, package=None, path=path, library=library) is not None

    plugin = "nvidia/nvshmem/lib/nvshmem_transport_libfabric.so.3"
    assert allowed(plugin, "libfabric.so.1")
    assert not allowed(plugin, "libz.so.1")
    assert not allowed("other/lib/plugin.so", "libfabric.so.1")
    assert not allowed(plugin, "libfabric.so.1", "cuda-runtime-mismatch")


def test_an_allowance_by_package_alone_needs_the_package() -> None:
    rule, library = "cuda-runtime-mismatch", "libcudart.so.12"
    name = "nvidia-cutlass-dsl-libs-cu12"
    assert _POLICY.allowance(rule, package=name, path="x.so", library=library) is not None
    assert _POLICY.allowance(rule, package=None, path="x.so", library=library) is None
    assert _POLICY.allowance(rule, package="vllm", path="x.so", library=library) is None


def test_every_entry_says_why_and_where_from() -> None:
    assert {rule.severity for rule in _POLICY.rules.values()} <= {Severity.ERROR, Severity.WARNING}
    sources = [rule.source for rule in _POLICY.rules.values()]
    sources += [allowance.source for allowance in _POLICY.allowances]
    assert all(source.startswith("https://") for source in sources)
    assert all(allowance.reason for allowance in _POLICY.allowances)


def test_an_allowance_for_no_rule_is_refused() -> None:
    text = _POLICY.model_dump()
    text["allowances"] = [{"rules": ["no-such-rule"], "reason": "x", "source": "https://x"}]
    with pytest.raises(ValidationError, match="no-such-rule"):
        Policy.model_validate(text)


@pytest.mark.parametrize("rule", _POLICY.rules)
def test_every_rule_is_explained(rule: str) -> None:
    text = explain(rule)
    assert text.startswith(f"{rule} (")
    assert "What to do: " in text
    said = rule_dict(rule)
    assert list(said) == ["rule", "severity", "meaning", "fix", "source"]
    assert all(str(value) in text for value in said.values())


def test_an_unknown_rule() -> None:
    with pytest.raises(UsageError, match="no rule 'cuda'") as caught:
        explain("cuda")
    assert caught.value.hint is not None
    assert "cuda-runtime-mismatch" in caught.value.hint


def test_an_unknown_platform() -> None:
    with pytest.raises(UsageError, match="linux/riscv64"):
        _POLICY.platform("linux/riscv64")

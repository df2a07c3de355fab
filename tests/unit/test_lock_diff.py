"""The difference of two locks: what it sees, in which order it tells it, and how it is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.lock.changes.diff import Area, Change, Difference, as_dict, compare
from builder.lock.changes.diff_text import headline, lines, markdown
from builder.lock.model import (
    Base,
    ChosenSource,
    DebianBase,
    Guard,
    Lock,
    LockedDeb,
    LockedGit,
    LockedWheel,
    OciBase,
    Refusal,
    RegistryBase,
    Shadow,
    TorchIdentity,
)
from tests.builders import demo_lock
from tests.conftest import Golden

NGC = "nvcr.io/nvidia/pytorch"


def wheel(name: str, version: str, *, size: int = 1000, sha256: str | None = None) -> LockedWheel:
    """A wheel whose hash follows from its name and version, where none is given."""
    digest = sha256 or f"{hash_of(name + version):064x}"
    url = f"https://files.example/{name}-{version}-py3-none-any.whl"
    return LockedWheel(name=name, version=version, url=url, sha256=digest, size=size)


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode()[-30:], "big")


def deb(name: str, version: str) -> LockedDeb:
    url = f"https://debs.example/{name}_{version}_arm64.deb"
    digest = f"{hash_of(name + version):064x}"
    return LockedDeb(
        name=name, version=version, architecture="arm64", url=url, sha256=digest, size=500
    )


def lock(*wheels: LockedWheel, base: Base | None = None, **more: Any) -> Lock:
    base = base or DebianBase(suite="trixie", debs=(deb("libc6", "2.41-12"),))
    return demo_lock(*wheels, base=base, **more)


def registry(tag: str, digit: str = "a", index: str = "c", size: int = 9_000) -> RegistryBase:
    digest = f"sha256:{digit * 64}"
    return RegistryBase(
        image=f"{NGC}:{tag}", index=f"sha256:{index * 64}", digest=digest, size=size
    )


CPU = lock(wheel("numpy", "2.3.4"), wheel("torch", "2.10.0", size=104_000_000))
CUDA_13 = lock(
    wheel("numpy", "2.4.0"),
    wheel("nvidia-cuda-runtime", "13.0.96", size=2_000_000),
    wheel("torch", "2.13.0", size=420_000_000),
)


def told(old: Lock, new: Lock) -> list[str]:
    """What the difference says, without the package lists."""
    listed = (Area.PACKAGE, Area.SYSTEM)
    return [str(change) for change in compare(old, new).changes if change.area not in listed]


def listed(old: Lock, new: Lock, area: Area = Area.PACKAGE) -> list[str]:
    return [str(change) for change in compare(old, new).changes if change.area is area]


def test_torch_and_its_cuda_lead() -> None:
    assert told(CPU, CUDA_13) == [
        "torch 2.10.0 → 2.13.0: CPU build → CUDA 13.0 (inferred from the packages)",
        "CUDA runtime nvidia-cuda-runtime 13.0.96 added",
    ]
    assert headline(compare(CPU, CUDA_13)).startswith("torch 2.10.0 → 2.13.0: CPU build → CUDA")


@pytest.mark.parametrize(
    ("wheels", "build"),
    [
        ([wheel("torch", "2.9.0+cu130")], "CUDA 13.0"),
        ([wheel("torch", "2.9.0+cu128")], "CUDA 12.8"),
        ([wheel("torch", "2.9.0+cpu"), wheel("nvidia-cuda-runtime", "13.0.96")], "CPU build"),
        ([wheel("torch", "2.9.0")], "CPU build"),
        ([wheel("torch", "2.9.0"), wheel("nvidia-cuda-runtime-cu12", "12.8.90")], "CUDA 12.8"),
        ([wheel("torch", "2.15.0"), wheel("nvidia-cuda-runtime", "13.2.86")], "CUDA 13.2"),
    ],
)
def test_the_cuda_of_a_lock_that_does_not_state_it(wheels: list[LockedWheel], build: str) -> None:
    [torch, *_] = told(lock(), lock(*wheels))
    assert torch.endswith(f"added: {build} (inferred), from a wheel")


def test_a_stated_identity_is_taken_at_its_word() -> None:
    stated = TorchIdentity(origin="wheel", version="2.13.0", module="2.13.0+cu130", cuda="13.0")
    old = replace(CUDA_13, torch=stated)
    new = replace(CUDA_13, torch=replace(stated, module="2.13.0+cpu", cuda=None))
    assert told(old, new) == [
        "torch 2.13.0: CUDA 13.0 → CPU build; torch.__version__ 2.13.0+cu130 → 2.13.0+cpu"
    ]


def test_stating_what_was_inferred_is_no_change() -> None:
    stated = TorchIdentity(origin="wheel", version="2.13.0", module="2.13.0+cu130", cuda="13.0")
    assert compare(CUDA_13, replace(CUDA_13, torch=stated)).changes == ()


def test_a_torch_of_the_base_is_known_by_its_files() -> None:
    identity = TorchIdentity(
        origin="base",
        version="2.10.0a0+b558c986e8.nv25.11",
        module="2.10.0a0+b558c986e8.nv25.11",
        cuda="13.0",
        folder="/usr/local/lib/python3.12/dist-packages",
        sha256="1" * 64,
    )
    old = lock(base=registry("25.11-py3"), torch=identity)
    new = replace(old, torch=replace(identity, sha256="2" * 64))
    assert told(old, new) == [f"torch {identity.version}: other files under the same version"]
    [first, *_] = told(CUDA_13, old)
    assert first == f"torch 2.13.0 → {identity.version}: from a wheel → from the base"


def test_a_torch_that_goes_says_what_goes() -> None:
    [first, second] = told(CUDA_13, lock(wheel("numpy", "2.4.0")))
    assert first == "torch 2.13.0 removed: CUDA 13.0 (inferred), from a wheel"
    assert second == "CUDA runtime nvidia-cuda-runtime 13.0.96 removed"


def test_a_second_cuda_runtime_shows() -> None:
    both = lock(*CUDA_13.wheels, wheel("nvidia-cuda-runtime-cu12", "12.8.90"))
    assert "CUDA runtime nvidia-cuda-runtime 13.0.96 → nvidia-cuda-runtime 13.0.96, " in "".join(
        told(CUDA_13, both)
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            registry("25.11-py3", "a"),
            registry("26.08-py3", "b"),
            f"base {NGC}:25.11-py3 → {NGC}:26.08-py3: sha256:aaaaaaaaaaaa → sha256:bbbbbbbbbbbb",
        ),
        (
            registry("25.11-py3", "a"),
            registry("25.11-py3", "b"),
            f"base {NGC}:25.11-py3: sha256:aaaaaaaaaaaa → sha256:bbbbbbbbbbbb",
        ),
        (
            registry("25.11-py3", index="c"),
            registry("25.11-py3", index="d"),
            (
                f"base {NGC}:25.11-py3: the tag names another index, in which this platform's "
                "image is the same"
            ),
        ),
        (
            OciBase(path="base", digest=f"sha256:{'a' * 64}"),
            OciBase(path="base", digest=f"sha256:{'b' * 64}"),
            "base base: sha256:aaaaaaaaaaaa → sha256:bbbbbbbbbbbb",
        ),
        (
            DebianBase(suite="bookworm", debs=()),
            DebianBase(suite="trixie", debs=()),
            "base debian bookworm → debian trixie",
        ),
        (
            DebianBase(suite="trixie", debs=()),
            registry("25.11-py3"),
            f"base debian trixie → {NGC}:25.11-py3",
        ),
    ],
)
def test_bases(old: Base, new: Base, said: str) -> None:
    assert told(lock(base=old), lock(base=new)) == [said]


def test_distribution_packages_are_listed_by_name() -> None:
    old = DebianBase(suite="trixie", debs=(deb("bash", "5.2"), deb("libc6", "2.41-12")))
    new = DebianBase(suite="trixie", debs=(deb("libc6", "2.41-13"), deb("zlib1g", "1.3")))
    difference = listed(lock(base=old), lock(base=new), Area.SYSTEM)
    assert difference == ["libc6 2.41-12 → 2.41-13", "zlib1g 1.3 added", "bash 5.2 removed"]
    assert told(lock(base=old), lock(base=new)) == []


def test_platform_python_and_glibc() -> None:
    new = replace(
        CPU, target="thor", python="3.12", interpreter="/usr/bin/python3.12", glibc="2.39"
    )
    assert told(CPU, new) == ["target gb10 → thor", "python 3.13 → 3.12", "glibc 2.41 → 2.39"]
    moved = replace(CPU, interpreter="/usr/local/bin/python3.13")
    assert told(CPU, moved) == ["interpreter /usr/bin/python3.13 → /usr/local/bin/python3.13"]


def test_the_guard() -> None:
    old = replace(
        CPU,
        guard=Guard(
            packages={"torch": "2.10.0", "torchvision": "0.25", "triton": "3.5"},
            shadows=(Shadow(name="rich", base="13", version="14"),),
            accepted=("numpy<2 by old: it works",),
        ),
    )
    new = replace(
        CPU,
        guard=Guard(
            packages={"torch": "2.11.0", "torchvision": "0.26", "triton": "3.5"},
            shadows=(Shadow(name="numpy", base="1.26.4", version="2.3.4"),),
            accepted=("torch==2.11.0 by vllm: symbols are complete",),
        ),
    )
    assert told(old, new) == [
        "shadow of numpy 2.3.4 over the base's 1.26.4 added",
        "shadow of rich 14 over the base's 13 removed",
        "accepted: numpy<2 by old: it works removed",
        "accepted: torch==2.11.0 by vllm: symbols are complete added",
        "guarded torchvision 0.25 → 0.26",
    ]


VLLM_URL = "https://wheels.example/vllm-0.13.0.whl"
VLLM_GIT = LockedGit(
    name="vllm", url="https://git.example/vllm", ref="v0.13.0", commit="c" * 40, version="0.13.0"
)


def test_a_package_that_comes_from_elsewhere_says_why() -> None:
    from_wheel = lock(
        wheel("vllm", "0.13.0"),
        sources=(ChosenSource(name="vllm", source=f"wheel {VLLM_URL}"),),
    )
    refused = Refusal(source=f"wheel {VLLM_URL}", reason="the server answered 404 Not Found")
    from_git = lock(
        gits=(VLLM_GIT,),
        sources=(
            ChosenSource(
                name="vllm", source="git https://git.example/vllm@v0.13.0", refused=(refused,)
            ),
        ),
    )
    [said] = told(from_wheel, from_git)
    assert said == (
        f"source of vllm wheel {VLLM_URL} → git https://git.example/vllm@v0.13.0 at cccccccccccc: "
        f"wheel {VLLM_URL}: the server answered 404 Not Found"
    )
    moved = replace(from_git, gits=(replace(VLLM_GIT, commit="d" * 40),))
    assert (
        "at cccccccccccc → git https://git.example/vllm@v0.13.0 at dddddddddddd"
        in (told(from_git, moved)[0])
    )


def test_a_repository_without_a_version_is_told_by_its_commit() -> None:
    git = replace(VLLM_GIT, version=None)
    assert listed(lock(), lock(gits=(git,))) == ["vllm git cccccccccccc added"]


def test_packages_major_steps_first() -> None:
    old = lock(wheel("a", "1.0"), wheel("b", "1.0"), wheel("c", "1.0.0"), wheel("d", "2.0"))
    new = lock(wheel("a", "1.1"), wheel("b", "2.0"), wheel("c", "1.0.1"), wheel("e", "1.0"))
    assert listed(old, new) == [
        "b 1.0 → 2.0: major",
        "a 1.0 → 1.1: minor",
        "c 1.0.0 → 1.0.1",
        "e 1.0 added",
        "d 2.0 removed",
    ]


def test_a_step_back_and_another_file_are_marked() -> None:
    old = lock(wheel("a", "2.0"), wheel("b", "1.0", sha256="1" * 64))
    new = lock(wheel("a", "1.9"), wheel("b", "1.0", sha256="2" * 64))
    assert listed(old, new) == [
        "a 2.0 → 1.9: major; older",
        "b 1.0: another file under the same version",
    ]


def test_gpu_code_shows_where_an_audit_has_read_both() -> None:
    old = lock(wheel("torch", "2.9.0+cu130", sha256="1" * 64), wheel("a", "1", sha256="3" * 64))
    new = lock(wheel("torch", "2.9.1+cu130", sha256="2" * 64), wheel("a", "1.1", sha256="4" * 64))
    codes = {
        "1" * 64: ("sm_100", "sm_120"),
        "2" * 64: ("sm_100", "sm_110"),
        "3" * 64: ("sm_90",),  # of its successor nothing is known
    }
    torch, package = compare(old, new, codes=codes).changes
    assert torch.detail == ("lost sm_120", "gained sm_110")
    assert package.detail == ("minor",)


def test_identical_locks_say_so() -> None:
    assert lines(compare(CPU, CPU)) == ("the locks are identical",)
    assert compare(CPU, CPU).identical
    other_uv = replace(CPU, tools={"uv": "9"})
    assert lines(compare(CPU, other_uv)) == ("nothing that goes into the image differs",)
    assert "identical" in markdown(compare(CPU, CPU))


def test_the_order_of_packages_does_not_count() -> None:
    assert compare(CPU, replace(CPU, wheels=CPU.wheels[::-1])).changes == ()


def rich() -> Difference:
    debs = DebianBase(suite="trixie", debs=(deb("libc6", "2.41-13"), deb("libnuma1", "2.0")))
    new = replace(CUDA_13, base=debs, python="3.14", interpreter="/usr/bin/python3.14")
    added = (wheel("ninja", "1.13"), *new.wheels)
    return compare(
        replace(CPU, wheels=(*CPU.wheels, wheel("six", "1.17"))), replace(new, wheels=added)
    )


def test_lines(golden: Golden) -> None:
    golden.check("diff.txt", "\n".join(lines(rich())) + "\n")


def test_markdown(golden: Golden) -> None:
    golden.check("diff.md", markdown(rich()))


def test_a_long_list_is_folded_and_a_title_told_once() -> None:
    def added(number: int) -> str:
        return markdown(compare(lock(), lock(*(wheel(f"p{i}", "1") for i in range(number)))))

    assert added(10).count("packages: 10 added") == 1
    assert "<details>" not in added(10)
    assert "<details>\n<summary>packages: 11 added</summary>" in added(11)


def test_a_size_that_reads_the_same_is_told_once() -> None:
    sizes = [lock(wheel("a", "1", size=3_000_000_000 + more)) for more in (0, 2_500)]
    assert lines(compare(*sizes))[-1] == "size: 3 GB (+2.5 kB)"


def test_json_is_plain_and_complete() -> None:
    difference = rich()
    data = json.loads(json.dumps(as_dict(difference)))
    assert (data["old"], data["identical"]) == ("demo for gb10", False)
    assert len(data["changes"]) == len(difference.changes)
    assert data["changes"][0] == {
        "area": "torch",
        "kind": "changed",
        "subject": "torch",
        "old": "2.10.0",
        "new": "2.13.0",
        "detail": ["CPU build → CUDA 13.0 (inferred from the packages)"],
        "size_bytes": {"old": 104_000_000, "new": 420_000_000},
    }


def test_a_headline_for_lists_only() -> None:
    assert headline(compare(lock(wheel("a", "1")), lock(wheel("b", "1")))) == (
        "packages: 1 added, 1 removed"
    )


_NASTY = st.text(st.sampled_from("|\\`*_[]<>&@#\n\r\t ~a1.-\x1b\u2028"), min_size=1, max_size=12)


@given(_NASTY, _NASTY, _NASTY)
def test_markdown_tables_hold_whatever_the_names_are(subject: str, old: str, new: str) -> None:
    changes = tuple(
        Change(area=area, subject=subject, old=old, new=new, detail=(old, new), old_bytes=1)
        for area in (Area.SOURCE, Area.PACKAGE)
    )
    text = markdown(
        Difference(old="a", new="b", changes=changes, old_bytes=1, new_bytes=2, identical=False)
    )
    assert all(char.isprintable() or char == "\n" for char in text)
    rows = [line for line in text.split("\n") if line.startswith("|")]
    assert [cells(row) for row in rows] == [4, 4, 4, 5, 5, 5]
    outside = re.sub(r"`[^`]*`|<code>[^<]*</code>", "", text)
    assert not re.search(r"[@#_*~\[\]\\&]", outside.replace("**", ""))


def cells(row: str) -> int:
    """How many cells GitHub's Markdown sees: a pipe ends one unless a backslash is before it."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def test_sizes_are_of_every_file_that_a_lock_names() -> None:
    difference = compare(CPU, lock(*CUDA_13.wheels, base=registry("26.08-py3", size=9_000)))
    assert difference.old_bytes == 1000 + 104_000_000 + 500
    assert difference.new_bytes == 1000 + 2_000_000 + 420_000_000 + 9_000

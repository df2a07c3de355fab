"""The table of known bases: sound, found by tag and digest, and compared with an image's word."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from pydantic import ValidationError

from builder.errors import Severity
from builder.lock.base.facts import (
    BaseFact,
    compare,
    driver_floor,
    find_fact,
    load_facts,
    same_build,
    same_numbers,
    same_torch,
)
from builder.lock.base.inventory import Inventory
from builder.lock.model import TorchIdentity
from builder.targets import load_targets

PYTORCH = "nvcr.io/nvidia/pytorch"
MODULE = "2.9.0a0+145a3a7bda.nv25.10"
ENV = {
    "CUDA_VERSION": "13.0.2.006",
    "CUDA_DRIVER_VERSION": "580.95.05",
    "PYTORCH_VERSION": "2.9.0a0+145a3a7",
    "NVIDIA_PYTORCH_VERSION": "25.10",
}
HELD = Inventory(
    python="3.12",
    interpreter="/usr/bin/python3.12",
    glibc="2.39",
    torch=TorchIdentity(origin="base", version=MODULE, module=MODULE, cuda="13.0"),
)


def fact(reference: str = f"{PYTORCH}:25.10-py3") -> BaseFact:
    found = find_fact(reference)
    assert found is not None
    return found


def config(env: Mapping[str, str]) -> dict[str, object]:
    return {"config": {"Env": [f"{name}={value}" for name, value in env.items()]}}


# The table


def test_every_tag_and_digest_is_one_rows() -> None:
    names = [f"{row.repository}:{tag}" for row in load_facts() for tag in row.tags]
    digests = [known.digest for row in load_facts() for known in row.digests]
    assert len(names) == len(set(names))
    assert len(digests) == len(set(digests))


def test_what_a_row_says_agrees_in_itself() -> None:
    """A release is its tag's; torch's spellings are of one build, and carry the release."""
    for row in load_facts():
        if row.release is not None:
            assert [f"{row.release}-py3"] == list(row.tags)
        if row.torch is not None:
            local = Version(row.torch.module).local or ""
            month = re.fullmatch(r"(\d\d)\.(\d\d)-py3", row.tags[0])
            assert month is not None
            assert f".nv{month[1]}.{int(month[2])}" in local
            assert same_torch(row.torch.module, row.torch.version or row.torch.module)


def test_newer_images_of_pytorch_are_newer_in_everything() -> None:
    """A slip of the pen in a version would stand out."""
    rows = [row for row in load_facts() if row.repository == PYTORCH and row.release]
    for older, newer in pairwise(rows):
        assert (older.release or "") < (newer.release or "")
        assert older.torch is not None
        assert newer.torch is not None
        assert Version(older.torch.module).release <= Version(newer.torch.module).release
        assert Version(older.cuda or "0").release[:2] <= Version(newer.cuda or "99").release[:2]


def test_drivers_of_the_targets_and_of_the_table_agree() -> None:
    for target in load_targets().values():
        floor = driver_floor(f"{target.cuda.major}.0")
        assert floor is not None
        assert target.driver.startswith(f"{floor.driver}.")
    assert driver_floor("99.1") is None


@pytest.mark.parametrize(
    "change",
    [
        {"unverified": ["cuda"]},
        {"unverified": ["tags"]},
        {"sources": []},
        {"sources": ["somewhere"]},
        {"tags": []},
        {"cuda": "13"},
        {"python": "3"},
        {"digests": [{"digest": "sha256:00", "sources": ["public-files:1"]}]},
        {"colour": "green"},
    ],
)
def test_a_row_that_is_not_sound_is_refused(change: Mapping[str, object]) -> None:
    sound = {"repository": "r.example/a", "tags": ["1"], "sources": ["public-files:1"]}
    BaseFact.model_validate(sound)
    with pytest.raises(ValidationError):
        BaseFact.model_validate({**sound, **change})


# Finding a row

DIGEST = "sha256:2140e699b3beaf7f96a0081fd9c9406bc3832b435cdb60dfa2d261f7d2f34a1c"
UNKNOWN = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        (f"{PYTORCH}:25.10-py3", f"{PYTORCH}:25.10-py3"),
        (f"{PYTORCH}@{DIGEST}", f"{PYTORCH}:26.07-py3"),
        (f"{PYTORCH}:25.10-py3@{DIGEST}", f"{PYTORCH}:26.07-py3"),
        (f"{PYTORCH}:25.10-py3@{UNKNOWN}", f"{PYTORCH}:25.10-py3"),
        (f"{PYTORCH}:26.01-py3-igpu", f"{PYTORCH}:26.01-py3-igpu"),
        (
            "nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04",
            "nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04",
        ),
    ],
)
def test_finds_the_row_of_an_image(reference: str, name: str) -> None:
    assert fact(reference).name == name


@pytest.mark.parametrize(
    "reference",
    [
        PYTORCH,
        f"{PYTORCH}:25.07-py3",
        f"{PYTORCH}@{UNKNOWN}",
        "nvidia/pytorch:25.10-py3",
        "localhost:5000/nvidia/pytorch:25.10-py3",
        f"r.example/a@{DIGEST}",
        "",
    ],
)
def test_images_that_are_not_known(reference: str) -> None:
    assert find_fact(reference) is None


# Comparing


def test_an_image_as_it_is_known_has_no_findings() -> None:
    assert compare(fact(), config(ENV), HELD) == []
    assert compare(fact(), {}, None) == []


@pytest.mark.parametrize(
    ("variable", "value", "field"),
    [
        ("CUDA_VERSION", "13.1.0", "cuda"),
        ("CUDA_DRIVER_VERSION", "580.82.09", "driver"),
        ("PYTORCH_VERSION", "2.9.0a0+50eac81", "torch.module"),
        ("PYTORCH_VERSION", "2.10.0a0+145a3a7", "torch.module"),
        ("PYTORCH_VERSION", "not a version", "torch.module"),
        ("NVIDIA_PYTORCH_VERSION", "25.09", "release"),
    ],
)
def test_a_variable_that_says_otherwise_is_a_finding(variable: str, value: str, field: str) -> None:
    (found,) = compare(fact(), config({**ENV, variable: value}), HELD)
    assert (found.rule, found.severity) == ("base-fact-mismatch", Severity.WARNING)
    assert found.subject == f"{PYTORCH}:25.10-py3"
    assert (found.evidence["field"], found.evidence["image"]) == (field, value)
    assert f"{variable} says {value}" in found.message


def _torch(
    *, version: str = MODULE, module: str | None = MODULE, cuda: str | None = "13.0"
) -> TorchIdentity:
    return TorchIdentity(origin="base", version=version, module=module, cuda=cuda)


@pytest.mark.parametrize(
    ("held", "fields"),
    [
        (replace(HELD, python="3.11"), ["python"]),
        (replace(HELD, python=None), ["python"]),
        (replace(HELD, torch=None), ["torch.module", "torch.version"]),
        (replace(HELD, torch=_torch(version="2.9.0")), ["torch.version"]),
        (replace(HELD, torch=_torch(module="2.9.0+cpu", cuda=None)), ["torch.module"]),
        (replace(HELD, torch=_torch(cuda="12.9")), ["cuda"]),
        (replace(HELD, torch=_torch(module=None, cuda=None)), []),
    ],
)
def test_layers_that_say_otherwise_are_findings(held: Inventory, fields: Sequence[str]) -> None:
    found = compare(fact(), config(ENV), held)
    assert [finding.evidence["field"] for finding in found] == fields


def test_one_finding_a_field() -> None:
    held = replace(HELD, torch=_torch(cuda="12.9"))
    (found,) = compare(fact(), config({**ENV, "CUDA_VERSION": "12.9.1"}), held)
    assert found.evidence["image"] == "12.9.1"


def test_what_was_inferred_is_worth_a_note() -> None:
    (found,) = compare(fact(f"{PYTORCH}:25.11-py3"), config({"CUDA_DRIVER_VERSION": "580.82.09"}))
    assert found.severity is Severity.INFO
    assert found.evidence["unverified"] is True


def test_a_tag_that_moved_is_worth_a_note() -> None:
    known = fact(f"{PYTORCH}:26.07-py3")
    assert compare(known, {}, None, (UNKNOWN, DIGEST)) == []
    (found,) = compare(known, {}, None, (UNKNOWN,))
    assert (found.severity, found.evidence["field"]) == (Severity.INFO, "digest")
    assert UNKNOWN in found.message
    assert DIGEST in found.message


def test_vllms_version() -> None:
    known = fact("nvcr.io/nvidia/vllm:25.10-py3")
    assert compare(known, config({"VLLM_VERSION": "0.10.2+9dd9ca32"})) == []
    (found,) = compare(known, config({"VLLM_VERSION": "0.11.0"}))
    assert found.evidence["field"] == "vllm"


@pytest.mark.parametrize(
    ("same", "one", "other"),
    [
        (same_numbers, "13.0", "13.0.2.006"),
        (same_numbers, "13.0.2.6", "13.0.2.006"),
        (same_numbers, "13.1.0", "13.1"),
        (same_build, "2.9.0a0+145a3a7", MODULE),
        (same_build, "0.19.0", "0.19.0+2a69949b.nv26.04"),
        (same_build, "odd", "odd"),
        (same_torch, MODULE, "2.9.0a0+145a3a7bda.nv25.10"),
        (same_torch, "2.8.0a0+5228986c39.nv25.06", "2.8.0a0+5228986c39.nv25.6"),
        (same_torch, "2.14.0a0+4fdf77b940.nv26.08", "2.14.0a0+4fdf77b940.nv26.8.63802676"),
        (same_torch, "odd", "odd"),
    ],
)
def test_spellings_of_the_same(same: Callable[[str, str], bool], one: str, other: str) -> None:
    assert same(one, other)
    assert same(other, one)


@pytest.mark.parametrize(
    ("same", "one", "other"),
    [
        (same_numbers, "13.0", "13.1.0"),
        (same_numbers, "13.3.0", "13.3.1.008"),
        (same_numbers, "13.0", "odd"),
        (same_build, "2.9.0a0+145a3a7", "2.10.0a0+145a3a7"),
        (same_build, "2.9.0a0+145a3a7", "2.9.0a0+50eac811a6.nv25.09"),
        (same_build, "odd", "1.0"),
        (same_torch, "2.9.0a0+145a3a7", MODULE),
        (same_torch, "2.9.0a0", "2.9.0a0+7"),
        (same_torch, "2.8.0a0+5228986c39.nv25.05", "2.8.0a0+5228986c39.nv25.06"),
        (same_torch, "2.14.0a0+4f.nv26.8.1", "2.14.0a0+4f.nv26.8.2"),
        (same_torch, "2.14.0a0+4f.nv26.8", "2.14.0a0+4f.nv26.8.1.2"),
        (same_torch, "2.14.0a0+4f.nv26.8", "2.14.0a0+4f.nv26.8.post"),
        (same_torch, "odd", "1.0"),
    ],
)
def test_what_is_not_the_same(same: Callable[[str, str], bool], one: str, other: str) -> None:
    assert not same(one, other)
    assert not same(other, one)


@given(st.text(), st.text())
def test_any_two_texts_can_be_compared(one: str, other: str) -> None:
    for same in (same_numbers, same_build, same_torch):
        assert same(one, one)
        assert same(one, other) == same(other, one)

"""What `spark-build base` shows: each thing with where it is from, the image's own word first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builder.cli.output import print_lines
from builder.lock.base.description import Description, FoundImage, Known, Tabled, describe
from builder.lock.base.facts import find_fact
from builder.lock.base.inventory import Inventory
from builder.lock.model import TorchIdentity
from tests.conftest import Golden

REFERENCE = "nvcr.io/nvidia/pytorch:25.11-py3"
MODULE = "2.10.0a0+b558c986e8.nv25.11"
INDEX = "sha256:417cbf33f87b5378849df37983552cd1f8bc8b62fe1ceabe004de816a55dff21"
FOUND = FoundImage(
    reference=REFERENCE,
    index=INDEX,
    digest=f"sha256:{'1' * 64}",
    platform="linux/arm64",
    platforms=("linux/amd64", "linux/arm64"),
    layers=(30_000_000, 8_000_000_000, 1_500),
)
CONFIG: dict[str, Any] = {
    "created": "2025-11-20T03:04:05Z",
    "config": {
        "Env": [
            "CUDA_VERSION=13.0.2.006",
            "NVIDIA_PYTORCH_VERSION=25.11",
            "PYTORCH_VERSION=2.10.0a0+b558c98",
            "TORCH_CUDA_ARCH_LIST=8.0 8.6 9.0 10.0 11.0 12.0+PTX",
            "PIP_CONSTRAINT=/etc/pip/constraint.txt",
            "VLLM_VERSION=",
        ],
        "Labels": {
            "com.nvidia.build.id": "231000001",
            "com.nvidia.cuda.version": "9.0",
            "com.nvidia.pytorch.version": "2.10.0a0+b558c98",
        },
    },
}
HELD = Inventory(
    python="3.12",
    interpreter="/usr/bin/python3.12",
    glibc="2.39",
    torch=TorchIdentity(origin="base", version=MODULE, module=MODULE, cuda="13.0"),
)


def described(*, inventory: Inventory | None = None, config: Any = CONFIG) -> Description:
    return describe(FOUND, config, find_fact(REFERENCE), inventory)


def test_for_people(golden: Golden) -> None:
    golden.check("base.txt", "\n".join([*described(inventory=HELD).lines(), ""]))


def test_for_programs() -> None:
    shown = described().as_dict()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["image"] == REFERENCE
    assert (shown["index"], shown["digest"]) == (INDEX, FOUND.digest)
    assert (shown["layers"], shown["size_bytes"]) == (3, 8_030_001_500)
    assert shown["known"]["torch"] == {"value": MODULE, "from": "bases.yaml"}
    assert shown["known"]["glibc"] == {"value": None, "from": None}
    assert shown["labels"].keys() == {"com.nvidia.build.id", "com.nvidia.pytorch.version"}
    assert shown["findings"] == []


def test_an_image_of_which_nothing_is_known() -> None:
    found = describe(FOUND, {"config": None})
    assert set(found.known.values()) == {Known()}
    assert (found.created, found.labels, found.findings) == (None, {}, ())
    assert found.as_dict()["note"] is None
    lines = list(found.lines())
    assert not any(line.startswith("  CUDA") for line in lines)
    assert lines[-1] == "  --layers reads the rest (fetches 8.03 GB)"


def test_an_image_without_an_index_has_none() -> None:
    plain = FoundImage(
        reference="r.example/a",
        index=INDEX,
        digest=INDEX,
        platform="linux/arm64",
        platforms=(),
        layers=(),
    )
    lines = list(describe(plain, {}).lines())
    assert "  index            none" in lines
    assert describe(plain, {}).as_dict()["index"] is None
    assert "  platforms        not known" in lines


def test_layers_without_a_torch_say_so() -> None:
    bare = Inventory(python="3.12", interpreter="/usr/bin/python3.12", glibc="2.39")
    found = describe(FOUND, {}, inventory=bare)
    assert "  torch            none (layers)" in found.lines()
    assert found.as_dict()["known"]["torch"] == {"value": None, "from": "layers"}
    assert not any("--layers" in line for line in found.lines())


def test_what_the_table_knows_alone() -> None:
    fact = find_fact(REFERENCE)
    assert fact is not None
    tabled = Tabled(reference=REFERENCE, fact=fact)
    assert f"  torch            {MODULE} (bases.yaml)" in tabled.lines()
    assert tabled.as_dict()["known"] == described(config={}).as_dict()["known"]


def test_what_disagrees_is_found() -> None:
    config = {"config": {"Env": ["CUDA_VERSION=13.1.0"]}}
    (found,) = described(config=config).findings
    assert found.rule == "base-fact-mismatch"
    assert described(config=config).as_dict()["findings"] == [found.as_dict()]


def test_notes_of_the_table_are_shown() -> None:
    fact = find_fact("nvcr.io/nvidia/pytorch:25.10-py3-igpu")
    (line,) = [line for line in describe(FOUND, {}, fact).lines() if line.startswith("  note")]
    assert "JetPack 6" in line


def test_others_words_do_not_reach_the_terminal_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = {"config": {"Env": ["CUDA_VERSION=13\x1b[2J\n0"]}}
    print_lines(described(config=config).lines())
    lines = capsys.readouterr().out.splitlines()
    assert "  CUDA             13\\x1b[2J\\n0 (config)" in lines

"""The table of targets: whole, sourced, and true to how GPU code is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.document import parse_document, validate
from builder.errors import RecipeError, UsageError
from builder.targets import Target, find_target, load_targets

NAMES = ["gb10", "gb200", "gb300", "thor", "b200-x86", "b300-x86", "rtx-pro-x86"]


def test_the_targets_are_there_in_order() -> None:
    assert list(load_targets()) == NAMES
    assert {target.name for target in load_targets().values()} == set(NAMES)


def test_a_target_is_found_by_name() -> None:
    spark = find_target("gb10")
    assert (spark.platform, spark.machine, spark.architecture) == (
        "linux/arm64",
        "aarch64",
        "arm64",
    )
    assert (spark.sm, spark.capability, spark.torch_arch) == ("sm_121", (12, 1), "12.1a")
    assert (spark.cuda.major, spark.cuda.since, spark.driver) == (13, "12.9", "580.65.06")
    assert (find_target("b200-x86").machine, find_target("b200-x86").architecture) == (
        "x86_64",
        "amd64",
    )


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find_target("gb01")
    assert "did you mean `gb10`?" in (caught.value.hint or "")
    with pytest.raises(UsageError) as caught:
        find_target("zzz")
    assert caught.value.hint == f"the targets are {', '.join(NAMES)}"


@pytest.mark.parametrize("target", load_targets().values(), ids=NAMES)
def test_code_runs_by_the_rules_of_its_kind(target: Target) -> None:
    """Plain and family code from an equal or lower minor version, `a` code on that chip only."""
    major, minor = target.capability
    expected = [f"sm_{major}{lower}" for lower in (0, 1, 3) if lower <= minor]
    expected = [
        code for code in expected if code in {"sm_100", "sm_103", "sm_110", "sm_120", "sm_121"}
    ]
    assert list(target.codes) == [*expected, *(f"{code}f" for code in expected), f"{target.sm}a"]


@pytest.mark.parametrize("target", load_targets().values(), ids=NAMES)
def test_a_row_agrees_with_itself(target: Target) -> None:
    major, minor = target.capability
    assert re.fullmatch(rf"{major}\.{minor}a?", target.torch_arch)
    assert (target.platform == "linux/amd64") == target.name.endswith("-x86")
    assert (target.memory == "discrete") == (target.platform == "linux/amd64")
    assert int(target.driver.partition(".")[0]) >= 580  # the floor of every CUDA 13


def test_a_fact_without_a_source_is_refused() -> None:
    row = find_target("thor").model_dump(mode="json")
    text = "\n".join(f"{key}: {value}" for key, value in row.items() if key != "sources")
    text = f"{text}\nsources:\n  sm: somewhere\n"
    with pytest.raises(RecipeError) as caught:
        validate(Target, parse_document(text.encode(), Path("row.yaml")))
    (problem,) = caught.value.problems
    assert problem.field == "sources"
    assert "needs exactly the keys sm, codes" in problem.message

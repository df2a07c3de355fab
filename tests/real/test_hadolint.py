"""A linter that nobody here wrote finds nothing in what we render."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder import process
from builder.render import containerfile
from tests.plans import OCI, PLANS, odd_plan

pytestmark = pytest.mark.real("hadolint")


@pytest.mark.parametrize("name", [*PLANS, "odd-oci"])
def test_a_containerfile_has_no_finding_above_info(name: str, tmp_path: Path) -> None:
    path = tmp_path / "Containerfile"
    plan = {**PLANS, "odd-oci": odd_plan(OCI)}[name]
    path.write_text(containerfile(plan), encoding="utf-8")
    argv = ["hadolint", "--no-color", "--format", "json", "--config", "/dev/null", str(path)]
    done = process.run(argv, check=False)
    found = [item for item in json.loads(done.stdout) if item["level"] in ("error", "warning")]
    assert found == []


def test_the_linter_is_not_asleep(tmp_path: Path) -> None:
    path = tmp_path / "Containerfile"
    path.write_text("FROM debian\nRUN cd /x\nENTRYPOINT x\n", encoding="utf-8")
    done = process.run(["hadolint", "--no-color", "--format", "json", str(path)], check=False)
    assert {"DL3006", "DL3003", "DL3025"} <= {item["code"] for item in json.loads(done.stdout)}

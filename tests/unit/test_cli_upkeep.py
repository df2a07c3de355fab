"""The verbs between builds, and what they say to do next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder import cli, upkeep
from builder.errors import Severity
from builder.lock.changes.edit import Change
from builder.oci.image import write_layout
from tests.builders import image_of, python_layer, write_layer
from tests.projects import Project, make_project

IMAGE = "nvcr.io/nvidia/pytorch:25.11-py3"
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project to build in the working directory, its wheels in the cache."""
    project = make_project(tmp_path)
    project.stock(tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_BUILD_CACHE", str(tmp_path / "cache"))
    return project


def drifting(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """The world as `lock --check` finds it."""

    def drift_of(*_: object, **__: object) -> Sequence[str]:
        return lines

    monkeypatch.setattr(upkeep, "drift_of", drift_of)


def test_a_check_says_what_it_looked_at(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    drifting(monkeypatch)
    assert cli.main(["lock", "demo.yaml", "--check"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "lock    pylock.demo-gb10.toml answers the recipe",
        "check   every file, the base and the refs are as locked",
    ]
    assert cli.main(["lock", "demo.yaml", "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["locks"][0]["drift"] == []
    assert cli.main(["lock", "demo.yaml", "--check", "--json", "--offline"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["locks"][0]["drift"] is None
    assert "check " not in captured.err


def test_what_drifted_can_be_locked_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    drifting(monkeypatch, "data 2.1: yanked: no reason is given", "base x: is gone")
    assert cli.main(["lock", "demo.yaml", "--check"]) == 3
    said = capsys.readouterr().err
    assert "up to date" not in said
    assert "`spark-build lock demo.yaml --upgrade-package data` takes their next" in said
    assert "`spark-build lock demo.yaml --upgrade` " in said
    drifting(monkeypatch, "base x: is gone")
    assert cli.main(["lock", "demo.yaml", "--check"]) == 3
    assert "--upgrade-package" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["render"], ["export", "--format", "pylock"], ["vendor", "--to", "kept"]]
)
def test_a_lock_is_left_alone_where_that_is_asked(
    arguments: list[str], project: Project, capsys: Captured
) -> None:
    command = [*arguments, "demo.yaml", "--locked", "--offline"]
    assert cli.main(command) == 0
    project.write_recipe(packages="[greet]")
    before = project.lock.read_bytes()
    assert cli.main(command) == 3
    assert "does not answer the recipe" in capsys.readouterr().err
    assert project.lock.read_bytes() == before
    assert cli.main([arguments[0], "--help"]) == 0
    assert "Locks first where the recipe has changed." in capsys.readouterr().out


def test_a_vendored_place_is_built_from(project: Project, capsys: Captured) -> None:
    assert cli.main(["vendor", "demo.yaml", "--to", "kept", "--offline"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "build with: spark-build demo.yaml --vendor kept --offline"
    assert cli.main(last.split()[3:]) == 0
    assert cli.main(["vendor", "demo.yaml", "--to", "127.0.0.1:5000/x:1"]) == 2
    assert "hint: oci://127.0.0.1:5000/x:1 for a registry" in capsys.readouterr().err
    assert not Path("127.0.0.1:5000").exists()


def test_a_lock_and_a_target_have_to_agree(project: Project, capsys: Captured) -> None:
    command = ["verify", "base", "--lock", "pylock.demo-gb10.toml"]
    assert cli.main([*command, "--target", "rtx-pro-x86"]) == 2
    assert "the lock is for gb10, not for rtx-pro-x86" in capsys.readouterr().err


def test_an_image_says_what_it_is_for(tmp_path: Path, capsys: Captured) -> None:
    labels = {"spark-build.target": "rtx-pro-x86"}
    layer = write_layer(tmp_path / "layer", python_layer)
    image = image_of([layer], architecture="amd64", config={"Labels": labels})
    write_layout(image, tmp_path / "x86")
    assert cli.main(["verify", str(tmp_path / "x86"), "--json", "--offline"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["image"].startswith("sha256:")
    assert cli.main(["verify", str(tmp_path / "x86"), "--target", "gb10"]) == 2


def test_a_rule_is_explained_to_programs(capsys: Captured) -> None:
    assert cli.main(["audit", "--explain", "cuda-runtime-mismatch", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rule"], said["severity"]) == ("cuda-runtime-mismatch", str(Severity.ERROR))


def test_a_folder_is_no_base_to_ask_for(project: Project, capsys: Captured) -> None:
    assert cli.main(["base", "./base"]) == 2
    assert "./base is a folder; base reads images in registries" in capsys.readouterr().err


def test_a_base_that_cannot_be_asked_for_is_told_from_the_table(
    project: Project, capsys: Captured
) -> None:
    assert cli.main(["base", IMAGE, "--offline"]) == 5
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{IMAGE}\n  release ")
    assert captured.err.startswith(f"error: {IMAGE}: ")
    assert cli.main(["base", IMAGE, "--offline", "--json"]) == 5
    known = json.loads(capsys.readouterr().out)["known"]
    assert known["torch"]["from"] == "bases.yaml"
    assert cli.main(["base", "r.example/unknown", "--offline"]) == 5
    assert capsys.readouterr().out == ""


def bumping(monkeypatch: pytest.MonkeyPatch, project: Project, **found: Any) -> None:
    """What `bump` finds to propose."""
    old = project.recipe.read_text()
    empty = upkeep.Bump(changes=(), old=old, text=old, diff="", refused=())
    monkeypatch.setattr(upkeep, "bump", lambda *_: replace(empty, **found))


def test_a_bump_says_what_comes_next(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    bumping(monkeypatch, project)
    assert cli.main(["bump", "demo.yaml", "--write"]) == 0
    assert capsys.readouterr().err == "bump    every pin is at the newest already\n"
    change = Change(at=("packages", 0), line=5, old="a==1", new="a==2", reason="newer")
    bumping(monkeypatch, project, changes=(change,), text="other", diff="...")
    assert cli.main(["bump", "demo.yaml", "--write"]) == 0
    assert capsys.readouterr().err == "bump    now: spark-build lock demo.yaml\n"
    assert project.recipe.read_text() == "other"


def test_a_bump_never_writes_over_what_was_edited_meanwhile(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    change = Change(at=("packages", 0), line=5, old="a==1", new="a==2", reason="newer")
    bumping(monkeypatch, project, changes=(change,), old="earlier", text="other", diff="...")
    before = project.recipe.read_bytes()
    assert cli.main(["bump", "demo.yaml", "--write"]) == 2
    assert "was changed while it was looked at" in capsys.readouterr().err
    bumping(monkeypatch, project, changes=(change,), text="other", diff="...")
    project.recipe.chmod(0o444)
    assert cli.main(["bump", "demo.yaml", "--write"]) == 2
    assert "is read-only" in capsys.readouterr().err
    assert project.recipe.read_bytes() == before


def test_a_bump_says_what_it_asks_for(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def proposes_nothing(*_: object, **__: object) -> tuple[Change, ...]:
        return ()

    project.write_recipe(packages="[greet==1.0, data==2.1]")
    monkeypatch.setattr(upkeep, "_query", lambda *_: None)
    monkeypatch.setattr(upkeep, "propose", proposes_nothing)
    monkeypatch.setattr(upkeep, "_objections", lambda *_: ())
    assert cli.main(["bump", "demo.yaml"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "bump    asking for the newest greet, data"

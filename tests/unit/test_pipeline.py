"""The whole way on small things: base, wheels and lock made here, and no network."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder import pipeline
from builder.context import Context
from builder.errors import FindingsError, OfflineError, RecipeError, StaleLockError, UsageError
from builder.lock.model import Guard, Shadow
from builder.oci.image import read_layout
from builder.pipeline import Job
from builder.progress import PlainProgress
from tests.projects import Project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


@pytest.fixture
def offline(context: Context) -> Context:
    return replace(context, offline=True)


def only_job(project: Project) -> Job:
    [job] = pipeline.jobs(project.recipe, only=None, folder=project.folder / "build")
    return job


def test_a_build_leaves_everything_in_its_folder(project: Project, offline: Context) -> None:
    project.stock(offline.cache)
    outcome = pipeline.build(only_job(project), context=offline)
    folder = project.folder / "build" / "demo"
    names = {path.name for path in folder.iterdir()}
    lock = "pylock.demo-gb10.toml"
    assert names == {lock, "Containerfile", "image.def", "oci", "audit.json", "verify.json"}
    assert read_layout(folder / "oci", "linux/arm64").digest == outcome.built.image.digest
    verified = json.loads((folder / "verify.json").read_text())
    assert (verified["device"], verified["image"]) == ("pending", outcome.built.image.digest)
    assert (outcome.fetched_bytes, outcome.built.wheels_read) == (0, 2)


def test_the_image_says_what_the_recipe_says(project: Project, offline: Context) -> None:
    project.stock(offline.cache)
    outcome = pipeline.build(only_job(project), context=replace(offline, epoch=86400))
    image = read_layout(outcome.built.layout, "linux/arm64")
    config = image.config["config"]
    assert config["Entrypoint"] == ["hello"]
    assert 'GREETING=a "quoted" $value' in config["Env"]
    assert config["Env"][0].startswith("PATH=/opt/venv/bin:")
    assert config["Labels"]["spark-build.lock"] == outcome.locked.lock.contents
    assert image.config["created"] == "1970-01-02T00:00:00Z"


def test_the_second_build_makes_nothing(project: Project, offline: Context) -> None:
    project.stock(offline.cache)
    first = pipeline.build(only_job(project), context=offline)
    second = pipeline.build(only_job(project), context=offline)
    assert second.built.image.digest == first.built.image.digest
    assert (second.built.layers_written, second.built.wheels_read) == (0, 0)
    assert (second.locked.written, second.audit.bytes_read) == (False, 0)


def test_two_caches_give_one_digest(project: Project, offline: Context, tmp_path: Path) -> None:
    project.stock(offline.cache)
    other = replace(offline, cache=tmp_path / "other")
    project.stock(other.cache)
    first = pipeline.build(only_job(project), context=offline)
    second = pipeline.build(only_job(project), context=other)
    assert second.built.image.digest == first.built.image.digest
    assert second.built.layers_written > 0


def test_an_audit_that_says_no_builds_nothing(project: Project, offline: Context) -> None:
    project.write_recipe(packages="[greet]", exclude="[data]")
    project.write_lock()
    project.stock(offline.cache)
    with pytest.raises(FindingsError, match="1 error; nothing was built") as caught:
        pipeline.build(only_job(project), context=offline)
    assert [finding.rule for finding in caught.value.findings] == ["excluded-package"]
    folder = project.folder / "build" / "demo"
    assert {path.name for path in folder.iterdir()} == {"audit.json"}


def test_a_wheel_that_is_not_here_needs_the_network(project: Project, offline: Context) -> None:
    with pytest.raises(OfflineError, match=r"files\.example/packages/data"):
        pipeline.build(only_job(project), context=offline)
    assert not (project.folder / "build" / "demo" / "oci").exists()


def test_a_stale_lock_stops_a_locked_build(project: Project, offline: Context) -> None:
    project.write_recipe(packages="[greet>=2, data]")
    with pytest.raises(StaleLockError) as caught:
        pipeline.build(only_job(project), context=offline, frozen=True)
    assert "requirements: - greet" in caught.value.message
    assert "requirements: + greet>=2" in caught.value.message


def shadows(number: int) -> tuple[Shadow, ...]:
    return tuple(Shadow(name=f"p{item}", base="1", version="2") for item in range(number))


FIVE = "p0 1 with 2, p1 1 with 2, p2 1 with 2, p3 1 with 2, p4 1 with 2"


@pytest.mark.parametrize(
    ("guard", "lines"),
    [
        (Guard(), []),
        (
            Guard(shadows=shadows(1), accepted=("tool requires a", "b")),
            ["lock    shadows the base's p0 1 with 2", "lock    accepted: tool requires a; b"],
        ),
        (
            Guard(shadows=shadows(7)),
            [f"lock    shadows the base's {FIVE}, and 2 more"],
        ),
    ],
)
@pytest.mark.parametrize("written", [True, False])
def test_a_new_lock_says_what_it_shadows_and_accepts(
    project: Project,
    offline: Context,
    monkeypatch: pytest.MonkeyPatch,
    guard: Guard,
    lines: list[str],
    *,
    written: bool,
) -> None:
    text = io.StringIO()
    context = replace(offline, progress=PlainProgress(text))
    with pipeline.connect(only_job(project), context) as supply:
        locked = pipeline.lock(only_job(project), supply)
        answer = replace(locked, lock=replace(locked.lock, guard=guard), written=written)
        monkeypatch.setattr(pipeline, "lock_recipe", lambda *_, **__: answer)
        text.truncate(0)
        text.seek(0)
        assert pipeline.lock(only_job(project), supply) == answer
    assert text.getvalue().splitlines()[1:] == (lines if written else [])


def test_a_list_of_targets_gives_a_folder_each(project: Project) -> None:
    project.write_recipe(target="[gb10, thor]")
    jobs = pipeline.jobs(project.recipe, only=None, folder=Path("build"))
    assert [str(job.folder) for job in jobs] == ["build/demo/gb10", "build/demo/thor"]
    [job] = pipeline.jobs(project.recipe, only="thor", folder=Path("build"))
    assert str(job.folder) == "build/demo/thor"


@pytest.mark.parametrize(
    ("name", "hint"), [("gb200", "add gb200 to its targets"), ("gb11", "did you mean")]
)
def test_a_target_that_is_not_the_recipes(project: Project, name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        pipeline.jobs(project.recipe, only=name, folder=Path("build"))
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_what_cannot_be_done_yet_is_said(project: Project) -> None:
    project.write_recipe(more="run: {ports: [8000]}\n")
    with pytest.raises(RecipeError, match=r"demo\.yaml:\d+: run: not supported by this version"):
        pipeline.jobs(project.recipe, only=None, folder=Path("build"))

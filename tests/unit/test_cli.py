"""The command line: what goes to which stream, and with which exit code it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder import cli, process
from builder.cli import commands
from builder.errors import BuilderError
from tests.projects import Project, make_project

ROOT = Path(__file__).resolve().parents[2]
_VERBS = ("build", "lock", "audit", "render", "verify", "schema")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project to build in the working directory, its wheels in the cache."""
    project = make_project(tmp_path)
    project.stock(tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    return project


@pytest.mark.parametrize("verb", _VERBS)
def test_every_verb_has_an_example_that_parses(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb, "--help"]) == 0
    example = capsys.readouterr().out.partition("example:\n")[2].strip()
    words = example.partition(" >")[0].split()
    assert words[:2] == ["spark-build", verb]
    assert cli.parse(words[1:]).verb == verb


def test_help_lists_every_verb_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^    {verb} ", text, re.MULTILINE) for verb in _VERBS)
    codes = {error.exit_code for error in _errors(BuilderError)} | {0, 130}
    assert codes == {
        int(code) for code in re.findall(r"\b(\d+) [a-z]", text.partition("codes:")[2])
    }


def _errors(error: type[BuilderError]) -> set[type[BuilderError]]:
    return {error}.union(*map(_errors, error.__subclasses__()))


def test_a_build_says_what_it_made(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo.yaml", "--offline"]) == 0
    captured = capsys.readouterr()
    digest = json.loads(Path("build/demo/oci/index.json").read_text())["manifests"][0]["digest"]
    assert captured.out.startswith(f"demo for gb10: {digest}\n")
    assert "device checks pending" in captured.out
    stages = re.findall(r"^(\w+)", captured.err, re.MULTILINE)
    assert stages == ["lock", "audit", "render", "fetch", "build", "verify"]


def test_json_is_all_there_is_on_stdout(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["build", "demo.yaml", "--offline", "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    [image] = json.loads(captured.out)["images"]
    assert image["image"]["digest"].startswith("sha256:")
    assert captured.err == ""


def test_options_may_stand_before_the_recipe(project: Project) -> None:
    assert cli.main(["--offline", "--quiet", "demo.yaml"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo.yaml", "--locked", "--upgrade-package", "greet"],
        ["lock", "demo.yaml", "--check", "--upgrade"],
    ],
)
def test_a_lock_is_kept_or_upgraded(
    arguments: list[str], project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert "cannot be upgraded" in capsys.readouterr().err


def test_findings_are_printed_with_their_hints(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["audit", "pylock.demo-gb10.toml", "--exclude", "greet", "--offline"]
    assert cli.main(arguments) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("error: excluded-package: greet 1.0: ")
    assert out[1].startswith("  hint: ")
    assert cli.main([*arguments, "--json"]) == 1
    [report] = json.loads(capsys.readouterr().out)["reports"]
    assert [finding["rule"] for finding in report["findings"]] == ["excluded-package"]


def test_a_refused_build_prints_its_findings(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.write_recipe(packages="[greet]", exclude="[data]")
    project.write_lock()
    assert cli.main(["demo.yaml", "--offline"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("error: excluded-package: data 2.1: ")
    assert "nothing was built" in captured.err
    assert cli.main(["demo.yaml", "--offline", "--json", "--quiet"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["rule"] == "excluded-package"


def test_a_lock_for_another_platform_is_not_judged(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", "pylock.demo-gb10.toml", "--target", "rtx-pro-x86"]) == 2
    assert "the lock is for linux/arm64" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "usage: "),
        (["build"], 2, "RECIPE"),
        (["lock", "--wrong", "demo.yaml"], 2, "--wrong"),
        (["nowhere.yaml"], 2, "error: nowhere.yaml: no such file"),
        (["audit"], 2, "error: audit: nothing to read"),
        (["audit", "nowhere.toml"], 2, "error: nowhere.toml: No such file"),
        (["audit", "--explain", "cuda-runtime-mismatched"], 2, "no rule"),
        (["verify", "nowhere"], 2, "error: nowhere: not an OCI layout"),
        (["verify", "base", "--lock", "demo.yaml"], 3, "error: demo.yaml: not a lock"),
        (["verify", "base", "--target", "gb11"], 2, "gb10"),
        (["render", "demo.yaml", "--target", "gb200"], 2, "not for gb200"),
    ],
)
def test_what_the_user_can_get_wrong(
    arguments: list[str],
    code: int,
    said: str,
    project: Project,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(arguments) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_an_epoch_that_is_no_number(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    assert cli.main(["demo.yaml", "--offline"]) == 2
    assert "SOURCE_DATE_EPOCH='yesterday'" in capsys.readouterr().err


def test_explain_prints_the_law(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "--explain", "cuda-runtime-mismatch"]) == 0
    assert "libcudart.so.12" in capsys.readouterr().out


def test_schema_is_the_committed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    committed = Path(__file__).parents[2] / "docs" / "recipe.schema.json"
    assert capsys.readouterr().out == committed.read_text(encoding="utf-8")


@pytest.mark.parametrize(("form", "first"), [("containerfile", "FROM"), ("apptainer", "Bootstrap")])
def test_render_prints_or_writes(
    form: str, first: str, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["render", "demo.yaml", "--offline", "--quiet", "--format", form]
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert first in text
    assert cli.main([*arguments, "-o", "out/file"]) == 0
    assert Path("out/file").read_text(encoding="utf-8") == text


def test_a_full_disk_is_no_bug(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device", "build/demo/oci")

    monkeypatch.setattr(commands, "run", full)
    assert cli.main(["demo.yaml"]) == 5
    assert "No space left on device" in capsys.readouterr().err


def test_a_bug_is_told_as_one(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "run", lambda _: 1 // 0)
    assert cli.main(["demo.yaml"]) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_an_interrupt_says_that_work_is_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run", interrupted)
    assert cli.main(["demo.yaml"]) == 130
    assert capsys.readouterr().err.startswith("error: interrupted\nhint: ")


def test_a_read_only_cache_is_told(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("SPARK_BUILD_CACHE", "file")
    assert cli.main(["demo.yaml"]) == 5
    assert "Traceback" not in capsys.readouterr().err


_GOOD = b"name: demo\ntarget: gb10\nbase: {oci: ./base}\n"
_BOMB = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n" % (n, n, *([n - 1] * 8))
    for n in range(ord("b"), ord("j"))
)
BROKEN_RECIPES: dict[str, tuple[bytes, str]] = {
    "unknown key": (_GOOD + b"pakages: [numpy]\n", r":4: pakages: .*(?s:.*)`packages`"),
    "unknown key inside": (_GOOD + b"torch: {from: wheel, vrsion: 2}\n", r":4: torch\.vrsion: "),
    "wrong type": (_GOOD + b"packages: numpy\n", r":4: packages: expected a list"),
    "wrong type inside": (_GOOD + b"packages:\n- numpy\n- [rich]\n", r":6: packages\[1\]: "),
    "two bases": (
        _GOOD.replace(b"./base}", b"./base, image: example.org/x}"),
        r":3: base: ",
    ),
    "no base": (b"name: demo\ntarget: gb10\n", r"(:\d+)?: base: is missing"),
    "unknown target": (_GOOD.replace(b"gb10", b"gb11"), r":2: target: .*(?s:.*)gb10"),
    "duplicate key": (_GOOD + b"env: {}\nname: other\n", r":5: name: "),
    "YAML bomb": (_BOMB, r":\d+: aliases expand"),
    "anchor within itself": (_GOOD + b"packages: &p [*p]\n", r":4: "),
    "python object": (_GOOD + b"env: !!python/object:os.system {}\n", r":4: "),
    "tab": (_GOOD + b"env:\n\tA: b\n", r":5: "),
    "empty": (b"", r": "),
    "only a comment": (b"# nothing\n", r": "),
    "binary": (bytes(range(256)), r":1: "),
    "UTF-16": ("name: demo".encode("utf-16"), r": "),
    "a list": (b"- name: demo\n", r":1: "),
    "two documents": (_GOOD + b"---\nname: other\n", r":4: "),
    "open quote": (_GOOD + b"env: {A: 'b}\n", r":\d+: "),
    "bad indentation": (b"name: demo\n target: gb10\n", r":2: "),
    "a bad requirement": (_GOOD + b"packages: ['numpy >> 2']\n", r":4: packages\[0\]: "),
    "a secret": (_GOOD + b"env: {HF_TOKEN: hf_abc}\n", r":4: env\.HF_TOKEN: "),
    "a newline in a value": (_GOOD + b'env: {A: "b\\nRUN evil"}\n', r":4: env\.A: "),
    "a path that leads out": (
        _GOOD + b"files: [{from: ../../etc/passwd, to: /x}]\n",
        r":4: files\[0\]\.from: ",
    ),
    "excluded and wanted": (_GOOD + b"packages: [vllm]\nexclude: [vllm]\n", r":5: exclude\[0\]: "),
    "not supported yet": (_GOOD + b"build_after_torch: [apex]\n", r":4: build_after_torch: "),
}


@pytest.mark.parametrize("name", BROKEN_RECIPES)
def test_a_broken_recipe_is_told_with_its_place(
    name: str, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    data, said = BROKEN_RECIPES[name]
    Path("broken.yaml").write_bytes(data)
    assert cli.main(["broken.yaml", "--offline"]) == 2
    captured = capsys.readouterr()
    assert re.search(rf"error: broken\.yaml{said}", captured.err), captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not Path("build").exists()


def test_a_folder_is_no_recipe(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["./base"]) == 2
    assert capsys.readouterr().err.startswith("error: base: ")


def test_a_mistyped_verb_is_told_from_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audti", "x"]) == 2
    assert "no verb and no recipe is called 'audti'; did you mean audit?" in capsys.readouterr().err


def run_command(
    project: Project, script: str, env: Mapping[str, str] | None = None
) -> process.Completed:
    """A shell line in the project's folder, `$SB` being the command."""
    command = f"{shlex.quote(sys.executable)} -m builder"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    argv = ["sh", "-c", script.replace("$SB", command)]
    return process.run(argv, env=environ, cwd=project.folder, check=False)


def test_a_log_that_nobody_reads_does_not_stop_a_build(project: Project) -> None:
    # The status of the build itself goes to a file: the pipe's is that of its last command.
    script = "{ $SB demo.yaml --offline 2>&1 >out; echo $? >code; } | true"
    assert run_command(project, script).returncode == 0
    assert (project.folder / "code").read_text().strip() == "0"
    assert (project.folder / "build" / "demo" / "oci" / "index.json").is_file()


def test_closed_streams_are_no_error(project: Project) -> None:
    assert run_command(project, "$SB demo.yaml --offline >&- 2>&-").returncode == 0
    assert run_command(project, "$SB nowhere.yaml >&- 2>&-").returncode == 2


def test_a_reader_that_leaves_is_told_from_a_success(project: Project) -> None:
    script = "{ $SB schema; echo $? >code; } | true"
    run_command(project, script)
    assert (project.folder / "code").read_text().strip() in ("0", "141")


def test_a_locale_without_unicode_is_enough(project: Project) -> None:
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_command(project, "$SB lock nowhere-ü.yaml", env)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_without_a_home_the_cache_is_asked_for(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("SPARK_BUILD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cli.main(["demo.yaml", "--offline"]) == 2
    assert "--cache DIR" in capsys.readouterr().err


def test_names_in_files_do_not_speak_for_us(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b[2J\nerror: all good"
    Path(name).mkdir()
    assert cli.main(["verify", name]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\\x1b[2J" in err


@pytest.mark.parametrize("text", [" 5 ", "1_000", "٣", "-1", "1e3", "9" * 20])
def test_an_odd_epoch_is_refused(
    text: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
    assert cli.main(["demo.yaml", "--offline"]) == 2


@pytest.mark.parametrize("text", ["", "numpy==2.3.2"])
def test_a_package_to_upgrade_has_a_name(
    project: Project, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert cli.main(["lock", "demo.yaml", "--upgrade-package", text]) == 2
    said = capsys.readouterr().err
    assert "not the name of a package" in said
    assert "write the version in the recipe; -P takes a name" in said


def test_a_recipe_in_place_of_a_lock_is_not_to_be_deleted(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", "base", "--lock", "demo.yaml"]) == 3
    assert "delete" not in capsys.readouterr().err

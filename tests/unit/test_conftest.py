"""The machinery of the tests themselves: the choice of real tools, golden files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.context import Context
from tests import conftest

# Other plugins' start-up would be most of each run's time.
_SETTINGS = """
[pytest]
addopts = --strict-markers -p no:hypothesispytest -p no:anyio
markers = real(*tools): real tools
"""
_REAL = """
import pytest

def test_plain():
    pass

@pytest.mark.real("slow")
def test_slow():
    pass

@pytest.mark.real("slow", "sh")
def test_shell():
    pass

@pytest.mark.real("umoci")
def test_umoci():
    pass
"""
_GOLDEN = """
def test_text(golden):
    golden.check("text.txt", "one\\ntwo\\n")
"""
_CONTEXT = """
import pytest

@pytest.mark.real("slow")
def test_environ(context):
    assert context.environ["HTTPS_PROXY"] == "http://proxy.example:3128"
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty suite with this project's conftest, on a host with `sh` and no other tool."""
    monkeypatch.setenv("PATH", str(pytester.path / "bin"))
    shell = pytester.mkdir("bin") / "sh"
    shell.touch(mode=0o755)
    pytester.makeini(_SETTINGS)
    pytester.makeconftest(Path(conftest.__file__).read_text(encoding="utf-8"))
    return pytester


def test_real_tests_are_left_out_unless_chosen(suite: pytest.Pytester) -> None:
    suite.makepyfile(_REAL)
    suite.runpytest().assert_outcomes(passed=1, deselected=3)


def test_all_tools_of_a_mark_have_to_be_chosen(suite: pytest.Pytester) -> None:
    suite.makepyfile(_REAL)
    suite.runpytest("--real", "slow").assert_outcomes(passed=2, deselected=2)
    suite.runpytest("--real", "slow,sh").assert_outcomes(passed=3, deselected=1)
    suite.runpytest("--real", "slow", "--real", "sh").assert_outcomes(passed=3, deselected=1)


def test_a_chosen_tool_that_is_missing_fails(suite: pytest.Pytester) -> None:
    suite.makepyfile(_REAL)
    result = suite.runpytest("--real", "all")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*not here: umoci: apt-get install umoci (.ci/setup engines)"])


def test_an_unknown_tool_is_a_usage_error(suite: pytest.Pytester) -> None:
    result = suite.runpytest("--real", "podmann")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --real: unknown: podmann"])


@pytest.mark.parametrize("names", ["", '"podmann"'])
def test_a_mark_without_a_known_tool_is_a_usage_error(suite: pytest.Pytester, names: str) -> None:
    suite.makepyfile(f"import pytest\n@pytest.mark.real({names})\ndef test_it(): pass\n")
    result = suite.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *::test_it: the mark `real` takes names among *, apt, *"])


def test_a_golden_file_is_written_when_asked_and_then_compared(suite: pytest.Pytester) -> None:
    suite.makepyfile(_GOLDEN)
    suite.runpytest().assert_outcomes(failed=1)
    suite.runpytest("--update-golden").assert_outcomes(passed=1)
    assert (suite.path / "golden" / "text.txt").read_text() == "one\ntwo\n"
    suite.runpytest().assert_outcomes(passed=1)


def test_a_golden_file_that_differs_shows_how(suite: pytest.Pytester) -> None:
    suite.makepyfile(_GOLDEN)
    (suite.mkdir("golden") / "text.txt").write_text("one\nother\n")
    result = suite.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["-other", "+two", "if this run is right: pytest --update-golden"])


def test_a_golden_file_is_compared_byte_for_byte(suite: pytest.Pytester) -> None:
    suite.makepyfile(_GOLDEN)
    (suite.mkdir("golden") / "text.txt").write_bytes(b"one\r\ntwo\n")
    suite.runpytest().assert_outcomes(failed=1)


def test_a_unit_test_sees_nothing_of_the_callers_environment(
    context: Context, tmp_path: Path
) -> None:
    assert context.environ.keys() == {"PATH", "HOME"}
    assert context.cache.is_relative_to(tmp_path)


def test_a_real_test_sees_the_callers_environment(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    suite.makepyfile(_CONTEXT)
    suite.runpytest("--real", "slow").assert_outcomes(passed=1)


def test_emulation_is_the_processors_own_on_arm64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "_BINFMT_AARCH64", Path(os.devnull))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert conftest.emulation_works()
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert not conftest.emulation_works()


def test_emulation_follows_the_kernels_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = tmp_path / "qemu-aarch64"
    monkeypatch.setattr(conftest, "_BINFMT_AARCH64", registered)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert not conftest.emulation_works()
    registered.write_text("enabled\ninterpreter /usr/bin/qemu-aarch64-static\n")
    assert conftest.emulation_works()
    registered.write_text("disabled\n")
    assert not conftest.emulation_works()

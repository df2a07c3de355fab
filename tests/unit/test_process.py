"""Programs: what they print comes whole, and each way of failing is told from the others."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from builder import process
from builder.errors import ExternalError, MissingError, ToolError

PYTHON = sys.executable


def test_what_a_program_prints_is_returned() -> None:
    done = process.run([PYTHON, "-c", "import sys; print('out'); print('err', file=sys.stderr)"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")
    assert done.argv[0] == PYTHON


def test_both_pipes_are_drained_together() -> None:
    code = (
        "import sys\nfor _ in range(4000): print('x' * 999, file=(sys.stdout, sys.stderr)[_ % 2])"
    )
    done = process.run([PYTHON, "-c", code])
    assert len(done.stdout) == len(done.stderr) == 2_000_000


def test_bytes_that_are_no_text_are_replaced() -> None:
    done = process.run([PYTHON, "-c", "import os; os.write(1, b'a\\xffb')"])
    assert done.stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_the_environment_is_replaced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLERS", "secret")
    code = "import os; print(os.environ.get('CALLERS'), os.environ.get('OURS'))"
    assert process.run([PYTHON, "-c", code], env={"OURS": "1"}).stdout == "None 1\n"
    assert process.run([PYTHON, "-c", code]).stdout == "secret None\n"


def test_nothing_is_read_from_our_own_stdin() -> None:
    reads, writes = os.pipe()
    os.write(writes, b"meant for us")
    os.close(writes)
    own = os.dup(0)
    os.dup2(reads, 0)
    try:
        done = process.run([PYTHON, "-c", "import sys; print(repr(sys.stdin.read()))"])
    finally:
        os.dup2(own, 0)
        os.close(own)
        os.close(reads)
    assert done.stdout == "''\n"


def test_a_program_reads_what_it_is_given_and_no_more() -> None:
    code = "import sys; print(sys.stdin.read()[::-1])"
    assert process.run([PYTHON, "-c", code], stdin="\u00e4b").stdout == "b\u00e4\n"
    assert process.run([PYTHON, "-c", "pass"], stdin="x" * 1_000_000).returncode == 0


def test_what_a_program_was_given_to_read_is_in_no_message() -> None:
    code = "import sys, time; print(len(sys.stdin.read())); sys.stdout.flush(); time.sleep({})"
    with pytest.raises(ToolError) as failed:
        process.run([PYTHON, "-c", code.format("'x'")], stdin="canary")
    with pytest.raises(ExternalError) as late:
        process.run([PYTHON, "-S", "-c", code.format(60)], stdin="canary", timeout_seconds=1)
    for error in (failed.value, late.value):
        assert "canary" not in f"{error} {error!r} {vars(error)}"


def test_the_folder_is_the_one_given(tmp_path: Path) -> None:
    done = process.run([PYTHON, "-c", "import os; print(os.getcwd())"], cwd=tmp_path)
    assert done.stdout.strip() == str(tmp_path.resolve())


def test_an_absent_folder_is_not_taken_for_an_absent_program(tmp_path: Path) -> None:
    with pytest.raises(ExternalError, match="no folder") as caught:
        process.run([PYTHON, "-c", ""], cwd=tmp_path / "none")
    assert not isinstance(caught.value, MissingError)


@pytest.mark.parametrize("argv", [["no-such-program-here"], ["/no/such/program"], ["/etc/hosts/x"]])
def test_an_absent_program_is_missing(argv: list[str]) -> None:
    with pytest.raises(MissingError) as caught:
        process.run(argv)
    assert argv[0] in caught.value.message


def test_a_file_that_is_no_program_is_missing(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/no/such/interpreter\n")
    with pytest.raises(MissingError, match="Permission denied"):
        process.run([str(plain)])
    plain.chmod(0o755)
    with pytest.raises(MissingError):
        process.run([str(plain)])


def test_a_program_for_another_processor_is_missing(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xff\xff" + bytes(100))
    foreign.chmod(0o755)
    with pytest.raises(MissingError, match=r"(?i)exec format error"):
        process.run([str(foreign)])


def test_a_failure_has_its_status_and_the_end_of_stderr() -> None:
    code = "import sys; [print('line', n, file=sys.stderr) for n in range(50)]; sys.exit(3)"
    with pytest.raises(ToolError) as caught:
        process.run([PYTHON, "-c", code])
    error = caught.value
    assert error.returncode == 3
    assert "status 3" in error.message
    assert "line 49" in error.message
    assert "line 37" not in error.message
    assert error.stderr.splitlines()[0] == "line 0"


def test_a_failure_is_returned_where_the_caller_looks_himself() -> None:
    assert process.run([PYTHON, "-c", "raise SystemExit(7)"], check=False).returncode == 7


def test_a_program_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    started = time.monotonic()
    with pytest.raises(ExternalError, match=r"longer than 1\.5 seconds"):
        process.run([PYTHON, "-S", "-c", code], timeout_seconds=1.5)
    assert time.monotonic() - started < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)

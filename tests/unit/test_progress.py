"""What long work shows: lines for a log, a bar for a terminal, sizes for people."""

from __future__ import annotations

import io
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder import progress
from builder.progress import PlainProgress, Progress, TerminalProgress, format_count, format_size


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (999_499, "999 kB"),
        (999_600, "1 MB"),
        (12_345_678, "12.3 MB"),
        (2_880_000_000, "2.88 GB"),
        (999_999_999_999, "1 TB"),
        (1_500_000_000_000, "1.5 TB"),
    ],
)
def test_a_size_is_shown_in_three_digits(size_bytes: int, shown: str) -> None:
    assert format_size(size_bytes) == shown


@given(st.integers(0, 10**15 - 10**12))
def test_a_size_is_never_shown_as_a_power(size_bytes: int) -> None:
    number, unit = format_size(size_bytes).split()
    scale = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}[unit]
    assert "e" not in number
    assert float(number) * scale == pytest.approx(size_bytes, rel=0.01)


def test_the_base_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Progress()
    silent.stage("lock", "done")
    silent.note("a line")
    with silent.task("fetch", 10) as advance:
        advance(10)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_log_gets_lines_only() -> None:
    stream = io.StringIO()
    plain = PlainProgress(stream)
    with plain.task("fetch", 2_000_000) as advance:
        advance(1_000_000)
        advance(1_000_000)
    with plain.task("nothing", 0):
        pass
    plain.stage("fetch", "2 files")
    assert stream.getvalue() == "        fetch of 2 MB begins\nfetch   2 files\n"


def test_lines_of_several_threads_stay_whole() -> None:
    stream = io.StringIO()
    plain = PlainProgress(stream)
    texts = [f"{number}" * 50 for number in range(8)]
    workers = [threading.Thread(target=plain.note, args=(text,)) for text in texts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(line.strip() for line in stream.getvalue().splitlines()) == sorted(texts)


def test_a_terminal_gets_a_bar_that_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REDRAW_SECONDS", 0.0)
    stream = io.StringIO()
    with TerminalProgress(stream).task("fetch", 2_000_000) as advance:
        advance(500_000)
        advance(500_000)
    drawn = stream.getvalue().split("\r\x1b[K")
    assert drawn[0] == ""
    assert drawn[-1] == ""
    assert "500 kB of 2 MB" in drawn[1]
    assert "1 MB of 2 MB" in drawn[2]
    assert drawn[2].count("━") == drawn[2].count("─") == 14


def test_the_bar_goes_when_the_work_fails() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyError), TerminalProgress(stream).task("fetch", 0):
        raise KeyError
    assert stream.getvalue().endswith("\r\x1b[K")


def test_more_than_announced_fills_the_bar_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REDRAW_SECONDS", 0.0)
    stream = io.StringIO()
    with TerminalProgress(stream).task("fetch", 10) as advance:
        advance(25)
    assert stream.getvalue().count("━") == 28


def test_one_is_not_many() -> None:
    assert [format_count(number, "wheel") for number in (0, 1, 2)] == [
        "0 wheels",
        "1 wheel",
        "2 wheels",
    ]
    assert format_count(2, "binary", "binaries") == "2 binaries"

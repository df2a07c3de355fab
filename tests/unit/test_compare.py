"""The arithmetic of the benches; what they time is not for a test to say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.compare import Timing, measure, ratio, report, table

FAST = Timing(label="fast", seconds=(0.3, 0.1, 9.0))
SLOW = Timing(label="slower", seconds=(0.5, 0.7, 0.6, 0.6))


def test_the_median_leaves_a_disturbed_round_out() -> None:
    assert FAST.median_seconds == pytest.approx(0.3)
    assert SLOW.median_seconds == pytest.approx(0.6)


def test_the_ratio_is_that_of_the_medians() -> None:
    assert ratio(SLOW, FAST) == pytest.approx(2.0)
    assert ratio(FAST, SLOW) == pytest.approx(0.5)
    assert ratio(FAST, FAST) == 1.0


def test_the_table_compares_with_the_first() -> None:
    assert table([FAST, SLOW]).splitlines() == [
        "           median    fastest    slowest   ratio",
        "fast      0.300 s    0.100 s    9.000 s    1.00",
        "slower    0.600 s    0.500 s    0.700 s    2.00",
    ]


def test_commands_take_turns_and_the_first_round_is_not_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"import sys; open({str(log)!r}, 'a').write(sys.argv[1])"
    commands = {name: [sys.executable, "-c", script, name] for name in ("a", "b")}
    timings = measure(commands, rounds=2)
    assert log.read_text() == "ba" + "ab" + "ba"
    assert [(timing.label, len(timing.seconds)) for timing in timings] == [("a", 2), ("b", 2)]


def test_a_report_prints_the_table_and_keeps_every_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report("it", [FAST, SLOW], folder=tmp_path / "bench")
    assert table([FAST, SLOW]) in capsys.readouterr().out
    kept = json.loads((tmp_path / "bench" / "it.json").read_text())
    assert kept["seconds"] == {"fast": [0.3, 0.1, 9.0], "slower": [0.5, 0.7, 0.6, 0.6]}

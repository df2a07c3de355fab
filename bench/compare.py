"""Times commands side by side and says how they compare; promises nothing about either.

Rounds are interleaved, in alternating order, so that a machine that grows slower or faster in the
meantime weighs on all commands alike; the first round only warms the caches up.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder import process

RESULTS = Path(__file__).resolve().parent.parent / "build" / "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The wall-clock times of one command, in seconds, one for each round; at least one."""

    label: str
    seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        """The middle one, so that a few disturbed rounds do not count."""
        return statistics.median(self.seconds)


def measure(commands: Mapping[str, Sequence[str]], rounds: int) -> tuple[Timing, ...]:
    """Run every command `rounds` times; the result is in the order of `commands`.

    Raises MissingError where a program is not there, ToolError where one fails.
    """
    seconds: dict[str, list[float]] = {label: [] for label in commands}
    labels = list(commands)
    for index in range(rounds + 1):
        for label in labels if index % 2 else reversed(labels):
            spent = _time(commands[label])
            if index:
                seconds[label].append(spent)
    return tuple(Timing(label=label, seconds=tuple(seconds[label])) for label in labels)


def _time(argv: Sequence[str]) -> float:
    start = time.perf_counter()
    process.run(argv)
    return time.perf_counter() - start


def ratio(timing: Timing, reference: Timing) -> float:
    """How many times the reference's median time this one takes; below 1 is faster."""
    return timing.median_seconds / reference.median_seconds


def table(timings: Sequence[Timing]) -> str:
    """The timings as text, each beside the first one."""
    width = max(len(timing.label) for timing in timings)
    lines = [f"{'':{width}}  {'median':>9}  {'fastest':>9}  {'slowest':>9}  {'ratio':>6}"]
    for timing in timings:
        figures = (timing.median_seconds, min(timing.seconds), max(timing.seconds))
        columns = "  ".join(f"{figure:7.3f} s" for figure in figures)
        lines.append(f"{timing.label:{width}}  {columns}  {ratio(timing, timings[0]):6.2f}")
    return "\n".join(lines) + "\n"


def report(name: str, timings: Sequence[Timing], folder: Path = RESULTS) -> None:
    """Print the table, and leave every time in `folder`/`name`.json."""
    rounds = len(timings[0].seconds)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{name}: {rounds} rounds on {machine}")
    print(table(timings))
    folder.mkdir(parents=True, exist_ok=True)
    times = {timing.label: timing.seconds for timing in timings}
    document = {"machine": machine, "seconds": times}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

"""What long work shows while it runs: a bar on a terminal, plain lines elsewhere.

All of it goes to the stream that `cli` passes in (stderr); stdout stays free for data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, TextIO

_REDRAW_SECONDS = 0.1
_BAR_WIDTH = 28


class Advance(Protocol):
    """Called with a number of bytes whenever that many more are done; from any thread."""

    def __call__(self, size_bytes: int, /) -> None:
        """Count `size_bytes` more."""


class Progress:
    """Shows nothing; the base of what does."""

    def stage(self, name: str, text: str) -> None:
        """One line: the stage `name` has ended, and `text` says with what."""

    def note(self, text: str) -> None:
        """A line that is worth reading while the work goes on."""

    @contextmanager
    def task(self, label: str, total_bytes: int) -> Iterator[Advance]:
        """Show how far a piece of work is; yields the function that counts bytes."""
        yield lambda size_bytes: None


class PlainProgress(Progress):
    """Lines only, for a log file or a pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def stage(self, name: str, text: str) -> None:
        """Print `name` and `text` in two columns."""
        self._line(f"{name:<7} {text}")

    def note(self, text: str) -> None:
        """Print `text`, indented under the stage that is running."""
        self._line(f"        {text}")

    @contextmanager
    def task(self, label: str, total_bytes: int) -> Iterator[Advance]:
        """Print the label once, when the first bytes come."""
        announced = threading.Event()

        def advance(_: int) -> None:
            if not announced.is_set():
                announced.set()
                self.note(f"{label} of {format_size(total_bytes)} begins")

        yield advance

    def _line(self, text: str) -> None:
        with self._lock:
            _show(self._stream, f"{printable(text)}\n")


class TerminalProgress(PlainProgress):
    """A bar that is redrawn in place, and cleared when its task ends."""

    @contextmanager
    def task(self, label: str, total_bytes: int) -> Iterator[Advance]:
        """Draw a bar for one task; tasks do not nest."""
        bar = _Bar(self._stream, label, total_bytes, self._lock)
        try:
            yield bar.advance
        finally:
            bar.clear()


class _Bar:
    def __init__(self, stream: TextIO, label: str, total_bytes: int, lock: threading.Lock) -> None:
        self._stream, self._label, self._total, self._lock = stream, label, total_bytes, lock
        self._done = 0
        self._started = time.monotonic()
        self._drawn = 0.0

    def advance(self, size_bytes: int) -> None:
        with self._lock:
            self._done += size_bytes
            now = time.monotonic()
            if now - self._drawn >= _REDRAW_SECONDS:
                self._drawn = now
                _show(self._stream, f"\r\x1b[K{self._text(now)}")

    def clear(self) -> None:
        with self._lock:
            _show(self._stream, "\r\x1b[K")

    def _text(self, now: float) -> str:
        share = min(self._done / self._total, 1.0) if self._total else 0.0
        filled = round(share * _BAR_WIDTH)
        rate = format_size(int(self._done / max(now - self._started, 0.001)))
        bar = "━" * filled + "─" * (_BAR_WIDTH - filled)
        total = format_size(self._total)
        return f"{self._label:<10} {bar} {format_size(self._done)} of {total}  {rate}/s"


def _show(stream: TextIO, text: str) -> None:
    """Write and flush; a reader who has gone does not stop the work."""
    with suppress(BrokenPipeError):
        stream.write(text)
        stream.flush()


def printable(text: str) -> str:
    """`text` with control characters shown instead of sent: names in files are others' words.

    Line breaks stay: a message of ours may have several lines.
    """
    return "".join(
        char if char.isprintable() or char in "\n " else char.encode("unicode_escape").decode()
        for char in text
    )


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """A number of things for people: `1 wheel`, `2 wheels`."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def format_size(size_bytes: int) -> str:
    """A size for people: decimal units, three significant digits (`2.88 GB`)."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:  # what rounds to four digits goes into the next unit
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"

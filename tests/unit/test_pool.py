"""Threads: all work is done on leaving, and none is begun after a failure."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future
from contextlib import suppress

from builder.pool import threads


def test_all_is_done_on_leaving() -> None:
    done: list[int] = []
    with threads(2) as pool:
        for number in range(20):
            pool.submit(done.append, number)
    assert sorted(done) == list(range(20))


def test_a_failure_does_not_wait_for_what_runs_and_drops_what_waits() -> None:
    gate, running = threading.Event(), threading.Event()
    later: list[int] = []

    def block() -> None:
        running.set()
        gate.wait(60)

    tasks: list[Future[None]] = []
    with suppress(KeyboardInterrupt), threads(1) as pool:
        tasks += [pool.submit(block), pool.submit(later.append, 1)]
        running.wait(60)
        signal.raise_signal(signal.SIGINT)
        tasks.clear()  # not reached
    held, waiting = tasks
    assert waiting.cancelled()
    assert not held.done()
    gate.set()
    held.result(60)
    assert later == []

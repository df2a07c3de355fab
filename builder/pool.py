"""Threads for work that waits or hashes, given up at once when something goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def threads(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of `jobs` threads; all are done on leaving, unless an exception is on its way.

    Then queued work is dropped and running work is not waited for: an interrupt must not take as
    long as the download that it interrupts.
    """
    pool = ThreadPoolExecutor(jobs)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()

"""The only place that starts other programs.

Argument lists only, never a shell. Both pipes are drained together, an absent binary is told
from a failed one, and the child ends when we are interrupted.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from builder.errors import ExternalError, MissingError, ToolError

_STDERR_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Completed:
    """What a program left behind; both streams as text, undecodable bytes replaced."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """The signature of `run`, so that callers take it as a value and tests pass another."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        check: bool = True,
        timeout_seconds: float | None = None,
        stdin: str | None = None,
    ) -> Completed:
        """See `run`."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    timeout_seconds: float | None = None,
    stdin: str | None = None,
) -> Completed:
    """Run a program to its end and return what it printed.

    `env` replaces the whole environment where given; `stdin` is all that the program can read
    there, nothing where absent, and in no message. Raises MissingError where the program does
    not exist or cannot run here, ToolError where it fails and `check` is set, ExternalError where
    it takes longer than `timeout_seconds`.
    """
    try:
        done = subprocess.run(  # noqa: S603  (argv lists are this module's contract)
            list(argv),
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else None,
            input=None if stdin is None else stdin.encode(),
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
    except OSError as error:  # also ENOEXEC: a program for another processor
        if cwd is not None and not cwd.is_dir():
            raise ExternalError(f"cannot run {argv[0]}: no folder {cwd}") from error
        raise MissingError(f"{argv[0]}: {error.strerror or 'cannot be run'}") from error
    except subprocess.TimeoutExpired as error:
        raise ExternalError(f"{argv[0]} took longer than {timeout_seconds:g} seconds") from error
    out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    completed = Completed(tuple(argv), done.returncode, out, err)
    if check and completed.returncode != 0:
        raise _failure(completed)
    return completed


def _failure(completed: Completed) -> ToolError:
    tail = completed.stderr.strip().splitlines()[-_STDERR_TAIL_LINES:]
    message = f"{shlex.join(completed.argv[:3])} … ended with status {completed.returncode}"
    if tail:
        message += ":\n" + "\n".join(f"  {line}" for line in tail)
    return ToolError(message, returncode=completed.returncode, stderr=completed.stderr)

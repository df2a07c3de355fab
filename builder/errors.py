"""Everything that can go wrong, and what a judge can say.

One class per *reaction*, so that a script can tell "the answer is no" from "the tool broke":

    BuilderError              70  our bug, unless a subclass says otherwise
    ├── FindingsError          1  a judge said no; carries the findings
    ├── UsageError             2  the command line or a file that the user wrote
    │   └── RecipeError        2  … with every problem, its file, line and field
    ├── LockError              3  unresolvable
    │   └── StaleLockError     3  … or no longer what the recipe asks for
    ├── MissingError           4  an engine, a tool or a host capability is absent
    └── ExternalError          5  a tool, the network or a download failed
        ├── ToolError          5  … a program ended with a status other than 0
        └── OfflineError       5  … the network is needed, and `--offline` forbids it

An interrupt is Python's own KeyboardInterrupt and ends with 130.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class BuilderError(Exception):
    """A failure that the user is told about in two lines: what happened, and what to do next.

    `message` names what happened and where; `hint` says what to do, or is None where nothing
    useful can be said.
    """

    exit_code = 70

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(BuilderError):
    """The command line, or a file that the user wrote, asks for something that cannot be."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong in a file that a person wrote.

    `line` is 1-based, None where no line can be named; `field` is a dotted path such as
    `files[0].to`, None for the document as a whole.
    """

    file: str
    message: str
    line: int | None = None
    field: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        subject = f"{self.field}: " if self.field else ""
        return f"{place}: {subject}{self.message}"


class RecipeError(UsageError):
    """A recipe (or another file of ours) that cannot be read; every problem at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems]
        hints = [problem.hint for problem in self.problems if problem.hint]
        super().__init__("\n".join(lines), hint="\n".join(dict.fromkeys(hints)) or None)


class LockError(BuilderError):
    """No set of packages satisfies the recipe, or the lock file cannot be used."""

    exit_code = 3


class StaleLockError(LockError):
    """A lock that does not answer the recipe, or no longer holds: `what`, and a line a change."""

    def __init__(self, what: str, changes: Iterable[str], *, hint: str | None = None) -> None:
        super().__init__("\n".join([f"{what}:", *(f"  {line}" for line in changes)]), hint=hint)


class MissingError(BuilderError):
    """Something that the host would have to have is not there."""

    exit_code = 4


class ExternalError(BuilderError):
    """A tool, the network or a remote server failed; trying again may help."""

    exit_code = 5


class ToolError(ExternalError):
    """A program ran and ended with a status other than 0."""

    def __init__(
        self, message: str, *, returncode: int, stderr: str, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.returncode = returncode
        self.stderr = stderr


class OfflineError(ExternalError):
    """The network would be needed, and `--offline` forbids it."""


class Severity(StrEnum):
    """How much a finding weighs: only an ERROR makes the exit status 1."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a judge (audit, verify, doctor) has to say.

    `rule` is a name such as `cuda-runtime-mismatch`; `subject` is what the finding is about (a
    package, a path in an image); `evidence` holds plain values only, so that it prints as JSON.
    """

    rule: str
    severity: Severity
    subject: str
    message: str
    hint: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The finding as JSON-ready values, in a fixed key order."""
        return {
            "rule": self.rule,
            "severity": str(self.severity),
            "subject": self.subject,
            "message": self.message,
            "hint": self.hint,
            "evidence": dict(self.evidence),
        }


class FindingsError(BuilderError):
    """A judge found an error, and what was asked for must not go on."""

    exit_code = 1

    def __init__(
        self, message: str, findings: Iterable[Finding], *, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.findings = tuple(findings)


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The heaviest severity among `findings`, None where there are none."""
    order = list(Severity)
    return min((finding.severity for finding in findings), key=order.index, default=None)

"""Errors: each kind of reaction has its exit status, and every problem is told."""

from __future__ import annotations

import json
import re

import pytest

from builder import errors
from builder.errors import (
    BuilderError,
    Finding,
    FindingsError,
    Problem,
    RecipeError,
    Severity,
    ToolError,
    worst,
)

EXIT_CODES = {
    "BuilderError": 70,
    "FindingsError": 1,
    "UsageError": 2,
    "RecipeError": 2,
    "LockError": 3,
    "StaleLockError": 3,
    "MissingError": 4,
    "ExternalError": 5,
    "ToolError": 5,
    "OfflineError": 5,
}


def finding(severity: Severity) -> Finding:
    return Finding(
        rule="wrong-architecture",
        severity=severity,
        subject="numpy",
        message="is for x86_64",
        evidence={"machine": "x86_64"},
    )


def test_every_kind_has_the_exit_status_that_the_docstring_draws() -> None:
    kinds = {
        name: kind.exit_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, BuilderError)
    }
    assert kinds == EXIT_CODES
    drawn = dict(re.findall(r"(?m)^[ │├└─]*(\w+Error) +(\d+) ", errors.__doc__ or ""))
    assert drawn == {name: str(code) for name, code in EXIT_CODES.items()}


def test_a_recipe_error_tells_every_problem_and_each_hint_once() -> None:
    problems = [
        Problem(file="r.yaml", line=3, field="files[0].to", message="no path", hint="write one"),
        Problem(file="r.yaml", line=4, field="files[1].to", message="no path", hint="write one"),
        Problem(file="r.yaml", message="is empty"),
    ]
    error = RecipeError(iter(problems))
    assert error.problems == tuple(problems)
    assert error.message.splitlines() == [
        "r.yaml:3: files[0].to: no path",
        "r.yaml:4: files[1].to: no path",
        "r.yaml: is empty",
    ]
    assert error.hint == "write one"
    assert RecipeError(problems[2:]).hint is None


def test_an_error_prints_as_its_message() -> None:
    error = ToolError("uv … ended with status 2", returncode=2, stderr="no", hint="try again")
    assert str(error) == error.message
    assert (error.returncode, error.stderr, error.hint) == (2, "no", "try again")


@pytest.mark.parametrize(
    ("severities", "expected"),
    [
        ((), None),
        ((Severity.INFO,), Severity.INFO),
        ((Severity.INFO, Severity.ERROR, Severity.WARNING), Severity.ERROR),
        ((Severity.WARNING, Severity.INFO), Severity.WARNING),
    ],
)
def test_the_worst_is_the_heaviest(
    severities: tuple[Severity, ...], expected: Severity | None
) -> None:
    assert worst(map(finding, severities)) is expected


def test_a_finding_is_plain_values_in_one_order() -> None:
    values = finding(Severity.ERROR).as_dict()
    assert list(values) == ["rule", "severity", "subject", "message", "hint", "evidence"]
    assert json.loads(json.dumps(values))["severity"] == "error"
    assert FindingsError("no", iter([finding(Severity.ERROR)])).findings[0].subject == "numpy"

"""How results look on a terminal or in a log; JSON where asked. Decides nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from builder.errors import Finding, Severity
from builder.pipeline import Outcome
from builder.progress import format_count, format_size, printable

_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.INFO: "36"}


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_lines(lines: Iterable[str]) -> None:
    """Lines for people, without whatever a terminal would act on."""
    for line in lines:
        print(_one_line(line))


def print_findings(findings: Iterable[Finding]) -> None:
    """Every finding with its hint, the heaviest first; colours where stdout is a terminal."""
    order = list(Severity)
    for finding in sorted(findings, key=lambda item: order.index(item.severity)):
        severity = _coloured(str(finding.severity), _COLOURS[finding.severity])
        about = "" if finding.message.startswith(finding.subject) else f"{finding.subject}: "
        print(f"{severity}: {finding.rule}: {_one_line(about + finding.message)}")
        if finding.hint:
            print(f"  hint: {finding.hint}")


def print_outcome(outcome: Outcome) -> None:
    """The one summary at the end of a build."""
    image = outcome.built.image
    name = f"{outcome.job.loaded.recipe.name} for {outcome.job.target.name}"
    layers = format_count(len(image.layers), "layer")
    print_findings([*outcome.audit.findings, *outcome.verified.findings])
    print(f"{name}: {image.digest}")
    print(f"  {outcome.built.layout}: {layers}, {format_size(image.size)}")
    print(
        f"  audit {verdict(outcome.audit.findings)}, "
        f"static checks {verdict(outcome.verified.findings)}, "
        f"device checks {outcome.verified.device}"
    )


def _one_line(text: str) -> str:
    """What is told may hold names out of files, whose line breaks are none of ours."""
    return printable(text).replace("\n", "\\n")


def verdict(findings: Iterable[Finding]) -> str:
    """What a judge's findings come to, in a word or two."""
    severities = [finding.severity for finding in findings]
    if errors := severities.count(Severity.ERROR):
        return f"failed with {format_count(errors, 'error')}"
    warnings = severities.count(Severity.WARNING)
    return "passed" if not warnings else f"passed with {format_count(warnings, 'warning')}"


def _coloured(text: str, colour: str) -> str:
    return f"\x1b[1;{colour}m{text}\x1b[0m" if sys.stdout.isatty() else text

"""A stand-in for uv: what it was asked, what it answers, and locks such as it writes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from builder.errors import ToolError
from builder.process import Completed

SHA256 = "a" * 64
NO_SOLUTION = """\
warning: something
error: No solution found when resolving dependencies
  cause: Because there is no version of numpy>=99 and you require numpy>=99, we can conclude …
"""


def wheel(filename: str, **changes: Any) -> dict[str, Any]:
    """A wheel as uv's lock has it; a key that is changed to None is left out."""
    entry = {
        "url": f"https://files.example/{filename}",
        "size": 1000,
        "hashes": {"sha256": SHA256},
        **changes,
    }
    return {key: value for key, value in entry.items() if value is not None}


def package(
    name: str, *wheels: dict[str, Any], version: str = "1.0", **more: Any
) -> dict[str, Any]:
    found = {"wheels": list(wheels)} if wheels else {}
    return {"name": name, "version": version, **found, **more}


def pylock(*packages: dict[str, Any]) -> str:
    return tomli_w.dumps({"lock-version": "1.0", "created-by": "uv", "packages": list(packages)})


@dataclass
class Uv:
    """Leaves `answer` as the lock, or fails with what it `says`; `answers` go first, in order.

    An answer that begins with `error:` or `warning:` is a failure that says so.
    """

    answer: str | None = None
    says: str | None = None
    answers: list[str] = field(default_factory=list)
    warnings: str = ""
    argv: list[str] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    stubs: list[str] = field(default_factory=list)
    asked: list[list[str]] = field(default_factory=list)

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        **settings: Any,
    ) -> Completed:
        assert cwd is not None
        assert env is not None
        self.argv, self.env = list(argv), env
        self.files = {path.name: tomllib.loads(path.read_text()) for path in cwd.glob("*.toml")}
        self.stubs = sorted(path.name for path in cwd.glob("stubs/*"))
        self.asked.append(self.files["pyproject.toml"]["project"]["dependencies"])
        answer = self.answers.pop(0) if self.answers else self.answer
        says = answer if answer and answer.startswith(("error:", "warning:")) else self.says
        if says is not None:
            raise ToolError("uv … ended with status 1", returncode=1, stderr=says)
        if answer is not None:
            (cwd / "pylock.toml").write_text(answer)
        return Completed(tuple(argv), 0, "", self.warnings)

"""The law, read from `policy.yaml`: rules, what CUDA's names say, and what is let pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import Annotated, Self

import yaml
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from builder.elf import ElfFacts, elf_hash
from builder.errors import Finding, Severity, UsageError
from builder.resources import package_file

_CUDA_MAJORS = range(9, 21)
_BRACES = re.compile(r"\{([^{}]*)\}")
_PRIVATE_NAME = r"(?P<private>-[0-9a-f]{8})?"  # auditwheel puts a hash before `.so`


def _expand_braces(pattern: str) -> tuple[str, ...]:
    """`lib{a,b}.so` as two patterns; fnmatch knows no braces."""
    match = _BRACES.search(pattern)
    if match is None:
        return (pattern,)
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return tuple(
        part
        for choice in match.group(1).split(",")
        for part in _expand_braces(head + choice + tail)
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


Text = Annotated[str, AfterValidator(_one_line)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rule(_Model):
    """What a rule means, what to do about it, and where that is written down."""

    severity: Severity
    meaning: Text
    fix: Text
    source: str


class Platform(_Model):
    """A platform's word for its processor, and where its loader looks by itself."""

    machine: str
    libraries: tuple[str, ...]


class CudaRuntime(_Model):
    """Libraries and packages whose names carry CUDA's major version."""

    libraries: tuple[str, ...]
    packages: tuple[str, ...]


class Allowance(_Model):
    """What would be a finding, and why it is none; the patterns must all match.

    `path` is inside the wheel, or below site-packages in an image.
    """

    rules: tuple[str, ...]
    package: str = "*"
    path: str = "*"
    library: str = "*"
    reason: Text
    source: str

    def covers(self, rule: str, *, package: str | None, path: str, library: str) -> bool:
        """Whether this lets `library`, needed by the file `path` of `package`, pass `rule`.

        Where the package is not known (None), the path alone must say which one is meant.
        """
        known = self.path != "*" if package is None else fnmatchcase(package, self.package)
        return (
            known
            and rule in self.rules
            and _matches(path, self.path)
            and _matches(library, self.library)
        )


@dataclass(frozen=True, slots=True)
class CudaLibrary:
    """A CUDA library by its name: `libcudart.so.12` is (`libcudart`, 12).

    `private` is set for a copy under a name that only one wheel uses.
    """

    name: str
    major: int
    private: bool = False

    @property
    def soname(self) -> str:
        """The name under which CUDA itself has it."""
        return f"{self.name}.so.{self.major}"


class Policy(_Model):
    """The whole law."""

    rules: dict[str, Rule]
    machines: dict[int, str]
    platforms: dict[str, Platform]
    cuda_runtime: CudaRuntime
    driver_libraries: tuple[str, ...]
    allowances: tuple[Allowance, ...]

    @model_validator(mode="after")
    def _known_rules(self) -> Self:
        named = {rule for allowance in self.allowances for rule in allowance.rules}
        if unknown := named - self.rules.keys():
            raise ValueError(f"allowances for rules that do not exist: {sorted(unknown)}")
        return self

    def platform(self, name: str) -> Platform:
        """The platform `linux/arm64`; UsageError for one that the law does not know."""
        if name not in self.platforms:
            raise UsageError(f"{name}: not one of the platforms {', '.join(self.platforms)}")
        return self.platforms[name]

    def finding(
        self, rule: str, subject: str, message: str, evidence: dict[str, object]
    ) -> Finding:
        """A finding of `rule`, with its severity and its way out."""
        law = self.rules[rule]
        return Finding(
            rule=rule,
            severity=law.severity,
            subject=subject,
            message=message,
            hint=law.fix,
            evidence=evidence,
        )

    def allowance(
        self, rule: str, *, package: str | None, path: str = "", library: str = ""
    ) -> Allowance | None:
        """The first allowance that covers a case; None where it is a finding."""
        return next(
            (
                allowance
                for allowance in self.allowances
                if allowance.covers(rule, package=package, path=path, library=library)
            ),
            None,
        )

    def is_driver(self, library: str) -> bool:
        """Whether the NVIDIA driver brings the library, at run time."""
        return any(fnmatchcase(library, pattern) for pattern in self.driver_libraries)

    def cuda_library(self, name: str) -> CudaLibrary | None:
        """What a library's name says about CUDA; None where it says nothing."""
        match = self._cuda_name.fullmatch(name)
        if match is None:
            return None
        return CudaLibrary(match["name"], int(match["major"]), private=match["private"] is not None)

    def cuda_libraries(self, facts: ElfFacts) -> tuple[CudaLibrary, ...]:
        """The CUDA libraries that an ELF file needs or is, as far as its facts go."""
        names = (
            *((facts.soname,) if facts.soname else ()),
            *facts.needed,
            *(need.library for need in facts.version_needs),
            *facts.candidates,
        )
        by_name = (self.cuda_library(name) for name in names)
        # CUDA names the version of its symbols after the library.
        by_hash = (self._cuda_hashes.get(value) for value in facts.version_hashes)
        return tuple(dict.fromkeys(found for found in (*by_name, *by_hash) if found is not None))

    def cuda_package_major(self, package: str) -> int | None:
        """The CUDA major that a package's normalised name speaks of."""
        for pattern in self._cuda_packages:
            if match := pattern.fullmatch(canonicalize_name(package)):
                return int(match["major"])
        return None

    @cached_property
    def _cuda_name(self) -> re.Pattern[str]:
        names = "|".join(re.escape(name) for name in self.cuda_runtime.libraries)
        return re.compile(rf"(?P<name>{names}){_PRIVATE_NAME}\.so\.(?P<major>\d+)(\.\d+)*")

    @cached_property
    def _cuda_packages(self) -> tuple[re.Pattern[str], ...]:
        return tuple(
            re.compile(
                re.escape(pattern)
                .replace(r"\*", ".*")
                .replace(re.escape("{major}"), r"(?P<major>\d+)")
            )
            for pattern in self.cuda_runtime.packages
        )

    @cached_property
    def _cuda_hashes(self) -> dict[int, CudaLibrary]:
        libraries = (
            CudaLibrary(name, major)
            for name in self.cuda_runtime.libraries
            for major in _CUDA_MAJORS
        )
        return {elf_hash(library.soname): library for library in libraries}


@cache
def load_policy() -> Policy:
    """The law that comes with this version of the program."""
    text = package_file("audit/policy.yaml").read_text(encoding="utf-8")
    return Policy.model_validate(yaml.safe_load(text))


def explain(rule: str) -> str:
    """What a rule means, for people; UsageError where there is no such rule."""
    law = _find_rule(rule)
    return (
        f"{rule} ({law.severity})\n\n{law.meaning}\n\nWhat to do: {law.fix}\nSource: {law.source}\n"
    )


def rule_dict(rule: str) -> dict[str, object]:
    """As `explain`, as JSON-ready values."""
    return {"rule": rule, **_find_rule(rule).model_dump(mode="json")}


def _find_rule(rule: str) -> Rule:
    rules = load_policy().rules
    if rule not in rules:
        raise UsageError(f"no rule {rule!r}", hint=f"the rules are {', '.join(sorted(rules))}")
    return rules[rule]


def _matches(text: str, pattern: str) -> bool:
    return any(fnmatchcase(text, part) for part in _expand_braces(pattern))

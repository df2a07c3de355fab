"""READ FIRST: the whole way from a recipe to a proven image, as one page of calls.

    recipe ─ lock ─▶ Lock ─ audit ─▶ Report
                      │
                      ▼ plan ─▶ Plan ─ render ─▶ Containerfile, image.def
                                 │
                                 ▼ engine ─▶ Built ─ verify ─▶ VerifyReport

Stages hand on frozen values and never reach back. Everything that a build leaves lies in one
folder; each file appears there whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import audit as audits
from builder import render
from builder.context import Context
from builder.engines.assemble import Assembler
from builder.engines.base import Built, Engine
from builder.errors import Finding, FindingsError, RecipeError, Severity, UsageError
from builder.lock import KEEP, Locked, Upgrade, lock_recipe
from builder.lock.base.image import fetch_base
from builder.lock.model import DebianBase, Guard, Lock, RegistryBase
from builder.lock.pylock import write_lock
from builder.lock.supply import Supply, open_supply
from builder.lock.vendor import bring, open_vendor, parse_place
from builder.oci.reference import Reference
from builder.plan import Plan, make_plan
from builder.progress import format_count, format_size
from builder.recipe import LoadedRecipe, load_recipe, unsupported
from builder.scratch import write_whole
from builder.targets import Target, find_target
from builder.verify import VerifyReport, verify

__all__ = [
    "Job",
    "Outcome",
    "audit",
    "build",
    "connect",
    "fetch",
    "jobs",
    "lock",
    "plan",
]


_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One image to make: a recipe for one of its targets, and the folder that it goes to."""

    loaded: LoadedRecipe
    target: Target
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a build made, stage by stage; `fetched_bytes` came over the network for it."""

    job: Job
    locked: Locked
    audit: audits.Report
    fetched_bytes: int
    built: Built
    verified: VerifyReport

    def as_dict(self) -> dict[str, object]:
        """The outcome as JSON-ready values; the reports themselves are in the build folder."""
        return {
            "name": self.job.loaded.recipe.name,
            "target": self.job.target.name,
            "folder": str(self.job.folder),
            "lock": {"path": str(self.locked.path), "written": self.locked.written},
            "audit": {**_counts(self.audit.findings), "bytes_read": self.audit.bytes_read},
            "fetch": {"bytes": self.fetched_bytes},
            "image": {
                "digest": self.built.image.digest,
                "size_bytes": self.built.image.size,
                "layers": len(self.built.image.layers),
                "layers_written": self.built.layers_written,
                "wheels_read": self.built.wheels_read,
                "engine": self.built.engine,
                "layout": str(self.built.layout),
            },
            "verify": {**_counts(self.verified.findings), "device": self.verified.device},
        }


def jobs(recipe: Path, *, only: str | None, folder: Path) -> list[Job]:
    """The recipe in the file `recipe` for each of its targets, or for `only` one of them.

    Raises RecipeError where it cannot be read or asks for what this version cannot do.
    """
    loaded = load_recipe(recipe)
    if problems := unsupported(loaded):
        raise RecipeError(problems)
    named = loaded.recipe.targets
    if only is not None and only not in named:
        find_target(only)
        raise UsageError(
            f"{recipe}: target: the recipe is for {', '.join(named)}, not for {only}",
            hint=f"add {only} to its targets",
        )
    own = folder / loaded.recipe.name
    return [
        Job(loaded=loaded, target=find_target(name), folder=own if len(named) == 1 else own / name)
        for name in named
        if only in (None, name)
    ]


def connect(
    job: Job, context: Context, places: Sequence[Path | Reference] = ()
) -> AbstractContextManager[Supply]:
    """The network as the job may use it, with the caller's credentials for its indexes.

    Of `places`, where files are vendored, the folders are looked into before the network is asked.
    """
    folders = [place for place in places if isinstance(place, Path)]
    return open_supply(context, indexes=job.loaded.recipe.index_urls, vendored=folders)


def lock(job: Job, supply: Supply, *, upgrade: Upgrade = KEEP, frozen: bool = False) -> Locked:
    """The first stage: see `lock_recipe`."""
    locked = lock_recipe(job.loaded, job.target, supply, upgrade=upgrade, frozen=frozen)
    state = "resolved" if locked.written else "up to date"
    supply.context.progress.stage("lock", f"{_contents(locked.lock)}, {state}: {locked.path}")
    for line in _on_base(locked.lock.guard) if locked.written else ():
        supply.context.progress.stage("lock", line)
    return locked


def audit(job: Job, lock: Lock, supply: Supply, *, deep: bool = False) -> audits.Report:
    """The second stage: what the lock will do on the target, before anything is fetched."""
    report = audits.audit(
        lock,
        cuda_major=job.target.cuda.major,
        exclude=job.loaded.recipe.exclude,
        http=supply.http,
        store=supply.store,
        context=supply.context,
        deep=deep,
    )
    supply.context.progress.stage("audit", report.summary)
    return report


def plan(job: Job, lock: Lock) -> Plan:
    """The third stage: every step and file of the image."""
    return make_plan(job.loaded.recipe, lock)


def build(
    job: Job,
    *,
    context: Context,
    upgrade: Upgrade = KEEP,
    frozen: bool = False,
    deep: bool = False,
    vendored: Sequence[str] = (),
) -> Outcome:
    """Every stage. Raises FindingsError where the audit or the verification finds an error.

    `vendored` are the places, folders or `oci://REF`, whose files are taken first.
    """
    places = [parse_place(text) for text in vendored]
    with connect(job, context, places) as supply:
        kept = [open_vendor(place, supply) for place in places]
        locked = lock(job, supply, upgrade=upgrade, frozen=frozen)
        brought = sum(bring(locked.lock, vendor, supply) for vendor in kept)
        report = audit(job, locked.lock, supply, deep=deep)
        _write_json(job, "audit.json", report.as_dict(), context)
        _stop_on_errors(report.findings, f"the audit of {locked.path} found", "nothing was built")
        image_plan = plan(job, locked.lock)
        _render(job, image_plan, locked, context)
        engine = Assembler(supply.store, context)
        engine.check(image_plan)
        fetched = brought + fetch(locked.lock, supply)
        context.progress.stage("fetch", f"{format_size(fetched)} over the network")
    built = _assemble(job, image_plan, engine, context)
    verified = _verify(job, locked.lock, built, context)
    return Outcome(
        job=job,
        locked=locked,
        audit=report,
        fetched_bytes=fetched,
        built=built,
        verified=verified,
    )


def fetch(lock: Lock, supply: Supply) -> int:
    """Bring every file of the lock into the store; returns how many bytes came for it."""
    fetched = 0
    if isinstance(lock.base, RegistryBase):
        fetched += fetch_base(lock.base, lock.platform, supply)
    return fetched + supply.store.fetch(
        [*lock.debs, *lock.wheels], supply.http, supply.context.progress, "fetch"
    )


def _render(job: Job, image_plan: Plan, locked: Locked, context: Context) -> None:
    texts = {
        "Containerfile": render.containerfile(image_plan),
        "image.def": render.apptainer(image_plan),
        locked.lock.filename: write_lock(locked.lock),
    }
    for name, text in texts.items():
        write_whole(job.folder / name, text.encode(), context.cache)
    context.progress.stage("render", ", ".join(texts))


def _assemble(job: Job, image_plan: Plan, engine: Engine, context: Context) -> Built:
    built = engine.build(image_plan, job.loaded.folder, job.folder / "oci")
    layers = f"{format_count(len(built.image.layers), 'layer')}, {built.layers_written} new"
    context.progress.stage("build", f"{layers}, {format_size(built.image.size)}")
    return built


def _verify(job: Job, lock: Lock, built: Built, context: Context) -> VerifyReport:
    report = verify(built.image, lock=lock, exclude=job.loaded.recipe.exclude, context=context)
    _write_json(job, "verify.json", {"image": built.image.digest, **report.as_dict()}, context)
    context.progress.stage("verify", report.summary)
    _stop_on_errors(report.findings, f"the verification of {built.layout} found", None)
    return report


def _contents(lock: Lock) -> str:
    parts = [format_count(len(lock.wheels), "wheel")]
    if isinstance(lock.base, DebianBase):
        parts.append(format_count(len(lock.debs), "deb"))
    parts += [f"{git.name} from git" for git in lock.gits]
    return ", ".join(parts)


def _on_base(guard: Guard) -> Iterator[str]:
    """What the lock puts before the base's own packages, and what it leaves unmet, a line each."""
    shadows = [f"{shadow.name} {shadow.base} with {shadow.version}" for shadow in guard.shadows]
    if shadows:
        yield f"shadows the base's {_listed(shadows, ', ')}"
    if guard.accepted:
        yield f"accepted: {_listed(guard.accepted, '; ')}"


def _listed(texts: Sequence[str], between: str) -> str:
    more = [f"and {len(texts) - _SHOWN_MAX} more"] if len(texts) > _SHOWN_MAX else []
    return between.join([*texts[:_SHOWN_MAX], *more])


def _write_json(job: Job, name: str, value: dict[str, Any], context: Context) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_whole(job.folder / name, text.encode(), context.cache)


def _stop_on_errors(findings: Sequence[Finding], what: str, so: str | None) -> None:
    errors = list(_errors(findings))
    if errors:
        number = format_count(len(errors), "error")
        raise FindingsError(f"{what} {number}" + (f"; {so}" if so else ""), findings)


def _errors(findings: Sequence[Finding]) -> Iterator[Finding]:
    return (finding for finding in findings if finding.severity is Severity.ERROR)


def _counts(findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "errors": len(list(_errors(findings))),
        "findings": [finding.as_dict() for finding in findings],
    }

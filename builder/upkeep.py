"""What is done with recipes and locks between builds: check, bump, vendor, export, look at a base.

Each is a short way through parts of the pipeline; what they decide is decided in the stages.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder import pipeline
from builder.context import Context
from builder.errors import (
    ExternalError,
    Finding,
    LockError,
    Severity,
    StaleLockError,
    UsageError,
)
from builder.lock import Locked, lock_recipe
from builder.lock import export as exports
from builder.lock import vendor as vendors
from builder.lock.base.description import Description, FoundImage, Tabled, describe
from builder.lock.base.facts import find_fact
from builder.lock.base.image import base_files, bring_image, fetch_base
from builder.lock.base.inventory import take_inventory
from builder.lock.changes.bump import Query, pinned_names, propose, propose_base, with_base
from builder.lock.changes.check import drift_of
from builder.lock.changes.edit import Change, apply, unified
from builder.lock.closure import answer, ask, resolve_lock
from builder.lock.model import Lock, LockedFile, LockedWheel, RegistryBase
from builder.lock.supply import Supply, open_supply
from builder.lock.vendor import Vendored
from builder.lock.wheels import Request
from builder.oci.manifest import INDEXES, read_index
from builder.oci.reference import Reference, parse_reference
from builder.pipeline import Job
from builder.recipe import LoadedRecipe, parse_recipe
from builder.scratch import write_whole
from builder.targets import Target

__all__ = ["Bump", "base", "bump", "check", "export", "tabled", "vendor", "write_bump"]

_BUMP_ATTEMPTS = 5
_NAMED = 6


def check(job: Job, supply: Supply) -> Locked:
    """The lock, where it answers the recipe and all that it names is still there and the same.

    Raises StaleLockError with a line for everything that drifted; offline only the recipe is
    looked at.
    """
    progress = supply.context.progress
    locked = lock_recipe(job.loaded, job.target, supply, frozen=True)
    progress.stage("lock", f"{locked.path} answers the recipe")
    if not supply.context.offline:
        lines = drift_of(locked.lock, recipe=job.loaded.recipe, supply=supply)
        if lines:
            raise StaleLockError(
                f"{locked.path}: does not hold any more",
                lines,
                hint=_drift_hint(job, locked, lines),
            )
        progress.stage("check", "every file, the base and the refs are as locked")
    return locked


def _drift_hint(job: Job, locked: Locked, lines: Sequence[str]) -> str:
    """How to lock what is there now: the packages that drifted alone, where it is only those."""
    command = f"spark-build lock {shlex.quote(str(job.loaded.path))}"
    options = [f"--upgrade-package {name}" for name in _drifted(locked.lock, lines)]
    every = f"`{command} --upgrade` locks everything anew"
    if not options:
        return f"{every}; `spark-build diff` shows what that changes"
    one = f"`{' '.join([command, *options])}` takes their next source or version"
    return f"{one}; {every}; `spark-build diff` shows what that changes"


def _drifted(lock: Lock, lines: Sequence[str]) -> Iterator[str]:
    """The packages that the lines of drift are about."""
    subjects = {wheel.name: f"{wheel.name} {wheel.version}: " for wheel in lock.wheels}
    subjects |= {git.name: f"{git.name}: " for git in lock.gits}
    for name, subject in sorted(subjects.items()):
        if any(line.startswith(subject) for line in lines):
            yield name


def base(text: str, target: Target, *, context: Context, layers: bool) -> Description:
    """What is known of the base image `text` for `target`; its layers are read only if asked."""
    reference = parse_reference(text)
    try:
        return _described(reference, target, context=context, layers=layers)
    except ExternalError as error:
        raise ExternalError(f"{reference}: {error.message}", hint=error.hint) from None


def tabled(text: str) -> Tabled | None:
    """What is known of the base image `text` without asking its registry; None for nothing."""
    reference = str(parse_reference(text))
    fact = find_fact(reference)
    return None if fact is None else Tabled(reference=reference, fact=fact)


def _described(
    reference: Reference, target: Target, *, context: Context, layers: bool
) -> Description:
    with open_supply(context) as supply:
        remote = supply.registry.image(reference, target.platform)
        top, media_type = supply.registry.get_manifest(reference.with_digest(remote.index))
        named = read_index(top).manifests if media_type in INDEXES else ()
        platforms = [str(entry.platform) for entry in named if entry.platform is not None]
        inventory = None
        if layers:
            image = bring_image(remote, supply)
            inventory = take_inventory(image, context.cache, context.progress)
    found = FoundImage(
        reference=str(reference),
        index=remote.index,
        digest=remote.digest,
        platform=target.platform,
        platforms=tuple(platforms) or (target.platform,),
        layers=tuple(layer.size for layer in remote.layers),
    )
    return describe(found, json.loads(remote.config), find_fact(str(reference)), inventory)


def vendor(job: Job, supply: Supply, place: Path | Reference, *, frozen: bool = False) -> Vendored:
    """Keep everything that the job's lock names at `place`; `frozen` as for `pipeline.lock`."""
    locked = pipeline.lock(job, supply, frozen=frozen)
    blobs: tuple[LockedFile, ...] = ()
    if isinstance(locked.lock.base, RegistryBase):
        fetch_base(locked.lock.base, locked.lock.platform, supply)
        blobs = tuple(base_files(locked.lock.base, supply))
    return vendors.vendor(locked.lock, place, supply=supply, blobs=blobs)


def export(
    jobs: Sequence[Job], form: exports.Form, context: Context, *, frozen: bool = False
) -> str:
    """A recipe's targets as text for other tools; `frozen` as for `pipeline.lock`."""
    locks = []
    for job in jobs:
        with pipeline.connect(job, context) as supply:
            locks.append(pipeline.lock(job, supply, frozen=frozen).lock)
    return exports.export(jobs[0].loaded.recipe, locks, form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bump:
    """A proposal: the `changes`, as a unified `diff`, and the recipe's `text` with them made.

    `old` is the text that it was made for; `refused` has the findings that kept newer versions out.
    """

    changes: tuple[Change, ...]
    old: str
    text: str
    diff: str
    refused: tuple[Finding, ...]

    def as_dict(self) -> dict[str, object]:
        """The proposal as JSON-ready values."""
        return {
            "changes": [
                {
                    "field": change.field,
                    "line": change.line,
                    "old": change.old,
                    "new": change.new,
                    "reason": change.reason,
                }
                for change in self.changes
            ],
            "diff": self.diff,
            "refused": [finding.as_dict() for finding in self.refused],
        }


def bump(jobs: Sequence[Job], context: Context) -> Bump:
    """The recipe of `jobs` with its base's tag and its pins at the newest that are admitted.

    Each proposal is locked and audited, in no file; what the audit refuses is kept out of the next
    proposal. Raises LockError where the audit still objects after some attempts.
    """
    loaded, targets = jobs[0].loaded, [job.target for job in jobs]
    old = loaded.path.read_bytes().decode()  # as it is, line ends too
    refused: dict[str, set[str]] = {}
    findings: list[Finding] = []
    with open_supply(context, indexes=loaded.recipe.index_urls) as supply:
        _tell_bump(loaded, context)
        base_change = propose_base(loaded, targets, supply.registry)
        moved = loaded if base_change is None else with_base(loaded, base_change)
        queries = [_query(moved, target, supply) for target in targets]
        for _ in range(_BUMP_ATTEMPTS):
            pins = propose(moved, queries, not_admitted=refused)
            changes = (*([base_change] if base_change else []), *pins)
            text = apply(old, changes)
            objections = list(_objections(parse_recipe(text, loaded.path), targets, supply))
            if not objections or not changes:
                diff = unified(loaded.path, old, text)
                return Bump(changes=changes, old=old, text=text, diff=diff, refused=tuple(findings))
            findings += [finding for finding, _ in objections]
            subjects = dict.fromkeys(finding.subject for finding, _ in objections)
            context.progress.stage("bump", f"the audit refuses {', '.join(subjects)}")
            if not _refuse(refused, [wheel for _, wheel in objections]):
                break  # what the recipe has now is what is refused
    raise LockError(
        f"{loaded.path}: the audit refuses what could be proposed, the last time because "
        f"{findings[-1].message}",
        hint="move the pins by hand, one at a time",
    )


def write_bump(bump: Bump, path: Path, context: Context) -> None:
    """Make the proposed change in the recipe at `path`.

    Raises UsageError where it may not be written, or was edited since it was read: minutes ago.
    """
    if not path.stat().st_mode & 0o222:
        raise UsageError(f"{path}: is read-only", hint="leave --write out, and take the diff")
    if path.read_bytes() != bump.old.encode():
        raise UsageError(
            f"{path}: was changed while it was looked at; nothing was written",
            hint="run the same command again",
        )
    write_whole(path, bump.text.encode(), context.cache)


def _tell_bump(loaded: LoadedRecipe, context: Context) -> None:
    """What is asked for, ahead of an answer that takes its time."""
    image, names = loaded.recipe.base.image, pinned_names(loaded)
    wanted = [f"tag of {image}"] if image else []
    wanted += names[:_NAMED]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    if wanted:
        context.progress.stage("bump", f"asking for the newest {', '.join(wanted)}{more}")


def _refuse(refused: dict[str, set[str]], wheels: Sequence[LockedWheel]) -> bool:
    """Keep these versions out from now on; False where all of them were kept out already."""
    before = sum(map(len, refused.values()))
    for wheel in wheels:
        refused.setdefault(wheel.name, set()).add(wheel.version)
    return sum(map(len, refused.values())) > before


def _query(loaded: LoadedRecipe, target: Target, supply: Supply) -> Query:
    """What locking the recipe for `target` would ask, to be asked with other pins."""
    question = ask(loaded, target, supply)

    def resolve(request: Request) -> Sequence[LockedWheel]:
        asked = replace(question, request=request)
        return answer(loaded.recipe, target, asked, supply).wheels

    return Query(request=question.request, resolve=resolve)


def _objections(
    loaded: LoadedRecipe, targets: Sequence[Target], supply: Supply
) -> Iterator[tuple[Finding, LockedWheel]]:
    """What the audit refuses of a recipe as it would lock now, and the wheel that it is about."""
    for target in targets:
        job = Job(loaded=loaded, target=target, folder=loaded.folder)
        lock = resolve_lock(loaded, target, supply, inputs={})
        packages = {f"{wheel.name} {wheel.version}": wheel for wheel in lock.wheels}
        for finding in pipeline.audit(job, lock, supply).findings:
            if finding.severity is Severity.ERROR and finding.subject in packages:
                yield finding, packages[finding.subject]

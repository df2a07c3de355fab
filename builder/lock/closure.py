"""The closure of a recipe for one target: its base, its sources, every wheel, and whose torch.

This is where the parts of the lock meet. What is asked of the resolver is a `Request`, which
others may ask again (what the indexes serve now, what newer versions there are).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder import __version__
from builder.errors import LockError
from builder.lock.acceptance import Resolution, resolve_on_base
from builder.lock.base.image import ResolvedBase, resolve_base
from builder.lock.guard import base_guard, stubs_of, wheel_guard
from builder.lock.model import Guard, Lock, LockedGit, TorchIdentity
from builder.lock.sources import Choice, choose
from builder.lock.stubs import compiled_stub
from builder.lock.supply import Supply
from builder.lock.torch import check_index, find_torch, refuse_second_torch, wheel_identity
from builder.lock.uv import uv_version
from builder.lock.wheels import KEEP, Request, Upgrade, resolve
from builder.recipe import LoadedRecipe, Recipe, Resolve, requirements
from builder.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What locking a recipe for a target comes down to, before versions are chosen."""

    base: ResolvedBase
    choices: tuple[Choice, ...]
    request: Request


def ask(
    loaded: LoadedRecipe,
    target: Target,
    supply: Supply,
    *,
    earlier: Lock | None = None,
    upgrade: Upgrade = KEEP,
) -> Question:
    """Resolve the base and choose the sources; raises LockError where either cannot be had."""
    base = resolve_base(loaded, target, supply)
    _check_python(loaded, base)
    _check_torch(loaded, base)
    choices = choose(
        loaded,
        platform=target.platform,
        python=base.python,
        glibc=base.glibc,
        supply=supply,
        settings=_settings(loaded.recipe.resolve),
        earlier=() if earlier is None else earlier.gits,
        upgrade=upgrade,
    )
    return Question(
        base=base, choices=choices, request=_request(loaded.recipe, target, base, choices)
    )


def resolve_lock(
    loaded: LoadedRecipe,
    target: Target,
    supply: Supply,
    *,
    inputs: Mapping[str, Any],
    earlier: Lock | None = None,
    upgrade: Upgrade = KEEP,
) -> Lock:
    """The lock of the recipe as things are now; versions of `earlier` stay where they may."""
    recipe = loaded.recipe
    question = ask(loaded, target, supply, earlier=earlier, upgrade=upgrade)
    base = question.base
    resolved = answer(recipe, target, question, supply, earlier=earlier, upgrade=upgrade)
    torch, guard = _guarded(recipe, base, resolved, supply)
    return Lock(
        name=recipe.name,
        target=target.name,
        platform=target.platform,
        python=base.python,
        interpreter=base.interpreter,
        glibc=base.glibc,
        base=base.locked,
        wheels=resolved.wheels,
        inputs=inputs,
        gits=tuple(_gits(question.choices)),
        torch=torch,
        guard=guard,
        sources=tuple(choice.chosen for choice in question.choices),
        tools={"spark-build": __version__, "uv": uv_version()},
    )


def _check_python(loaded: LoadedRecipe, base: ResolvedBase) -> None:
    wanted = loaded.recipe.python
    if wanted is not None and wanted != base.python:
        raise LockError(
            f"{loaded.path}: python: the recipe says {wanted}, its base has {base.python}",
            hint="leave `python` out to take the base's, or take another base",
        )


def _check_torch(loaded: LoadedRecipe, base: ResolvedBase) -> None:
    """`from: base` needs a base that has one."""
    if not loaded.recipe.uses_base_torch:
        return
    if base.inventory is None or base.inventory.torch is None:
        raise LockError(
            f"{loaded.path}: torch.from: the base has no torch",
            hint="take an NGC PyTorch image as the base, or `torch: {from: wheel, version: …}`",
        )


def _request(
    recipe: Recipe, target: Target, base: ResolvedBase, choices: Sequence[Choice]
) -> Request:
    index = None if recipe.torch is None else recipe.torch.index
    return Request(
        requirements=requirements(recipe),
        platform=target.platform,
        python=base.python,
        glibc=base.glibc,
        exclude=recipe.exclude,
        indexes=recipe.index_urls,
        pinned={
            **({"torch": index} if index else {}),
            **{choice.name: choice.index for choice in choices if choice.index},
        },
        direct={choice.name: choice.wheel for choice in choices if choice.wheel},
        stubs=tuple(compiled_stub(git, requirements(recipe)) for git in _gits(choices)),
        settings=_settings(recipe.resolve),
    )


def _gits(choices: Sequence[Choice]) -> Iterator[LockedGit]:
    return (choice.git for choice in choices if choice.git is not None)


def _settings(choice: Resolve) -> dict[str, Any]:
    """The recipe's `resolve` in the names of uv's configuration file."""
    newest = {} if choice.exclude_newer is None else {"exclude-newer": choice.exclude_newer}
    return {
        **newest,
        "prerelease": choice.prerelease,
        "constraint-dependencies": list(choice.constraints),
        "override-dependencies": list(choice.overrides),
    }


def answer(
    recipe: Recipe,
    target: Target,
    question: Question,
    supply: Supply,
    *,
    earlier: Lock | None = None,
    upgrade: Upgrade = KEEP,
) -> Resolution:
    """The wheels that answer `question`; versions of `earlier` stay where they may.

    On a base whose torch is used, all of its packages are there already.
    """
    held = question.base.inventory
    wheels = () if earlier is None else earlier.wheels
    if held is None or not recipe.uses_base_torch:
        found = resolve(
            question.request,
            context=supply.context,
            http=supply.http,
            earlier=wheels,
            upgrade=upgrade,
        )
        return Resolution(wheels=found)
    return resolve_on_base(
        question.request,
        stubs_of(held, target.platform),
        recipe.accept,
        context=supply.context,
        http=supply.http,
        store=supply.store,
        earlier=wheels,
        upgrade=upgrade,
    )


def _guarded(
    recipe: Recipe, base: ResolvedBase, resolved: Resolution, supply: Supply
) -> tuple[TorchIdentity | None, Guard]:
    """Whose torch the image has, and what no install may replace."""
    refuse_second_torch(base.inventory, resolved.wheels)
    if base.inventory is not None and recipe.uses_base_torch:
        guard = base_guard(base.inventory, resolved.wheels, resolved.accepted)
        return base.inventory.torch, guard
    torch = find_torch(resolved.wheels)
    if torch is None:
        return None, Guard()
    identity = wheel_identity(torch, supply.http, supply.store, cache=supply.context.cache)
    check_index(identity, None if recipe.torch is None else recipe.torch.index)
    return identity, wheel_guard(resolved.wheels)

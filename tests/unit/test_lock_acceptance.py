"""Unmet requirements: refused with the lines to write, accepted one by one, never in passing."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence

import httpx
import pytest

from builder.context import Context
from builder.errors import LockError
from builder.http import Http
from builder.lock.acceptance import Resolution, resolve_on_base
from builder.lock.store import Store
from builder.lock.stubs import Stub
from builder.lock.wheels import Request
from builder.recipe import Accept
from tests.builders import FileServer
from tests.fake_uv import NO_SOLUTION, Uv, package, pylock, wheel

TORCH = Stub(name="torch", version="2.10.0a0+nv25.11", requires=("numpy",), pinned=True)
NUMPY = Stub(name="numpy", version="1.26.4", pinned=False)
REQUEST = Request(requirements=("tool",), platform="linux/arm64", python="3.12", glibc="2.39")


def zipped(name: str, requires: Sequence[str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}"
        archive.writestr(f"{name}-1.0.dist-info/METADATA", text)
    return out.getvalue()


def resolve(
    context: Context,
    packages: Mapping[str, Sequence[str]],
    *accept: Accept,
    request: Request = REQUEST,
    stubs: Sequence[Stub] = (),
    uv: Uv | None = None,
) -> Resolution:
    """Resolve with a uv that locks `packages`, each with what its metadata requires."""
    files = {name: f"{name}-1.0-py3-none-any.whl" for name in packages}
    answer = pylock(*(package(name, wheel(file)) for name, file in files.items()))
    server = FileServer({f"/{files[name]}": zipped(name, packages[name]) for name in packages})
    with Http({}, transport=httpx.MockTransport(server)) as http:
        return resolve_on_base(
            request,
            [TORCH, NUMPY, *stubs],
            accept,
            context=context,
            http=http,
            store=Store(context.cache),
            run=uv or Uv(answer),
        )


def accepting(requires: str, by: str | None = None) -> Accept:
    return Accept(requires=requires, by=by, reason="Proven by hand.")


def failing_first(packages: Sequence[str]) -> Uv:
    """A uv that finds no solution until requirements on torch do not count."""
    answer = pylock(*(package(name, wheel(f"{name}-1.0-py3-none-any.whl")) for name in packages))
    return Uv(answers=[NO_SOLUTION, answer, answer])


def test_with_nothing_to_accept_no_wheel_is_read(context: Context) -> None:
    server = FileServer({})
    with Http({}, transport=httpx.MockTransport(server)) as http:
        uv = Uv(pylock(package("tool", wheel("tool-1.0-py3-none-any.whl"))))
        found = resolve_on_base(
            REQUEST, [TORCH], (), context=context, http=http, store=Store(context.cache), run=uv
        )
    assert [entry.name for entry in found.wheels] == ["tool"]
    assert found.accepted == ()
    assert server.requests == []


def test_a_failure_because_of_the_base_shows_what_to_write(context: Context) -> None:
    uv = failing_first(["tool", "other"])
    packages = {"tool": ["torch == 2.11.0", "numpy"], "other": ["torch>=2.11,<3", "torch<2.11"]}
    with pytest.raises(LockError) as caught:
        resolve(context, packages, uv=uv)
    assert "No solution found" in caught.value.message
    assert caught.value.hint == (
        "for torch the base has 2.10.0a0+nv25.11, which must stay; where that will do, write\n"
        "accept:\n"
        "  - requires: torch<3,>=2.11\n"
        "    by: other\n"
        "    reason: WHY IT WILL DO\n"
        "  - requires: torch==2.11.0\n"
        "    by: tool\n"
        "    reason: WHY IT WILL DO"
    )


def test_a_failure_for_another_reason_stays_as_it_is(context: Context) -> None:
    for answers in ([NO_SOLUTION, NO_SOLUTION], failing_first(["tool"]).answers):
        with pytest.raises(LockError) as caught:
            resolve(context, {"tool": ["torch"]}, uv=Uv(answers=list(answers)))
        assert caught.value.message.count("No solution found") == 1
        assert "in the way" not in caught.value.message
        assert "loosen or correct" in (caught.value.hint or "")


HELD = "the base has torch 2.10.0a0+nv25.11, which must stay; where a package requires another"


@pytest.mark.parametrize(
    ("first", "both"),
    [
        ("vllm==0.13.0 depends on torch==2.9.0 and only torch==2.10.0a0+nv25.11 is there", True),
        ("vllm==0.13.0 depends on torchvision==1 and torch-extra==2", False),
    ],
)
def test_a_failure_for_two_reasons_tells_both(context: Context, first: str, *, both: bool) -> None:
    answers = [f"error: No solution found\n  cause: Because {first}\n", NO_SOLUTION]
    with pytest.raises(LockError) as caught:
        resolve(context, {"tool": []}, uv=Uv(answers=answers))
    said, _, further = caught.value.message.partition(
        "\ntorch is not all that is in the way: even without any requirement on what the base must "
        "keep (torch 2.10.0a0+nv25.11), "
    )
    assert first in said
    assert ("there is no version of numpy>=99" in further) == both
    hints = (caught.value.hint or "").splitlines()
    assert hints[0].startswith("loosen or correct")
    assert hints[1].startswith(HELD)
    assert "`accept`" in hints[1]


def test_where_only_another_reason_is_told_the_bases_torch_is_mentioned(context: Context) -> None:
    with pytest.raises(LockError) as caught:
        resolve(context, {"tool": []}, uv=Uv(answers=[NO_SOLUTION, NO_SOLUTION]))
    assert HELD in (caught.value.hint or "")


def test_the_recipes_own_requirement_is_one_of_them(context: Context) -> None:
    request = Request(
        requirements=("tool", "torch==2.11.0"), platform="linux/arm64", python="3.12", glibc="2.39"
    )
    with pytest.raises(LockError, match=r"the recipe requires torch==2\.11\.0") as caught:
        resolve(context, {"tool": []}, request=request)
    assert (caught.value.hint or "").endswith(
        "accept:\n  - requires: torch==2.11.0\n    reason: WHY IT WILL DO"
    )
    found = resolve(context, {"tool": []}, accepting("torch==2.11.0"), request=request)
    assert found.accepted == (
        "the recipe requires torch==2.11.0; the base has 2.10.0a0+nv25.11: Proven by hand.",
    )


@pytest.mark.parametrize(
    "entry",
    [
        accepting("torch==2.11.0"),
        accepting("Torch == 2.11", by="Tool"),
        accepting("torch[opt-einsum]==2.11.0; python_version > '3'"),
    ],
)
def test_what_is_accepted_is_said_in_a_line(context: Context, entry: Accept) -> None:
    found = resolve(context, {"tool": ["torch==2.11.0", "numpy"], "other": ["torch"]}, entry)
    assert found.accepted == (
        "tool 1.0 requires torch==2.11.0; the base has 2.10.0a0+nv25.11: Proven by hand.",
    )


def test_whatever_else_is_unmet_is_refused_in_full(context: Context) -> None:
    packages = {
        "tool": ["torch==2.11.0"],
        "newer": ["torch>=2.11"],
        "tight": ["torch==2.10.0"],
        "fine": ["torch>=2.8", "torch<2.11"],
    }
    with pytest.raises(LockError) as caught:
        resolve(context, packages, accepting("torch==2.11.0"))
    assert caught.value.message == (
        "the recipe accepts no such unmet requirement:\n"
        "  newer 1.0 requires torch>=2.11; the base has 2.10.0a0+nv25.11\n"
        "  tight 1.0 requires torch==2.10.0; the base has 2.10.0a0+nv25.11"
    )
    assert "requires: torch==2.10.0\n    by: tight" in (caught.value.hint or "")


def test_an_entry_for_another_package_accepts_nothing(context: Context) -> None:
    with pytest.raises(LockError, match=r"tool 1\.0 requires torch==2\.11\.0"):
        resolve(context, {"tool": ["torch==2.11.0"]}, accepting("torch==2.11.0", by="other"))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (accepting("torch==2.12.0"), "accept: nothing requires torch==2.12.0 any more"),
        (
            accepting("torch==2.11.0", by="other"),
            "accept: no other requires torch==2.11.0 any more",
        ),
        (accepting("torch>=2.8"), "accept: nothing requires torch>=2.8 any more"),
    ],
)
def test_an_entry_that_accepts_nothing_is_an_error(
    context: Context, entry: Accept, says: str
) -> None:
    packages = {"tool": ["torch==2.11.0", "torch>=2.8"]}
    with pytest.raises(LockError) as caught:
        resolve(context, packages, accepting("torch==2.11.0", by="tool"), entry)
    assert caught.value.message.startswith(says)


def test_every_entry_that_does_not_fit_is_told_at_once(context: Context) -> None:
    entries = [
        accepting("torch==2.11.0", by="tol"),
        accepting("torch==2.12.0"),
        accepting("torch==2.11.0", by="quite-another"),
    ]
    with pytest.raises(LockError) as caught:
        resolve(context, {"tool": ["torch==2.11.0"]}, *entries)
    assert caught.value.message == (
        "accept: no tol requires torch==2.11.0 any more, or the base meets it now\n"
        "accept: nothing requires torch==2.12.0 any more, or the base meets it now\n"
        "accept: no quite-another requires torch==2.11.0 any more, or the base meets it now\n"
        "the recipe accepts no such unmet requirement:\n"
        "  tool 1.0 requires torch==2.11.0; the base has 2.10.0a0+nv25.11"
    )
    hints = (caught.value.hint or "").splitlines()
    assert hints[:2] == ["`tol`: did you mean `tool`?", "take the entry out"]
    assert "accept:" in hints


def test_every_name_that_nothing_holds_in_place_is_told_at_once(context: Context) -> None:
    with pytest.raises(LockError) as caught:
        resolve(context, {"tool": []}, accepting("torhc==3"), accepting("numpy==3"))
    assert [line.split()[1] for line in caught.value.message.splitlines()] == ["numpy", "torhc"]
    assert caught.value.hint == "take the entry out\n`torhc`: did you mean `torch`?"


@pytest.mark.parametrize("name", ["numpy", "absent"])
def test_what_is_not_held_in_place_needs_no_accepting(context: Context, name: str) -> None:
    with pytest.raises(LockError, match=f"accept: {name} does not belong to the base's torch"):
        resolve(context, {"tool": []}, accepting(f"{name}==3"))


@pytest.mark.parametrize(
    ("lines", "counts"),
    [
        (["torch==2.11.0; extra == 'gpu'"], False),
        (["torch==2.11.0; sys_platform == 'win32'"], False),
        (["torch==2.11.0; platform_machine == 'aarch64'"], True),
        (["other[gpu]"], True),
        (["other[GPU]; extra == 'all'"], False),
    ],
)
def test_a_requirement_under_an_extra_counts_where_it_is_asked_for(
    context: Context, lines: list[str], *, counts: bool
) -> None:
    packages = {"tool": lines, "other": ["third[x]; extra == 'gpu'"], "third": THIRD}
    packages["recipe"] = ["torch==9"]
    entries = [accepting("torch==9"), *([accepting("torch==2.11.0")] if counts else [])]
    found = resolve(context, packages, *entries)
    assert len(found.accepted) == len(entries)


THIRD = ["torch==2.11.0; extra == 'x'"]


def test_the_recipe_may_ask_for_the_extra(context: Context) -> None:
    request = Request(
        requirements=("tool[gpu]",), platform="linux/arm64", python="3.12", glibc="2.39"
    )
    entry = accepting("torch==2.11.0")
    lines = ["torch==2.11.0; extra == 'gpu'", "not a requirement !"]
    assert resolve(context, {"tool": lines}, entry, request=request).accepted


def test_a_package_that_is_compiled_states_its_requirements_too(context: Context) -> None:
    vllm = Stub(
        name="vllm", version="0.13.0", requires=("torch==2.9.0",), pinned=True, origin="its repo"
    )
    with pytest.raises(LockError, match=r"vllm 0\.13\.0 requires torch==2\.9\.0; the base has"):
        resolve(context, {"tool": ["torch==2.11.0"]}, accepting("torch==2.11.0"), stubs=[vllm])

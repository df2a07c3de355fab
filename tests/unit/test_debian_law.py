"""The law that ships can be read, and what it does not name is refused with the reason."""

from __future__ import annotations

import pytest

from builder.engines.debian.deb import Deb
from builder.engines.debian.law import Covered, Law, judge, load_law
from builder.errors import UsageError


def _deb(name: str, **scripts: str) -> Deb:
    return Deb(
        filename=f"{name}.deb",
        fields={"Package": name, "Version": "1", "Architecture": "all"},
        control={script: text.encode() for script, text in scripts.items()},
        files=(),
    )


def _law(name: str, **values: object) -> Law:
    covered = Covered.model_validate(
        {"scripts": ["postinst"], "does": "x", "covered": "y", "read": "trixie 1", **values}
    )
    return Law(debhelper={}, packages={name: covered})


def test_the_shipped_law_is_whole() -> None:
    law = load_law()
    assert "base-files" in law.packages
    for name, covered in law.packages.items():
        assert covered.scripts, name
        assert name.count("*") <= 1
    assert list(law.packages) == sorted(law.packages)
    assert law.packages["base-passwd"].files[0].mode == 0o644


def test_every_refused_package_is_named_with_its_line() -> None:
    debs = [
        _deb("thing", postinst="#!/bin/sh\nset -e\nsystem-altering --now\n"),
        _deb("other", preinst="#!/usr/bin/perl\nuse strict;\n"),
        _deb("quiet", postinst="#!/bin/sh\nset -e\nexit 0\n", config="#!/bin/sh\nask\n"),
    ]
    with pytest.raises(UsageError) as caught:
        judge(debs, Law(debhelper={}, packages={}))
    assert "thing: its postinst script says: system-altering --now" in caught.value.message
    assert "other: its preinst script says: use strict;" in caught.value.message
    assert "quiet" not in caught.value.message
    assert "podman, buildah or docker" in (caught.value.hint or "")


def test_an_entry_covers_the_scripts_that_it_names_and_no_others() -> None:
    law = _law("thing")
    assert judge([_deb("thing", postinst="do-it\n")], law)[0].covered == law.packages["thing"]
    with pytest.raises(UsageError, match="thing: its preinst script says: do-it"):
        judge([_deb("thing", preinst="do-it\n")], law)


def test_a_star_stands_for_a_number() -> None:
    law = _law("python3.*-minimal")
    (ruling,) = judge([_deb("python3.13-minimal", postinst="compile\n")], law)
    assert ruling.stem == "13"
    for name in ("python3.x-minimal", "python3.13-minimal-extra", "python3.-minimal"):
        with pytest.raises(UsageError, match="compile"):
            judge([_deb(name, postinst="compile\n")], law)


def test_rulings_come_in_name_order_with_alternatives() -> None:
    line = "update-alternatives --install /usr/bin/x x /usr/bin/y 1\n"
    rulings = judge([_deb("b", postinst=line), _deb("a")], Law(debhelper={}, packages={}))
    assert [ruling.deb.name for ruling in rulings] == ["a", "b"]
    assert [alternative.name for alternative in rulings[1].alternatives] == ["x"]

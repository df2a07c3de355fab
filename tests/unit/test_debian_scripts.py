"""Scripts that only frame, block and register are understood; the rest is quoted."""

from __future__ import annotations

import pytest

from builder.engines.debian.scripts import read_alternative, read_script

_TOOLS = {"dh_installsystemd", "dh_installalternatives"}


def test_a_bare_frame_says_nothing() -> None:
    text = """#!/bin/sh
# a comment
set -e
case "$1" in
  configure|abort-upgrade)
  ;;
  *)
    echo "postinst called with unknown argument \\`$1'" >&2
    exit 1
  ;;
esac
exit 0
"""
    assert read_script(text, _TOOLS).telling is None


def test_harmless_blocks_count_for_nothing_and_others_do() -> None:
    text = """#!/bin/sh
# Automatically added by dh_installsystemd/13.24.2
if [ "$1" = "configure" ]; then
    deb-systemd-helper enable 'a.timer' >/dev/null || true
fi
# End automatically added section
# Automatically added by dh_strange/1
do-something --now
# End automatically added section
"""
    assert read_script(text, _TOOLS).telling == "do-something --now"
    assert read_script(text, {*_TOOLS, "dh_strange"}).telling is None


def test_alternatives_are_read_out_of_blocks_and_bodies() -> None:
    text = """#!/bin/sh
if [ "$1" = "configure" ]; then
update-alternatives --quiet \\
    --install /usr/bin/cc cc /usr/bin/gcc 20 \\
    #--slave /usr/bin/not not /usr/bin/there
update-alternatives --install /usr/bin/c99 c99 /usr/bin/c99-gcc 20
fi
# Automatically added by dh_installalternatives/13.24.1
        update-alternatives --install /usr/bin/awk awk /usr/bin/mawk 5 \\
            --slave /usr/bin/nawk nawk /usr/bin/mawk
# End automatically added section
"""
    reading = read_script(text, _TOOLS)
    assert reading.telling is None
    found = {alternative.name: alternative for alternative in reading.alternatives}
    assert set(found) == {"cc", "c99", "awk"}
    assert (found["cc"].path, found["cc"].priority, found["cc"].slaves) == ("/usr/bin/gcc", 20, ())
    assert [slave.name for slave in found["awk"].slaves] == ["nawk"]


@pytest.mark.parametrize(
    "line",
    [
        "update-alternatives --install /usr/bin/automake automake /usr/bin/automake-$ver 35",
        "update-alternatives --install /usr/bin/lzma lzma /usr/bin/xz 20 $(slave a b)",
        "update-alternatives --install /usr/bin/a a /usr/bin/b many",
        "update-alternatives --install /usr/bin/a a",
        "update-alternatives --install /usr/bin/a a /usr/bin/b 1 --slave /usr/bin/c",
        "update-alternatives --set a /usr/bin/b",
    ],
)
def test_what_a_shell_would_expand_is_not_guessed(line: str) -> None:
    assert read_alternative(line) is None
    assert read_script(f"#!/bin/sh\n{line}\n", _TOOLS).telling == line


@pytest.mark.parametrize(
    "line",
    [
        "rm -rf /etc/thing",
        'if [ "$1" = "configure" ] && id thing; then',
        "adduser --system thing",
        "use strict;",
    ],
)
def test_anything_else_is_telling(line: str) -> None:
    assert read_script(f"#!/bin/sh\nset -e\n{line}\n", _TOOLS).telling == line

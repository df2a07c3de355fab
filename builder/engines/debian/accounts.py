"""Users and groups: /etc/passwd and /etc/group from base-passwd's masters, and what comes on top.

Numbers below 100 are the same on every Debian system (Debian Policy 9.2.2). The groups and users
that packages create get the next free number from 101 on, in the order of the packages' names.
"""

from __future__ import annotations

from builder.engines.debian.tree import Tree
from builder.oci.layer import MTIME

_FIRST_SYSTEM_ID = 101
_SHADOW_GROUP = 42
_LAST_CHANGE_DAYS = MTIME // 86400
"""When passwords were last changed, in days since 1970: the time that every file here has."""


class Accounts:
    """The lines of passwd(5) and group(5), in their order."""

    def __init__(self, passwd: str, group: str) -> None:
        self._users = [line.split(":") for line in passwd.splitlines() if line]
        self._groups = [line.split(":") for line in group.splitlines() if line]

    def add_group(self, name: str) -> int:
        """The number of group `name`, which is made where it is not there."""
        for group in self._groups:
            if group[0] == name:
                return int(group[2])
        number = _free({int(group[2]) for group in self._groups})
        self._groups.append([name, "x", str(number), ""])
        return number

    def group_id(self, name: str) -> int:
        """The number of a group that is there; KeyError where it is not."""
        return {group[0]: int(group[2]) for group in self._groups}[name]

    def add_user(self, name: str, *, group: str, home: str, comment: str) -> None:
        """A system user who cannot log in, in a group of its own or another that is there."""
        if any(user[0] == name for user in self._users):
            return
        number = _free({int(user[2]) for user in self._users})
        gid = str(self.add_group(group))
        self._users.append([name, "*", str(number), gid, comment, home, "/usr/sbin/nologin"])

    def write(self, tree: Tree, *, shadow: bool) -> None:
        """The files; with `shadow`, passwords go to /etc/shadow as pwconv(8) moves them."""
        if shadow:
            self._write_shadow(tree)
        tree.put_file("etc/passwd", _lines(self._users))
        tree.put_file("etc/group", _lines(self._groups))

    def _write_shadow(self, tree: Tree) -> None:
        users = [
            [user[0], user[1], str(_LAST_CHANGE_DAYS), "0", "99999", "7", "", "", ""]
            for user in self._users
        ]
        groups = [[g[0], "!" if g[1] == "x" else g[1], "", g[3]] for g in self._groups]
        owner = (0, _SHADOW_GROUP)
        tree.put_file("etc/shadow", _lines(users), 0o640, owner)
        tree.put_file("etc/gshadow", _lines(groups), 0o640, owner)
        for entry in (*self._users, *self._groups):
            entry[1] = "x"


def read_accounts(tree: Tree) -> Accounts:
    """The accounts that base-passwd ships; none where the package is not there."""
    passwd = tree.read("usr/share/base-passwd/passwd.master")
    group = tree.read("usr/share/base-passwd/group.master")
    return Accounts(passwd.decode(), group.decode())


def _free(taken: set[int]) -> int:
    return next(number for number in range(_FIRST_SYSTEM_ID, 1000) if number not in taken)


def _lines(rows: list[list[str]]) -> bytes:
    return "".join(":".join(row) + "\n" for row in rows).encode()

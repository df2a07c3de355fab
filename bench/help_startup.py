"""How long `--help` takes: spark-build beside HPC Container Maker, another recipe tool."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from bench import compare

_ROUNDS = 10


def main() -> None:
    """Compare the two commands that lie beside this Python."""
    scripts = Path(sysconfig.get_path("scripts"))
    commands = {
        f"{program} --help": [str(scripts / program), "--help"]
        for program in ("spark-build", "hpccm")
    }
    compare.report("help_startup", compare.measure(commands, _ROUNDS))


if __name__ == "__main__":
    main()

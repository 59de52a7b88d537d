"""The machine and the versions that results are of."""

import os
import platform
import sqlite3
import sys
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

from bench import peers

CPUINFO = Path("/proc/cpuinfo")


def this_machine() -> dict[str, object]:
    """Return the facts about this machine and what is installed, as JSON."""
    model = ""
    if CPUINFO.exists():
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
        model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "system": sys.platform,
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "load_average": round(os.getloadavg()[0], 2),
        "versions": versions(sys.path),
        "versions_of_peers": versions(map(str, peers.packages())),
    }


def versions(folders: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed in these folders."""
    found = distributions(path=[*folders])
    return dict(sorted((package.name.lower(), package.version) for package in found))

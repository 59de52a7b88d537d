"""Judges what packs need of the machine: programs of the system, and a kernel that confines."""

import re
import shutil
import subprocess
from collections.abc import Iterator

from gatepost.sandbox.child import confines
from gatepost.settings import Config
from gatepost_authz.config import Problem

GIT_SINCE = (2, 38)
"""The first that pins addresses and leaves bare repositories alone."""
VERSION = re.compile(r"git version (\d{1,3})\.(\d{1,4})")


def problems(config: Config) -> Iterator[Problem]:
    """What would fail when a tool is first used, or be less safe than elsewhere."""
    if "git" not in config.tools.packs:
        return
    found = git_version()
    if found is None or found < GIT_SINCE:
        there = "it is not installed" if found is None else f"it is {found[0]}.{found[1]}"
        yield Problem(
            "config.E070",
            f"the pack git needs git 2.38 or newer, and {there}",
            "install the system's package git where the server runs",
            setting="tools.packs",
        )
    if shutil.which("ssh") is None:
        yield Problem(
            "config.W071",
            "ssh is not installed, so git reaches nothing by git@host:path",
            "install the system's package openssh-client, or use https:// alone",
            "warning",
            "tools.packs",
        )
    if not confines():
        yield Problem(
            "config.W070",
            "this system cannot confine programs (Landlock), so rules alone keep git in",
            "Linux 5.13 or newer has it, unless a container's profile forbids it",
            "warning",
            "tools.packs",
        )
    if config.network.proxy:
        yield Problem(
            "config.W072",
            "git does not use the proxy: it connects to the addresses that were checked",
            "let the server's machine reach the git hosts directly",
            "warning",
            "network.proxy",
        )


def git_version() -> tuple[int, int] | None:
    """The version of the git that would run; None where there is none."""
    git = shutil.which("git")
    if git is None:
        return None
    told = subprocess.run(  # noqa: S603 - the system's own git, no argument of anybody's
        [git, "--version"], capture_output=True, text=True, timeout=10, check=False
    )
    version = VERSION.match(told.stdout)
    return (int(version[1]), int(version[2])) if version else None

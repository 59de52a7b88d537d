"""Check the programs and the kernel that git needs."""

import re
import shutil
import subprocess
from collections.abc import Iterator

from gatepost.sandbox import confines
from gatepost_authz import Network, Problem
from gatepost_packs.git.settings import GitSettings

GIT_SINCE = (2, 38)
"""The first version that pins addresses and ignores bare repositories."""
VERSION = re.compile(r"git version (\d{1,3})\.(\d{1,4})")


def problems(settings: GitSettings, network: Network) -> Iterator[Problem]:
    """Yield problems that would otherwise show at the first use, or weaken the sandbox."""
    found = git_version()
    if found is None or found < GIT_SINCE:
        there = "it is not installed" if found is None else f"it is {found[0]}.{found[1]}"
        yield Problem(
            "config.E070",
            f"the pack git needs git 2.38 or newer, and {there}",
            "install the system package git where the server runs",
            setting="tools.packs",
        )
    if shutil.which("ssh") is None:
        yield Problem(
            "config.W071",
            "ssh is not installed, so git cannot use remotes such as git@host:path",
            "install the system package openssh-client, or use only https:// remotes",
            "warning",
            "tools.packs",
        )
    if not confines():
        yield Problem(
            "config.W070",
            "this system has no Landlock, so git is restricted by rules but not sandboxed",
            "use Linux 5.13 or newer, and allow Landlock in the container's profile",
            "warning",
            "tools.packs",
        )
    if network.proxy:
        yield Problem(
            "config.W072",
            "git does not use the proxy, because it connects directly to checked addresses",
            "allow direct connections from the server to the git hosts",
            "warning",
            "network.proxy",
        )


def git_version() -> tuple[int, int] | None:
    """Return the version of git, or None."""
    git = shutil.which("git")
    if git is None:
        return None
    told = subprocess.run(  # noqa: S603 - the system's own git, no argument of anybody's
        [git, "--version"], capture_output=True, text=True, timeout=10, check=False
    )
    version = VERSION.match(told.stdout)
    return (int(version[1]), int(version[2])) if version else None

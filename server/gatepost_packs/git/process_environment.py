"""Build the environment of git, and report what the machine lacks for it."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from gatepost.sandbox import confines
from gatepost_authz import Network, Problem
from gatepost_packs.git.settings import GitSettings

NULL_DEVICE = "/dev/null"
FALSE = "/bin/false"

FIXED_SETTINGS: Mapping[str, str] = {
    # Programs that a repository, its attributes or a command could name.
    "core.hooksPath": NULL_DEVICE,
    "core.fsmonitor": "false",
    "core.attributesFile": NULL_DEVICE,
    "core.editor": ":",
    "sequence.editor": ":",
    "core.pager": "cat",
    "core.askPass": "",
    "gpg.program": FALSE,
    "gpg.ssh.program": FALSE,
    "gpg.x509.program": FALSE,
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "push.gpgSign": "false",
    "log.showSignature": "false",
    "rerere.enabled": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    # Contents of the workspace: no links, and no name that another system takes for `.git`.
    "core.symlinks": "false",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "safe.bareRepository": "explicit",
    # Other repositories.
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "push.recurseSubmodules": "no",
    "diff.ignoreSubmodules": "all",
    "status.submoduleSummary": "false",
    # Data from other hosts.
    "protocol.allow": "never",
    "transfer.fsckObjects": "true",
    "transfer.bundleURI": "false",
    "fetch.uriProtocols": "",
    "http.followRedirects": "false",
    "http.sslVerify": "true",
    "http.proxy": "",
    "http.cookieFile": "",
    "http.delegation": "none",
    "http.maxRequests": "1",
    "credential.helper": "",
    "credential.interactive": "false",
    # Memory and threads.
    "core.bigFileThreshold": "32m",
    "core.packedGitLimit": "256m",
    "pack.threads": "1",
    "pack.windowMemory": "128m",
    "index.threads": "1",
    "checkout.workers": "1",
    # Output for a model.
    "color.ui": "false",
    "column.ui": "never",
    "user.useConfigOnly": "true",
}
# Repositories of fifteen years ago have these flaws, which are harmless.
LENIENT = ("zeroPaddedFilemode", "badTimezone", "missingSpaceBeforeDate", "missingEmail")

PATH = "/usr/local/bin:/usr/bin:/bin"


class GitDirectories(msgspec.Struct, frozen=True):
    """The real directories of one call."""

    root: Path
    """The workspace."""
    home: Path
    """Git's own directory of the tenant, with its `--global` settings."""
    run: Path
    """Files for this call alone, removed after it."""


def program() -> str | None:
    """Return the path of git; None if it is not installed."""
    return shutil.which("git")


def variables(
    ground: GitDirectories,
    *,
    work_tree: bool,
    protocols: str,
    reads: bool,
    settings: Mapping[str, str],
) -> dict[str, str]:
    """
    Return the complete environment of one git process.

    With *work_tree* the repository is `.git` in the working directory, and git does not search for
    one. *protocols* are the allowed ones, separated by `:`.
    """
    env = {
        "PATH": f"{os.path.dirname(program() or '')}:{PATH}",
        "HOME": str(ground.home),
        "XDG_CONFIG_HOME": str(ground.run),
        "TMPDIR": str(ground.run),
        "LC_ALL": "C.UTF-8",
        "LANGUAGE": "",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(ground.home / "gitconfig"),
        "GIT_CEILING_DIRECTORIES": f"{ground.root}:{ground.root.parent}",
        "GIT_ALLOW_PROTOCOL": protocols or "none",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        "GIT_EDITOR": ":",
        "GIT_SEQUENCE_EDITOR": ":",
        "GIT_MERGE_AUTOEDIT": "no",
        "GIT_PAGER": "cat",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_SSH_COMMAND": FALSE,
        "GIT_SSH_VARIANT": "ssh",
    }
    if work_tree:
        env |= {"GIT_DIR": ".git", "GIT_WORK_TREE": "."}
    if reads:
        env["GIT_OPTIONAL_LOCKS"] = "0"
    return env | numbered(settings)


def numbered(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings as variables, which override every file and appear in no process list."""
    env = {"GIT_CONFIG_COUNT": str(len(settings))}
    for at, (key, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{at}": key, f"GIT_CONFIG_VALUE_{at}": value}
    return env


def fixed() -> dict[str, str]:
    """Return the settings that hold for every command."""
    return {**FIXED_SETTINGS, **{f"fetch.fsck.{name}": "ignore" for name in LENIENT}}


def ssh_command(configuration: Path) -> str:
    """Return the ssh command for git. A shell parses it; no part of it comes from a caller."""
    return f"{shlex.quote(shutil.which('ssh') or FALSE)} -F {shlex.quote(str(configuration))}"


SSH_FIXED: Mapping[str, str] = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
    "CheckHostIP": "no",
    "VerifyHostKeyDNS": "no",
    "GlobalKnownHostsFile": NULL_DEVICE,
    "IdentitiesOnly": "yes",
    "IdentityAgent": "none",
    "PreferredAuthentications": "publickey",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "ProxyCommand": "none",
    "ControlMaster": "no",
    "ControlPath": "none",
    "CanonicalizeHostname": "no",
    "EscapeChar": "none",
    "Tunnel": "no",
    "RequestTTY": "no",
    "LogLevel": "ERROR",
    "ConnectTimeout": "15",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
}


def ssh_configuration(hosts: Mapping[str, tuple[str, str]], *, key: str, known_hosts: str) -> str:
    """
    Return ssh's complete configuration; *hosts* maps the name in the URL to address and key alias.

    ssh never resolves the name, and every other host name fails.
    """
    lines: list[str] = []
    for host, (address, alias) in hosts.items():
        lines += [f"Host {host}", f"  HostName {address}", f"  HostKeyAlias {alias}"]
    lines += ["Host *", "  HostName gatepost.invalid"]
    lines += [f"  {name} {value}" for name, value in SSH_FIXED.items()]
    lines += [f"  IdentityFile {_quoted(key)}", f"  UserKnownHostsFile {_quoted(known_hosts)}"]
    return "\n".join([*lines, ""])


def _quoted(path: str) -> str:
    return '"' + path.replace("%", "%%") + '"'


def pinned(addresses: Sequence[str]) -> str:
    """Return addresses in the form of curl's `--resolve`."""
    return ",".join(f"[{address}]" if ":" in address else address for address in addresses)


GIT_SINCE = (2, 38)
"""The first version that pins addresses and ignores bare repositories."""
VERSION = re.compile(r"git version (\d{1,3})\.(\d{1,4})")


def problems(settings: GitSettings, network: Network) -> Iterator[Problem]:
    """Yield problems that would otherwise show at the first use, or weaken the sandbox."""
    version = git_version()
    if version is None or version < GIT_SINCE:
        state = "it is not installed" if version is None else f"it is {version[0]}.{version[1]}"
        yield Problem(
            "config.E070",
            f"the pack git needs git 2.38 or newer, and {state}",
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
    git = program()
    if git is None:
        return None
    result = subprocess.run(  # noqa: S603 - the system's own git, with fixed arguments
        [git, "--version"], capture_output=True, text=True, timeout=10, check=False
    )
    version = VERSION.match(result.stdout)
    return (int(version[1]), int(version[2])) if version else None

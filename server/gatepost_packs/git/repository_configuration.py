"""Parse a repository's own configuration, and accept it only as git itself writes it."""

import re
from collections.abc import Iterator, Mapping

import msgspec

from gatepost_packs.git.permitted_commands import MAY_SET, REMOTE_NAME
from gatepost_packs.git.url import RemoteUrl, remote_of

MAX_BYTES = 65_536

# A branch may have quotes in its name, and the owner of a remote chooses the name of a clone's
# first branch.
SECTION = re.compile(r'\[(?P<name>[A-Za-z0-9-]+)(?: "(?P<sub>(?:[^"\\\x00-\x1f]|\\["\\])+)")?\]')
# A line that ends in a backslash continues on the next: git would read a key that this parser
# misses.
ENTRY = re.compile(
    r"\t(?P<key>[A-Za-z][A-Za-z0-9-]*) =(?: (?P<value>[^\x00-\x1f\x7f]*[^\\\x00-\x1f\x7f]))?"
)
UNQUOTED = re.compile(r'[^"\\#;]*')

SET_BY_GIT = frozenset(
    f"core.{name}"
    for name in (*("filemode", "logallrefupdates", "ignorecase", "precomposeunicode", "symlinks"),)
)
"""Keys that git writes into each repository."""
OF_REMOTES = frozenset({"url", "pushurl", "fetch", "prune", "tagopt"})
OF_BRANCHES = frozenset({"remote", "pushremote", "merge", "rebase"})
REQUIRED_VALUES: Mapping[str, frozenset[str]] = {
    "core.bare": frozenset({"false"}),
    "core.repositoryformatversion": frozenset({"0", "1"}),
    "extensions.objectformat": frozenset({"sha1", "sha256"}),
    "extensions.refstorage": frozenset({"files", "reftable"}),
}
KNOWN_KEYS = MAY_SET | SET_BY_GIT | REQUIRED_VALUES.keys()


class Configuration(msgspec.Struct, frozen=True):
    """The parts of a configuration that matter here."""

    remotes: Mapping[str, tuple[RemoteUrl, ...]]
    """By their names."""
    other_urls: tuple[RemoteUrl, ...] = ()
    """Remotes that branches name by URL."""


class UnusableConfiguration(Exception):
    """The configuration may make git run or read something else."""


def configuration_of(text: str) -> Configuration:
    """
    Return the configuration in *text*; UnusableConfiguration unless every line is harmless and
    unambiguous.

    An unknown key may name a program (`core.fsmonitor`), another repository (`core.worktree`), a
    file (`include.path`) or an address (`url.….insteadOf`).
    """
    remotes: dict[str, list[RemoteUrl]] = {}
    other_urls: list[RemoteUrl] = []
    for section, sub, key, value in _entries(text):
        name = f"{section}.{key}"
        if section == "remote" and sub is not None and key in OF_REMOTES:
            section_urls = remotes.setdefault(_named(sub), [])
            if key in ("url", "pushurl"):
                section_urls.append(_remote(value))
        elif section == "branch" and sub is not None and key in OF_BRANCHES:
            # A dot is the repository itself, for a branch that follows another one here.
            if key.endswith("remote") and value != "." and not REMOTE_NAME.fullmatch(value):
                other_urls.append(_remote(value))
        elif sub is not None or name not in KNOWN_KEYS:
            raise UnusableConfiguration(f"it sets {name}")
        elif name in REQUIRED_VALUES and value not in REQUIRED_VALUES[name]:
            raise UnusableConfiguration(
                f"{name} is not {' or '.join(sorted(REQUIRED_VALUES[name]))}"
            )
    return Configuration({name: tuple(urls) for name, urls in remotes.items()}, tuple(other_urls))


def _entries(text: str) -> Iterator[tuple[str, str | None, str, str]]:
    section: str | None = None
    sub: str | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        if head := SECTION.fullmatch(line):
            section, sub = head["name"].lower(), head["sub"]
        elif (entry := ENTRY.fullmatch(line)) and section is not None:
            yield section, sub, entry["key"].lower(), entry["value"] or ""
        else:
            raise UnusableConfiguration(f"line {number} is not as git writes it")


def _named(name: str) -> str:
    if not REMOTE_NAME.fullmatch(name):
        raise UnusableConfiguration("it has a remote with an invalid name")
    return name


def _remote(url: str) -> RemoteUrl:
    remote = remote_of(url) if UNQUOTED.fullmatch(url) else None
    if remote is None:
        raise UnusableConfiguration("a remote's URL is neither an https:// nor an SSH URL")
    return remote

"""Repositories that others keep, made with plain git: good ones, and those of attackers."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "LC_ALL": "C.UTF-8",
}


def plain_git(folder: Path, *args: str, data: bytes = b"") -> str:
    """Whatever git does without any of our rules."""
    done = subprocess.run(
        ["git", *args], cwd=folder, env=ENV, input=data, capture_output=True, timeout=30, check=True
    )
    return done.stdout.decode().strip()


class Upstream:
    """A bare repository below *root*, which a server offers."""

    def __init__(self, root: Path, name: str) -> None:
        self.path = root / name
        plain_git(root, "init", "--quiet", "--bare", "--initial-branch=main", str(self.path))
        plain_git(self.path, "config", "http.receivepack", "true")

    def commit(
        self,
        files: Mapping[str, bytes | str],
        *,
        modes: Mapping[str, str] = {},
        onto: str | None = None,
    ) -> str:
        """
        A commit on main with exactly these files, whatever their names; a text is a link's target.

        With *onto* its parent is that commit.
        """
        entries: list[tuple[tuple[str, ...], str, str]] = []
        kept: dict[bytes, str] = {}
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            if data not in kept:
                kept[data] = plain_git(self.path, "hash-object", "-w", "--stdin", data=data)
            usual = "120000" if isinstance(content, str) else "100644"
            entries.append((tuple(name.split("/")), modes.get(name, usual), kept[data]))
        tree = self._tree(entries)
        return self.publish(tree, onto)

    def publish(self, tree: str, onto: str | None = None) -> str:
        """Make *tree* what main holds."""
        parent = [] if onto is None else ["-p", onto]
        made = plain_git(self.path, "commit-tree", tree, *parent, "-m", "From upstream")
        plain_git(self.path, "update-ref", "refs/heads/main", made)
        return made

    def _tree(self, entries: list[tuple[tuple[str, ...], str, str]]) -> str:
        lines: list[bytes] = []
        folders: dict[str, list[tuple[tuple[str, ...], str, str]]] = {}
        for names, mode, oid in entries:
            if len(names) > 1:
                folders.setdefault(names[0], []).append((names[1:], mode, oid))
                continue
            kind = "commit" if mode == "160000" else "blob"
            lines.append(f"{mode} {kind} {oid}\t{names[0]}".encode(errors="surrogateescape"))
        for name, below in folders.items():
            lines.append(f"040000 tree {self._tree(below)}\t{name}".encode())
        return plain_git(self.path, "mktree", "-z", "--missing", data=b"\0".join([*lines, b""]))

    def text(self, path: str, ref: str = "main") -> str:
        """What a file of it holds."""
        return plain_git(self.path, "show", f"{ref}:{path}")

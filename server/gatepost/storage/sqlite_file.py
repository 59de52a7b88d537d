"""The file that the URL of a SQLite database names; no driver is imported."""

import os
from urllib.parse import unquote

SCHEME = "sqlite:///"


def path_of(url: str) -> str:
    """
    Return the path of the file itself, also if the URL names a link to it.

    SQLite keeps its files beside the file itself. If Gatepost kept its own beside a link, processes
    that use different paths would not merge each other's write-ahead logs.
    """
    path = given_path(url)
    return os.path.realpath(path) if os.path.islink(path) else path


def given_path(url: str) -> str:
    """Return the path in the URL, which may be a link to the file."""
    return unquote(url.removeprefix(SCHEME))


def exists(url: str) -> bool:
    """Return whether the file exists."""
    return os.path.exists(path_of(url))

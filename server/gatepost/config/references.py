"""References to secrets (`env:NAME`, `file:PATH`), which the server reads when it starts."""

import os
import re
from pathlib import Path

REFERENCE = re.compile(r"(?:env|file):")


class UnresolvedReference(Exception):
    """A reference cannot be resolved; the message names the reference, never a value."""


def resolve(reference: str) -> str:
    """Return the secret behind a reference; raises UnresolvedReference with a sentence."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name)
        if not value:
            raise UnresolvedReference(f"the environment variable {name} is not set")
        return value
    if kind == "file":
        try:
            return Path(name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise UnresolvedReference(f"the file {name} cannot be read") from None
    raise UnresolvedReference("it is neither env:NAME nor file:PATH")


def resolved_setting(value: str) -> str:
    """Return a setting that is a value or a reference; raises UnresolvedReference."""
    return resolve(value) if REFERENCE.match(value) else value

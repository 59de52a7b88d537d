"""One script: its name, exactly these bytes, and the digest that an approval binds."""

import hashlib
import re
from typing import Literal

import msgspec

from gatepost.packs.scripts.settings import ALLOWED, NAME, ScriptsSettings

Place = Literal["server", "workspace", "code"]
"""The operator's folder, the tenant's own one, or the argument of `script_exec`."""

EXEC = re.compile(r"exec-[0-9a-f]{16}", re.ASCII)
"""How code without a file is called; no file may be called so."""


class Script(msgspec.Struct, frozen=True):
    """What was read once: it is judged, reviewed and run as it is here, whatever its file does."""

    name: str
    content: bytes
    place: Place

    @property
    def file(self) -> str:
        """Its name as people see it."""
        return f"{self.name}.star"

    @property
    def digest(self) -> str:
        """SHA-256 of name, NUL, content: the same bytes under another name are another script."""
        return hashlib.sha256(self.name.encode() + b"\0" + self.content).hexdigest()

    @property
    def text(self) -> str | None:
        """Its content, if it is text."""
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            return None

    def allowed_by(self, settings: ScriptsSettings) -> bool:
        """Whether the configuration lets it run without an approval."""
        if self.place == "code":
            return settings.exec == "free"
        for entry in settings.allow:
            match = ALLOWED.fullmatch(entry)
            if match is None or match[1] != self.name:
                continue
            if match[2] is None:
                # A name alone must not be worth anything to whoever may write to a workspace.
                if self.place == "server":
                    return True
            elif match[2] == hashlib.sha256(self.content).hexdigest():
                return True
        return False


def is_name(name: str) -> bool:
    """Whether a file may be called so."""
    return NAME.fullmatch(name) is not None and EXEC.fullmatch(name) is None


def from_code(code: bytes) -> Script:
    """Code without a file; its name is made of its content."""
    return Script(f"exec-{hashlib.sha256(code).hexdigest()[:16]}", code, "code")

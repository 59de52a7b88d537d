"""Where a remote repository may be: https://, ssh:// and user@host:path, and nothing else."""

import re
from typing import Literal, cast

import msgspec

Scheme = Literal["https", "http", "ssh"]
USUAL_PORTS: dict[str, int] = {"https": 443, "http": 80, "ssh": 22}

# Characters that mean the same to git, curl, ssh and us: two readings of one URL are how a check
# of the host is passed by. A host that begins with `-` would be an option of ssh
# (CVE-2017-1000117).
_HOST = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)"
_PATH = r"(?P<path>[A-Za-z0-9_~][A-Za-z0-9_.~+@=,%/-]*)"
_USER = r"(?P<user>[a-z_][a-z0-9_-]{0,31})@"
_PORT = r"(?::(?P<port>[1-9][0-9]{0,4}))?"
WEB = re.compile(rf"(?P<scheme>https?)://{_HOST}{_PORT}/{_PATH}", re.ASCII)
SSH = re.compile(rf"(?P<scheme>ssh)://(?:{_USER})?{_HOST}{_PORT}/{_PATH}", re.ASCII)
SHORT = re.compile(rf"{_USER}{_HOST}:/?{_PATH}", re.ASCII)

FORMS = "https://host/path, ssh://git@host/path or git@host:path"


class Remote(msgspec.Struct, frozen=True):
    """A repository elsewhere."""

    url: str
    """As git gets it."""
    scheme: Scheme
    host: str
    port: int

    @property
    def folder(self) -> str:
        """The name that a clone of it gets by itself."""
        return self.url.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")


def problem_of(url: str) -> str:
    """Why *url* is none, as a sentence for a model."""
    if re.match(r"https?://[^/]*@", url):
        return (
            "A URL must not hold a user name, password or token: it would be kept and shown. "
            "Credentials come from the server's configuration."
        )
    if re.match(r"[A-Za-z0-9+.-]*::|[A-Za-z][A-Za-z0-9+.-]*://", url):
        scheme = re.split(r"::|://", url)[0]
        if scheme in USUAL_PORTS:
            return f"{url!r} is not a plain {scheme} URL. A remote is {FORMS}."
        return f"Remotes by `{scheme}` are not allowed. A remote is {FORMS}."
    return f"{url!r} is not a remote: no path of this machine is one. A remote is {FORMS}."


def remote_of(url: str) -> Remote | None:
    """The remote that *url* names; None when it is not one that may be named."""
    found = WEB.fullmatch(url) or SSH.fullmatch(url) or SHORT.fullmatch(url)
    if found is None or ".." in found["host"] or ".." in found["path"].split("/"):
        return None
    parts = found.groupdict()
    scheme = cast("Scheme", parts.get("scheme") or "ssh")
    port = int(parts.get("port") or USUAL_PORTS[scheme])
    return Remote(url, scheme, found["host"].lower(), port) if port < 65_536 else None

"""Parse remote repositories: https://, ssh:// and user@host:path, and no other forms."""

import re
from typing import Literal, cast

import msgspec

Scheme = Literal["https", "http", "ssh"]
USUAL_PORTS: dict[str, int] = {"https": 443, "http": 80, "ssh": 22}

# Characters that git, curl, ssh and Gatepost all read alike, because a URL with two readings can
# bypass a host check. A host that begins with `-` would be an option of ssh (CVE-2017-1000117).
_HOST = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)"
_PATH = r"(?P<path>[A-Za-z0-9_~][A-Za-z0-9_.~+@=,%/-]*)"
_USER = r"(?P<user>[a-z_][a-z0-9_-]{0,31})@"
_PORT = r"(?::(?P<port>[1-9][0-9]{0,4}))?"
WEB = re.compile(rf"(?P<scheme>https?)://{_HOST}{_PORT}/{_PATH}", re.ASCII)
SSH = re.compile(rf"(?P<scheme>ssh)://(?:{_USER})?{_HOST}{_PORT}/{_PATH}", re.ASCII)
SCP_URL = re.compile(rf"{_USER}{_HOST}:/?{_PATH}", re.ASCII)

FORMS = "https://host/path, ssh://git@host/path or git@host:path"


class RemoteUrl(msgspec.Struct, frozen=True):
    """A repository on another host."""

    url: str
    """The URL as git gets it."""
    scheme: Scheme
    host: str
    port: int

    @property
    def folder(self) -> str:
        """Return the default folder name of a clone of it."""
        return self.url.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")


def problem_of(url: str) -> str:
    """Return why *url* is not a valid remote, as a sentence for a model."""
    if re.match(r"https?://[^/]*@", url):
        return (
            "A URL must not hold a user name, password or token, because it would be stored "
            "and shown. The server's configuration provides credentials."
        )
    if re.match(r"[A-Za-z0-9+.-]*::|[A-Za-z][A-Za-z0-9+.-]*://", url):
        scheme = re.split(r"::|://", url)[0]
        if scheme in USUAL_PORTS:
            return f"{url!r} is not a plain {scheme} URL. A remote is {FORMS}."
        return f"`{scheme}` is not an allowed protocol for remotes. A remote is {FORMS}."
    return f"{url!r} is not a remote: local paths are not allowed. A remote is {FORMS}."


def remote_of(url: str) -> RemoteUrl | None:
    """Return the remote that *url* names; None if it is not allowed."""
    match = WEB.fullmatch(url) or SSH.fullmatch(url) or SCP_URL.fullmatch(url)
    if match is None or ".." in match["host"] or ".." in match["path"].split("/"):
        return None
    parts = match.groupdict()
    scheme = cast("Scheme", parts.get("scheme") or "ssh")
    port = int(parts.get("port") or USUAL_PORTS[scheme])
    return RemoteUrl(url, scheme, match["host"].lower(), port) if port < 65_536 else None

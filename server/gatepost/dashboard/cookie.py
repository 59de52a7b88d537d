"""The dashboard's cookies: the session, its ID token, and the sign-in in progress."""

from typing import Literal

from gatepost_authz.protected_resource import Resource, Target

CookieKind = Literal["session", "identity", "sign-in"]


class Cookies:
    """
    Name and write the cookies.

    Under https their names have the prefix ``__Host-``: only this host can set such a cookie, and
    browsers send it to this host alone (RFC 6265bis, 4.1.3.2). If the resource is per tenant, each
    tenant has its own cookies. They are Lax and not Strict, because an approver follows a link out
    of a chat, and the issuer sends people back here. Over http on a laptop, ports share cookies, so
    the name contains the port.
    """

    def __init__(self, resource: Resource) -> None:
        self._secure = resource.scheme == "https"
        port = resource.authority.rpartition(":")[2] if ":" in resource.authority else ""
        self._start = "__Host-gatepost" if self._secure else f"gatepost{port}"

    def name(self, kind: CookieKind, target: Target) -> str:
        """Return the name of the cookie of *target*'s dashboard."""
        tenant = f"-{target.tenant}" if target.tenant else ""
        return f"{self._start}-{kind}{tenant}"

    def header(
        self, kind: CookieKind, target: Target, value: str, *, age: int | None = None
    ) -> tuple[bytes, bytes]:
        """
        Return the header that sets the cookie to *value*, which is base64url and dots.

        For *age* seconds, or while the browser runs.
        """
        parts = [f"{self.name(kind, target)}={value}", "Path=/", "HttpOnly", "SameSite=Lax"]
        if age is not None:
            parts.append(f"Max-Age={age}")
        if self._secure:
            parts.append("Secure")
        return b"set-cookie", "; ".join(parts).encode("ascii")

    def removal(self, kind: CookieKind, target: Target) -> tuple[bytes, bytes]:
        """Return the header that removes the cookie."""
        return self.header(kind, target, "", age=0)

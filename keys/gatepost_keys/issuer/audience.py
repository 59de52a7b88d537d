"""Decide which resource an authorization is for, as the imitated provider does; pure."""
# mypy: disallow-subclassing-any=False

from collections.abc import Mapping, Sequence

from authlib.oauth2 import rfc6749  # type: ignore[import-untyped]

from gatepost_keys.imitation import Imitation
from gatepost_keys.imitation.facts import api_of
from gatepost_keys.issuer.resource_indicators import Resources


class InvalidTarget(rfc6749.OAuth2Error):
    """The resource is unknown, or not the one that was granted (RFC 8707 section 2)."""

    error = "invalid_target"

    def __init__(self, description: str, requested: str = "") -> None:
        super().__init__(description)
        self.requested = requested


def named(requested: Sequence[str], resources: Resources, *, default: str | None) -> str:
    """Return the one resource of *requested*, or *default* if it is empty; else InvalidTarget."""
    if len(requested) > 1:
        raise InvalidTarget("Ask for one resource at a time", " ".join(requested))
    resource = resources.find(requested[0]) if requested else default
    if resource is None:
        raise InvalidTarget("This issuer does not serve that resource", *requested)
    return resource


def resource_of(
    shape: Imitation, resources: Resources, values: Mapping[str, str], requested: Sequence[str]
) -> str:
    """
    Return the resource that an authorization with these parameters is for; InvalidTarget if it
    cannot be granted. An empty text: a token for no resource of ours.
    """
    default = resources.default or ""
    scopes = values.get("scope", "").split()
    if shape.audience == "default_resource":
        # Clients from before RFC 8707 name none; with a single resource there is no doubt.
        return named(requested, resources, default=resources.default)
    if shape.audience == "resource":
        return named(requested, resources, default="")
    if shape.audience == "audience":
        audience = values.get("audience")
        return named([audience] if audience else requested, resources, default="")
    if shape.audience == "scope":
        sign_in_scope = shape.sign_in_scopes[0].format(api=api_of(shape, default))
        return default if sign_in_scope in scopes else ""
    if shape.audience == "matching_scope":
        names_default = any(scope.startswith(f"{default}/") for scope in scopes)
        # Compared byte for byte: a slash too many is another resource.
        if requested and (list(requested) != [default] or not names_default):
            raise InvalidTarget("The resource does not match the scopes", " ".join(requested))
        return default if names_default else ""
    return default

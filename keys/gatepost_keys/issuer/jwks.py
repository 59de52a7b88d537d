"""Serve the public keys (RFC 7517)."""

from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer import wire
from gatepost_keys.issuer.issuer_endpoint import RouteHandler
from gatepost_keys.issuer.state import DevelopmentIssuer


def serve(issuer: DevelopmentIssuer) -> RouteHandler:
    """
    Return the current set, with a lifetime as providers give it: who caches it meets rotations.
    """

    async def get(request: Request) -> Response:
        issuer.rotate_when_due()
        published = issuer.keys.document(issuer.settings.imitation.key_lacks)
        return wire.json(published, headers={"Cache-Control": "max-age=60"})

    return get

"""The endpoint with the public keys (RFC 7517), always fresh."""

from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer import wire
from gatepost_keys.issuer.guard import Handler
from gatepost_keys.issuer.state import Issuer


def serve(issuer: Issuer) -> Handler:
    """The current set; not to be cached, so that a rotation shows at once."""

    async def get(request: Request) -> Response:
        return wire.json(issuer.keys.document())

    return get

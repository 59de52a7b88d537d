"""The afternoon's work: a Starlette route that checks tokens with PyJWT, and nothing else."""

import sys
import time
from typing import Any

import jwt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bench.servers.settings import Settings, serve

CACHE_SIZE = 10_000


class Checker:
    """Verifies a token each time, or remembers the claims of those it has verified."""

    def __init__(self, settings: Settings, *, cached: bool) -> None:
        self._settings = settings
        self._keys: dict[str, Any] = {}
        self._cache: dict[str, dict[str, Any]] | None = {} if cached else None

    def claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a good token; raise jwt.InvalidTokenError for any other."""
        if self._cache is None:
            return self._verified(token)
        claims = self._cache.get(token)
        if claims is not None and claims["exp"] > time.time():
            return claims
        claims = self._verified(token)
        if len(self._cache) >= CACHE_SIZE:
            self._cache.clear()
        self._cache[token] = claims
        return claims

    def _verified(self, token: str) -> dict[str, Any]:
        kid = jwt.get_unverified_header(token)["kid"]
        if kid not in self._keys:
            key_set = jwt.PyJWKClient(self._settings.jwks_uri).get_jwk_set()
            self._keys = {key.key_id: key.key for key in key_set.keys}
        return jwt.decode(  # noqa: TID251 - it is what one writes in an afternoon
            token,
            self._keys[kid],
            algorithms=["RS256"],
            audience=self._settings.resource,
            issuer=self._settings.issuer,
            options={"require": ["exp", "iat", "sub"]},
        )


def application(settings: Settings, *, cached: bool) -> Starlette:
    """Return an application with one route and one tool."""
    checker = Checker(settings, cached=cached)
    challenge = {"WWW-Authenticate": 'Bearer error="invalid_token"'}

    async def endpoint(request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return JSONResponse({"error": "invalid_token"}, 401, challenge)
        try:
            checker.claims(token)
        except jwt.InvalidTokenError:
            return JSONResponse({"error": "invalid_token"}, 401, challenge)
        message = await request.json()
        text = message["params"]["arguments"]["text"]
        result = {
            "resultType": "complete",
            "content": [{"type": "text", "text": text}],
            "isError": False,
        }
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})

    return Starlette(routes=[Route("/mcp", endpoint, methods=["POST"])])


if __name__ == "__main__":
    settings = Settings.read()
    serve(application(settings, cached="--cached" in sys.argv), settings)

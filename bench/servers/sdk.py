"""The official `mcp` SDK with a token verifier of its own interface."""

import jwt
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl

from bench.servers.settings import Settings, serve


class Verifier:
    """PyJWT each time; the SDK brings no verifier and no cache."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        key_set = jwt.PyJWKClient(settings.jwks_uri).get_jwk_set()
        self._keys = {key.key_id: key.key for key in key_set.keys}

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return what a token grants, or None (the SDK then refuses)."""
        try:
            claims = jwt.decode(  # noqa: TID251 - what the SDK documents
                token,
                self._keys[jwt.get_unverified_header(token)["kid"]],
                algorithms=["RS256"],
                audience=self._settings.resource,
                issuer=self._settings.issuer,
            )
        except (jwt.InvalidTokenError, KeyError):
            return None
        return AccessToken(
            token=token,
            client_id=claims["client_id"],
            scopes=claims["scope"].split(),
            expires_at=claims["exp"],
            resource=self._settings.resource,
            subject=claims["sub"],
            claims=claims,
        )


def server(settings: Settings) -> MCPServer:
    """Return a server with the same `echo`, and as many more tools as the list needs."""
    auth = AuthSettings(
        issuer_url=AnyHttpUrl(settings.issuer),
        resource_server_url=AnyHttpUrl(settings.resource),
        validate_token_resource=True,
    )
    mcp = MCPServer("bench", token_verifier=Verifier(settings), auth=auth, log_level="WARNING")

    @mcp.tool()
    async def echo(text: str) -> str:
        """Answer the text that was sent."""
        return text

    async def filler(name: str, count: int = 1, tags: list[str] | None = None) -> str:
        """Return the name: one of the tools that make the list long."""
        return name

    for number in range(1, settings.tools):
        mcp.add_tool(filler, name=f"tool_{number:03}")
    return mcp


if __name__ == "__main__":
    settings = Settings.read()
    app = server(settings).streamable_http_app(json_response=True, stateless_http=True)
    serve(app, settings)

"""FastMCP with its own JWT verifier."""

from fastmcp import FastMCP
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.tools import Tool

from bench.servers.settings import Settings, serve


def server(settings: Settings) -> FastMCP:
    """Return a server with the same `echo`, and as many more tools as the list needs."""
    auth = JWTVerifier(
        jwks_uri=settings.jwks_uri,
        issuer=settings.issuer,
        audience=settings.resource,
        algorithm="RS256",
    )
    mcp = FastMCP("bench", auth=auth)

    @mcp.tool
    async def echo(text: str) -> str:
        """Answer the text that was sent."""
        return text

    async def filler(name: str, count: int = 1, tags: list[str] | None = None) -> str:
        """Return the name: one of the tools that make the list long."""
        return name

    for number in range(1, settings.tools):
        mcp.add_tool(Tool.from_function(filler, name=f"tool_{number:03}"))
    return mcp


if __name__ == "__main__":
    settings = Settings.read()
    serve(server(settings).http_app(path="/mcp", json_response=True, stateless_http=True), settings)

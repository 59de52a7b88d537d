"""FastMCP's proxy of one upstream, with its own JWT verifier."""

from fastmcp.server import create_proxy
from fastmcp.server.auth.providers.jwt import JWTVerifier

from bench.servers.settings import Settings, serve

if __name__ == "__main__":
    settings = Settings.read()
    proxy = create_proxy(settings.upstream, name="bench")
    proxy.auth = JWTVerifier(
        jwks_uri=settings.jwks_uri,
        issuer=settings.issuer,
        audience=settings.resource,
        algorithm="RS256",
    )
    serve(proxy.http_app(path="/mcp", json_response=True, stateless_http=True), settings)

"""A local authorization server, good enough for real clients offline; loopback only."""

from gatepost_keys.issuer.mount import app, routes
from gatepost_keys.issuer.settings import DEFAULT_USERS, IssuerSettings, StaticClient
from gatepost_keys.issuer.state import DevelopmentIssuer

__all__ = ["DEFAULT_USERS", "DevelopmentIssuer", "IssuerSettings", "StaticClient", "app", "routes"]

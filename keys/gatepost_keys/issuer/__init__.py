"""A local authorization server, good enough for real clients offline; loopback only."""

from gatepost_keys.issuer.mount import app, routes
from gatepost_keys.issuer.settings import DEFAULT_USERS, IssuerSettings, StaticClient
from gatepost_keys.issuer.state import Issuer

__all__ = ["DEFAULT_USERS", "Issuer", "IssuerSettings", "StaticClient", "app", "routes"]

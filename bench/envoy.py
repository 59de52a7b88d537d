"""The configuration of Envoy as a gateway: it checks tokens and MCP requests, then forwards."""

from typing import Any
from urllib.parse import urlsplit

from bench.servers.settings import Settings

TYPES = "type.googleapis.com/envoy.extensions.filters"


def envoy_config(settings: Settings) -> dict[str, Any]:
    """Return the configuration for one upstream and one issuer."""
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "gateway",
                    "address": address("127.0.0.1", settings.port),
                    "filter_chains": [{"filters": [manager(settings)]}],
                }
            ],
            "clusters": [
                cluster("upstream", settings.upstream),
                cluster("issuer", settings.jwks_uri),
            ],
        }
    }


def manager(settings: Settings) -> dict[str, Any]:
    """Return the filter that reads HTTP, with those that check what it reads."""
    path = urlsplit(settings.upstream).path
    route = {"match": {"path": "/mcp"}, "route": {"cluster": "upstream", "prefix_rewrite": path}}
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": f"{TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "gateway",
            "codec_type": "HTTP1",
            "route_config": {
                "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]
            },
            "http_filters": [
                {"name": "envoy.filters.http.jwt_authn", "typed_config": token_check(settings)},
                {
                    "name": "envoy.filters.http.mcp",
                    "typed_config": {
                        "@type": f"{TYPES}.http.mcp.v3.Mcp",
                        "traffic_mode": "REJECT_NO_MCP",
                    },
                },
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": f"{TYPES}.http.router.v3.Router"},
                },
            ],
        },
    }


def token_check(settings: Settings) -> dict[str, Any]:
    """Return the check of every request's token, with a cache of verified ones."""
    return {
        "@type": f"{TYPES}.http.jwt_authn.v3.JwtAuthentication",
        "providers": {
            "issuer": {
                "issuer": settings.issuer,
                "audiences": [settings.resource],
                "remote_jwks": {
                    "http_uri": {"uri": settings.jwks_uri, "cluster": "issuer", "timeout": "5s"},
                    "cache_duration": "300s",
                },
                "jwt_cache_config": {"jwt_cache_size": 1000},
            }
        },
        "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "issuer"}}],
    }


def cluster(name: str, url: str) -> dict[str, Any]:
    """Return a cluster with the host of a URL."""
    parts = urlsplit(url)
    endpoint = {"endpoint": {"address": address(parts.hostname or "", parts.port or 80)}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def address(host: str, port: int) -> dict[str, Any]:
    """Return an address as Envoy writes it."""
    return {"socket_address": {"address": host, "port_value": port}}

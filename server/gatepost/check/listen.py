"""Check where the server listens: addresses, proxies, origins, TLS, and the mode's hosts."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.x509 import load_pem_x509_certificates

from gatepost.config.settings import Config
from gatepost_authz.config import Problem

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def problems(config: Config) -> Iterator[Problem]:
    """Yield the problems of `[listen]` and of the mode."""
    yield from _addresses(config)
    yield from _tls(config)
    yield from _mode(config)


def _addresses(config: Config) -> Iterator[Problem]:
    listen = config.listen
    for at, network in enumerate(listen.trusted_proxies):
        try:
            ip_network(network)
        except ValueError:
            yield Problem(
                "config.E009",
                f"{network!r} is not a network",
                "write 10.0.0.0/8, or 10.0.0.7/32 for one address",
                setting=f"listen.trusted_proxies[{at}]",
            )
    for at, origin in enumerate(listen.allowed_origins):
        if not _is_origin(origin):
            yield Problem(
                "config.E015",
                f"{origin!r} is not an origin",
                "write it as browsers send it: https://app.example.com, without a path or `*`",
                setting=f"listen.allowed_origins[{at}]",
            )
    if not 0 <= listen.port <= 65535:
        yield Problem("config.E016", f"{listen.port} is not a port number", setting="listen.port")
    if listen.workers < 1:
        yield Problem(
            "config.E016", "`listen.workers` must be at least 1", setting="listen.workers"
        )


def _is_origin(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    rebuilt = f"{parts.scheme}://{parts.netloc}"
    return (
        bool(parts.scheme and parts.hostname)
        and rebuilt == origin == origin.lower()
        and origin.isascii()
        and "*" not in origin
        and "@" not in origin
    )


def _tls(config: Config) -> Iterator[Problem]:
    certificate, key = config.listen.tls_certificate, config.listen.tls_key
    if bool(certificate) != bool(key):
        yield Problem(
            "config.E014",
            "`listen.tls_certificate` and `listen.tls_key` must be set together",
            "set both, or neither",
            setting="listen.tls_key",
        )
    elif certificate:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            yield Problem(
                "config.E014",
                f"the certificate or its key cannot be used: {error.strerror or error}",
                "both must be PEM files that the server's user can read",
                setting="listen.tls_certificate",
            )
        else:
            yield from _validity(Path(certificate))
    elif not config.development and not config.listen.trusted_proxies:
        yield Problem(
            "config.E008",
            "production mode requires HTTPS, but neither TLS nor a TLS proxy is configured",
            "add the proxy that terminates TLS to listen.trusted_proxies, or set tls_certificate",
            setting="listen",
        )


def _validity(file: Path) -> Iterator[Problem]:
    """Yield a problem if clients refuse the server's certificate because of its dates."""
    try:
        certificate = load_pem_x509_certificates(file.read_bytes())[0]
    except ValueError:
        return  # a form that only OpenSSL reads, as "TRUSTED CERTIFICATE"
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if begins <= datetime.now(UTC) <= ends:
        return
    yield Problem(
        "config.W124",
        f"the certificate is valid only from {begins:%Y-%m-%d %H:%M:%S} to "
        f"{ends:%Y-%m-%d %H:%M:%S} UTC, so clients refuse it",
        "renew it, and reload; if its dates are right, set this machine's clock",
        "warning",
        "listen.tls_certificate",
    )


def _mode(config: Config) -> Iterator[Problem]:
    if not config.development:
        return
    host = urlsplit(config.resource).hostname or ""
    for setting, value in (("resource", host), ("listen.host", config.listen.host)):
        if value not in LOOPBACK:
            yield Problem(
                "config.E017",
                f"development mode works on loopback addresses only, and {value!r} is not loopback",
                'use 127.0.0.1, or mode = "production"',
                setting=setting,
            )

"""An issuer that only publishes: metadata and a key set over loopback."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

METADATA_PATHS = (
    "/.well-known/oauth-authorization-server",
    "/.well-known/openid-configuration",
)


class BenchIssuer:
    """What the issuer publishes; the key set may be set after the address is known."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.jwks_uri = f"{url}/jwks"
        self.key_set: dict[str, object] = {"keys": []}

    def document(self, path: str) -> dict[str, object] | None:
        """Return the JSON document at a path; None for any other path."""
        if path == "/jwks":
            return self.key_set
        if path not in METADATA_PATHS:
            return None
        return {
            "issuer": self.url,
            "jwks_uri": self.jwks_uri,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "client_credentials"],
            "code_challenge_methods_supported": ["S256"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }


@contextmanager
def running() -> Iterator[BenchIssuer]:
    """Serve an issuer on a free loopback port, in a thread of this process."""

    class IssuerHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document = issuer.document(self.path)
            body = json.dumps(document or {"error": "not_found"}).encode()
            self.send_response(200 if document else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: the report is what the run prints."""

    with ThreadingHTTPServer(("127.0.0.1", 0), IssuerHandler) as server:
        issuer = BenchIssuer(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()

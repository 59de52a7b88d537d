"""Canaille with two people and three clients in memory, to try Gatepost; not for production."""

import datetime
import os

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from joserfc.jwk import RSAKey
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.serving import run_simple

HOST = os.environ.get("ISSUER_HOST", "id.gatepost.test")
PORT = int(os.environ.get("ISSUER_PORT", "8000"))
CLIENTS = {
    "gatepost": (os.environ["ISSUER_SECRET"], ["client_credentials"]),
    "agent": ("", ["authorization_code", "refresh_token"]),
    "machine": (os.environ["ISSUER_SECRET"], ["client_credentials"]),
}
"""Id, secret and grants; `gatepost` is the client with which Gatepost asks about tokens."""


def configuration() -> dict[str, object]:
    """Return the configuration of the server."""
    key = RSAKey.generate_key(2048, parameters={"use": "sig", "alg": "RS256"})
    key.ensure_kid()
    return {
        "SECRET_KEY": os.urandom(32).hex(),
        "SERVER_NAME": HOST,
        "PREFERRED_URL_SCHEME": "https",
        "CANAILLE": {"DATABASE": "memory"},
        "CANAILLE_OIDC": {"ACTIVE_JWKS": [key.as_dict(private=True)], "REQUIRE_NONCE": False},
    }


def add_people() -> None:
    """Store Alice, and Dave, who is an approver."""
    people = []
    for name in ("alice", "dave"):
        person = models.User(
            user_name=name,
            password=os.environ["ISSUER_PASSWORD"],
            formatted_name=name.title(),
            family_name=name.title(),
            emails=[f"{name}@example.com"],
        )
        Backend.instance.save(person)
        people.append(person)
    Backend.instance.save(models.Group(display_name="approver", members=people[1:]))


def add_clients() -> None:
    """Store the clients; the audience of each is Gatepost's own."""
    stored = {}
    for name, (secret, grants) in CLIENTS.items():
        stored[name] = models.Client(
            client_id=name,
            client_name=name,
            client_secret=secret or None,
            client_id_issued_at=datetime.datetime.now(datetime.UTC),
            redirect_uris=["http://127.0.0.1:6274/oauth/callback"],
            grant_types=grants,
            response_types=["code"],
            token_endpoint_auth_method="client_secret_basic" if secret else "none",
            scope=["openid", "profile", "groups", "files:write"],
        )
        Backend.instance.save(stored[name])
    for client in stored.values():
        client.audience = [stored["gatepost"]]
        Backend.instance.save(client)


if __name__ == "__main__":
    app = create_app(configuration())
    with app.app_context():
        add_people()
        add_clients()
    app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1, x_proto=1, x_host=1)
    run_simple("0.0.0.0", PORT, app, threaded=True)  # inside a container

"""Canaille in memory, with configuration, people and clients only."""

import datetime
from typing import Any

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend

from tests.providers.programs import serve, settings


def configuration(given: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of one server without mail, themes or other stores."""
    grants = ("authorization_code", "client_credentials", "refresh_token")
    return {
        "SECRET_KEY": "known-to-this-test-run-only-0123456789",
        "SERVER_NAME": f"{given['host']}:{given['port']}",
        "PREFERRED_URL_SCHEME": "https",
        "OAUTH2_TOKEN_EXPIRES_IN": dict.fromkeys(grants, given["lasts_s"]),
        "CANAILLE": {"DATABASE": "memory"},
        "CANAILLE_OIDC": {
            "ACTIVE_JWKS": [given["signing"]],
            "DYNAMIC_CLIENT_REGISTRATION_OPEN": True,
            "REQUIRE_NONCE": False,
            "TRUSTED_DOMAINS": ["127.0.0.1"],
        },
    }


def add_people(people: list[dict[str, Any]]) -> None:
    """Store the people, and a group for each role."""
    stored = {}
    for person in people:
        name = person["name"]
        user = models.User(
            user_name=name,
            password=person["password"],
            formatted_name=name.title(),
            given_name=name.title(),
            family_name=name.title(),
            emails=[f"{name}@example.com"],
        )
        Backend.instance.save(user)
        stored[name] = user
    for role in {person["role"] for person in people if person["role"]}:
        members = [stored[one["name"]] for one in people if one["role"] == role]
        Backend.instance.save(models.Group(display_name=role, members=members))


def add_clients(given: dict[str, Any]) -> None:
    """Store the clients; the audience of a client of Gatepost is Gatepost's own client."""
    stored = {}
    for client in given["clients"]:
        stored[client["client_id"]] = models.Client(
            client_id=client["client_id"],
            client_name=client["client_id"],
            client_secret=client["secret"] or None,
            client_id_issued_at=datetime.datetime.now(datetime.UTC),
            redirect_uris=client["redirects"],
            post_logout_redirect_uris=[given["signed_out"]],
            grant_types=client["grants"],
            response_types=["code"],
            token_endpoint_auth_method="client_secret_basic" if client["secret"] else "none",
            scope=["openid", "profile", "groups", *given["scopes"]],
        )
        Backend.instance.save(stored[client["client_id"]])
    gatepost = stored["gatepost"]
    for name, client in stored.items():
        mine = {
            "neighbour": [client],
            "neighbour-machine": [client],
            "gatepost-dashboard": [client, gatepost],
        }
        client.audience = mine.get(name, [gatepost])
        Backend.instance.save(client)


def main() -> None:
    """Serve it."""
    given = settings()
    app = create_app(configuration(given))
    with app.app_context():
        add_people(given["people"])
        add_clients(given)
    serve(app, given)


if __name__ == "__main__":
    main()

"""
Canaille and django-oauth-toolkit, each with a configuration, people and clients only.

It runs on the providers' interpreter, over TLS until standard input ends, with the name of the
provider and a file that says what it has to know.
"""

import datetime
import json
import sys
import threading
from pathlib import Path
from typing import Any

import django
from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.urls import include, path
from werkzeug.serving import make_server


def serve(app: Any, given: dict[str, Any]) -> None:
    """Serve *app*; prints one line once it listens."""
    server = make_server(
        given["host"],
        given["port"],
        app,
        threaded=True,
        ssl_context=(given["certificate"], given["key"]),
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()


def canaille_configuration(given: dict[str, Any]) -> dict[str, Any]:
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


def add_canaille_people(people: list[dict[str, Any]]) -> None:
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


def add_canaille_clients(given: dict[str, Any]) -> None:
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


def canaille(given: dict[str, Any]) -> Any:
    """Return Canaille, which keeps everything in memory."""
    app = create_app(canaille_configuration(given))
    with app.app_context():
        add_canaille_people(given["people"])
        add_canaille_clients(given)
    return app


urlpatterns: list[Any] = []
LOGIN = '<form method="post">{% csrf_token %}{{ form }}<button>Sign in</button></form>'
GRANTS = {"authorization_code": "authorization-code", "client_credentials": "client-credentials"}
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {
            "loaders": [
                ("django.template.loaders.locmem.Loader", {"registration/login.html": LOGIN}),
                "django.template.loaders.app_directories.Loader",
            ],
            "context_processors": ["django.template.context_processors.request"],
        },
    }
]


def configure_django(given: dict[str, Any]) -> None:
    """Set up the project."""
    settings.configure(
        SECRET_KEY="known-to-this-test-run-only",
        ALLOWED_HOSTS=[given["host"]],
        ROOT_URLCONF=__name__,
        USE_TZ=True,
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": f"{given['folder']}/django.db",
                # Migrations sync 228 times, which takes half a minute where other tests sync, too.
                "OPTIONS": {"timeout": 10, "init_command": "PRAGMA synchronous = OFF"},
            }
        },
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "oauth2_provider",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        TEMPLATES=TEMPLATES,
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        LOGIN_URL="/accounts/login/",
        STATIC_URL="/static/",
        OAUTH2_PROVIDER=toolkit_settings(given),
    )
    django.setup()


def toolkit_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of django-oauth-toolkit."""
    return {
        "OIDC_ENABLED": True,
        "OIDC_RSA_PRIVATE_KEY": given["signing_pem"],
        "OIDC_RP_INITIATED_LOGOUT_ENABLED": True,
        "OIDC_ISS_ENDPOINT": f"https://{given['host']}:{given['port']}/o",
        "SCOPES": dict.fromkeys(["openid", *given["scopes"]], "a scope"),
        "ACCESS_TOKEN_EXPIRE_SECONDS": given["lasts_s"],
        "DCR_ENABLED": True,
        "DCR_REGISTRATION_PERMISSION_CLASSES": ("oauth2_provider.dcr.AllowAllDCRPermission",),
        "COMPLIANT_BCP_RFC9700_AUTHZ_RESPONSE_ISS": True,
        "ALLOWED_REDIRECT_URI_SCHEMES": ["http", "https"],
    }


def populate_django(given: dict[str, Any]) -> None:
    """Store people and clients."""
    from django.contrib.auth.models import User  # noqa: PLC0415 - needs the settings
    from oauth2_provider.models import Application  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    for person in given["people"]:
        User.objects.create_user(person["name"], password=person["password"])
    for client in given["clients"]:
        Application.objects.create(
            client_id=client["client_id"],
            client_secret=client["secret"],
            client_type="confidential" if client["secret"] else "public",
            authorization_grant_type=GRANTS[client["grants"][0]],
            redirect_uris=" ".join(client["redirects"]),
            post_logout_redirect_uris=given["signed_out"],
            name=client["client_id"],
            algorithm="RS256" if client["redirects"] else "",
        )


def django_oauth_toolkit(given: dict[str, Any]) -> Any:
    """Return a Django project of one file, with its usual settings."""
    configure_django(given)
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.contrib.auth.views import LoginView  # noqa: PLC0415
    from oauth2_provider.urls import metadata_urlpatterns  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    if not User.objects.exists():
        populate_django(given)
    urlpatterns.append(path("accounts/login/", LoginView.as_view()))
    urlpatterns.append(path("", include((metadata_urlpatterns, "metadata"))))
    urlpatterns.append(path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")))
    return get_wsgi_application()


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    provider = canaille if sys.argv[1] == "canaille" else django_oauth_toolkit
    serve(provider(given), given)

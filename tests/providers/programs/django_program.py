"""django-oauth-toolkit in a Django project of one file, with its usual settings."""

from typing import Any

import django
from django.conf import settings as django_settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.urls import include, path

from tests.providers.programs import serve, settings

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


def configure(given: dict[str, Any]) -> None:
    """Set up the project."""
    django_settings.configure(
        SECRET_KEY="known-to-this-test-run-only",
        ALLOWED_HOSTS=[given["host"]],
        ROOT_URLCONF=__name__,
        USE_TZ=True,
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": f"{given['folder']}/django.db",
                "OPTIONS": {"timeout": 10},
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
        OAUTH2_PROVIDER=provider_settings(given),
    )
    django.setup()


def provider_settings(given: dict[str, Any]) -> dict[str, Any]:
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


def populate(given: dict[str, Any]) -> None:
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


def main() -> None:
    """Serve it."""
    given = settings()
    configure(given)
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.contrib.auth.views import LoginView  # noqa: PLC0415
    from oauth2_provider.urls import metadata_urlpatterns  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    if not User.objects.exists():
        populate(given)
    urlpatterns.append(path("accounts/login/", LoginView.as_view()))
    urlpatterns.append(path("", include((metadata_urlpatterns, "metadata"))))
    urlpatterns.append(path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")))
    serve(get_wsgi_application(), given)


if __name__ == "__main__":
    main()

"""Keep the development issuer out of production: list every reason not to start it, at once."""

from collections.abc import Collection, Mapping

from gatepost_keys.issuer.settings import LOOPBACK, MOUNT, on_loopback

BANNER = (
    "WARNING: development sign-in. Any user of this machine can sign in as any person; "
    "tokens are worthless elsewhere. Never expose this port."
)
"""The warning that each command prints when it starts the issuer."""

INSECURE = "insecure_dev_auth"
"""The value that `/readyz` reports while the issuer runs."""

MARKERS = ("GATEPOST_MODE", "APP_ENV", "ENVIRONMENT", "ENV", "PYTHON_ENV")
PRODUCTION = frozenset({"production", "prod", "live", "staging"})


def problems(  # noqa: PLR0913 - each argument is a lock of its own; a bundle would hide one
    issuer_url: str,
    resource: str,
    bind_host: str,
    *,
    production: bool,
    tls: bool,
    trusted_proxies: Collection[str],
    other_issuers: Collection[str],
    environ: Mapping[str, str],
) -> list[str]:
    """
    Return why the development issuer must not run with these settings, as sentences; empty: it may.

    *production* is the mode the operator set, *tls* whether we terminate TLS, *other_issuers*
    the issuers trusted beside this one.
    """
    conditions = {
        f"the development issuer listens on a loopback address only, not on {bind_host or '*'}": (
            bind_host not in LOOPBACK
        ),
        f"the development issuer's URL must be on a loopback host: {issuer_url}": (
            not on_loopback(issuer_url)
        ),
        f"the development issuer's URL must end in {MOUNT}: {issuer_url}": (
            not issuer_url.endswith(MOUNT)
        ),
        f"the resource must be on a loopback host: {resource}": not on_loopback(resource),
        "the mode is production": production,
        "TLS is set up here, so this is no laptop": tls,
        "trusted proxies are set, so requests come from elsewhere": bool(trusted_proxies),
        f"other issuers are trusted beside it: {', '.join(sorted(other_issuers))}": bool(
            other_issuers
        ),
    }
    marked = [
        f"{name}={environ[name]} marks this as production"
        for name in MARKERS
        if environ.get(name, "").strip().lower() in PRODUCTION
    ]
    return [sentence for sentence, is_met in conditions.items() if is_met] + marked

"""Find introspection settings that cannot work, or that reveal or accept too much."""

import re
from collections.abc import Iterator, Sequence

from gatepost_authz.config import Introspection, Issuer, Problem
from gatepost_authz.findings import finding
from gatepost_authz.presets import PRESETS

HINTS = {
    "authz.E022": "write a reference: env:NAME, file:PATH or secret:NAME",
    "authz.E040": "set `private_key` to a reference to the private key (PEM)",
    "authz.E041": "give each issuer a prefix with which no other issuer's tokens begin",
    "authz.E042": "name each issuer in a table of its own",
    "authz.E043": "add `introspection` with the client that the issuer knows this server by",
    "authz.W004": "add `introspection`, or configure the provider to issue JWTs",
    "authz.W017": "let the issuer write `aud`, or set `client_as_audience` and list its clients",
    "authz.W018": "set `token_prefix`, or put {tenant} into `resource`; then one issuer is asked",
    "authz.W019": "set `token_prefix`, or `ask_in_turn` for each issuer that may see the tokens",
}
SECRET_REFERENCE = re.compile(r"(env|file|secret):.+")


def problems(where: str, issuer: Issuer) -> Iterator[Problem]:
    """Yield the problems of one issuer's introspection."""
    introspection, setting = issuer.introspection, f"{where}.introspection"
    preset = PRESETS.get(issuer.preset)
    if introspection is None:
        if preset and preset.introspects_signed:
            message = f"tokens of {preset.name} cannot be accepted without an answer about them"
            yield finding(HINTS, "authz.E043", setting, message)
        elif preset and preset.opaque and preset.introspection_form == "rfc7662":
            message = f"opaque tokens of {preset.name} are refused"
            yield finding(HINTS, "authz.W004", setting, message)
        return
    yield from _credentials(setting, introspection)
    always = introspection.when == "always" or (preset is not None and preset.introspects_signed)
    if always and "{" in issuer.issuer:
        message = "the issuers of a template have no common endpoint"
        yield finding(HINTS, "authz.E042", f"{setting}.when", message)
    if introspection.audience == "client":
        message = "answers without audience are accepted, because they are for this client only"
        yield finding(HINTS, "authz.W017", f"{setting}.audience", message)


def _credentials(setting: str, introspection: Introspection) -> Iterator[Problem]:
    if introspection.method == "private_key_jwt":
        name, value = "private_key", introspection.private_key
        if not value:
            message = "`private_key_jwt` needs a private key"
            yield finding(HINTS, "authz.E040", f"{setting}.{name}", message)
            return
    else:
        name, value = "client_secret", introspection.client_secret
    if not SECRET_REFERENCE.fullmatch(value):
        # The value is not shown: it may be the secret itself.
        message = f"`{name}` is not a reference to a secret"
        yield finding(HINTS, "authz.E022", f"{setting}.{name}", message)


def neighbour_problems(issuers: Sequence[Issuer], *, by_path: bool) -> Iterator[Problem]:
    """
    Yield the problems of several issuers with opaque tokens at one resource.

    *by_path*: the resource's path names the tenant, which decides between its issuers.
    """
    introspecting = [
        (f"issuers[{index}].introspection", issuer.introspection)
        for index, issuer in enumerate(issuers)
        if issuer.introspection is not None and issuer.enabled
    ]
    prefixes = [
        (setting, introspection.token_prefix)
        for setting, introspection in introspecting
        if introspection.token_prefix
    ]
    for at, (setting, prefix) in enumerate(prefixes):
        for _, other_prefix in prefixes[:at]:
            if prefix.startswith(other_prefix) or other_prefix.startswith(prefix):
                message = (
                    f"tokens with {prefix!r} could be those of another issuer ({other_prefix!r})"
                )
                yield finding(HINTS, "authz.E041", f"{setting}.token_prefix", message)
    open_ones = [
        (setting, introspection)
        for setting, introspection in introspecting
        if not introspection.token_prefix
    ]
    if len(open_ones) < 2 or by_path:
        return
    setting = open_ones[-1][0]
    if all(introspection.ask_in_turn for _, introspection in open_ones):
        message = f"opaque tokens are shown to up to {len(open_ones)} issuers, in their order"
        yield finding(HINTS, "authz.W018", f"{setting}.ask_in_turn", message)
    else:
        message = "several issuers could know an opaque token, so opaque tokens are refused"
        yield finding(HINTS, "authz.W019", f"{setting}.token_prefix", message)

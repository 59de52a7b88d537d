"""The rules of the gate by refusal reason: the rule, its claim, and the advice."""

from collections.abc import Mapping

import msgspec

from gatepost_authz.claims import RegisteredClaims
from gatepost_authz.fetch import FETCH_FAILURES
from gatepost_authz.presets import CLAIM_SETTINGS


class RefusalReason(msgspec.Struct, frozen=True):
    """One rule of the gate."""

    rule: str
    """The requirement, as a sentence."""
    advice: str
    """The change to make, as a sentence."""
    claim: str = ""
    """The claim or header member that the rule checks, if it is always the same one."""
    setting: str = ""
    """The setting that changes the rule, or an empty string."""


FETCH_ADVICE = {
    "address": ("Add the issuer's network.", "issuers.allow_private"),
    "certificate": ("Add the CA that issued the certificate.", "network.ca_bundle"),
    "certificate_expired": ("Renew the issuer's certificate.", ""),
    "certificate_name": ("Give the issuer a certificate for the host in its URL.", ""),
    "tls": ("Put CA certificates in PEM format into the file.", "network.ca_bundle"),
}
"""The advice for a failed fetch and the setting that decides, by its reason."""

_WRITES = "Configure the issuer to write the claim with the required type"
_AUDIENCE = "Let clients send `resource` when they request a token, or add the issuer's audience."
_TYPE = "Send an access token, not an ID token, a refresh token or a logout token."
_BUSY = "Try again later; if the problem persists, the server receives too many tokens at once."
_SIGN_IN = "Sign in again from the dashboard."

_RULES: Mapping[str, RefusalReason] = {
    # The Authorization header.
    "no_credentials": RefusalReason(
        "The request must have an `Authorization: Bearer` header.", "Send the access token."
    ),
    "other_scheme": RefusalReason(
        "The scheme of the `Authorization` header must be Bearer.",
        "Send the access token as Bearer.",
    ),
    "repeated_header": RefusalReason(
        "The request must have only one `Authorization` header.",
        "Find out what adds the second one, often a proxy.",
    ),
    "too_long": RefusalReason(
        "The `Authorization` header must not exceed 16 KiB.",
        "Configure the issuer to write fewer claims.",
    ),
    "malformed_credentials": RefusalReason(
        "The header must be `Bearer`, one space and the token.",
        "Check the token for quotes and spaces.",
    ),
    "no_resource_in_path": RefusalReason(
        "The path must be the path of a tenant's resource.",
        "Call the URL in the resource's metadata.",
        setting="resource",
    ),
    # The token's form.
    "unknown_kind": RefusalReason(
        "The token must be a JWT, unless an issuer has `introspection` for opaque tokens.",
        "Configure the issuer to issue JWTs, or add `introspection` to its table.",
        setting="issuers.introspection",
    ),
    "undecided_issuer": RefusalReason(
        "The tenant in the path or a `token_prefix` must say which issuer knows the token.",
        "Set `token_prefix`, or `ask_in_turn` for each issuer that may see the others' tokens.",
        setting="issuers.introspection.token_prefix",
    ),
    "token_too_large": RefusalReason(
        "The token must not exceed 16 KiB.", "Configure the issuer to write fewer claims or groups."
    ),
    "malformed_token": RefusalReason(
        "The token must be a compact JWS with strict JSON.",
        "Check that the whole token was copied.",
    ),
    "refused_header": RefusalReason(
        "The token's header must not contain `crit`, `b64`, a key or a key address.",
        "Configure the issuer to name its key only by `kid`.",
    ),
    "refused_algorithm": RefusalReason(
        "The token must be signed with an asymmetric algorithm.",
        "Configure the issuer to sign with RS256, PS256, ES256 or EdDSA, not HS256 or `none`.",
        "alg",
    ),
    "refused_type": RefusalReason(
        "The token's `typ` must be that of an access token.", _TYPE, "typ"
    ),
    "refused_kid": RefusalReason(
        "`kid` must be a short printable string.", "Configure the issuer to write a `kid`.", "kid"
    ),
    "wrong_type": RefusalReason(
        "The preset or `tokens.types` must allow the token's `typ`.",
        f"{_TYPE} If the issuer gives its access tokens this type, add it to `tokens.types`.",
        "typ",
        "issuers.tokens.types",
    ),
    "algorithm_not_allowed": RefusalReason(
        "The token's algorithm must be allowed for its issuer.",
        "Add the algorithm to the issuer's table if the issuer signs with it.",
        "alg",
        "issuers.algorithms",
    ),
    "wrong_kind": RefusalReason(
        "No claim may show that the token is not an access token of its provider.",
        f"{_TYPE} Check that the issuer has the right preset.",
        setting="issuers.preset",
    ),
    "sender_constrained": RefusalReason(
        "The token must not be bound to a key or a certificate (DPoP, mTLS).",
        "Configure the client to request plain Bearer tokens.",
        "cnf",
    ),
    "development_token": RefusalReason(
        "Tokens of development issuers are accepted only in development mode.",
        "Use a token of your identity provider.",
        "dev",
        "mode",
    ),
    # The issuer, and its signature.
    "unknown_issuer": RefusalReason(
        "The token's `iss` must be byte for byte a configured issuer.",
        "Add the issuer, or correct its spelling; a trailing slash matters.",
        "iss",
        "issuers.issuer",
    ),
    "wrong_issuer": RefusalReason(
        "The token's `iss` must be the issuer that was queried.",
        "Use a token of that issuer; a trailing slash matters.",
        "iss",
        "issuers.issuer",
    ),
    "unknown_key": RefusalReason(
        "The issuer must publish a key with the token's `kid` for the token's algorithm.",
        "Get a fresh token, and compare its `kid` with the issuer's key set.",
        "kid",
        "issuers.jwks_uri",
    ),
    "bad_signature": RefusalReason(
        "The signature must match the issuer's key.",
        "Check that the token is unchanged and comes from this issuer.",
        setting="issuers.jwks_uri",
    ),
    # The claims.
    "missing_claim": RefusalReason(
        "The token must have every claim that the preset or `tokens.required_claims` requires.",
        "Configure the issuer to write the claim, or choose the preset of your provider.",
        setting="issuers.tokens.required_claims",
    ),
    "expired": RefusalReason(
        "`exp` must be in the future.", "Get a fresh token.", "exp", "issuers.leeway_s"
    ),
    "not_yet_valid": RefusalReason(
        "`nbf` and `iat` must be in the past.",
        "Synchronise the clocks of issuer and server.",
        "nbf",
        "issuers.leeway_s",
    ),
    "lives_too_long": RefusalReason(
        "The time from `iat` to `exp` must not exceed the issuer's `max_lifetime_s`.",
        "Shorten the lifetime of access tokens at the issuer, or raise the setting.",
        "exp",
        "issuers.max_lifetime_s",
    ),
    "no_audience": RefusalReason(
        "The token must name its audience, or `client_as_audience` must allow its client.",
        _AUDIENCE,
        "aud",
        "issuers.audiences",
    ),
    "wrong_audience": RefusalReason(
        "The token's audience must be the resource or one of the issuer's `audiences`.",
        _AUDIENCE,
        "aud",
        "issuers.audiences",
    ),
    "bad_audience": RefusalReason(
        "The audience must be a string or a list of at most 100 strings.", f"{_WRITES}.", "aud"
    ),
    "no_subject": RefusalReason(
        "The token must have the claim that identifies its subject, or a mark of a machine.",
        "Name the claim that identifies people in `subject_claims`, or the mark in `machine`.",
        "sub",
        "issuers.tokens.subject_claims",
    ),
    "unknown_caller_kind": RefusalReason(
        "The token must have a mark of a machine or of a person.",
        "Say in `machine` and `person` how the issuer's tokens differ.",
        "sub",
        "issuers.tokens.person",
    ),
    "bad_claim": RefusalReason(
        "A claim that the configuration names must be a short printable text.",
        "Configure the issuer to write the claim as text, or name another claim.",
        setting="issuers.tokens",
    ),
    "bad_scope": RefusalReason(
        "Scopes must be text; a list of texts only in another claim, or with `scope_list`.",
        f"{_WRITES}, or set `scope_list`.",
        "scope",
        "issuers.tokens.scope_list",
    ),
    "too_many_scopes": RefusalReason(
        "The token must not have too many scopes.", "Grant fewer scopes.", "scope"
    ),
    "groups_unknown": RefusalReason(
        "The token must contain the groups that a role's rule requires.",
        "Configure the issuer to write roles instead of groups, or fewer groups.",
        "groups",
        "issuers.roles",
    ),
    # The tenant.
    "no_tenant_rule": RefusalReason(
        "The issuer's table or preset must say how tokens name the tenant.",
        "Set the issuer's `tenant`.",
        setting="issuers.tenant",
    ),
    "no_tenant": RefusalReason(
        "The token must have the claim that names the tenant.",
        "Configure the issuer to write the claim, or choose another claim.",
        setting="issuers.tenant",
    ),
    "bad_tenant": RefusalReason(
        "The claim that names the tenant must be one short printable string.",
        "Configure the issuer to write one organisation per token.",
        setting="issuers.tenant",
    ),
    "unknown_tenant": RefusalReason(
        "The configuration must name the tenant.",
        "Add the tenant, or set `tenancy.create_on_first_use`.",
        setting="issuers.tenants",
    ),
    "tenant_of_another_issuer": RefusalReason(
        "The tenant must not be reserved by the table of another issuer.",
        "If both issuers may use the tenant, name it in both tables.",
        setting="issuers.tenants",
    ),
    "tenant_not_exclusive": RefusalReason(
        "Only one issuer may omit the table of tenants.",
        "Add a table of tenants to each issuer.",
        setting="issuers.tenants",
    ),
    "tenant_of_another_resource": RefusalReason(
        "The token's tenant must be the tenant in the path.",
        "Call the URL of the token's tenant, or use a token of the tenant in the URL.",
        setting="resource",
    ),
    "issuer_disagrees_with_claim": RefusalReason(
        "The tenant claim must agree with the issuer's URL.",
        "Use a token of the tenant's own issuer.",
        setting="issuers.issuer",
    ),
    "revoked": RefusalReason(
        "The token must not be revoked.",
        "Get a fresh token; `gatepost revoke --list` shows the revocations.",
    ),
    # The permissions of the token.
    "insufficient_scope": RefusalReason(
        "The token must have all baseline scopes.",
        "Configure the client to request the scopes.",
        "scope",
        "scopes.baseline",
    ),
    "insufficient_authentication": RefusalReason(
        "The user must have signed in as recently and as strongly as the tool requires.",
        "Sign in again.",
        "auth_time",
    ),
    # Checks that could not be completed.
    "inactive": RefusalReason(
        "The issuer must report the token as active.",
        "Get a fresh token, and check that the client in `introspection` may introspect tokens.",
        setting="issuers.introspection",
    ),
    "answer_disagrees": RefusalReason(
        "The token and the issuer's answer about it must agree on issuer, subject and audience.",
        "Check that `introspection` names the endpoint of the same issuer.",
        setting="issuers.introspection.when",
    ),
    "introspection_too_many_requests": RefusalReason(
        "The number of concurrent introspection requests is limited.",
        _BUSY,
        setting="issuers.introspection",
    ),
    "keys_too_many_issuers": RefusalReason(
        "The number of new issuers of a template that are looked up at once is limited.",
        _BUSY,
        setting="issuers.tenants",
    ),
    "keys_too_many_waiters": RefusalReason(
        "The number of requests that wait for an issuer's keys is limited.", _BUSY
    ),
    "revocations_unknown": RefusalReason(
        "The server must have read the revocations.",
        "Check that the database answers.",
        setting="storage.database",
    ),
    # Signing in to the dashboard.
    "refused_client": RefusalReason(
        "The issuer must accept the dashboard's client at its token endpoint.",
        "Check the client's id, secret, method and scopes.",
        setting="issuers.dashboard.client_id",
    ),
    "wrong_party": RefusalReason(
        "The ID token must name the dashboard's client, and otherwise only audiences of this "
        "server, unless `azp` names the client.",
        "Have the issuer name the dashboard's client in the ID token.",
        "aud",
        "issuers.dashboard.client_id",
    ),
    "wrong_nonce": RefusalReason("The ID token must belong to this sign-in.", _SIGN_IN, "nonce"),
    "another_subject": RefusalReason(
        "Both tokens must have the same subject.",
        _SIGN_IN,
        "sub",
        "issuers.tokens.subject_claims",
    ),
    "wrong_access_token": RefusalReason(
        "The ID token must belong to the access token.", _SIGN_IN, "at_hash"
    ),
    "no_person": RefusalReason(
        "Only people may sign in, not programs.",
        "Sign in as a person.",
        setting="issuers.tokens.machine",
    ),
    "bad_code": RefusalReason(
        "The issuer must accept the authorization code of the sign-in.", _SIGN_IN
    ),
    "no_sender": RefusalReason(
        "The authorization response must name the issuer, as its metadata announce.", _SIGN_IN
    ),
    "wrong_sender": RefusalReason(
        "The authorization response must come from the issuer of this sign-in.", _SIGN_IN
    ),
    "revoked_or_suspended": RefusalReason(
        "Neither the person nor the tenant may be revoked or suspended.",
        "Check `gatepost revoke --list` and `gatepost tenant list`.",
        setting="tenancy.suspended",
    ),
}


def _rules() -> dict[str, RefusalReason]:
    """Return all rules, including one per claim of a preset and per kind of fetch failure."""
    claims = {*RegisteredClaims.__struct_fields__, *CLAIM_SETTINGS}
    rules = dict(_RULES)
    for claim in sorted(claims):
        rule = f"`{claim}` must have the type and the form of its definition."
        setting = CLAIM_SETTINGS.get(claim)
        where = f"issuers.tokens.{setting}" if setting else ""
        rules[f"bad_{claim}"] = RefusalReason(rule, f"{_WRITES}.", claim, where)
    for word, explanation in FETCH_FAILURES.items():
        advice, setting = FETCH_ADVICE.get(word, ("", ""))
        rules[f"keys_{word}"] = RefusalReason(
            f"The issuer's keys must be available: {explanation}.",
            advice or "Allow connections to the issuer, and run `gatepost check`.",
            setting=setting or "issuers.jwks_uri",
        )
        rules[f"introspection_{word}"] = RefusalReason(
            f"The issuer's introspection must be available: {explanation}.",
            advice or "Check the endpoint and the client's credentials.",
            setting=setting or "issuers.introspection",
        )
    return rules


UNKNOWN_REASON = RefusalReason("", "")
RULES: Mapping[str, RefusalReason] = _rules()
"""The rule for every reason of an `AuthError`; a test compares this with the source."""

KEYS, INTROSPECTION = "keys_unavailable", "introspection_unavailable"
LABELS: tuple[str, ...] = (
    *_RULES,
    *(reason for reason in RULES if reason.startswith("bad_") and reason not in _RULES),
    *(KEYS, INTROSPECTION),
)
"""The reasons as metric labels; all fetch failures share one label, as do introspections."""


def _label_of(reason: str) -> str:
    """Return the label for *reason*."""
    if reason in LABELS:
        return reason
    return KEYS if reason.startswith("keys_") else INTROSPECTION


LABEL_OF: Mapping[str, str] = {reason: _label_of(reason) for reason in RULES}
"""Every reason as one of LABELS."""

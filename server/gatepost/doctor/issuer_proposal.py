"""Propose the `[[issuers]]` table of a provider from its metadata and one of its tokens."""

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from gatepost.doctor.report import printable
from gatepost_authz.config import TENANT_ID, UNSAFE, Issuer
from gatepost_authz.presets import PRESETS, Preset, adjusted
from gatepost_authz.subjects import PERSONAL
from gatepost_authz.tenant import only_entry
from gatepost_authz.token_problems import OTHER_KINDS
from gatepost_authz.token_rules import NO_SUBJECT, CallerMark, TokenRules

HOSTS: Mapping[str, str] = {
    "auth0": r"[a-z0-9-]+\.(?:[a-z]{2}\.)?auth0\.com",
    "okta": r"[a-z0-9-]+\.okta(?:preview|-emea)?\.com",
    "cognito": r"cognito-idp\.[a-z0-9-]+\.amazonaws\.com",
    "google": r"accounts\.google\.com",
    "pingone": r"auth\.pingone\.[a-z.]+",
    "workos": r"(?:[a-z0-9-]+\.authkit\.app|api\.workos\.com)",
    "descope": r"api(?:\.[a-z0-9]+)?\.descope\.com",
    "stytch": r"[a-z0-9.-]+\.stytch\.(?:com|dev)",
    "zitadel": r"[a-z0-9.-]+\.zitadel\.cloud",
    "logto": r"[a-z0-9-]+\.logto\.app",
}
"""Preset = the hosts of a provider that runs as a service."""

PATHS: Mapping[str, str] = {
    "keycloak": r"(?:/auth)?/realms/[^/]+",
    "authentik": r"/application/o/[^/]+/",
}
"""Preset = the paths of the issuers of a provider that runs anywhere."""

CLIENTS = ("client_id", "azp", "cid", "appid")
SUBJECTS = ("sub", "uid", "oid", "user_id", "username")
TOKEN_IDS = ("jti", "uti")
SCOPES = ("scope", "scp", "scopes", "permissions")
ACCESS_MARKS = ("client_id", "cid", *SCOPES)
"""Claims that ID tokens do not have (OpenID Connect Core 1.0, section 2)."""
TENANTS = (
    *("org_id", "organization_id", "organization", "org", "tid", "tenant_id", "tenant"),
    *("https://stytch.com/organization.organization_id", "urn:zitadel:iam:user:resourceowner:id"),
)
"""Claims that providers use, the most significant first."""

OF_METADATA = frozenset({"issuer", "preset", "allow_private", "introspection"})
"""The lines that depend on the issuer's answers alone."""

SettingValue = (
    str | int | Sequence[str] | Sequence[Mapping[str, str | bool]] | Mapping[str, str | bool]
)


class Line(msgspec.Struct, frozen=True):
    """One line of the table: the value, and the reason as a sentence."""

    value: SettingValue
    reason: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a token: the members of its payload, or of the answer of introspection."""

    claims: Mapping[str, object]
    resource: str
    type: str = ""
    """``typ`` in lower case."""
    algorithm: str = ""
    """Empty for an answer of introspection."""

    def first(self, names: Sequence[str]) -> str:
        """Return the first of *names* that is a claim with a text, or an empty string."""
        return next((name for name in names if isinstance(self.claims.get(name), str)), "")


class Proposal:
    """The lines of one issuer's table; ``fix`` adds those that a refusal calls for."""

    def __init__(self, issuer: str, metadata: Mapping[str, object], source: str) -> None:
        preset, reason = preset_of(issuer, metadata)
        self._lines = {
            "issuer": Line(issuer, f"The metadata at {source} name this issuer."),
            "preset": Line(preset, reason),
        }
        self._token_rules: dict[str, Line] = {}

    @property
    def preset(self) -> Preset:
        """Return the preset with the settings of this proposal."""
        return adjusted(PRESETS[self.settings.preset], self.settings.tokens)

    @property
    def settings(self) -> Issuer:
        """Return the table as the configuration reads it."""
        rules = {name: line.value for name, line in self._token_rules.items()}
        table = {name: line.value for name, line in self._lines.items()}
        return msgspec.convert({**table, "tokens": rules}, Issuer)

    def set(self, name: str, value: SettingValue, reason: str) -> bool:
        """Add or replace a line of the table; return whether its value is new."""
        return _put(self._lines, name, Line(value, reason))

    def set_rule(self, name: str, value: SettingValue, reason: str) -> bool:
        """Add or replace a line of ``[issuers.tokens]``; return whether its value is new."""
        return _put(self._token_rules, name, Line(value, reason))

    def fix(self, reason: str, claim: str, evidence: Evidence) -> bool:
        """Change the setting that makes the gate refuse a token for *reason*; False if none may."""
        repair = REPAIRS.get(reason)
        return repair is not None and repair(self, claim, evidence)

    def find_scopes(self, evidence: Evidence) -> None:
        """Add the claim with the scopes if the preset names another; no refusal asks for it."""
        if any(name in evidence.claims for name in self.preset.scope_claims):
            return
        claim = next((name for name in SCOPES if name in evidence.claims), "")
        if claim:
            self.set_rule("scope_claims", [claim], f"The token's scopes are in `{claim}`.")

    def tells_id_tokens(self, evidence: Evidence) -> bool:
        """
        Require a claim that only access tokens have, if `typ` does not tell; False if none has.

        ID tokens are signed with the same keys, and must never open a resource.
        """
        preset = self.preset
        if not evidence.algorithm or preset.introspects_signed:
            return True  # the issuer itself was asked about the token
        if preset.types.isdisjoint({"", "jwt"}) or preset.must_equal or preset.access_marks:
            return True
        if not preset.required.isdisjoint(ACCESS_MARKS):
            return True
        mark = next((name for name in ACCESS_MARKS if name in evidence.claims), "")
        if not mark:
            return False
        required = preset.required.intersection(evidence.claims)
        reason = f"`typ` does not tell access tokens from ID tokens here, but `{mark}` does."
        self.set_rule("required_claims", sorted({*required, mark}), reason)
        return True

    def forget_token(self) -> None:
        """Remove what a refused token proposed: it may be another kind of token."""
        self._token_rules.clear()
        for name in self._lines.keys() - OF_METADATA:
            del self._lines[name]
        self.complete()

    def complete(self) -> None:
        """Add a tenant if neither the preset nor a token says how tokens name theirs."""
        if "tenant" not in self._lines and not self._has_tenant:
            _one_tenant(self)

    @property
    def _has_tenant(self) -> bool:
        return bool(self.preset.tenant_claim or self.preset.segment_claim)

    def text(self) -> str:
        """Return the table as TOML, with the reason of each line above it."""
        written = ["[[issuers]]", *_written(self._lines, Issuer.__struct_fields__)]
        if self._token_rules:
            rules = _written(self._token_rules, TokenRules.__struct_fields__)
            written += ["", "[issuers.tokens]", *rules]
        return "\n".join(written)


def _put(lines: dict[str, Line], name: str, line: Line) -> bool:
    before = lines.get(name)
    lines[name] = line
    return before is None or before.value != line.value


def _written(lines: Mapping[str, Line], order: Sequence[str]) -> Iterator[str]:
    for name in sorted(lines, key=order.index):
        yield from textwrap.wrap(
            printable(lines[name].reason), 98, initial_indent="# ", subsequent_indent="# "
        )
        yield f"{name} = {as_toml(lines[name].value)}"


def preset_of(issuer: str, metadata: Mapping[str, object]) -> tuple[str, str]:
    """Return the preset that fits the issuer, and why."""
    parts = urlsplit(issuer)
    for name, preset in PRESETS.items():
        if preset.issuer_pattern:
            before, _, after = preset.issuer_pattern.partition("{tid}")
            if issuer.startswith(before) and issuer.endswith(after):
                return name, f"Issuers of {name} have this form."
    for name, host in HOSTS.items():
        if re.fullmatch(host, parts.hostname or "", re.ASCII):
            return name, f"The host is one of {name}."
    for name, path in PATHS.items():
        if re.fullmatch(path, parts.path, re.ASCII):
            return name, f"Issuers of {name} have such a path."
    return program_of(issuer, metadata) or (
        "generic",
        "Nothing tells which provider this is, so RFC 9068 applies.",
    )


def program_of(issuer: str, metadata: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the preset of a program that runs anywhere, if its metadata tell it by themselves."""
    if any(name.startswith("credentials_endpoint_draft") for name in metadata):
        return "hydra", "Only Ory Hydra has such members in its metadata."
    if metadata.get("service_documentation") == "https://canaille.readthedocs.io":
        return "canaille", "The metadata name Canaille's documentation."
    token, base = metadata.get("token_endpoint"), issuer.rstrip("/")
    if token == f"{base}/token/" and (
        metadata.get("revocation_endpoint") == f"{base}/revoke_token/"
        or metadata.get("jwks_uri") == f"{base}/.well-known/jwks.json"
    ):
        return "django-oauth-toolkit", "Only django-oauth-toolkit has endpoints with such names."
    configured = (metadata.get("introspection_endpoint"), metadata.get("revocation_endpoint"))
    if configured == (f"{token}/introspection", f"{token}/revocation"):
        return "oidc-provider", "Only oidc-provider has endpoints with such names."
    responses = metadata.get("response_types_supported")
    if isinstance(responses, list) and {"client_credentials", "refresh_token"} <= set(responses):
        return "generic", "This is Glewlwyd: its tokens follow RFC 9068."
    return None


def as_toml(value: object) -> str:
    """Return a value in TOML; texts are printable here, so JSON's spelling is TOML's."""
    if isinstance(value, dict):
        pairs = (f"{as_key(key)} = {as_toml(entry)}" for key, entry in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(as_toml(entry) for entry in value)}]"
    return json.dumps(value, ensure_ascii=False)


def as_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


# The settings that make the gate accept the token. None is about the signature, the expiry, or a
# mark of another kind of token, because no setting should change these.


def _type(proposal: Proposal, claim: str, evidence: Evidence) -> bool:
    if evidence.type in OTHER_KINDS or (evidence.type and not is_text(evidence.type)):
        return False
    types = sorted({*proposal.preset.types, evidence.type})
    description = f"`typ` {evidence.type}" if evidence.type else "no `typ`"
    return proposal.set_rule("types", types, f"The token has {description}.")


def _missing(proposal: Proposal, claim: str, evidence: Evidence) -> bool:
    preset = proposal.preset
    for claims, names, setting, meaning in (
        (preset.client_claims, CLIENTS, "client_claims", "client id"),
        (preset.token_id_claims, TOKEN_IDS, "token_id_claims", "token's id"),
        (preset.subject_claims, SUBJECTS, "subject_claims", "subject"),
    ):
        replacement = evidence.first(names)
        if claim in claims and replacement and replacement not in claims:
            reason = f"The token has no `{claim}`; its {meaning} is in `{replacement}`."
            return proposal.set_rule(setting, [replacement], reason)
    if claim == "aud":
        return _no_audience(proposal, claim, evidence)
    if claim in preset.subject_claims:
        return _subject(proposal, claim, evidence)
    if claim in {"iss", "exp"} or claim in preset.access_marks:
        return False
    required = sorted((preset.required - {claim}).intersection(evidence.claims))
    reason = f"The token has no `{claim}`; it has the other claims of the preset."
    return proposal.set_rule("required_claims", required, reason)


def _audience(proposal: Proposal, claim: str, evidence: Evidence) -> bool:
    value = evidence.claims.get("aud")
    names = [name for name in (value if isinstance(value, list) else [value]) if is_text(name)]
    if not names:
        return False
    reason = (
        f"The token's audience is this, not {evidence.resource}. All APIs with this audience "
        "accept each other's tokens; better let the provider write the resource."
    )
    return proposal.set("audiences", [str(names[0])], reason)


def _no_audience(proposal: Proposal, claim: str, evidence: Evidence) -> bool:
    client = evidence.first(proposal.preset.client_claims)
    if not client or not is_text(evidence.claims[client]):
        return False
    reason = f"The token has no audience. Its `{client}` is this client; name all that may call."
    changed = proposal.set("audiences", [str(evidence.claims[client])], reason)
    reason = "The token has no audience, so the clients in `audiences` decide."
    return proposal.set_rule("client_as_audience", True, reason) or changed


def _subject(proposal: Proposal, claim: str, evidence: Evidence) -> bool:
    if PERSONAL.isdisjoint(evidence.claims) and "sub" not in evidence.claims:
        reason = "The token has no subject and says nothing of a person: the client is the caller."
        marks = [_table(mark) for mark in (NO_SUBJECT, *proposal.preset.machine)]
        return proposal.set_rule("machine", marks, reason)
    replacement = evidence.first(SUBJECTS)
    if not replacement:
        return False
    reason = (
        f"People are identified by `{replacement}`: make sure that it is never given to another "
        "person."
    )
    return proposal.set_rule("subject_claims", [replacement], reason)


def _table(mark: CallerMark) -> Mapping[str, str | bool]:
    """Return the members of a mark that are set."""
    return {name: value for name, value in msgspec.structs.asdict(mark).items() if value}


def _tenant(proposal: Proposal, claim: str, evidence: Evidence) -> bool:
    for name in TENANTS:
        value = evidence.claims.get(name)
        entry = only_entry(value)
        if _map_tenant(proposal, entry):
            rule: dict[str, str | bool] = {"claim": name}
            if entry is not value:
                rule["only_entry"] = True
            return proposal.set("tenant", rule, f"The token names its organisation in `{name}`.")
    organisation = next((name for name in TENANTS if name in evidence.claims), "")
    if organisation:
        # One tenant for all tokens would put all organisations together.
        reason = f"The token's organisation is in `{organisation}`; add its value to `tenants`."
        return proposal.set("tenant", {"claim": organisation}, reason)
    return _one_tenant(proposal)


def _map_tenant(proposal: Proposal, value: object) -> bool:
    if not is_text(value):
        return False
    tenant = str(value) if TENANT_ID.fullmatch(str(value)) else "acme"
    reason = "Organisation = tenant id; no other organisation is accepted."
    return proposal.set("tenants", {str(value): tenant}, reason)


def _one_tenant(proposal: Proposal) -> bool:
    reason = "No known claim names an organisation: all tokens of this issuer belong to one tenant."
    return proposal.set("tenant", {"value": "acme"}, reason)


def _unknown_tenant(proposal: Proposal, claim: str, evidence: Evidence) -> bool:
    name = proposal.settings.tenant.claim or proposal.preset.tenant_claim
    return _map_tenant(proposal, only_entry(evidence.claims.get(name)))


def _algorithm(proposal: Proposal, claim: str, evidence: Evidence) -> bool:
    return proposal.set("algorithms", [evidence.algorithm], "The token is signed with it.")


def _lifetime(proposal: Proposal, claim: str, evidence: Evidence) -> bool:
    expires, issued = evidence.claims.get("exp"), evidence.claims.get("iat")
    if not isinstance(expires, int | float) or not isinstance(issued, int | float):
        return False
    reason = "The lifetime of the token in seconds. Shorter is safer."
    return proposal.set("max_lifetime_s", int(expires - issued), reason)


def _scope_list(proposal: Proposal, claim: str, evidence: Evidence) -> bool:
    if not isinstance(evidence.claims.get("scope"), list):
        return False
    return proposal.set_rule("scope_list", True, "The token's `scope` is a list.")


def is_text(value: object) -> bool:
    """Return whether a value of a token can stand in the table."""
    return isinstance(value, str) and bool(value) and not UNSAFE.search(value)


Repair = Callable[[Proposal, str, Evidence], bool]

REPAIRS: Mapping[str, Repair] = {
    "wrong_type": _type,
    "algorithm_not_allowed": _algorithm,
    "missing_claim": _missing,
    "wrong_audience": _audience,
    "no_audience": _no_audience,
    "lives_too_long": _lifetime,
    "no_subject": _subject,
    "bad_scope": _scope_list,
    "no_tenant_rule": _tenant,
    "no_tenant": _tenant,
    "unknown_tenant": _unknown_tenant,
}
"""Refusal reason = what changes the setting that decides it."""

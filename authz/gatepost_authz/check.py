"""Find all problems in the settings of the gate, each with a stable id."""

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Literal
from urllib.parse import urlsplit

from gatepost_authz import exposure, introspection_problems, token_problems
from gatepost_authz.challenge import SCOPE_TOKEN
from gatepost_authz.config import TENANT_ID, UNSAFE, DashboardClient, Issuer, Problem
from gatepost_authz.presets import PRESETS
from gatepost_authz.protected_resource import TENANT
from gatepost_authz.tenant import closed_set, names_by_segment

OPERATOR = "operator"
"""The role of the people who run this server; it reaches the data of all tenants."""
ROLES = ("approver", "admin", OPERATOR)
"""The roles that the rules of an issuer can assign."""

ASYMMETRIC = frozenset({"EdDSA", "Ed25519"}) | {
    f"{family}{size}" for family in ("RS", "PS", "ES") for size in (256, 384, 512)
}
"""The signature algorithms that can be enabled (RFC 7518 section 3.1, RFC 9864)."""

_HINTS = {
    "authz.E001": "write it in full, for example https://mcp.example.com/mcp",
    "authz.E002": 'use https; `mode = "development"` allows http on loopback only',
    "authz.E003": "remove the fragment, from `#` to the end",
    "authz.E004": "remove the user name and the password, up to `@`",
    "authz.E005": "use printable ASCII without spaces, quotes, backslashes and percent signs",
    "authz.E006": "use `{tenant}` at most once, as a whole segment of the path",
    "authz.E007": "copy the `issuer` member of the issuer's metadata, byte for byte",
    "authz.E008": "use one `{name}`, as a whole segment of the path",
    "authz.E010": "add an [[issuers]] table with the `issuer` of your identity provider",
    "authz.E011": "merge the tables: each issuer has one set of rules",
    "authz.E012": "use `generic` for tokens that follow RFC 9068",
    "authz.E013": "use asymmetric algorithms, for example RS256, PS256, ES256, EdDSA",
    "authz.E014": "30 is enough if clocks are synchronised",
    "authz.E015": "set the longest lifetime of the issuer's access tokens, in seconds",
    "authz.E016": "write a network as 10.1.0.0/16 or fd00::/8",
    "authz.E017": 'use one of tenant = { claim = "org_id" }, { value = "acme" }, { issuer = true }',
    "authz.E018": "tenant ids are a-z, 0-9, _ and -, begin with a letter or digit, at most 63",
    "authz.E019": "add the table; without it, this issuer could claim other issuers' tenants",
    "authz.E020": "name the tenant in the `tenants` table of each issuer that shares it",
    "authz.E021": "remove it, or map by `claim`",
    "authz.E023": "the roles are approver, admin and operator; no template gives the last one",
    "authz.E024": "use your identity provider; development issuers are for `gatepost dev`",
    "authz.E025": "set the audience that the provider writes; see docs/providers.md",
    "authz.E026": "map by `claim` or `issuer = true`, and name each organisation in `tenants`",
    "authz.E027": "a scope is printable ASCII without spaces, quotes and backslashes",
    "authz.E028": "set a value or remove the setting",
    "authz.E029": "map by `issuer = true`, or name each issuer in a table of its own",
    "authz.W001": "remove the slash: clients omit it and compare byte for byte",
    "authz.W002": "remove the query: RFC 8707 advises against it, and some clients drop it",
    "authz.W003": "some clients use only the first issuer; put {tenant} into `resource`",
    "authz.W005": "name tenants in `tenancy.tenants` or in an issuer's `tenants` table",
    "authz.W006": "add a `tenants` table, so that only these tenants have a metadata document",
    "authz.W007": "set tenant = { issuer = true }, and name each organisation in `tenants`",
    "authz.E039": "name each issuer in a table of its own",
}
HINTS = _HINTS | exposure.HINTS | introspection_problems.HINTS | token_problems.HINTS
"""The hint for every problem of the gate (W: a warning)."""

ISSUER_TEMPLATE = re.compile(r"https?://[^{}/]+/(?:[^{}/]+/)*\{[a-z_]+\}(?:/[^{}]*)?")


def problems(
    *,
    resource: str,
    issuers: Sequence[Issuer],
    development: bool = False,
    tenants: Sequence[str] = (),
    create_on_first_use: bool = False,
    scopes: Mapping[str, Sequence[str]] = {},
) -> Iterator[Problem]:
    """
    Yield every problem of the gate's settings.

    *tenants* are the tenants of ``[tenancy]``; *scopes* maps the name of a setting to its scopes.
    """
    yield from _url_problems("resource", resource, development)
    yield from _resource_problems(resource)
    if not any(issuer.enabled for issuer in issuers):
        yield _problem("authz.E010", "issuers", "no issuer is trusted, so no token can be accepted")
    for index, issuer in enumerate(issuers):
        where = f"issuers[{index}]"
        yield from _issuer_problems(where, issuer, development)
        yield from _token_problems(where, issuer)
        yield from _introspection_problems(where, issuer, development)
        yield from _dashboard_problems(f"{where}.dashboard", issuer.dashboard, development)
        yield from _tenant_problems(where, issuer)
        yield from _client_problems(f"{where}.clients", issuer)
    yield from _neighbour_problems(resource, issuers)
    yield from _sharing_problems(resource, issuers)
    yield from introspection_problems.neighbour_problems(issuers, by_path=TENANT in resource)
    for index, tenant in enumerate(tenants):
        yield from _id_problems(f"tenancy.tenants[{index}]", tenant)
    if issuers and not (create_on_first_use or tenants or any(map(closed_set, issuers))):
        yield _problem("authz.W005", "tenancy", "no tenant is known, so every caller is refused")
    for setting, values in scopes.items():
        yield from _scope_problems(setting, values)
    if not development:
        yield from exposure.problems(issuers, create_on_first_use=create_on_first_use)


def _problem(id_: str, setting: str, message: str, nearest: Sequence[str] = ()) -> Problem:
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    level: Literal["error", "warning"] = "warning" if ".W" in id_ else "error"
    return Problem(id_, message, hint + HINTS[id_], level, setting)


def _host(url: str) -> str:
    """Return the host of an http(s) URL, or an empty string."""
    try:
        parts = urlsplit(url)
        # Reading the port raises an error if it is malformed.
        usable = parts.scheme in {"http", "https"} and parts.port != 0
    except ValueError:
        return ""
    return parts.hostname or "" if usable else ""


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url_problems(setting: str, url: str, development: bool) -> Iterator[Problem]:
    """Yield the problems of an address."""
    host = _host(url)
    if not host:
        yield _problem("authz.E001", setting, f"{url!r} is not an http(s) URL")
        return
    if not (url.startswith("https:") or (development and _loopback(host))):
        yield _problem("authz.E002", setting, f"http://{host} is not encrypted")
    if "#" in url:
        yield _problem("authz.E003", setting, "the URL has a fragment")
    if "@" in urlsplit(url).netloc:
        # The message omits the value, because it may contain a password.
        yield _problem("authz.E004", setting, "the URL has a user name or password")
    if unsafe := UNSAFE.search(url):
        yield _problem("authz.E005", setting, f"the URL of {host} has the character {unsafe[0]!r}")


def _resource_problems(url: str) -> Iterator[Problem]:
    path, _, query = url.partition("?")
    fixed_part = path.replace(f"/{TENANT}/", "//", 1).removesuffix(TENANT) + query
    if "{" in fixed_part or "}" in fixed_part or path.count(TENANT) > 1 or f"//{TENANT}" in path:
        yield _problem("authz.E006", "resource", f"{url!r} is not a template that can be served")
    if path.endswith("/") and path.count("/") > 3:
        yield _problem("authz.W001", "resource", "the resource ends in a slash")
    if query:
        yield _problem("authz.W002", "resource", "the resource has a query")


def _issuer_problems(where: str, issuer: Issuer, development: bool) -> Iterator[Problem]:
    url, setting = issuer.issuer, f"{where}.issuer"
    yield from _url_problems(setting, url, development)
    if "?" in url:
        yield _problem("authz.E007", setting, f"{url!r} has a query (RFC 8414 section 2)")
    if ("{" in url or "}" in url) and not ISSUER_TEMPLATE.fullmatch(url):
        yield _problem(
            "authz.E008", setting, f"{url!r} is not a template that tokens can match safely"
        )
    if not development and (_loopback(_host(url)) or url.endswith("/dev-as")):
        yield _problem("authz.E024", setting, f"{url} is a development issuer")
    if issuer.jwks_uri:
        yield from _url_problems(f"{where}.jwks_uri", issuer.jwks_uri, development)
    for index, network in enumerate(issuer.allow_private):
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            yield _problem("authz.E016", f"{where}.allow_private[{index}]", str(error))


def _token_problems(where: str, issuer: Issuer) -> Iterator[Problem]:
    preset = PRESETS.get(issuer.preset)
    if preset is None:
        nearest = get_close_matches(issuer.preset, PRESETS, 1)
        message = f"there is no preset {issuer.preset!r}"
        yield _problem("authz.E012", f"{where}.preset", message, nearest)
    elif not (preset.names_resource or issuer.audiences):
        message = f"tokens of {preset.name} never name the resource as their audience"
        yield _problem("authz.E025", f"{where}.audiences", message)
    if preset is not None:
        yield from token_problems.problems(where, issuer, preset)
    for algorithm in issuer.algorithms:
        if algorithm not in ASYMMETRIC:
            # Every client that can verify an HS256 token can also create one; `none` verifies
            # nothing.
            message = f"{algorithm!r} cannot be accepted as a signature"
            yield _problem("authz.E013", f"{where}.algorithms", message)
    if not 0 <= issuer.leeway_s <= 300:
        yield _problem("authz.E014", f"{where}.leeway_s", "the leeway is 0 to 300 seconds")
    if issuer.max_lifetime_s <= 0:
        yield _problem("authz.E015", f"{where}.max_lifetime_s", "no token could be accepted")
    if "" in issuer.audiences:
        yield _problem("authz.E028", f"{where}.audiences", "an audience is empty")


def _introspection_problems(where: str, issuer: Issuer, development: bool) -> Iterator[Problem]:
    introspection, setting = issuer.introspection, f"{where}.introspection"
    yield from introspection_problems.problems(where, issuer)
    if introspection is None:
        return
    if not introspection.client_id:
        yield _problem("authz.E028", f"{setting}.client_id", "the client id is empty")
    if introspection.endpoint:
        yield from _url_problems(f"{setting}.endpoint", introspection.endpoint, development)


def _dashboard_problems(
    setting: str, client: DashboardClient | None, development: bool
) -> Iterator[Problem]:
    if client is None:
        return
    if not client.client_id:
        yield _problem("authz.E028", f"{setting}.client_id", "the client id is empty")
    if not introspection_problems.SECRET_REFERENCE.fullmatch(client.client_secret):
        message = "the configuration contains the client secret itself"
        yield _problem("authz.E022", f"{setting}.client_secret", message)
    yield from _scope_problems(f"{setting}.scopes", client.scopes)
    for name in ("authorization_endpoint", "token_endpoint"):
        if url := getattr(client, name):
            yield from _url_problems(f"{setting}.{name}", url, development)


def _tenant_problems(where: str, issuer: Issuer) -> Iterator[Problem]:
    rule, preset = issuer.tenant, PRESETS.get(issuer.preset)
    rules = [bool(rule.claim), bool(rule.value), rule.issuer].count(True)
    if rules > 1 or (rules == 0 and not (preset and preset.tenant_claim)):
        yield _problem(
            "authz.E017", f"{where}.tenant", "the table does not say how tokens name their tenant"
        )
    if rule.value:
        yield from _id_problems(f"{where}.tenant.value", rule.value)
        if issuer.tenants:
            message = "the table has no effect: every token belongs to one tenant"
            yield _problem("authz.E021", f"{where}.tenants", message)
    if "{" in issuer.issuer:
        yield from _template_problems(where, issuer)
    for value, tenant in issuer.tenants.items():
        yield from _id_problems(f"{where}.tenants", tenant)
        if not value:
            yield _problem("authz.E028", f"{where}.tenants", "a claim value is empty")
    yield from _role_problems(where, issuer)


def _role_problems(where: str, issuer: Issuer) -> Iterator[Problem]:
    for role, role_rule in issuer.roles.items():
        if role not in ROLES:
            nearest = get_close_matches(role, ROLES, 1)
            yield _problem("authz.E023", f"{where}.roles", f"there is no role {role!r}", nearest)
        elif role == OPERATOR and "{" in issuer.issuer:
            # The operator of each of these issuers could sign a token that reads all tenants.
            message = "the issuers of a template cannot give the role operator"
            yield _problem("authz.E023", f"{where}.roles.{role}", message)
        if not (role_rule.claim and role_rule.value):
            message = "an empty claim or value would give the role away"
            yield _problem("authz.E028", f"{where}.roles.{role}", message)


def _client_problems(setting: str, issuer: Issuer) -> Iterator[Problem]:
    """Yield the problems of what machines get whose tokens do not say it."""
    if issuer.clients and "{" in issuer.issuer:
        message = "each issuer of the template could issue a token with such a client id"
        yield _problem("authz.E039", setting, message)
    for client_id, rule in issuer.clients.items():
        if not client_id:
            yield _problem("authz.E028", setting, "a client id is empty")
        if rule.tenant:
            yield from _id_problems(f"{setting}.{client_id}.tenant", rule.tenant)
            if issuer.tenant.value or issuer.tenant.issuer:
                message = "the tenant has no effect: no claim names the tenants of this issuer"
                yield _problem("authz.E021", f"{setting}.{client_id}.tenant", message)
        yield from _scope_problems(f"{setting}.{client_id}.scopes", rule.scopes)


def _template_problems(where: str, issuer: Issuer) -> Iterator[Problem]:
    """Yield the problems of a tenant rule that the issuers of a template share."""
    rule, preset = issuer.tenant, PRESETS.get(issuer.preset)
    if rule.value:
        message = "every organisation of the provider would share one tenant"
        yield _problem("authz.E026", f"{where}.tenant.value", message)
        return
    claim = rule.claim or (preset.tenant_claim if preset and not rule.issuer else "")
    if claim and not (preset and claim == preset.segment_claim):
        message = f"one issuer of the template could claim another's tenant in {claim!r}"
        yield _problem("authz.E029", f"{where}.tenant", message)


def _id_problems(setting: str, tenant: str) -> Iterator[Problem]:
    if not TENANT_ID.fullmatch(tenant):
        yield _problem("authz.E018", setting, f"{tenant!r} is not a tenant id")


def _neighbour_problems(resource: str, issuers: Sequence[Issuer]) -> Iterator[Problem]:
    """Yield the problems that other issuers or the resource cause."""
    free = [closed_set(issuer) is None for issuer in issuers]
    # An issuer with a table also maps the values of its tokens.
    mapping = sum(
        is_free or bool(issuer.tenants) for is_free, issuer in zip(free, issuers, strict=True)
    )
    seen_issuers: set[str] = set()
    for index, issuer in enumerate(issuers):
        where = f"issuers[{index}]"
        if issuer.issuer in seen_issuers:
            yield _problem("authz.E011", f"{where}.issuer", f"{issuer.issuer} is configured twice")
        seen_issuers.add(issuer.issuer)
        if free[index] and mapping > 1:
            message = "several issuers map values of tokens, and this one has no `tenants` table"
            yield _problem("authz.E019", f"{where}.tenants", message)
        elif free[index] and TENANT in resource:
            message = "the resource names tenants, and this issuer does not list its tenants"
            yield _problem("authz.W006", f"{where}.tenants", message)
        if "{" in issuer.issuer and not _can_be_named(issuer, resource):
            message = "no metadata document can name the issuers of this template"
            yield _problem("authz.W007", f"{where}.issuer", message)


def _can_be_named(issuer: Issuer, resource: str) -> bool:
    """Return whether clients can find out which issuer of a template to use."""
    preset = PRESETS.get(issuer.preset)
    fills = preset is None or names_by_segment(issuer, preset)
    return fills and (bool(issuer.tenants) or TENANT in resource)


def _sharing_problems(resource: str, issuers: Sequence[Issuer]) -> Iterator[Problem]:
    holders: dict[str, list[int]] = {}
    for index, issuer in enumerate(issuers):
        for tenant in closed_set(issuer) or ():
            holders.setdefault(tenant, []).append(index)
    for tenant, indexes in sorted(holders.items()):
        setting = f"issuers[{indexes[-1]}].tenants"
        if len(indexes) > 1 and any(issuers[index].tenant.value for index in indexes):
            yield _problem("authz.E020", setting, f"tenant {tenant!r} belongs to several issuers")
        elif len(indexes) > 1 and TENANT in resource:
            yield _problem("authz.W003", setting, f"tenant {tenant!r} has several issuers")
    listed = sum(len(issuer.tenants) if "{" in issuer.issuer else 1 for issuer in issuers)
    if max(listed, len(issuers)) > 1 and TENANT not in resource:
        yield _problem("authz.W003", "issuers", "one resource has several issuers")


def _scope_problems(setting: str, scopes: Sequence[str]) -> Iterator[Problem]:
    for scope in scopes:
        if not SCOPE_TOKEN.fullmatch(scope):
            yield _problem("authz.E027", setting, f"{scope!r} is not a scope")
        elif scope == "offline_access" and setting != "scopes.request":
            # Clients request it when they need it; a resource must not demand it of every client.
            yield _problem("authz.E027", setting, "`offline_access` is not a scope of a resource")

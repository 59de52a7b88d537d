"""The trusted issuers, as an immutable snapshot that a reload replaces."""

import ipaddress
import itertools
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from gatepost_authz.claims import ExpectedClaims
from gatepost_authz.config import Issuer
from gatepost_authz.jwk import with_synonyms
from gatepost_authz.presets import PRESETS, Preset, adjusted
from gatepost_authz.protected_resource import Target
from gatepost_authz.tenant import (
    TenantRules,
    client_tenants,
    closed_set,
    names_by_segment,
    tenant_id,
)

SEGMENT = r"[A-Za-z0-9_-]{1,64}"
"""The allowed values of a template's segment, unless the preset is stricter."""
PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}", re.ASCII)

GENERATIONS = itertools.count(1)


class TrustedIssuer(msgspec.Struct, frozen=True, kw_only=True):
    """A configured issuer with everything derived from its settings."""

    settings: Issuer
    preset: Preset
    """The preset with this issuer's own token rules."""
    algorithms: frozenset[str]
    audiences: frozenset[str]
    """Audiences accepted in addition to the resource."""
    template: re.Pattern[str] | None
    """The pattern of a template's concrete issuers, with one group."""
    introspects_signed: bool
    """Whether its signed tokens are introspected too."""
    loopback: bool
    """Whether it lives on this machine, as only a development issuer may."""
    rules: TenantRules

    def expects(self, issuer: str, target: Target) -> ExpectedClaims:
        """Return the expected claims of tokens from *issuer* (this one, or one of its template)."""
        return ExpectedClaims(
            issuer=issuer,
            resource=target.url,
            audiences=self.audiences,
            preset=self.preset,
            leeway=self.settings.leeway_s,
            max_lifetime=self.settings.max_lifetime_s,
        )

    def expects_of_answer(self, target: Target) -> ExpectedClaims:
        """Return the expected claims of this issuer's answers about opaque tokens (RFC 7662)."""
        introspection = self.settings.introspection
        return msgspec.structs.replace(
            self.expects(self.settings.issuer, target),
            required=self.preset.answer_required,
            bound_by_answer=introspection is not None and introspection.audience == "client",
        )


IssuerMatch = tuple[TrustedIssuer, str | None]
"""A trusted issuer, and the value of the template's segment."""


class IssuerRegistry:
    """
    The issuers of one configuration; a reload creates a new registry.

    ``generation`` differs between any two registries of a process, so that a verdict of one is
    never used for another. Raises ValueError for a repeated issuer, an unknown preset, and a
    template that does not have exactly one variable path segment.
    """

    def __init__(
        self, issuers: Sequence[Issuer], *, presets: Mapping[str, Preset] = PRESETS
    ) -> None:
        self.generation = next(GENERATIONS)
        self.issuers = trust(issuers, presets)
        self._exact: dict[str, IssuerMatch] = {}
        # This includes disabled issuers: their tokens must not reach another issuer.
        self._prefixes = [
            (prefix_of(issuer), issuer.issuer) for issuer in issuers if prefix_of(issuer)
        ]
        self._templates = [trusted for trusted in self.issuers if trusted.template is not None]
        for trusted in self.issuers:
            name = trusted.settings.issuer
            if trusted.template is None:
                if name in self._exact:
                    raise ValueError(f"issuer {name} is configured twice")
                self._exact[name] = (trusted, captured_by(trusted.preset, name))

    def find(self, issuer: str) -> IssuerMatch | None:
        """Return the trusted issuer with this name or a matching template, or None."""
        exact = self._exact.get(issuer)
        if exact is not None:
            return exact
        for trusted in self._templates:
            match = trusted.template.fullmatch(issuer) if trusted.template else None
            if match is not None:
                return trusted, match[1]
        return None

    def owners_of(self, token: str) -> frozenset[str]:
        """Return the issuers whose opaque tokens have the prefix of this one."""
        return frozenset(name for prefix, name in self._prefixes if token.startswith(prefix))

    def for_tenant(self, tenant: str | None) -> tuple[str, ...]:
        """
        Return the issuers for the metadata document of *tenant*'s resource.

        Those whose settings name the tenant come first: some clients use only the first. None
        means the one resource of all tenants. A template is listed only where a tenant fills it.
        """
        names: list[str] = []
        possible: list[str] = []
        for trusted in self.issuers:
            rules = trusted.rules
            if tenant in rules.foreign:
                continue
            if tenant is None or (rules.closed is None and rules.exclusive):
                possible += concrete_issuers(trusted, tenant)
            elif rules.closed is not None and tenant in rules.closed:
                names += concrete_issuers(trusted, tenant)
        return tuple(dict.fromkeys(names + possible))


def trust(issuers: Sequence[Issuer], presets: Mapping[str, Preset]) -> tuple[TrustedIssuer, ...]:
    """Return the enabled issuers with the tenants that other issuers have reserved."""
    closed = [closed_set(settings) for settings in issuers]
    free = sum(tenants is None for tenants in closed)
    compiled = []
    for index, (settings, own_tenants) in enumerate(zip(issuers, closed, strict=True)):
        if settings.preset not in presets:
            raise ValueError(f"issuer {settings.issuer} names an unknown preset")
        if not settings.enabled:
            # Disabled issuers count above as well: turning one off must not give its tenants to
            # another.
            continue
        tenants_of_others = [
            (tenants or frozenset()) | client_tenants(issuers[n])
            for n, tenants in enumerate(closed)
            if n != index
        ]
        preset = adjusted(presets[settings.preset], settings.tokens)
        rules = TenantRules(
            settings=settings,
            preset=preset,
            closed=own_tenants,
            foreign=frozenset().union(*tenants_of_others) - (own_tenants or frozenset()),
            exclusive=own_tenants is not None or free == 1,
            claim=settings.tenant.claim or preset.tenant_claim,
            templated="{" in settings.issuer,
        )
        compiled.append(compile_issuer(settings, preset, rules))
    return tuple(compiled)


def compile_issuer(settings: Issuer, preset: Preset, rules: TenantRules) -> TrustedIssuer:
    return TrustedIssuer(
        settings=settings,
        preset=preset,
        algorithms=with_synonyms(frozenset(settings.algorithms or preset.algorithms)),
        audiences=frozenset(settings.audiences),
        template=template_of(settings.issuer, preset) if "{" in settings.issuer else None,
        introspects_signed=preset.introspects_signed
        or (settings.introspection is not None and settings.introspection.when == "always"),
        loopback=is_loopback(urlsplit(settings.issuer).hostname or ""),
        rules=rules,
    )


def template_of(issuer: str, preset: Preset) -> re.Pattern[str]:
    """
    Return the pattern of *issuer*'s one open path segment.

    Everything around it is literal and the whole issuer must match: `https://login.example/{tid}`
    with a loose end would take `https://login.example.evil/x` for a tenant of ours.
    """
    before, after = outside_of(issuer)
    if not before.endswith("/") or before.count("/") < 3 or after[:1] not in ("", "/"):
        raise ValueError(f"issuer {issuer} must leave one whole path segment open")
    pattern = f"{re.escape(before)}({preset.segment_pattern or SEGMENT}){re.escape(after)}"
    return re.compile(pattern, re.ASCII)


def outside_of(template: str) -> tuple[str, str]:
    """Return the text before and after a template's placeholder."""
    pieces = PLACEHOLDER.split(template)
    if len(pieces) != 2 or any(brace in piece for piece in pieces for brace in "{}"):
        raise ValueError(f"issuer {template} must have exactly one {{...}} segment")
    return pieces[0], pieces[1]


def captured_by(preset: Preset, issuer: str) -> str | None:
    """
    Return the segment of an exact issuer where its provider's template varies, if it follows that.
    """
    if not preset.issuer_pattern:
        return None
    match = template_of(preset.issuer_pattern, preset).fullmatch(issuer)
    return match[1] if match else None


def concrete_issuers(trusted: TrustedIssuer, tenant: str | None) -> tuple[str, ...]:
    """
    Return the issuers as clients must spell them for *tenant* (None: for any tenant of the table).

    Empty for a template that nothing fills.
    """
    settings = trusted.settings
    if trusted.template is None:
        return (settings.issuer,)
    if not names_by_segment(settings, trusted.preset):
        return ()
    before, after = outside_of(settings.issuer)
    table = settings.tenants
    segments = [value for value, value_tenant in table.items() if tenant in (None, value_tenant)]
    if not table and tenant is not None:
        segments = [tenant]
    concrete = [(f"{before}{segment}{after}", segment) for segment in segments]
    return tuple(
        issuer
        for issuer, segment in concrete
        if trusted.template.fullmatch(issuer) and (table or tenant_id(issuer, segment) == tenant)
    )


def prefix_of(settings: Issuer) -> str:
    """Return the text with which all opaque tokens of an issuer begin, or an empty string."""
    return "" if settings.introspection is None else settings.introspection.token_prefix


def has_opaque_tokens(settings: Issuer, preset: Preset) -> bool:
    """
    Return whether an opaque token may be an access token of an issuer with introspection.

    If introspection confirms the signed tokens of a provider that issues no others, an opaque one
    is a refresh token.
    """
    introspection = settings.introspection
    introspects_signed = introspection is not None and introspection.when == "always"
    return preset.opaque or settings.preset == "generic" or not introspects_signed


def is_loopback(host: str) -> bool:
    """Return whether *host* names this machine (RFC 6761 section 6.3 reserves ``localhost``)."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # Python before 3.13 does not recognise loopback in `::ffff:127.0.0.1`.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback or (mapped or address).is_unspecified

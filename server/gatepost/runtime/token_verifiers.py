"""Build the token verifiers of a configuration."""

import time
from collections.abc import Callable

from gatepost.config.references import resolve
from gatepost.config.settings import Config
from gatepost.runtime.reload import known_tenants
from gatepost_authz.caller import TenantContext
from gatepost_authz.client_authentication import reference_of
from gatepost_authz.introspection import IntrospectionVerifier
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuer_key_sets import IssuerKeySets, is_introspected
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.scopes import Implications
from gatepost_authz.signed_introspection import SignedTokenIntrospection
from gatepost_authz.tenant import Policy, Tenancy
from gatepost_authz.verdict_cache import VerdictCache
from gatepost_authz.verifier import JwtVerifier


def policy_of(config: Config, admit: Callable[[TenantContext], None]) -> Policy:
    """Return the policy for all issuers; *admit* raises for revoked callers."""
    return Policy(
        tenancy=Tenancy(config.creates_tenants, known_tenants(config)),
        implications=Implications(config.scopes.implied),
        development=config.development,
        admit=admit,
    )


def verifiers_of(  # noqa: PLR0913  # the composition root hands over each part by name
    config: Config,
    issuers: IssuerRegistry,
    keys: IssuerKeySets,
    verdicts: VerdictCache,
    *,
    admit: Callable[[TenantContext], None],
    introspectors: Callable[[], Introspectors],
    clock: Callable[[], float] = time.time,
) -> tuple[JwtVerifier, IntrospectionVerifier | None]:
    """Return the verifier of signed tokens, and that of opaque tokens or None."""
    policy, capacity = policy_of(config, admit), config.limits.cached_tokens
    verdicts.restart(capacity)
    if not any(is_introspected(trusted) for trusted in issuers.issuers):
        return JwtVerifier(issuers, keys, verdicts, policy=policy, clock=clock), None
    introspection = introspectors()
    signed_introspection = SignedTokenIntrospection(introspection)
    signed = JwtVerifier(
        issuers,
        keys,
        verdicts,
        policy=policy,
        signed_introspection=signed_introspection,
        clock=clock,
    )
    return signed, IntrospectionVerifier(issuers, introspection, policy=policy, capacity=capacity)


def introspection_secrets(config: Config) -> dict[str, str]:
    """Return reference → secret for each issuer with introspection; read once, at the start."""
    references = [reference_of(i.introspection) for i in config.issuers if i.introspection]
    return {reference: resolve(reference) if reference else "" for reference in references}

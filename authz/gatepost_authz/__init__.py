"""
An OAuth 2.0 resource server for any ASGI application.

All public names are here; the modules may move at any time.
"""

from gatepost_authz.addresses import is_public, origin_of
from gatepost_authz.caller import SubjectKind, TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.check import problems
from gatepost_authz.config import (
    ClientRule,
    Introspection,
    Issuer,
    Network,
    Problem,
    RoleRule,
    TenantRule,
)
from gatepost_authz.effective_rules import EffectiveRule, effective_rules
from gatepost_authz.errors import (
    AuthError,
    ExpiredToken,
    InsufficientAuthentication,
    InsufficientScope,
    InvalidToken,
    IssuerUnavailable,
    MalformedCredentials,
    MissingToken,
    NotYetValidToken,
    RevokedToken,
    WrongAudience,
)
from gatepost_authz.fetch import Fetcher
from gatepost_authz.headers import IdentityHeaders
from gatepost_authz.introspection import IntrospectionVerifier
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuer_key_sets import IssuerKeySets
from gatepost_authz.issuers import IssuerRegistry, TrustedIssuer
from gatepost_authz.jwk import VerificationKey
from gatepost_authz.metadata import MetadataRoutes
from gatepost_authz.middleware import CALLER, BearerMiddleware, caller_of
from gatepost_authz.pinning import PinningTransport
from gatepost_authz.presets import PRESETS, Preset
from gatepost_authz.protected_app import ProtectedApp
from gatepost_authz.protected_resource import Resource, Target
from gatepost_authz.scopes import Implications
from gatepost_authz.signature import IssuerKeys
from gatepost_authz.signed_introspection import SignedTokenIntrospection
from gatepost_authz.tenant import Policy, Tenancy
from gatepost_authz.token_rules import CallerMark, TokenRules
from gatepost_authz.tunnel import Tunnel
from gatepost_authz.verdict_cache import VerdictCache
from gatepost_authz.verifier import JwtVerifier, KeySource, TokenVerifier, Verifiers

__all__ = [
    "CALLER",
    "PRESETS",
    "AuthError",
    "BearerMiddleware",
    "CallerMark",
    "Challenge",
    "ClientRule",
    "EffectiveRule",
    "ExpiredToken",
    "Fetcher",
    "IdentityHeaders",
    "Implications",
    "InsufficientAuthentication",
    "InsufficientScope",
    "Introspection",
    "IntrospectionVerifier",
    "Introspectors",
    "InvalidToken",
    "Issuer",
    "IssuerKeySets",
    "IssuerKeys",
    "IssuerRegistry",
    "IssuerUnavailable",
    "JwtVerifier",
    "KeySource",
    "MalformedCredentials",
    "MetadataRoutes",
    "MissingToken",
    "Network",
    "NotYetValidToken",
    "PinningTransport",
    "Policy",
    "Preset",
    "Problem",
    "ProtectedApp",
    "Resource",
    "RevokedToken",
    "RoleRule",
    "SignedTokenIntrospection",
    "SubjectKind",
    "Target",
    "Tenancy",
    "TenantContext",
    "TenantRule",
    "TokenRules",
    "TokenVerifier",
    "TrustedIssuer",
    "Tunnel",
    "VerdictCache",
    "VerificationKey",
    "Verifiers",
    "WrongAudience",
    "caller_of",
    "effective_rules",
    "is_public",
    "origin_of",
    "problems",
]

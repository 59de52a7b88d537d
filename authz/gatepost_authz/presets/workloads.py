"""Issuers whose tokens identify workloads, never people."""

from gatepost_authz.presets.preset import STANDARD, Preset
from gatepost_authz.token_rules import CallerMark

WORKLOADS: tuple[Preset, ...] = (
    Preset(
        name="kubernetes",
        documentation="https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/",
        types=frozenset({""}),
        algorithms=("RS256", "ES256", "ES384"),
        required=STANDARD | {"kubernetes.io"},
        access_marks=frozenset({"kubernetes.io"}),
        client_claims=("sub",),
        scope_claims=(),
        machine=(CallerMark(claim="kubernetes.io"),),
        person=(),
        tenant_claim="kubernetes.io.namespace",
    ),
    Preset(
        name="spiffe",
        documentation="https://github.com/spiffe/spiffe/blob/main/standards/JWT-SVID.md",
        types=frozenset({"", "jwt", "jose"}),
        algorithms=("RS256", "PS256", "ES256", "ES384"),
        required=frozenset({"iss", "aud", "exp", "sub"}),
        client_claims=("sub",),
        scope_claims=(),
        # A JWT-SVID is issued to a workload; its subject is the workload's SPIFFE ID.
        machine=(CallerMark(claim="sub"),),
        person=(),
    ),
    Preset(
        name="openbao",
        documentation="https://openbao.org/docs/secrets/identity/identity-token/",
        types=frozenset({"", "jwt"}),
        algorithms=("RS256", "ES256", "ES384", "EdDSA"),
        required=STANDARD,
        client_claims=("sub",),
        scope_claims=(),
        # The subject is an entity, and nothing says whether that is a person.
        machine=(CallerMark(claim="sub"),),
        person=(),
    ),
)

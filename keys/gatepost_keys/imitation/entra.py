"""The habits of Microsoft Entra ID."""

from gatepost_keys.imitation.shape import OPENID_APPENDED, ErrorShape, Imitation

MICROSOFT = "https://learn.microsoft.com/en-us/entra/identity-platform"
ENTRA_RESOURCE = "https://github.com/anthropics/claude-code/issues/73460"

ENTRA = Imitation(
    name="entra-v2",
    sources={
        "issuer": f"{MICROSOFT}/access-tokens#validate-the-issuer",
        "discovery": f"{MICROSOFT}/v2-protocols-oidc",
        "endpoints": f"{MICROSOFT}/v2-protocols#endpoints",
        "metadata_lacks": "https://login.microsoftonline.com/common/v2.0/.well-known/openid-configuration",
        "names_itself": f"{MICROSOFT}/v2-oauth2-auth-code-flow#successful-response",
        "access_type": f"{MICROSOFT}/access-token-claims-reference#header-claims",
        "key_lacks": "https://login.microsoftonline.com/common/discovery/v2.0/keys",
        "person": f"{MICROSOFT}/access-token-claims-reference#payload-claims",
        "machine": f"{MICROSOFT}/access-token-claims-reference#payload-claims",
        "identity": f"{MICROSOFT}/id-token-claims-reference",
        "opaque": f"{MICROSOFT}/access-tokens#token-formats",
        "refresh": f"{MICROSOFT}/scopes-oidc#the-offline_access-scope",
        "audience": ENTRA_RESOURCE,
        "api": f"{MICROSOFT}/access-token-claims-reference#payload-claims",
        "other_api": f"{MICROSOFT}/scopes-oidc#openid-connect-scopes",
        "scope_form": f"{MICROSOFT}/scopes-oidc",
        "scope_short": f"{MICROSOFT}/access-token-claims-reference#payload-claims",
        "api_scopes": f"{MICROSOFT}/quickstart-configure-app-expose-web-apis",
        "machine_scope": f"{MICROSOFT}/v2-oauth2-client-creds-grant-flow#get-a-token",
        "unknown_scopes": f"{MICROSOFT}/reference-error-codes",
        "errors": f"{MICROSOFT}/reference-error-codes",
        "error_body": f"{MICROSOFT}/v2-oauth2-client-creds-grant-flow#error-response",
    },
    issuer="/{org}/v2.0",
    discovery=(OPENID_APPENDED,),
    endpoints={
        "authorization": "/organizations/oauth2/v2.0/authorize",
        "token": "/organizations/oauth2/v2.0/token",
        "jwks": "/organizations/discovery/v2.0/keys",
    },
    metadata_lacks=frozenset({"code_challenge_methods_supported", "grant_types_supported"}),
    names_itself=False,
    access_type="JWT",
    key_lacks=frozenset({"alg"}),
    person={
        "aud": "$api",
        "iss": "$iss",
        "iat": "$iat",
        "nbf": "$iat",
        "exp": "$exp",
        "azp": "$client",
        "azpacr": "0",
        "name": "$name",
        "oid": "$guid",
        "preferred_username": "$email",
        "roles": "$roles",
        "scp": "$scope",
        "sub": "$pairwise",
        "tid": "$org",
        "uti": "$jti",
        "ver": "2.0",
    },
    machine={
        "aud": "$api",
        "iss": "$iss",
        "iat": "$iat",
        "nbf": "$iat",
        "exp": "$exp",
        "azp": "$client",
        "azpacr": "1",
        "idtyp": "app",
        "oid": "$guid",
        "roles": "$scopes",
        "sub": "$guid",
        "tid": "$org",
        "uti": "$jti",
        "ver": "2.0",
    },
    identity={
        "aud": "$client",
        "iss": "$iss",
        "iat": "$iat",
        "nbf": "$iat",
        "exp": "$exp",
        "name": "$name",
        "nonce": "$nonce",
        "oid": "$guid",
        "preferred_username": "$email",
        "sub": "$pairwise",
        "tid": "$org",
        "uti": "$jti",
        "ver": "2.0",
    },
    opaque="never",
    refresh="offline_access",
    audience="matching_scope",
    api="{guid}",
    other_api="00000003-0000-0000-c000-000000000000",
    scope_form="{resource}/{scope}",
    scope_short=True,
    api_scopes=("access",),
    machine_scope="{resource}/.default",
    unknown_scopes="refuse",
    client="{guid}",
    org="{guid}",
    tenant_claim="tid",
    roles_claim="roles",
    audiences=("{api}",),
    errors={
        "invalid_target": ErrorShape(
            code=9010010,
            description="The resource parameter provided in the request doesn't match with the "
            "requested scopes.",
        ),
        "invalid_scope": ErrorShape(
            code=70011,
            description="The provided value for the input parameter 'scope' isn't valid.",
        ),
        "machine_scope": ErrorShape(
            error="invalid_scope",
            code=1002012,
            description="The provided value for scope is not valid. Client credential flows must "
            "have a scope value with /.default suffixed to the resource identifier "
            "(application ID URI).",
        ),
        "invalid_client": ErrorShape(
            status=401, code=7000215, description="Invalid client secret provided."
        ),
        "unknown_client": ErrorShape(
            error="unauthorized_client",
            status=400,
            code=700016,
            description="Application with identifier was not found in the directory.",
        ),
        "invalid_grant": ErrorShape(
            code=70008,
            description="The provided authorization code or refresh token has expired due to "
            "inactivity.",
        ),
        "unsupported_grant_type": ErrorShape(
            code=70003, description="The app requested an unsupported grant type."
        ),
    },
    error_body={
        "error": "$error",
        "error_description": "{description}\r\nTrace ID: {trace}\r\nCorrelation ID: {trace}\r\n"
        "Timestamp: {timestamp}",
        "error_codes": ["$code"],
        "timestamp": "$timestamp",
        "trace_id": "$trace",
        "correlation_id": "$trace",
    },
)

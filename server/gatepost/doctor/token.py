"""A token from the authorization server, and whether it is one for this resource."""

from base64 import urlsafe_b64decode
from urllib.parse import urlencode

import msgspec

from gatepost.doctor.report import CLIENT, ISSUER, Findings
from gatepost.doctor.wire import Answer, Unreachable, Wire

NAME = "token"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """
    What to try the way in with: a token, or a client that may have one of its own.

    ``scopes`` are space-delimited and asked for at the token endpoint.
    """

    token: str = ""
    client_id: str = ""
    client_secret: str = ""
    scopes: str = ""


async def request_token(
    wire: Wire,
    issuer: dict[str, object],
    resource: str,
    credentials: Credentials,
    findings: Findings,
) -> str:
    """A token by client credentials with `resource` (RFC 8707), or the empty string."""
    endpoint = str(issuer.get("token_endpoint"))
    form = {"grant_type": "client_credentials", "resource": resource}
    if credentials.scopes:
        form["scope"] = credentials.scopes
    methods = issuer.get("token_endpoint_auth_methods_supported")
    # RFC 8414 section 2: without the list, client_secret_basic is what the server takes.
    basic = not isinstance(methods, list) or "client_secret_basic" in methods
    auth = (credentials.client_id, credentials.client_secret) if basic else None
    if not basic:
        form |= {"client_id": credentials.client_id, "client_secret": credentials.client_secret}
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    try:
        answer = await wire.send(
            "POST", endpoint, headers=headers, body=urlencode(form).encode(), auth=auth
        )
    except Unreachable as unreachable:
        findings.fail(
            NAME,
            f"the token endpoint {endpoint} cannot be reached ({unreachable})",
            where=ISSUER,
            fix="open the way to it",
        )
        return ""
    return _granted(answer, credentials, findings)


def _granted(answer: Answer, credentials: Credentials, findings: Findings) -> str:
    body = answer.json_object() or {}
    token = body.get("access_token")
    if answer.status == 200 and isinstance(token, str):
        findings.ok(NAME, f"granted to {credentials.client_id}")
        return token
    error = body.get("error", answer.described)
    side, fix = {
        "invalid_client": (CLIENT, "correct the client id or its secret"),
        "unauthorized_client": (ISSUER, "allow this client the client credentials grant"),
        "invalid_scope": (ISSUER, "allow this client the scopes it asks for"),
        "invalid_target": (ISSUER, "register the MCP server's URL as a resource"),
    }.get(str(error), (ISSUER, "look into its log for the reason"))
    findings.fail(
        NAME,
        f"the token endpoint refuses {credentials.client_id} with {error}",
        where=side,
        fix=fix,
    )
    return ""


def judge_token(token: str, issuer: str, resource: str, now: float, findings: Findings) -> None:
    """Say whom a token was issued by and for; opaque ones keep that to themselves."""
    claims = _claims_of(token)
    if claims is None:
        findings.note(NAME, "opaque: the MCP server has to ask the issuer about it (introspection)")
        return
    if claims.get("iss") != issuer:
        findings.fail(
            NAME,
            f"the token was issued by {claims.get('iss')!r}, not by {issuer!r}",
            where=CLIENT,
            fix="use a token of the authorization server that the MCP server names",
        )
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if resource not in audiences:
        findings.fail(
            NAME,
            f"the token's audience is {audience!r}, not {resource!r}",
            where=ISSUER,
            fix="make it honour `resource` (RFC 8707), or put this URL into the token's audience",
        )
    else:
        findings.ok(NAME, f"audience is {resource}")
    expires = claims.get("exp")
    if not isinstance(expires, int | float) or expires <= now:
        findings.fail(
            NAME, "the token has expired or never does", where=CLIENT, fix="get a fresh one"
        )


def _claims_of(token: str) -> dict[str, object] | None:
    # Unverified, to be shown to whoever holds the token anyway; nothing is decided by it.
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(payload, type=dict[str, object])
    except (ValueError, msgspec.DecodeError):
        return None

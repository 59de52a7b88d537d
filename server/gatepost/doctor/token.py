"""Get a token from the authorization server, and check whether it fits this resource."""

from base64 import b64encode, urlsafe_b64decode
from typing import NamedTuple
from urllib.parse import quote_plus, urlencode

import msgspec

from gatepost.doctor.http import HttpAnswer, HttpProbe, ServerUnreachable
from gatepost.doctor.report import CLIENT, ISSUER, Findings
from gatepost_authz.strict_json import StrictJsonError, loads_object

NAME = "token"


class DoctorCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """
    A token, or a client with the client credentials grant.

    ``scopes`` are separated by spaces and sent to the token endpoint.
    """

    token: str = ""
    client_id: str = ""
    client_secret: str = ""
    scopes: str = ""


async def request_token(
    wire: HttpProbe,
    issuer: dict[str, object],
    resource: str,
    credentials: DoctorCredentials,
    findings: Findings,
) -> str:
    """Return a token by client credentials with `resource` (RFC 8707), or the empty string."""
    endpoint = str(issuer.get("token_endpoint"))
    form = {"grant_type": "client_credentials", "resource": resource}
    if credentials.scopes:
        form["scope"] = credentials.scopes
    methods = issuer.get("token_endpoint_auth_methods_supported")
    # RFC 8414 section 2: without the list, the server accepts client_secret_basic.
    basic = not isinstance(methods, list) or "client_secret_basic" in methods
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if basic:
        # RFC 6749 section 2.3.1: both halves are form-encoded first.
        pair = f"{quote_plus(credentials.client_id)}:{quote_plus(credentials.client_secret)}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    else:
        form |= {"client_id": credentials.client_id, "client_secret": credentials.client_secret}
    try:
        answer = await wire.send("POST", endpoint, headers=headers, body=urlencode(form).encode())
    except ServerUnreachable as unreachable:
        findings.fail(
            NAME,
            f"the token endpoint {endpoint} cannot be reached ({unreachable})",
            where=ISSUER,
            fix=unreachable.advice or "allow connections to it",
        )
        return ""
    return _granted(answer, credentials, findings)


def _granted(answer: HttpAnswer, credentials: DoctorCredentials, findings: Findings) -> str:
    body = answer.json_object() or {}
    token = body.get("access_token")
    if answer.status == 200 and isinstance(token, str):
        findings.ok(NAME, f"granted to {credentials.client_id}")
        return token
    error = body.get("error", answer.described)
    location, fix = {
        "invalid_client": (CLIENT, "correct the client id or its secret"),
        "unauthorized_client": (ISSUER, "allow this client the client credentials grant"),
        "invalid_scope": (ISSUER, "allow this client the scopes that it requests"),
        "invalid_target": (ISSUER, "register the MCP server's URL as a resource"),
    }.get(str(error), (ISSUER, "check its log for the reason"))
    findings.fail(
        NAME,
        f"the token endpoint refuses {credentials.client_id} with {error}",
        where=location,
        fix=fix,
    )
    return ""


class TokenUse(NamedTuple):
    """Where a token was used: the issuer and resource that the server names, and its answer."""

    issuer: str
    resource: str
    accepted: bool


def judge_token(token: str, used: TokenUse, now: float, findings: Findings) -> None:
    """
    Check issuer, audience and expiry of a token; opaque tokens cannot be checked.

    A server may accept other issuers and audiences by its configuration, so they are failures only
    if it refused the token.
    """
    tell = findings.warn if used.accepted else findings.fail
    but = ", but the server accepts it" if used.accepted else ""
    try:
        claims = _claims_of(token)
    except StrictJsonError as refused:
        tell(
            NAME,
            f"the token's claims are not strict JSON: {refused}{but}",
            where=ISSUER,
            fix="make the issuer write each claim once, in JSON that all servers read alike",
        )
        return
    if claims is None:
        findings.note(NAME, "opaque: the MCP server has to introspect it at the issuer")
        return
    if claims.get("iss") != used.issuer:
        tell(
            NAME,
            f"the token was issued by {claims.get('iss')!r}, not by {used.issuer!r}{but}",
            where=CLIENT,
            fix="use a token of the authorization server that the MCP server names",
        )
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if used.resource not in audiences:
        tell(
            NAME,
            f"the token's audience is {audience!r}, not {used.resource!r}{but}",
            where=ISSUER,
            fix="support the `resource` parameter (RFC 8707), or add this URL to the audience",
        )
    else:
        findings.ok(NAME, f"audience is {used.resource}")
    expires = claims.get("exp")
    if not isinstance(expires, int | float) or expires <= now:
        findings.fail(
            NAME, "the token has expired or has no expiry", where=CLIENT, fix="get a new token"
        )


def _claims_of(token: str) -> dict[str, object] | None:
    """Return the unverified claims; None for an opaque token. Raises StrictJsonError."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        msgspec.json.decode(payload, type=dict[str, object])
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None
    return loads_object(payload, max_bytes=len(payload))

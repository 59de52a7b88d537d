"""The first request of a client, without and with a token."""

import msgspec

from gatepost.doctor.http import HttpAnswer, HttpProbe, ServerUnreachable
from gatepost.doctor.report import CLIENT, SERVER, Findings

MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
INFO = {"name": "gatepost-doctor", "version": "1"}
NAME = "first call"


async def discover(wire: HttpProbe, url: str, token: str = "") -> HttpAnswer:
    """Send `server/discover`, the first request of clients of 2026-07-28."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": INFO,
    }
    return await _post(
        wire,
        url,
        {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}},
        {"MCP-Protocol-Version": MODERN, "Mcp-Method": "server/discover"},
        token,
    )


async def initialize(wire: HttpProbe, url: str, token: str = "") -> HttpAnswer:
    """Send `initialize`, the first request of clients of 2025-11-25 and before."""
    params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": INFO}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    return await _post(wire, url, message, {}, token)


async def _post(
    wire: HttpProbe, url: str, message: object, headers: dict[str, str], token: str
) -> HttpAnswer:
    sent = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **headers,
        **({"Authorization": f"Bearer {token}"} if token else {}),
    }
    return await wire.send("POST", url, headers=sent, body=msgspec.json.encode(message))


async def call_without_token(wire: HttpProbe, url: str, findings: Findings) -> HttpAnswer | None:
    """Send a request without a token; return the 401, or None if the examination ends here."""
    name = "without a token"
    try:
        answer = await discover(wire, url)
        if answer.status in {400, 404, 405, 406, 415}:
            # A server of the older revisions may check the message before the token.
            answer = await initialize(wire, url)
    except ServerUnreachable as unreachable:
        findings.fail(
            "connect",
            f"{url} cannot be reached ({unreachable})",
            where=SERVER,
            fix=unreachable.advice
            or "start the server, allow connections to it, or correct the URL",
        )
        return None
    findings.ok("connect", f"{url} answers")
    if answer.status == 401:
        findings.ok(name, "refused with 401")
        return answer
    problem, fix = _not_refused(url, answer)
    findings.fail(name, problem, where=SERVER, fix=fix)
    return None


def _not_refused(url: str, answer: HttpAnswer) -> tuple[str, str]:
    status = answer.status
    if 200 <= status < 300:
        return (
            f"{url} answers {status} without a token, so it is public and clients do not sign in",
            "refuse requests without a token with 401 and a challenge",
        )
    if 300 <= status < 400:
        return (
            f"{url} redirects to {answer.header('location')!r}, which clients do not follow",
            "answer at this URL, or give clients the other URL",
        )
    if status in {404, 405}:
        return (
            f"{url} answers {answer.described}: there is no MCP endpoint at this path",
            "correct the path, or serve POST there",
        )
    if status in {403, 421}:
        return (
            f"{url} answers {answer.described} instead of 401: the host or address is not allowed",
            "allow the host name that clients use",
        )
    return (
        f"{url} answers {answer.described} instead of 401 with a challenge",
        "check its log for the reason",
    )


async def call(wire: HttpProbe, url: str, token: str, findings: Findings) -> bool:
    """
    Make the first call with a token, in the newer era, else in the older one.

    Return whether the server gave a result.
    """
    try:
        answer = await discover(wire, url, token)
        if not _has_result(answer) and answer.status not in {401, 403, 503}:
            answer = await initialize(wire, url, token)
    except ServerUnreachable as unreachable:
        findings.fail(
            NAME,
            f"no answer to the first call ({unreachable})",
            where=SERVER,
            fix="check its log for the reason",
        )
        return False
    if _has_result(answer):
        findings.ok(NAME, _summary(answer))
        return True
    _judge_refusal(answer, findings)
    return False


def _judge_refusal(answer: HttpAnswer, findings: Findings) -> None:
    challenge = answer.header("www-authenticate")
    if answer.status == 401:
        findings.fail(
            NAME,
            f"the token is refused with 401 ({challenge})",
            where=SERVER,
            fix="trust this issuer and audience, or check its log for the reason",
        )
    elif answer.status == 403:
        findings.fail(
            NAME,
            f"the token is refused with 403 ({challenge})",
            where=CLIENT,
            fix="request the scopes named in the challenge",
        )
    elif answer.status == 503:
        findings.fail(
            NAME,
            "the token cannot be checked (503)",
            where=SERVER,
            fix="make sure that it can reach the issuer's key set or introspection endpoint",
        )
    else:
        findings.fail(
            NAME,
            f"the first call ends with {answer.described}",
            where=SERVER,
            fix="check its log for the reason",
        )


def _has_result(answer: HttpAnswer) -> bool:
    return answer.status == 200 and isinstance((answer.message() or {}).get("result"), dict)


def _summary(answer: HttpAnswer) -> str:
    result = (answer.message() or {})["result"]
    if not isinstance(result, dict):
        return "the server answers"
    meta = result.get("_meta")
    info = result.get("serverInfo") or (
        meta.get("io.modelcontextprotocol/serverInfo") if isinstance(meta, dict) else None
    )
    name = info.get("name") if isinstance(info, dict) else None
    versions = result.get("supportedVersions") or [result.get("protocolVersion")]
    listed_versions = (
        ", ".join(str(version) for version in versions) if isinstance(versions, list) else "?"
    )
    return f"{name or 'the server'} answers, speaking {listed_versions}"

"""The way a client goes, from a URL to its first call, with every step judged."""

import time

import httpx2

from gatepost.doctor.call import call, knock
from gatepost.doctor.challenge import read_challenge
from gatepost.doctor.issuer import Issuer
from gatepost.doctor.report import SERVER, Findings, Report
from gatepost.doctor.resource import INSPECTOR, Documents, issuers_of
from gatepost.doctor.token import Credentials, judge_token, request_token
from gatepost.doctor.wire import Unreachable, Wire, problem_of_address

WANTED_HEADERS = "authorization, content-type, mcp-protocol-version"


async def examine(
    url: str,
    *,
    credentials: Credentials | None = None,
    client: httpx2.AsyncClient | None = None,
) -> Report:
    """
    Walk a client's way to the MCP server at *url* and say what is wrong with it.

    The server may be anybody's. Without *credentials* the walk ends where a person would sign in.
    *client* is for tests and for networks that need a proxy; it is left open.
    """
    findings = Findings()
    if problem := problem_of_address(url):
        findings.fail("URL", f"{url!r} {problem}", where=SERVER, fix="give it an https URL")
    elif client is not None:
        await _walk(Wire(client), url, credentials, findings)
    else:
        async with httpx2.AsyncClient() as own:
            await _walk(Wire(own), url, credentials, findings)
    return Report(url, tuple(findings.steps))


async def _walk(wire: Wire, url: str, credentials: Credentials | None, findings: Findings) -> None:
    refused = await knock(wire, url, findings)
    if refused is None:
        return
    parameters = read_challenge(refused, findings)
    await _preflight(wire, url, findings)
    document = await Documents(wire, url, findings).find(parameters.get("resource_metadata", ""))
    if not document:
        return
    issuers = issuers_of(document, findings)
    if not issuers:
        return
    metadata = await Issuer(wire, issuers[0], findings).find()
    resource = document.get("resource")
    if metadata and isinstance(resource, str):
        await _enter(wire, url, (issuers[0], metadata, resource), credentials, findings)


async def _preflight(wire: Wire, url: str, findings: Findings) -> None:
    headers = {
        "Origin": INSPECTOR,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": WANTED_HEADERS,
    }
    try:
        answer = await wire.send("OPTIONS", url, headers=headers)
    except Unreachable:
        return
    if answer.header("access-control-allow-origin") in {"*", INSPECTOR}:
        findings.ok("browsers", f"pages of {INSPECTOR} may call")
    else:
        findings.note("browsers", f"pages of {INSPECTOR} may not call; programs may")


async def _enter(
    wire: Wire,
    url: str,
    found: tuple[str, dict[str, object], str],
    credentials: Credentials | None,
    findings: Findings,
) -> None:
    issuer, metadata, resource = found
    if credentials is None or not (credentials.token or credentials.client_id):
        findings.note("token", "not tried: no token and no client credentials were given")
        return
    token = credentials.token or await request_token(
        wire, metadata, resource, credentials, findings
    )
    if not token:
        return
    judge_token(token, issuer, resource, time.time(), findings)
    await call(wire, url, token, findings)

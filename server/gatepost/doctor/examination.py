"""Examine a server from the URL to the first call."""

import time

import httpx2

from gatepost.doctor.call import call, call_without_token
from gatepost.doctor.challenge import read_challenge
from gatepost.doctor.http import HttpProbe, ServerUnreachable, problem_of_address
from gatepost.doctor.issuer import ExaminedIssuer
from gatepost.doctor.report import SERVER, Findings, Report
from gatepost.doctor.resource import INSPECTOR, ResourceDocuments, issuers_of
from gatepost.doctor.token import DoctorCredentials, TokenUse, judge_token, request_token

WANTED_HEADERS = "authorization, content-type, mcp-protocol-version"


async def examine(
    url: str,
    *,
    credentials: DoctorCredentials | None = None,
    client: httpx2.AsyncClient | None = None,
) -> Report:
    """
    Connect to the MCP server at *url* as a client would, and return the findings.

    The server can be any server and is not trusted. Without *credentials* the examination ends at
    the sign-in. *client* is for tests and for networks that need a proxy; it is not closed.
    """
    findings = Findings()
    if problem := problem_of_address(url):
        findings.fail("URL", f"{url!r} {problem}", where=SERVER, fix="use an https URL")
    elif client is not None:
        await _walk(HttpProbe(client), url, credentials, findings)
    else:
        async with httpx2.AsyncClient() as owned_client:
            await _walk(HttpProbe(owned_client), url, credentials, findings)
    return Report(url, tuple(findings.steps))


async def _walk(
    wire: HttpProbe, url: str, credentials: DoctorCredentials | None, findings: Findings
) -> None:
    refused = await call_without_token(wire, url, findings)
    if refused is None:
        return
    parameters = read_challenge(refused, findings)
    await _preflight(wire, url, findings)
    document = await ResourceDocuments(wire, url, findings).find(
        parameters.get("resource_metadata", "")
    )
    if not document:
        return
    issuers = issuers_of(document, findings)
    if not issuers:
        return
    metadata = await ExaminedIssuer(wire, issuers[0], findings).find()
    resource = document.get("resource")
    if metadata and isinstance(resource, str):
        await _enter(wire, url, (issuers[0], metadata, resource), credentials, findings)


async def _preflight(wire: HttpProbe, url: str, findings: Findings) -> None:
    headers = {
        "Origin": INSPECTOR,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": WANTED_HEADERS,
    }
    try:
        answer = await wire.send("OPTIONS", url, headers=headers)
    except ServerUnreachable:
        return
    if answer.header("access-control-allow-origin") in {"*", INSPECTOR}:
        findings.ok("browsers", f"web pages of {INSPECTOR} can call the server")
    else:
        findings.note(
            "browsers", f"web pages of {INSPECTOR} cannot call the server; other clients can"
        )


async def _enter(
    wire: HttpProbe,
    url: str,
    discovered: tuple[str, dict[str, object], str],
    credentials: DoctorCredentials | None,
    findings: Findings,
) -> None:
    issuer, metadata, resource = discovered
    if credentials is None or not (credentials.token or credentials.client_id):
        findings.note("token", "not tried: give a token or client credentials")
        return
    token = credentials.token or await request_token(
        wire, metadata, resource, credentials, findings
    )
    if not token:
        return
    first_call = Findings()
    works = await call(wire, url, token, first_call)
    judge_token(token, TokenUse(issuer, resource, works), time.time(), findings)
    findings.steps += first_call.steps

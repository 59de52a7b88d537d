"""Check the `WWW-Authenticate` header by the rules of real clients."""

import re

from gatepost.doctor.http import HttpAnswer, problem_of_address
from gatepost.doctor.report import SERVER, Findings

NAME = "challenge"
PARAMETER = re.compile(r'([A-Za-z_][\w-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
WELL_FORMED = 'answer `WWW-Authenticate: Bearer resource_metadata="…"`'


def read_challenge(answer: HttpAnswer, findings: Findings) -> dict[str, str]:
    """Check the challenge of a 401 and return the parameters of its Bearer part."""
    fields = answer.fields("www-authenticate")
    if not fields:
        findings.fail(
            NAME,
            "the 401 carries no WWW-Authenticate header, so a client cannot tell where to sign in",
            where=SERVER,
            fix=WELL_FORMED,
        )
        return {}
    before = len(findings.steps)
    bearer = _bearer_part(fields, findings)
    parameters = _parameters(bearer, findings)
    _judge_metadata(parameters, findings)
    if len(findings.steps) == before:
        findings.ok(NAME, f"Bearer with {', '.join(parameters)}")
    return parameters


def _bearer_part(fields: tuple[str, ...], findings: Findings) -> str:
    scheme, _, parameters = fields[0].strip().partition(" ")
    if scheme == "Bearer":
        return parameters
    if scheme.lower() == "bearer":
        findings.fail(
            NAME,
            f"the scheme is spelt `{scheme}`, which VS Code does not recognise as `Bearer`",
            where=SERVER,
            fix="spell it `Bearer`",
        )
        return parameters
    later = re.search(r"(?:^|,\s*|\n)bearer\s+(.*)", "\n".join(fields), re.IGNORECASE)
    if later is None:
        findings.fail(
            NAME,
            f"the challenge offers only `{scheme}`, which MCP clients do not support",
            where=SERVER,
            fix=WELL_FORMED,
        )
        return ""
    findings.fail(
        NAME,
        f"`{scheme}` stands before `Bearer`, and the TypeScript SDK looks at the first word only",
        where=SERVER,
        fix="send the Bearer challenge first, in a header field of its own",
    )
    return later[1]


def _parameters(text: str, findings: Findings) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for match in PARAMETER.finditer(text):
        name, quoted, bare = match.groups()
        if quoted is None:
            findings.warn(
                NAME,
                f"the value of `{name}` in the challenge is without quotes",
                where=SERVER,
                fix="put every value in double quotes",
            )
        parameters.setdefault(name.lower(), bare if quoted is None else quoted)
    _judge_quotes(text, findings)
    _judge_order(parameters, findings)
    return parameters


def _judge_quotes(text: str, findings: Findings) -> None:
    if text.count('"') % 2 or "\\" in text:
        findings.fail(
            NAME,
            "the challenge has an escape or a quote that is never closed, and VS Code toggles on "
            "every quote",
            where=SERVER,
            fix='use neither a backslash nor `"` inside a value',
        )


def _judge_order(parameters: dict[str, str], findings: Findings) -> None:
    names = list(parameters)
    description = parameters.get("error_description", "")
    if re.search(r"\b(?:scope|error|resource_metadata)=", description):
        findings.fail(
            NAME,
            "the error_description contains text that the SDKs read as a parameter",
            where=SERVER,
            fix="keep `scope=`, `error=` and `resource_metadata=` out of descriptions",
        )
    elif description and names[-1] != "error_description":
        findings.warn(
            NAME,
            "the error_description is not the last parameter of the challenge",
            where=SERVER,
            fix="order them resource_metadata, error, scope, error_description",
        )


def _judge_metadata(parameters: dict[str, str], findings: Findings) -> None:
    url = parameters.get("resource_metadata")
    if url is None:
        findings.warn(
            NAME,
            "the challenge has no resource_metadata, so clients have to guess the metadata URL",
            where=SERVER,
            fix="add the absolute URL of the metadata document as the first parameter",
        )
    elif problem := problem_of_address(url):
        findings.fail(
            NAME,
            f"the resource_metadata URL {url!r} {problem}",
            where=SERVER,
            fix="use the absolute https URL of the document",
        )

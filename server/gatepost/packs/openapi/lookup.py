"""Finds an operation by path and method, or says what comes near."""

import asyncio
import difflib

from gatepost.openapi.document import Document, Entry, Unresolvable
from gatepost.openapi.operation import Operation, read_operation
from gatepost.tools.api import ToolFailure

SHOWN = 5
MOST_COMPARED = 2_000
MOST_LIKE = 40
"""Templates that are compared letter by letter, which takes longest for those made for it."""
LONGEST = 200
CUTOFF = 0.7


async def described(
    document: Document, path: str, method: str, *, api: str, shows: str = "openapi_list_endpoints"
) -> Operation:
    """The operation of that path and method; ToolFailure names what comes near, and who *shows*."""
    entry = document.entry(path, method)
    if entry is None:
        # Aside from the loop: whoever wrote the templates may have made them hard to compare.
        raise await asyncio.to_thread(_unknown, document, path, method, api, shows)
    try:
        return await asyncio.to_thread(read_operation, document, entry)
    except Unresolvable as error:
        message = f"The description of {api} leads nowhere at {error}."
        raise ToolFailure("not_found", message, field="path") from None


def _unknown(document: Document, path: str, method: str, api: str, shows: str) -> ToolFailure:
    message = f"There is no {method.upper()[:10]} {path[:200]} in {api}."
    methods = [entry.method for entry in document.entries if entry.path == path]
    if methods:
        message += f" That path takes {', '.join(methods)}."
        return ToolFailure("not_found", message, field="method")
    near = _near(document.entries, path)
    if near:
        message += f" There is: {', '.join(near)}. Placeholders stay in the path as they are."
    message += f" {shows} shows all."
    return ToolFailure("not_found", message, field="path")


def _near(entries: tuple[Entry, ...], path: str) -> list[str]:
    """Templates that the path fills in, else those that read much like it."""
    path = path[:500].partition("?")[0]
    steps = path.split("/")
    templates = list(dict.fromkeys(entry.path for entry in entries))[:MOST_COMPARED]
    filled = [template for template in templates if _fills(steps, template.split("/"))]
    return filled[:SHOWN] or _alike(path, templates)


def _alike(path: str, templates: list[str]) -> list[str]:
    matcher = difflib.SequenceMatcher(b=path[:LONGEST])
    ranked: list[tuple[float, str]] = []
    for template in templates:
        if len(template) <= LONGEST:
            matcher.set_seq1(template)
            if matcher.real_quick_ratio() >= CUTOFF and (rank := matcher.quick_ratio()) >= CUTOFF:
                ranked.append((rank, template))
    # The same letters first: by far not all of them have to be compared one by one.
    likely = [template for _, template in sorted(ranked, reverse=True)[:MOST_LIKE]]
    return difflib.get_close_matches(path[:LONGEST], likely, n=SHOWN, cutoff=CUTOFF)


def _fills(steps: list[str], template: list[str]) -> bool:
    # Step by step, not as a pattern: a template of somebody else's must not become one.
    return len(steps) == len(template) and all(
        step == wanted or ("{" in wanted and step)
        for step, wanted in zip(steps, template, strict=True)
    )

"""`gatepost tools`: list what a configuration serves."""

from pathlib import Path
from typing import Any

import click
import msgspec

from gatepost.cli.configuration import checked_configuration, config_option
from gatepost.cli.output import table as in_columns
from gatepost.policy.approvals.tool_policies import Plan, plan_of
from gatepost.tools.offers.offer import Offer, Tool
from gatepost.tools.offers.offer_kinds import Prompt, ResourceOffer, Skill, Template

KINDS: dict[type[Offer], str] = {
    Tool: "tool",
    ResourceOffer: "resource",
    Template: "template",
    Prompt: "prompt",
    Skill: "skill",
}
"""In the order of the list."""


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, with schemas.")
def tools(path: Path, as_json: bool) -> None:
    """
    List the tools, resources, prompts and skills of a configuration with their scopes.

    The list leaves out what upstream MCP servers offer: use `gatepost upstream list`.
    """
    config, loaded_packs = checked_configuration(path)
    plan = plan_of(config.approvals, loaded_packs.offers)
    order = list(KINDS)
    offers = sorted(loaded_packs.offers, key=lambda offer: (order.index(type(offer)), offer.key))
    if as_json:
        rows = [described(offer, plan) for offer in offers]
        click.echo(msgspec.json.format(msgspec.json.encode(rows)))
    else:
        click.echo(table(offers, plan))
        if config.has_upstreams:
            # Not part of the table: programs read that.
            note = "The tools of upstream MCP servers are not listed: see `gatepost upstream list`."
            click.echo(note, err=True)


def described(offer: Offer, plan: Plan) -> dict[str, Any]:
    """Return an offer as JSON data."""
    description: dict[str, Any] = {
        "kind": KINDS[type(offer)],
        "name": offer.name,
        "pack": offer.pack,
        "description": offer.description,
    }
    if isinstance(offer, Tool):
        description["inputSchema"] = offer.input_schema
        description["outputSchema"] = offer.output_schema
        description["annotations"] = offer.annotations
    elif isinstance(offer, ResourceOffer | Template):
        description["uri" if isinstance(offer, ResourceOffer) else "uriTemplate"] = offer.key
        description["mimeType"] = offer.mime_type
    elif isinstance(offer, Prompt):
        description["arguments"] = offer.arguments
    elif isinstance(offer, Skill):
        description["uri"] = offer.key
    return {**description, "scopes": sorted(offer.scopes), "approval": approval(offer, plan)}


def table(offers: list[Offer], plan: Plan) -> str:
    """Return a table: name or URI, kind, pack, scopes, hints, approval and description."""
    rows = [("NAME", "KIND", "PACK", "SCOPES", "HINTS", "APPROVAL", "DOES")]
    for offer in offers:
        scopes = " ".join(sorted(offer.scopes)) or "-"
        summary = offer.description.partition("\n")[0]
        approval_text = approval(offer, plan) or "-"
        rows.append(
            (
                offer.key,
                KINDS[type(offer)],
                offer.pack,
                scopes,
                hints(offer),
                approval_text,
                summary,
            )
        )
    return in_columns(rows)


def approval(offer: Offer, plan: Plan) -> str | None:
    """Return whether a tool's calls need approval: `always`, `sometimes` or `never`."""
    if not isinstance(offer, Tool):
        return None
    policy = plan.get(offer.name)
    return "never" if policy is None else policy.frequency()


def hints(offer: Offer) -> str:
    """Return the annotations of a tool in words."""
    if not isinstance(offer, Tool):
        return "-"
    flags = {
        "read-only": offer.annotations.read_only_hint,
        "destructive": offer.annotations.destructive_hint,
        "idempotent": offer.annotations.idempotent_hint,
        "open-world": offer.annotations.open_world_hint,
    }
    return ",".join(hint for hint, declared in flags.items() if declared) or "-"

"""
The facts that templates name, and templates into claims; pure.

About the token: `iss`, `client`, `resource` (none if the token is for another audience), `api`,
`scope` (a text), `scopes` (a list), `iat`, `exp`, `jti`, `sid`, `auth_time`, `acr`, `nonce`,
`at_hash`. About the subject, a person or a machine: `username`, `name`, `email`, `roles`, `tenant`,
`org` (the tenant as the provider spells it), and its ids `guid`, `digits`, `hex`, `pairwise`.
"""

import hashlib
import re
import secrets
import uuid
from collections.abc import Mapping
from typing import Any

from gatepost_keys.imitation.shape import Imitation
from gatepost_keys.subject import TokenSubject


def ids_of(kind: str, name: str) -> dict[str, str]:
    """Return the ids of a thing in every spelling: the same at every start, another per kind."""
    digest = hashlib.sha256(f"{kind}\0{name}".encode()).digest()
    return {
        "name": name,
        "guid": str(uuid.UUID(bytes=digest[:16], version=4)),
        "digits": str(int.from_bytes(digest[:7], "big") + 10**17),
        "hex": digest[:10].hex(),
    }


def spelled(form: str, kind: str, name: str) -> str:
    """Return the id of the thing *name* in the provider's spelling *form*."""
    return form.format(**ids_of(kind, name))


def org_of(imitation: Imitation, tenant: str) -> str:
    """Return *tenant* as the provider spells it."""
    return spelled(imitation.org, "org", tenant)


def api_of(imitation: Imitation, resource: str) -> str:
    """Return the provider's id of our API."""
    if imitation.api == "$resource":
        return resource
    return spelled(imitation.api, "api", "gatepost")


def facts_of(person: TokenSubject, imitation: Imitation, client_id: str) -> dict[str, object]:
    """Return the facts about the subject of a token for *client_id*."""
    ids = ids_of("subject", f"{person.username}@{person.tenant}")
    return {
        **ids,
        "username": person.username,
        "name": person.name,
        "email": person.email,
        "roles": list(person.roles),
        "machine": person.machine,
        "tenant": person.tenant,
        "org": org_of(imitation, person.tenant),
        "pairwise": ids_of("pairwise", f"{ids['guid']} {client_id}")["guid"],
        "client": client_id,
    }


def lifetime(now: float, lifetime_s: int) -> dict[str, object]:
    """Return the facts about one token issued *now*."""
    return {
        "iat": int(now),
        "exp": int(now) + lifetime_s,
        "expires_in": lifetime_s,
        "jti": secrets.token_urlsafe(16),
    }


def filled(template: Mapping[str, object], facts: Mapping[str, Any]) -> dict[str, object]:
    """Return *template* with the facts it names, without the members that have no value."""
    values = ((name, _value(form, facts)) for name, form in template.items())
    return {name: value for name, value in values if value not in (None, "", [], {})}


def _value(form: object, facts: Mapping[str, Any]) -> object:
    if isinstance(form, Mapping):
        return filled(form, facts)
    if isinstance(form, tuple | list):
        parts = (_value(part, facts) for part in form)
        return [part for part in parts if part not in (None, "")]
    if isinstance(form, str) and form.startswith("$"):
        return facts.get(form[1:])
    if isinstance(form, str) and "{" in form:
        field_names = re.findall(r"\{(\w+)\}", form)
        return form.format_map(facts) if all(facts.get(name) for name in field_names) else None
    return form

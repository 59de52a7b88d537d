"""What must hold of the stores and the world, whenever whichever process was killed."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gatepost.audit.checkpoints import public_keys
from gatepost.audit.verify import verify
from gatepost.policy.approvals.request import ApprovalRequest
from gatepost.runtime.services import Services
from gatepost.storage.audit import AuditRow
from tests.storage.crashes.course import EFFECTS, TENANT

PAGE = 500
Told = Sequence[Mapping[str, Any]]
"""What processes knew for certain, in their own words."""


async def broken(services: Services, told: Told) -> list[str]:
    """Each promise that does not hold, in a sentence; *told* is all since the stores were made."""
    effects = Counter(EFFECTS.read_text().split() if EFFECTS.exists() else ())
    requests = await _requests(services)
    rows = await _rows(services)
    return [
        *_once_for_each_key(effects),
        *_once_for_each_approval(effects, requests),
        *_answered(told, effects, rows),
        *_decided(told, requests, rows),
        *_on_record(requests, rows),
        *await _chained(services),
    ]


def _on_record(requests: Mapping[str, ApprovalRequest], rows: Sequence[AuditRow]) -> list[str]:
    on_record = _approved_on_record(rows)
    return [
        f"the approval {name} counts, and no record says who gave it"
        for name, one in requests.items()
        if one.given >= one.needed and name not in on_record
    ]


def _once_for_each_key(effects: Counter[str]) -> list[str]:
    return [f"{key} took effect {n} times" for key, n in effects.items() if key[0] == "r" and n > 1]


def _once_for_each_approval(
    effects: Counter[str], requests: Mapping[str, ApprovalRequest]
) -> list[str]:
    approved: Counter[str] = Counter()
    for request in requests.values():
        if request.given >= request.needed:
            approved[json.loads(request.arguments)["key"]] += 1
    return [
        f"{key} took effect {n} times with {approved[key]} approvals"
        for key, n in effects.items()
        if n > approved[key]
    ]


def _answered(told: Told, effects: Counter[str], rows: Sequence[AuditRow]) -> list[str]:
    calls = {json.loads(row.body).get("request_id"): row for row in rows if row.kind == "call"}
    problems = []
    for one in told:
        if one["what"] != "answered":
            continue
        row = calls.get(one["id"])
        if row is None:
            problems.append(f"the call {one['id']} was answered and is not on record: {one}")
        elif one["done"] is not (row.outcome == "success"):
            problems.append(f"the call {one['id']} is on record as {row.outcome}: {one}")
        if one["done"] and not effects[one["key"]]:
            problems.append(f"{one['key']} was answered as done and took no effect")
    return problems


def _decided(
    told: Told, requests: Mapping[str, ApprovalRequest], rows: Sequence[AuditRow]
) -> list[str]:
    on_record = _approved_on_record(rows)
    problems = []
    for one in told:
        if one["what"] != "approved":
            continue
        if one["id"] not in requests:
            problems.append(f"the approval {one['id']} was acknowledged and is gone")
        if one["id"] not in on_record:
            problems.append(f"the approval {one['id']} was acknowledged and is not on record")
    return problems


def _approved_on_record(rows: Sequence[AuditRow]) -> set[str]:
    return {
        json.loads(row.body)["approval"]
        for row in rows
        if row.kind == "approval" and row.outcome == "approved"
    }


async def _chained(services: Services) -> list[str]:
    ring = services.keyring
    found = await verify(services.records, TENANT, public_keys(ring), ring)
    return [] if found.bad is None else [f"record {found.bad}: {found.problem}"]


async def _rows(services: Services) -> list[AuditRow]:
    trail, rows = services.records.of(TENANT).trail, list[AuditRow]()
    while page := await trail.rows(rows[-1].number if rows else 0, PAGE):
        rows += page
    return rows


async def _requests(services: Services) -> dict[str, ApprovalRequest]:
    service = services.approvals
    found = await service.waiting(TENANT)
    page = await service.history(TENANT, most=PAGE)
    while page:
        found += page
        page = await service.history(TENANT, before=page[-1], most=PAGE)
    return {request.id: request for request in found}

"""Puts what people decide on record."""

from gatepost.approvals.herald import Change
from gatepost.approvals.request import Operator, Party, Visitor
from gatepost.audit.journal import Journal
from gatepost.audit.record import Person


class Minutes:
    """See `Hears`; what it is told is durable when it returns."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def __call__(self, change: Change) -> None:
        """See `Hears`."""
        request, grant, by = change.request, change.grant, change.by
        subject = request or grant
        if subject is None:
            return
        whom = subject.caller
        private = {}
        if isinstance(by, Operator):
            private["operator"] = by.name
        if request is not None and request.decisions and by is not None:
            # Words of people; whatever is personal can be erased.
            said = request.decisions[-1]
            private |= {"reason": said.reason} if said.reason else {}
            if said.edited and request.edited is not None:
                private["edited"] = request.edited.decode()
        await self._journal.note(
            change.tenant,
            "approval" if grant is None else "grant",
            outcome=change.what.removeprefix("grant_"),
            caller=None if by is None or isinstance(by, Operator) else by,
            about=_person(whom) if whom.subject else None,
            tool=change.tool,
            approval=change.id,
            request_id="" if request is None else request.request_id,
            peer=by.peer if isinstance(by, Visitor) else "",
            details={"by": "operator"} if isinstance(by, Operator) else {},
            private=private,
        )


def _person(whom: Party) -> Person:
    return Person(whom.issuer, whom.subject, whom.client_id or "", whom.name, whom.actor or "")

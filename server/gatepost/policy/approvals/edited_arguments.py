"""Arguments that an approver edits: every digit stays as it was written."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gatepost.policy.approvals.approval_request import Undecidable
from gatepost.policy.approvals.policies import variables_of
from gatepost.policy.approvals.stored_request import (
    MARK,
    ArgumentSealer,
    SealedArguments,
    StoredApproval,
    check_readable,
    shown_arguments,
)
from gatepost.policy.approvals.tool_policies import ToolPolicies
from gatepost.tools.api import ToolFailure
from gatepost.tools.redaction import Redaction
from gatepost_authz.strict_json import constant, members

DECIDED = "Another person approved the original arguments. Approve them too, or reject the call."


class ArgumentEditor:
    """Applies the arguments that an approver edited to a request."""

    def __init__(
        self, sealer: ArgumentSealer, policies: ToolPolicies, redaction: Redaction
    ) -> None:
        self._sealer, self._policies, self._redaction = sealer, policies, redaction

    def edit(self, approval: StoredApproval, edited: bytes) -> dict[str, Any]:
        """Return the changes of a request for edited arguments; raises Undecidable."""
        request = approval.request
        if request.given:
            raise Undecidable(DECIDED)
        tool, sealed = self._policies.tool_of(request), self._sealer.open(approval.record)
        if sealed is None or tool is None:
            raise Undecidable("The arguments cannot be opened here, so they cannot be edited.")
        arguments = merged(edited, request.arguments, sealed.arguments)
        if self._sealer.digest(tool, arguments) == approval.details.digest:
            if request.edited is None:
                return {}
            # The approval of the person who edited them is gone; the edit must not outlast it.
            original = self._sealer.seal(request.id, SealedArguments(sealed.arguments))
            return {"sealed": original, "edited": None}
        try:
            checked = tool.check(arguments)
            shown = shown_arguments(self._redaction, request.tenant, tool, arguments)
        except ToolFailure as refused:
            message = self._redaction.clean(request.tenant, refused.failure.message)
            raise Undecidable(f"The tool does not take these arguments: {message}") from None
        variables = variables_of(approval.details.caller, tool, arguments, checked)
        policy = self._policies.of(tool)
        need = None if policy is None else policy.need(variables)
        if need is not None and not need.within(request.caller, request.needed, request.by):
            raise Undecidable("These arguments need other approvers. Reject, and call again.")
        both = self._sealer.seal(request.id, SealedArguments(sealed.arguments, arguments))
        return {"sealed": both, "edited": shown}


class ExactNumber(str):
    """A number as it was written, so that the approver sees every digit."""

    __slots__ = ()


def decoded(encoded: bytes) -> Any:
    """Decode JSON with numbers as `ExactNumber`; ValueError, also for a repeated member name."""
    try:
        return json.loads(
            encoded,
            parse_int=ExactNumber,
            parse_float=ExactNumber,
            parse_constant=constant,
            object_pairs_hook=members,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def compact(value: Any, gap: str = " ") -> str:
    """Encode a value as JSON on one line, with numbers as written and *gap* after separators."""
    match value:
        case ExactNumber():
            return str(value)
        case Mapping():
            pairs = (f"{quoted(k)}:{gap}{compact(v, gap)}" for k, v in value.items())
            return f"{{{f',{gap}'.join(pairs)}}}"
        case str() | None | bool() | int() | float():
            return quoted(value)
        case Sequence():
            return f"[{f',{gap}'.join(compact(one, gap) for one in value)}]"
    raise TypeError(f"{type(value).__name__} is no JSON")


def encoded(value: Any) -> bytes:
    """Encode a value without gaps, in UTF-8; UnicodeEncodeError for half a surrogate pair."""
    return compact(value, "").encode()


def quoted(value: Any) -> str:
    """Encode a value with Python's own encoder."""
    return json.dumps(value, ensure_ascii=False)


def merged(edited: bytes, shown: bytes, original: bytes) -> bytes:
    """
    Return the edited arguments with the redacted secrets restored in their places.

    Raises Undecidable if a redaction placeholder was moved or changed. Entries of a list may look
    alike and hide different secrets: with placeholders they stay as they are, and so does the
    number of entries.
    """
    try:
        wanted = decoded(edited)
    except ValueError:
        raise Undecidable("The edited arguments are not JSON.") from None
    if not isinstance(wanted, dict):
        raise Undecidable("The edited arguments are not a JSON object.")
    try:
        whole = _restored(wanted, decoded(shown), decoded(original), "")
        arguments = encoded(whole)
    except RecursionError:
        raise Undecidable("The edited arguments are nested too deeply.") from None
    except UnicodeEncodeError:
        raise Undecidable("The edited arguments are not JSON.") from None
    try:
        check_readable(arguments)
    except ToolFailure as refused:
        raise Undecidable(refused.failure.message) from None
    return arguments


def _restored(wanted: Any, shown: Any, original: Any, place: str) -> Any:
    if isinstance(wanted, dict):
        shown, original = _mapping(shown), _mapping(original)
        for name in wanted:
            _unmarked(name, place)
        return {
            name: _restored(value, shown.get(name), original.get(name), f"{place}.{name}")
            for name, value in wanted.items()
        }
    if isinstance(wanted, list):
        if not (_lists(shown, original) and len(wanted) == len(shown) == len(original)):
            shown = original = [None] * len(wanted)
        places = (f"{place}[{at}]" for at in range(len(wanted)))
        return [
            _restored(one, before, secret, where)
            if one == before or len(wanted) == 1
            else _restored(one, None, None, where)
            for one, before, secret, where in zip(wanted, shown, original, places, strict=True)
        ]
    if wanted == shown and type(wanted) is type(shown):
        return original
    if isinstance(wanted, str):
        _unmarked(wanted, place)
    return wanted


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _lists(*values: Any) -> bool:
    return all(isinstance(value, list) for value in values)


def _unmarked(text: str, place: str) -> None:
    if MARK in text:
        where = place.removeprefix(".") or "the arguments"
        raise Undecidable(
            f"Part of {where} is withheld, so it can be left as it is or written anew, "
            "but not changed around the withheld part or moved within a list."
        )

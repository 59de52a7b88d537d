"""Stop a tool that takes too long, and log which one goes on."""

import logging
from typing import TypeVar

from gatepost.execution.interruption import WorkDeadline
from gatepost.redaction.redactor import CURRENT_CALL
from gatepost.tools.calls.redacted_call import RedactedCall

T = TypeVar("T")

log = logging.getLogger("gatepost.runner")


class ToolDeadline(WorkDeadline[T]):
    """Awaits a tool as `WorkDeadline` does, and logs `tool_abandoned` if the tool does not stop."""

    __slots__ = ()

    def abandoned(self) -> None:
        """Log which tool goes on although it was cancelled."""
        call = CURRENT_CALL.get()
        if isinstance(call, RedactedCall):
            name, request_id = call.call.name, call.call.request_id
            log.warning(
                "tool_abandoned",
                extra={"tool": name, "request_id": request_id, "after_s": self.abandon_s},
            )

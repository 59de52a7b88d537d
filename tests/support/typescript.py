"""The official TypeScript clients, each as a process whose browser is a Person of ours."""

import json
from typing import Any

from tests.support.browser import Person
from tests.support.node import command, environment
from tests.support.process import Process

ANSWER_WITHIN_S = 60


def walk(script: str, person: Person, **settings: Any) -> dict[str, Any]:
    """
    Run a client script of `tests/node` to its end and answer its report.

    Whenever it wants the browser, *person* goes there and says where they came back to.
    """
    process = Process(command(script, json.dumps(settings)), env=environment())
    try:
        while True:
            message = json.loads(process.next_line(timeout_s=ANSWER_WITHIN_S))
            if "report" in message:
                return dict(message["report"])
            process.write_line(person.visit(message["authorize"]))
    finally:
        process.kill()

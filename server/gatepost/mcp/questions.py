"""What a task asks its client: the questions that wait, the answers given, and their keys."""

import hashlib
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import msgspec

from gatepost.stores.api import TaskRecord
from gatepost.tools.client import InputRequest

_encode = msgspec.json.encode
_replace = msgspec.structs.replace


class Answer(msgspec.Struct, frozen=True):
    """How a key was spent: on which question, and with which answer; None: it was withdrawn."""

    asked: str
    given: dict[str, Any] | None = None


_questions = msgspec.json.Decoder(dict[str, InputRequest]).decode
_answers = msgspec.json.Decoder(dict[str, Answer]).decode


def waiting(record: TaskRecord) -> dict[str, InputRequest]:
    """The questions that wait for an answer, by key."""
    return {} if record.requests is None else _questions(record.requests)


def spent(record: TaskRecord) -> dict[str, Answer]:
    """The keys that are used up."""
    return {} if record.answers is None else _answers(record.answers)


class Posed(msgspec.Struct, frozen=True):
    """Questions with their keys, by the tool's own names, and the record that asks the new ones."""

    keys: Mapping[str, str]
    numbers: Mapping[str, int]
    record: TaskRecord


class Keys:
    """
    Which key each question of one run has.

    A key belongs to one question for the life of its task (K-11). A run that begins again after a
    crash asks the same again: what was answered already is found under the same key, unless the
    question has changed, since an answer to another question is none.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._mine: set[str] = set()

    def pose(self, record: TaskRecord, requests: Mapping[str, InputRequest]) -> Posed:
        """Choose keys; changes nothing, because the record may have to be read again."""
        open_ones, used = waiting(record), spent(record)
        keys: dict[str, str] = {}
        numbers = dict(self._numbers)
        for name, request in requests.items():
            for number in count(numbers.get(name, 0) + 1):
                key = name if number == 1 else f"{name}-{number}"
                if key in self._mine or key in open_ones:
                    continue
                before = used.get(key)
                if before is None:
                    open_ones[key] = request
                elif before.given is None or before.asked != digest(request):
                    continue
                break
            keys[name], numbers[name] = key, number
        return Posed(keys, numbers, _kept(record, open_ones, used))

    def heard(
        self,
        record: TaskRecord,
        requests: Mapping[str, InputRequest],
        answers: Mapping[str, Mapping[str, Any]],
    ) -> TaskRecord:
        """The record with what was asked and answered before it was a task's."""
        posed = self.pose(record, requests)
        self.keep(posed)
        return answer(posed.record, {key: answers[name] for name, key in posed.keys.items()})

    def keep(self, posed: Posed) -> None:
        """Count these keys as this run's, now that the record with them is kept."""
        self._numbers.update(posed.numbers)
        self._mine.update(posed.keys.values())


def answer(record: TaskRecord, responses: Mapping[str, Mapping[str, Any]]) -> TaskRecord:
    """The record with these answers; those to no waiting question are ignored (K-12)."""
    open_ones, used = waiting(record), spent(record)
    for key in [key for key in open_ones if key in responses]:
        used[key] = Answer(digest(open_ones.pop(key)), dict(responses[key]))
    return _kept(record, open_ones, used)


def withdraw(record: TaskRecord, keys: Iterable[str]) -> TaskRecord:
    """The record without these questions; their keys stay spent."""
    open_ones, used = waiting(record), spent(record)
    for key in keys:
        if key in open_ones:
            used[key] = Answer(digest(open_ones.pop(key)))
    return _kept(record, open_ones, used)


def answers_to(record: TaskRecord, keys: Mapping[str, str]) -> dict[str, Any] | None:
    """The answers by the tool's own names; None while one of them is missing."""
    used = spent(record)
    found: dict[str, Any] = {}
    for name, key in keys.items():
        given = used[key].given if key in used else None
        if given is None:
            return None
        found[name] = given
    return found


def digest(request: InputRequest) -> str:
    """
    What tells a question from another.

    Only of what a person decides: a yes to "Delete 3 files?" is none to "Delete 300 files?". What
    a model is asked may have the time of day in it.
    """
    if request.method != "elicitation/create":
        return ""
    return hashlib.sha256(_encode(request, order="deterministic")).hexdigest()[:32]


def _kept(
    record: TaskRecord, open_ones: dict[str, InputRequest], used: dict[str, Answer]
) -> TaskRecord:
    requests = _encode(open_ones) if open_ones else None
    answers = _encode(used) if used else None
    if requests == record.requests and answers == record.answers:
        return record
    status: Any = "input_required" if open_ones else "working"
    return _replace(record, requests=requests, answers=answers, status=status)

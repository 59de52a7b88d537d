"""Buckets and places at a Valkey: the one script that takes them, and what this process holds."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from gatepost.storage.rate_limits import LEASE_S, SLOT_WAIT_S, Denial
from gatepost.storage.valkey.rate_limits import Bucket, Place, RateLimitRequest, ValkeyRateLimits

RENEW_S = LEASE_S / 3
"""Renewed twice before it is over: one renewal may fail."""

TAKE = f"""
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local me, count = ARGV[1], tonumber(ARGV[2])
local first, at, bucket = #KEYS - count, 3, 1
local used, mine, answers = {{}}, {{}}, {{}}
for i = 1, count do
  mine[i] = tonumber(ARGV[at])
  used[i] = mine[i]
  at = at + 1
  local fields = redis.call('HGETALL', KEYS[first + i])
  for f = 1, #fields, 2 do
    if fields[f] ~= me then
      local taken, till = string.match(fields[f + 1], '(%d+) (%S+)')
      if tonumber(till) > now then
        used[i] = used[i] + tonumber(taken)
      else
        redis.call('HDEL', KEYS[first + i], fields[f])
      end
    end
  end
end
local wishes = tonumber(ARGV[at])
at = at + 1
for w = 1, wishes do
  local buckets, slots = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  at = at + 2
  local longest, who, full = 0.000001, nil, {{}}
  for b = 1, buckets do
    local rate, burst = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    at = at + 2
    local key = KEYS[bucket + b - 1]
    full[b] = math.max(tonumber(redis.call('GET', key) or '0'), now) + 1 / rate
    local wait = full[b] - now - burst / rate
    if wait > longest then longest, who = wait, b - 1 end
  end
  for s = 1, slots do
    local slot, most = tonumber(ARGV[at + 2 * s - 2]), tonumber(ARGV[at + 2 * s - 1])
    if used[slot] >= most and longest < {SLOT_WAIT_S} then
      longest, who = {SLOT_WAIT_S}, buckets + s - 1
    end
  end
  if who then
    answers[w] = string.format('%d %.6f', who, longest)
  else
    for b = 1, buckets do
      redis.call('SET', KEYS[bucket + b - 1], string.format('%.6f', full[b]),
        'PX', math.ceil((full[b] - now) * 1000))
    end
    for s = 1, slots do
      local slot = tonumber(ARGV[at + 2 * s - 2])
      used[slot], mine[slot] = used[slot] + 1, mine[slot] + 1
    end
    answers[w] = ''
  end
  bucket, at = bucket + buckets, at + 2 * slots
end
for i = 1, count do
  if mine[i] > 0 then
    redis.call('HSET', KEYS[first + i], me, string.format('%d %.6f', mine[i], now + {LEASE_S}))
    redis.call('PEXPIRE', KEYS[first + i], {LEASE_S * 1000:.0f})
  else
    redis.call('HDEL', KEYS[first + i], me)
  end
end
return answers
"""
"""
Buckets as `gatepost.storage.rate_limits` keeps them: when each will be full again. A slot is a
hash: each process with the number of places that it has and the time until which that counts. A
process tells its numbers whole, so that what was lost on the way is right again with the next
question.
"""

LEVELS = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local levels = {}
for i, key in ipairs(KEYS) do
  if i <= tonumber(ARGV[1]) then
    levels[i] = string.format('%.6f', math.max(tonumber(redis.call('GET', key) or '0') - now, 0))
  else
    local used = 0
    for _, value in ipairs(redis.call('HVALS', key)) do
      local taken, till = string.match(value, '(%d+) (%S+)')
      if tonumber(till) > now then used = used + tonumber(taken) end
    end
    levels[i] = tostring(used)
  end
end
return levels
"""
"""The seconds until each bucket is full, and the places in use of each slot."""

Run = Callable[[list[bytes], list[Any]], Awaitable[list[bytes]]]
"""Runs `TAKE` with keys and arguments; raises StoreUnavailable."""


class ValkeyConcurrency:
    """What this process has taken of every tenant's slots, and how others hear of it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._me = secrets.token_hex(8)
        self._held: Counter[bytes] = Counter()
        self._untold: set[bytes] = set()
        self._unsure: frozenset[bytes] = frozenset()
        self._renewal: asyncio.TimerHandle | None = None
        self._till = ValkeyRateLimits(self._ask, self._taken)

    async def take(self, buckets: Sequence[Bucket], slots: Sequence[Place]) -> Denial | None:
        """Take slots, as `TenantRelay.spend_all` does; the names are keys of Valkey."""
        wish = RateLimitRequest(buckets, slots, asyncio.get_running_loop().create_future())
        self._till.put(wish)
        try:
            return await wish.answer
        except asyncio.CancelledError:
            # Who was stopped between the answer and its next step has taken places all the same.
            if came_true(wish.answer):
                self.leave([key for key, _ in slots])
            raise

    def hold(self, slots: Sequence[bytes]) -> None:
        """Take slots without checking that any is free; other processes learn of it soon."""
        self._count(slots)
        self._tell(slots)

    def leave(self, slots: Sequence[bytes]) -> None:
        """Release slots; other processes learn of it soon."""
        self._held.subtract(slots)
        for slot in slots:
            if self._held[slot] <= 0:
                del self._held[slot]
        self._tell(slots)

    async def aclose(self) -> None:
        """Let what is under way come to its end."""
        if self._renewal is not None:
            self._renewal.cancel()
        await self._till.aclose()

    def _taken(self, wish: RateLimitRequest) -> None:
        if wish.slots:
            self._count([key for key, _ in wish.slots])

    def _count(self, slots: Sequence[bytes]) -> None:
        self._held.update(slots)
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().call_later(RENEW_S, self._renew)

    def _renew(self) -> None:
        self._renewal = None
        if self._held:
            self._renewal = asyncio.get_running_loop().call_later(RENEW_S, self._renew)
            self._tell(self._held)

    def _tell(self, slots: Iterable[bytes]) -> None:
        if slots:
            self._untold.update(slots)
            self._till.tell()

    async def _ask(self, wishes: list[RateLimitRequest]) -> list[Denial | None]:
        named = (key for wish in wishes for key, _ in wish.slots)
        told = self._unsure.union(self._untold, named)
        numbers = {key: number for number, key in enumerate(told, 1)}
        # Perhaps a server does it all and only its answer is lost: then they are told anew.
        self._unsure, self._untold = told, set()
        keys = [*(key for wish in wishes for key, _, _ in wish.buckets), *told]
        arguments: list[Any] = [self._me, len(told), *(self._held.get(key, 0) for key in told)]
        arguments.append(len(wishes))
        for wish in wishes:
            arguments += (len(wish.buckets), len(wish.slots))
            arguments += (term for bucket in wish.buckets for term in bucket[1:])
            arguments += (term for key, most in wish.slots for term in (numbers[key], most))
        answers = await self._run(keys, arguments)
        self._unsure = frozenset()
        return [_denial(answer) for answer in answers]


def came_true(answer: "asyncio.Future[Denial | None]") -> bool:
    """Return whether slots were granted, even if their caller has left."""
    if not answer.done() or answer.cancelled() or answer.exception() is not None:
        return False
    return answer.result() is None


def _denial(answer: bytes) -> Denial | None:
    if not answer:
        return None
    at, wait_s = answer.split()
    return Denial(int(at), float(wait_s))

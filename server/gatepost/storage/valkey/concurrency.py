"""
Count rate and concurrency limits at a Valkey with one script, and keep this process's running
calls.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from gatepost.storage.rate_limits import CONCURRENCY_WAIT_S, LEASE_S, Denial
from gatepost.storage.valkey.rate_limits import (
    KeyedBucket,
    LimitedKey,
    RateLimitRequest,
    ValkeyRateLimits,
)

RENEW_S = LEASE_S / 3
"""A lease is renewed twice before it expires, so that one renewal may fail."""

LEAVE_S = 0.01
"""How long other processes may not know of an ended call; mostly the next request reports it."""
LARGE_LIMIT = 20
"""In a limit of this many calls, one that counts for `LEAVE_S` longer does not matter."""

TAKE_SCRIPT = f"""
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local me, mine, requests = unpack(cmsgpack.unpack(ARGV[1]))
local limits = #mine
local buckets = #KEYS - limits
local full, changed, used, was, denied = {{}}, {{}}, {{}}, {{}}, nil
if buckets > 0 then
  for i, value in ipairs(redis.call('MGET', unpack(KEYS, 1, buckets))) do
    full[i] = math.max(tonumber(value or '0'), now)
  end
end
for i = 1, limits do
  used[i] = mine[i]
  local fields = redis.call('HGETALL', KEYS[buckets + i])
  for f = 1, #fields, 2 do
    if fields[f] == me then
      was[i] = fields[f + 1]
    else
      local taken, until_s = string.match(fields[f + 1], '(%d+) (%S+)')
      if tonumber(until_s) > now then
        used[i] = used[i] + tonumber(taken)
      else
        redis.call('HDEL', KEYS[buckets + i], fields[f])
      end
    end
  end
end
for w, request in ipairs(requests) do
  local rated, limited = request[1], request[2]
  local longest, who = 0.000001, nil
  for b = 1, #rated, 3 do
    local wait = full[rated[b]] - now + (1 - rated[b + 2]) / rated[b + 1]
    if wait > longest then longest, who = wait, (b - 1) / 3 end
  end
  for s = 1, #limited, 2 do
    if used[limited[s]] >= limited[s + 1] and longest < {CONCURRENCY_WAIT_S} then
      longest, who = {CONCURRENCY_WAIT_S}, #rated / 3 + (s - 1) / 2
    end
  end
  if who then
    denied = denied or {{}}
    denied[#denied + 1] = {{w - 1, who, longest}}
  else
    for b = 1, #rated, 3 do
      local i = rated[b]
      full[i], changed[i] = full[i] + 1 / rated[b + 1], true
    end
    for s = 1, #limited, 2 do
      local limit = limited[s]
      used[limit], mine[limit] = used[limit] + 1, mine[limit] + 1
    end
  end
end
for i in pairs(changed) do
  redis.call('SET', KEYS[i], full[i], 'PX', math.ceil((full[i] - now) * 1000))
end
local expiry = string.format(' %d', math.ceil(now + {LEASE_S}))
for i = 1, limits do
  local key = KEYS[buckets + i]
  local value = mine[i] .. expiry
  if mine[i] <= 0 then
    if was[i] then redis.call('HDEL', key, me) end
  elseif value ~= was[i] then
    redis.call('HSET', key, me, value)
    if string.sub(was[i] or '', -#expiry) ~= expiry then
      redis.call('PEXPIRE', key, {LEASE_S * 1000 + 1000:.0f})
    end
  end
end
return denied and cmsgpack.pack(denied) or ''
"""
"""
One run serves the requests of many calls in their order, each all or nothing. Each bucket and limit
is read once and written once, however many calls name it.

A bucket is stored as `gatepost.storage.rate_limits` stores it: as the time when it is full again. A
limit is a hash: each process with the number of its running calls and the second until which that
counts, so that most runs write nothing anew. The hash expires a second later. A process reports its
complete numbers, so that the next request corrects what was lost.

The argument is MessagePack: ``[process, [calls of each limit], [[buckets, limits], …]]``, where
buckets are ``number, rate, burst, …`` and limits ``number, most, …``. The keys are those of the
buckets, then those of the limits. The answer names the calls that got nothing:
``[[call, index of the longest wait, seconds], …]``, or is empty.
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
      local taken, until_s = string.match(value, '(%d+) (%S+)')
      if tonumber(until_s) > now then used = used + tonumber(taken) end
    end
    levels[i] = tostring(used)
  end
end
return levels
"""
"""The seconds until each bucket is full, and the running calls of each limit."""

RunScript = Callable[[Sequence[bytes], bytes], Awaitable[bytes]]
"""Runs `TAKE_SCRIPT` with keys and its argument; raises StoreUnavailable."""

_encode = msgspec.msgpack.encode
_denials = msgspec.msgpack.Decoder(list[tuple[int, int, float]]).decode


class ValkeyConcurrency:
    """Counts this process's running calls in every tenant's limits, and tells other processes."""

    def __init__(self, run: RunScript) -> None:
        self._run = run
        self._me = secrets.token_hex(8)
        self._held_counts: Counter[bytes] = Counter()
        self._untold: set[bytes] = set()
        self._unsure: frozenset[bytes] = frozenset()
        self._renewal: asyncio.TimerHandle | None = None
        self._release: asyncio.TimerHandle | None = None
        self._rate_limits = ValkeyRateLimits(self._ask, self._on_taken)

    async def take(
        self, buckets: Sequence[KeyedBucket], concurrency: Sequence[LimitedKey]
    ) -> Denial | None:
        """Take, as `TenantSharedStore.spend_all` does; the names are keys of Valkey."""
        request = RateLimitRequest(buckets, concurrency, asyncio.get_running_loop().create_future())
        self._rate_limits.put(request)
        try:
            return await request.answer
        except asyncio.CancelledError:
            # A caller that was cancelled between the answer and its next step counts in the limits
            # all the same.
            if was_granted(request.answer):
                self.leave(concurrency)
            raise

    def hold(self, concurrency: Sequence[bytes]) -> None:
        """Count a call in each limit, even beyond it; other processes learn of it soon."""
        self._count(concurrency)
        self._report(concurrency)

    def leave(self, concurrency: Sequence[LimitedKey]) -> None:
        """End a call in each limit; other processes learn of it soon."""
        self._held_counts.subtract([key for key, _ in concurrency])
        for key, limit in concurrency:
            if self._held_counts[key] <= 0:
                del self._held_counts[key]
            self._untold.add(key)
            if limit < LARGE_LIMIT:
                self._rate_limits.report_soon()
        if concurrency and self._release is None:
            self._release = asyncio.get_running_loop().call_later(LEAVE_S, self._told_late)

    async def aclose(self) -> None:
        """Wait for running requests to end."""
        for timer in (self._renewal, self._release):
            if timer is not None:
                timer.cancel()
        await self._rate_limits.aclose()

    def _on_taken(self, request: RateLimitRequest) -> None:
        if request.concurrency:
            self._count([key for key, _ in request.concurrency])

    def _count(self, concurrency: Sequence[bytes]) -> None:
        self._held_counts.update(concurrency)
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().call_later(RENEW_S, self._renew)

    def _renew(self) -> None:
        self._renewal = None
        if self._held_counts:
            self._renewal = asyncio.get_running_loop().call_later(RENEW_S, self._renew)
            self._report(self._held_counts)

    def _told_late(self) -> None:
        self._release = None
        if self._untold:  # otherwise a request of other calls has reported it
            self._rate_limits.report_soon()

    def _report(self, concurrency: Iterable[bytes]) -> None:
        if concurrency:
            self._untold.update(concurrency)
            self._rate_limits.report_soon()

    async def _ask(self, requests: list[RateLimitRequest]) -> list[Denial | None]:
        keys = (key for request in requests for key, _ in request.concurrency)
        reported = self._unsure.union(self._untold, keys)
        concurrency = {key: number for number, key in enumerate(reported, 1)}
        # If the server runs the script but its answer is lost, these limits are reported again.
        self._unsure, self._untold = reported, set()
        buckets: dict[bytes, int] = {}
        encoded: list[tuple[list[float], list[int]]] = []
        for request in requests:
            rated: list[float] = []
            for key, rate, burst in request.buckets:
                rated += (buckets.setdefault(key, len(buckets) + 1), rate, burst)
            encoded.append(
                (
                    rated,
                    [
                        argument
                        for key, limit in request.concurrency
                        for argument in (concurrency[key], limit)
                    ],
                )
            )
        running = [self._held_counts.get(key, 0) for key in concurrency]
        answer = await self._run([*buckets, *concurrency], _encode((self._me, running, encoded)))
        self._unsure = frozenset()
        denials: list[Denial | None] = [None] * len(requests)
        for number, at, wait_s in _denials(answer) if answer else ():
            denials[number] = Denial(at, wait_s)
        for request, denial in zip(requests, denials, strict=True):
            if denial is None and request.concurrency and request.answer.done():
                # The server has counted a call whose caller hung up meanwhile; report that it is
                # over.
                self._report([key for key, _ in request.concurrency])
        return denials


def was_granted(answer: "asyncio.Future[Denial | None]") -> bool:
    """Return whether the call may run, even if its caller has left."""
    if not answer.done() or answer.cancelled() or answer.exception() is not None:
        return False
    return answer.result() is None

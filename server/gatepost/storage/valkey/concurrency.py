"""
Count rate and concurrency limits at a Valkey with one script, and keep this process's running
calls.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import chain, count

import msgspec

from gatepost.storage.rate_limits import CONCURRENCY_WAIT_S, LEASE_S, Denial, debt_token
from gatepost.storage.valkey.rate_limits import RateLimitRequest, ValkeyRateLimits

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
        self._held_counts: dict[bytes, int] = {}
        self._untold: set[bytes] = set()
        self._unsure: frozenset[bytes] = frozenset()
        self._renewal: asyncio.TimerHandle | None = None
        self._release: asyncio.TimerHandle | None = None
        self._rate_limits = ValkeyRateLimits(self._ask, self._on_taken)

    def put(self, request: RateLimitRequest) -> None:
        """Send a request with the next batch; its answer may be StoreUnavailable."""
        self._rate_limits.put(request)

    def hold(self, limit_keys: Sequence[bytes]) -> None:
        """Count a call in each limit, even beyond it; other processes learn of it soon."""
        self._count(limit_keys)
        self._report(limit_keys)

    def leave(self, limit_keys: Sequence[bytes], *, are_large: bool) -> None:
        """
        End a call in each limit.

        Other processes learn of it soon; if all limits *are_large*, within `LEAVE_S`.
        """
        held_counts = self._held_counts
        for key in limit_keys:
            running = held_counts.get(key, 0) - 1
            if running > 0:
                held_counts[key] = running
            else:
                held_counts.pop(key, None)
        self._untold.update(limit_keys)
        if not are_large:
            self._rate_limits.report_soon()
        if limit_keys and self._release is None:
            self._release = asyncio.get_running_loop().call_later(LEAVE_S, self._told_late)

    async def aclose(self) -> None:
        """Wait for running requests to end."""
        for timer in (self._renewal, self._release):
            if timer is not None:
                timer.cancel()
        await self._rate_limits.aclose()

    def _on_taken(self, request: RateLimitRequest) -> None:
        if not request.answer.done():
            self._count(request.limit_keys)
        else:
            # The server has counted a call whose caller hung up meanwhile; report that it is over.
            self._report(request.limit_keys)

    def _count(self, limit_keys: Sequence[bytes]) -> None:
        held_counts = self._held_counts
        for key in limit_keys:
            held_counts[key] = held_counts.get(key, 0) + 1
        if limit_keys and self._renewal is None:
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

    def _report(self, limit_keys: Collection[bytes]) -> None:
        if limit_keys:
            self._untold.update(limit_keys)
            self._rate_limits.report_soon()

    async def _ask(self, requests: list[RateLimitRequest]) -> list[Denial | None]:
        # If the server runs the script but its answer is lost, these limits are reported again.
        self._unsure = self._unsure.union(
            self._untold, *[request.limit_keys for request in requests]
        )
        self._untold = set()
        bucket_keys = chain.from_iterable([request.bucket_keys for request in requests])
        buckets, limits = _numbered(dict.fromkeys(bucket_keys)), _numbered(self._unsure)
        encoded = []
        for request in requests:
            rates, maxima = request.rates, [*request.maxima]
            rates[::3] = map(buckets.__getitem__, request.bucket_keys)
            maxima[::2] = map(limits.__getitem__, request.limit_keys)
            encoded.append((rates, maxima))
        running = [self._held_counts.get(key, 0) for key in limits]
        answer = await self._run([*buckets, *limits], _encode((self._me, running, encoded)))
        self._unsure = frozenset()
        denials: list[Denial | None] = [None] * len(requests)
        for number, at, wait_s in _denials(answer) if answer else ():
            denials[number] = Denial(at, wait_s)
        return denials


class ValkeyLimits(msgspec.Struct, frozen=True, eq=False):
    """The `StoreLimits` of one tenant, with all arguments that are the same in each request."""

    counts: ValkeyConcurrency
    bucket_keys: tuple[bytes, ...]
    """The keys of the spendings, then those of the quotas."""
    rates: tuple[float, ...]
    """The spendings as in `RateLimitRequest`."""
    rooms_s: tuple[float, ...]
    """The seconds in which each quota becomes full."""
    limit_keys: tuple[bytes, ...]
    maxima: tuple[int, ...]
    are_large: bool
    """Whether every limit is at least `LARGE_LIMIT`."""

    async def take(self, owed_s: Sequence[float] = ()) -> Denial | None:
        """Take a token from each bucket and count a call in each limit, or do nothing."""
        rates = [*self.rates]
        for room_s, quota_owed_s in zip(self.rooms_s, owed_s, strict=True):
            rates += (0, *debt_token(room_s, quota_owed_s))
        answer: asyncio.Future[Denial | None] = asyncio.get_running_loop().create_future()
        self.counts.put(
            RateLimitRequest(self.bucket_keys, rates, self.limit_keys, self.maxima, answer)
        )
        try:
            return await answer
        except asyncio.CancelledError:
            # A caller that was cancelled between the answer and its next step counts in the limits
            # all the same.
            if was_granted(answer):
                self.leave()
            raise

    def hold(self) -> None:
        """Count a call in each limit, even beyond it; other processes learn of it soon."""
        self.counts.hold(self.limit_keys)

    def leave(self) -> None:
        """End a call in each limit; other processes learn of it soon."""
        self.counts.leave(self.limit_keys, are_large=self.are_large)


def _numbered(keys: Iterable[bytes]) -> dict[bytes, int]:
    """Return the numbers by which the script names these keys."""
    return dict(zip(keys, count(1), strict=False))


def was_granted(answer: "asyncio.Future[Denial | None]") -> bool:
    """Return whether the call may run, even if its caller has left."""
    if not answer.done() or answer.cancelled() or answer.exception() is not None:
        return False
    return answer.result() is None

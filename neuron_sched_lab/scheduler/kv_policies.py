"""When may one more request share the KV cache, if nobody is ever to be preempted?

Every policy is a condition on the state: who holds how many blocks, and how many each may claim in
the end. A request is let in if the condition still holds with it in. Three conditions, each wider
than the one before:

    worst_case    everyone may grow to max_model_len, and that fits           (the seed's bound)
    reservation   everyone may grow to its own claim, and that fits
    banker        some order exists in which everyone can finish, one after the other

Under the first two a running request always finds its next block. The banker lends more than there
is: each new block is checked first, and a request whose block would leave no such order waits.

The functions are pure: blocks in, bool out. `kv_claims.py` fills the state from vLLM's KV cache,
`admission.py` asks.

Source: E. W. Dijkstra, EWD 623, "The mathematics behind the Banker's Algorithm" (1977).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

KV_ADMISSION_POLICIES = ("worst_case", "reservation", "banker")
"""Values of `neuron_config["kv_admission"]`; whatever one admits, the next admits too."""


class Holder(NamedTuple):
    """A request that holds KV blocks.

    Attributes:
        request_id: whose.
        allocated: blocks it holds or was promised (a prompt is promised whole, before its first
            chunk).
        claim: most blocks it will ever hold.
        want: blocks that its next decode step needs; `allocated + want` is at most `claim`.
        shared: those of `allocated` that others hold as well (prefix caching).
    """

    request_id: str
    allocated: int
    claim: int
    want: int = 0
    shared: int = 0

    @property
    def need(self) -> int:
        """Blocks that it may still ask for."""
        return self.claim - self.allocated


class KVState(NamedTuple):
    """Who holds what of the KV cache.

    Attributes:
        num_blocks: blocks that may be held in all, without vLLM's null block.
        num_free: blocks neither held nor promised. Where prefixes are shared this is more than
            num_blocks less all that is allocated: a shared block is allocated to each of its
            holders.
        holders: the requests, in the order in which they are served.
    """

    num_blocks: int
    num_free: int
    holders: Sequence[Holder]


def worst_case_fits(num_holders: int, max_kv_concurrent: int) -> bool:
    """Tell whether so many requests can all grow to `max_model_len`."""
    return num_holders <= max_kv_concurrent


def claims_fit(claims: Iterable[int], num_blocks: int) -> bool:
    """Tell whether all requests can grow to their own claims, in blocks, all at once.

    Shared blocks count once for each holder. That errs on the safe side: a prefix is shared only
    for as long as nobody recomputes it, so it is not relied upon.
    """
    return sum(claims) <= num_blocks


def is_safe_state(state: KVState) -> bool:
    """Tell whether an order exists in which every request can finish.

    Dijkstra's test for one kind of resource: serve whoever needs least; when it is done, what it
    held can be lent to the next. If the one who needs least cannot be served, nobody can.

    With shared blocks there are two lower bounds on what can be lent, and the larger counts: the
    blocks free now plus those that the finished requests did not share; and the cache less all
    that the remaining requests are allocated. Where nothing is shared, the two are equal.
    """
    if state.num_free < 0:
        # More is promised than there is, say to sessions, which are not among the holders.
        return False
    num_given_back = state.num_free
    num_not_held = state.num_blocks - sum(holder.allocated for holder in state.holders)
    for holder in sorted(state.holders, key=lambda holder: holder.need):
        if holder.need > max(num_given_back, num_not_held):
            return False
        num_given_back += holder.allocated - holder.shared
        num_not_held += holder.allocated
    return True


def lend(state: KVState, request_ids: set[str]) -> KVState:
    """Return the state after these requests were given the blocks that they want."""
    holders = [
        holder._replace(allocated=holder.allocated + holder.want, want=0)
        if holder.request_id in request_ids
        else holder
        for holder in state.holders
    ]
    lent = sum(holder.want for holder in state.holders if holder.request_id in request_ids)
    return KVState(state.num_blocks, state.num_free - lent, holders)


def banker_admits(state: KVState) -> bool:
    """Tell whether the state, newcomer included, is safe once everyone got its next block.

    The next blocks of those who run come first. Otherwise newcomers could take, one after the
    other, the blocks that an older request waits for.
    """
    return is_safe_state(lend(state, {holder.request_id for holder in state.holders}))


def get_held_back(state: KVState) -> set[str]:
    """Return the requests that must not get the blocks that they want now.

    Served in the order of `state.holders`. From a safe state somebody can always go on: whoever
    comes first in the order that makes it safe finds its blocks, and the state stays safe.
    """
    wanting = [holder for holder in state.holders if holder.want]
    everyone = {holder.request_id for holder in wanting}
    if _can_lend(state, everyone):
        return set()
    served: set[str] = set()
    for holder in wanting:
        if _can_lend(state, served | {holder.request_id}):
            served.add(holder.request_id)
    return everyone - served


def _can_lend(state: KVState, request_ids: set[str]) -> bool:
    after = lend(state, request_ids)
    return after.num_free >= 0 and is_safe_state(after)

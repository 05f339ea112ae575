"""The policies as conditions on a state: right by brute force, each wider than the last."""

import itertools
import random

import pytest

from neuron_sched_lab.scheduler.kv_policies import (
    Holder,
    KVState,
    banker_admits,
    claims_fit,
    get_held_back,
    is_safe_state,
    lend,
    worst_case_fits,
)


def state_of(num_blocks: int, *holders: tuple[int, ...]) -> KVState:
    """A state without shared blocks; each holder (allocated, claim[, want])."""
    named = [Holder("ABCDEFGH"[i], *holder) for i, holder in enumerate(holders)]
    return KVState(num_blocks, num_blocks - sum(h.allocated for h in named), named)


def random_state(rng: random.Random, most: int = 12) -> KVState:
    num_blocks = rng.randint(1, most)
    holders, left = [], num_blocks
    for _ in range(rng.randint(0, 5)):
        allocated = rng.randint(0, left)
        claim = rng.randint(allocated, num_blocks)
        left -= allocated
        holders.append((allocated, claim, rng.randint(0, min(2, claim - allocated))))
    return state_of(num_blocks, *holders)


def some_order_finishes(state: KVState) -> bool:
    """The definition: one after the other takes all it may, finishes and gives all back."""
    for order in itertools.permutations(state.holders):
        num_free = state.num_free
        for holder in order:
            if holder.need > num_free:
                break
            num_free += holder.allocated
        else:
            return True
    return False


class TestDijkstrasExample:
    """Ten blocks, three requests: the textbook's two states."""

    def test_safe(self):
        # B needs 2 of 3, then has 5 to lend for C, then 7 for A.
        assert is_safe_state(state_of(10, (3, 9), (2, 4), (2, 7)))

    def test_one_block_more_for_the_first_makes_it_unsafe(self):
        assert not is_safe_state(state_of(10, (4, 9), (2, 4), (2, 7)))

    def test_so_that_block_is_not_lent(self):
        state = state_of(10, (3, 9, 1), (2, 4, 1), (2, 7, 0))
        assert get_held_back(state) == {"A"}

    def test_nothing_held_nothing_unsafe(self):
        assert is_safe_state(state_of(0))


def test_unsafe_if_sessions_who_are_no_holders_were_promised_more_than_there_is():
    assert not is_safe_state(KVState(num_blocks=-1, num_free=-1, holders=[]))
    assert is_safe_state(KVState(num_blocks=0, num_free=0, holders=[]))


def test_safety_against_all_orders():
    rng = random.Random(0)
    verdicts = []
    for _ in range(3_000):
        state = random_state(rng)
        verdicts.append(is_safe_state(state))
        assert verdicts[-1] == some_order_finishes(state), state
    assert 500 < sum(verdicts) < 2_500


def test_each_policy_is_wider_than_the_one_before():
    rng = random.Random(1)
    pattern = set()
    for _ in range(20_000):
        state = random_state(rng)
        max_model_len_blocks = max((h.claim for h in state.holders), default=1) or 1
        max_model_len_blocks += rng.randint(0, 2)
        verdicts = (
            worst_case_fits(len(state.holders), state.num_blocks // max_model_len_blocks),
            claims_fit([h.claim for h in state.holders], state.num_blocks),
            banker_admits(state),
        )
        assert list(verdicts) == sorted(verdicts), (state, max_model_len_blocks)
        pattern.add(verdicts)
    assert len(pattern) == 4, "not every difference was met"


def test_from_a_safe_state_somebody_goes_on_and_it_stays_safe():
    rng = random.Random(2)
    held_back = 0
    for _ in range(20_000):
        state = random_state(rng)
        if not is_safe_state(state) or not state.holders:
            continue
        held = get_held_back(state)
        served = {h.request_id for h in state.holders} - held
        assert served, state
        after = lend(state, served)
        assert after.num_free >= 0 and is_safe_state(after)
        # Nobody is held back who could have been served after all the others.
        for request_id in held:
            more = lend(state, served | {request_id})
            assert more.num_free < 0 or not is_safe_state(more)
        held_back += bool(held)
    assert held_back > 500


def test_the_oldest_is_served_first():
    # One block left, both want it, either could have it.
    assert get_held_back(state_of(5, (2, 3, 1), (2, 3, 1))) == {"B"}


def test_whoever_wants_no_block_is_never_held_back():
    assert get_held_back(state_of(4, (2, 4, 1), (2, 3, 0))) == {"A"}


def test_a_shared_prefix_is_not_counted_twice_where_it_helps():
    # A and B share 4 of 6 blocks: 8 distinct, 2 free of 10. Without sharing 12 would be too many.
    holders = [Holder("A", 6, 8, shared=4), Holder("B", 6, 8, shared=4)]
    assert is_safe_state(KVState(10, 2, holders))
    assert not is_safe_state(KVState(10, 1, holders))
    assert not claims_fit([8, 8], 10), "reservation relies on no sharing"


def test_a_shared_block_is_given_back_by_its_last_holder_only():
    # A shares all 3 blocks with B. When A is done, B still holds them: 1 + 0, and B needs 2.
    holders = [Holder("A", 3, 4, shared=3), Holder("B", 3, 5, shared=3)]
    assert not is_safe_state(KVState(4, 1, holders))


def test_and_by_its_last_holder_it_is_given_back():
    # A and B hold the same 6 of 10 blocks. When both are done, C can have all 10.
    holders = [Holder("A", 6, 6, shared=6), Holder("B", 6, 6, shared=6), Holder("C", 0, 10)]
    assert is_safe_state(KVState(10, 4, holders))


def random_tables(rng: random.Random) -> tuple[int, list[set[int]]]:
    """(blocks of the cache, block tables as sets); some begin with the same blocks."""
    num_blocks = rng.randint(4, 14)
    tables: list[set[int]] = []
    for _ in range(rng.randint(1, 4)):
        shared = set(range(rng.choice([0, 2, 3])))
        own = set(rng.sample(range(3, num_blocks), rng.randint(0, num_blocks - 3)))
        tables.append(shared | own.difference(*tables))
    return num_blocks, tables


def state_of_tables(
    num_blocks: int, tables: list[set[int]], claims: list[int], wants: list[int]
) -> KVState:
    holders = []
    for i, table in enumerate(tables):
        others = set().union(*tables[:i], *tables[i + 1 :])
        holders.append(Holder(str(i), len(table), claims[i], wants[i], len(table & others)))
    return KVState(num_blocks, num_blocks - len(set().union(*tables)), holders)


def test_safety_with_shared_blocks_against_what_happens():
    """If the test says safe, an order works with the blocks really there."""
    rng = random.Random(3)
    safe = unsafe_but_possible = 0
    for _ in range(5_000):
        num_blocks, tables = random_tables(rng)
        claims = [rng.randint(len(table), num_blocks) for table in tables]
        state = state_of_tables(num_blocks, tables, claims, [0] * len(tables))
        possible = any(
            order_finishes([(tables[i], claims[i]) for i in order], num_blocks)
            for order in itertools.permutations(range(len(tables)))
        )
        if is_safe_state(state):
            safe += 1
            assert possible, state
        unsafe_but_possible += possible and not is_safe_state(state)
    assert safe > 500
    assert unsafe_but_possible < safe / 10, "the bound for shared blocks is far from the truth"


def test_with_shared_blocks_too_somebody_goes_on():
    """Block by block until all are done, or until nobody may go on, which must not happen."""
    rng = random.Random(4)
    lives = 0
    for _ in range(5_000):
        num_blocks, tables = random_tables(rng)
        claims = [rng.randint(len(table), num_blocks) for table in tables]
        if not is_safe_state(state_of_tables(num_blocks, tables, claims, [0] * len(tables))):
            continue
        lives += 1
        while tables:
            wants = [int(len(t) < c) for t, c in zip(tables, claims, strict=True)]
            state = state_of_tables(num_blocks, tables, claims, wants)
            held = get_held_back(state)
            free = sorted(set(range(num_blocks)) - set().union(*tables))
            served = [i for i, want in enumerate(wants) if want and str(i) not in held]
            assert len(served) <= len(free)
            for i in served:
                tables[i].add(free.pop())
            done = [i for i, want in enumerate(wants) if not want]
            assert served or done, state
            tables = [t for i, t in enumerate(tables) if i not in done]
            claims = [c for i, c in enumerate(claims) if i not in done]
    assert lives > 500


def order_finishes(order: list[tuple[set[int], int]], num_blocks: int) -> bool:
    for position, (table, claim) in enumerate(order):
        held = set().union(*(other for other, _ in order[position:]))
        if claim - len(table) > num_blocks - len(held):
            return False
    return True


@pytest.mark.parametrize(("num_holders", "fits"), [(1, True), (2, True), (3, False)])
def test_worst_case_counts_heads(num_holders, fits):
    assert worst_case_fits(num_holders, 2) == fits

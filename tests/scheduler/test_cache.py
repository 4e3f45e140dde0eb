"""What a prefix-cache hit loses is told as vLLM's own cache loses it, or as unknown."""

from dataclasses import replace
from math import gcd, lcm

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from tests.scheduler.engine import (
    RequestStatus,
    group,
    is_at_least,
    make_request,
    make_scheduler,
)

init_none_hash(sha256)
WINDOW = {"cls": SlidingWindowSpec, "sliding_window": 128}
PROMPTS = range(500, 1012, 8)  # for each place in the largest blocks


LAYOUTS = {
    "one group": [(16, {}, True)],
    "one group of large blocks": [(64, {}, True)],
    "the head beside the larger blocks": [(256, {}, True), (64, WINDOW, False)],
    "the head beside the smaller blocks": [(256, {}, False), (64, WINDOW, True)],
    "a head that is not told apart": [(256, {}, False), (64, WINDOW, False)],
    "blocks of one size": [(64, {}, True), (64, WINDOW, False)],
}


def groups_of(layout, *, speculates):
    """The cache's groups; that of the draft's head is marked, where this vLLM does that."""
    groups = []
    for block_size, kind, has_head in LAYOUTS[layout]:
        made = group(block_size=block_size, **kind)
        if has_head and speculates and hasattr(made, "is_eagle_group"):
            made = replace(made, is_eagle_group=True)
        groups.append(made)
    return groups


def hits(scheduler, hash_size):
    """Tokens of a prompt, for several of its lengths, that are found when it comes again."""
    manager = scheduler.kv_cache_manager
    hasher = get_request_block_hasher(hash_size, sha256)
    found = []
    for number, length in enumerate(PROMPTS):
        prompt = [number, *range(length - 1)]
        first = make_request(f"a{number}", prompt=prompt, block_hasher=hasher)
        blocks = manager.get_computed_blocks(first)[0]
        manager.allocate_slots(first, length, 0, blocks)
        first.num_computed_tokens = length
        again = make_request(f"b{number}", prompt=prompt, block_hasher=hasher)
        found.append(manager.get_computed_blocks(again)[1])
        first.status = RequestStatus.FINISHED_STOPPED
        manager.free(first)
    return found


def caching(layout, *, speculates):
    """A scheduler with a prefix cache of these groups, which drops blocks if it speculates."""
    sizes = [size for size, _, _ in LAYOUTS[layout]]
    return make_scheduler(
        groups=groups_of(layout, speculates=speculates), caches=True, blocks=4000,
        k=3 if speculates else 0, head=speculates,
        block_size=lcm(*sizes), hash_size=gcd(*sizes),
    )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_told_of_a_hits_loss_is_what_vllms_cache_loses(layout, installed, sidecar):
    plain = caching(layout, speculates=False)
    hash_size = gcd(*(size for size, _, _ in LAYOUTS[layout]))
    without = hits(plain, hash_size)
    installed()
    scheduler = caching(layout, speculates=True)
    try:
        lost = (sum(without) - sum(hits(scheduler, hash_size))) / len(without)
    except AssertionError:
        pytest.skip("this vLLM has no heads with blocks of several sizes")

    sidecar.until(lambda: sidecar.engine().state, "observing")
    told = sidecar.engine().dropped_block
    if told is None:
        assert len(LAYOUTS[layout]) > 1
        assert not is_at_least(0, 20)
        return
    assert told == pytest.approx(lost, abs=1)

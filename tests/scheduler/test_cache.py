"""What a prefix-cache hit loses is told as vLLM's own cache loses it, or as unknown."""

from math import gcd, lcm

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from tests.scheduler.engine import (
    call,
    group,
    is_at_least,
    make_request,
    make_scheduler,
)

init_none_hash(sha256)

"""Compares the plug-in's loops with vLLM's own detection; run by a vLLM's Python."""

import random
import sys
from math import ceil

import specdec_plugin
from vllm.sampling_params import RepetitionDetectionParams
from vllm.v1.core.sched.utils import check_sequence_repetition

PERIOD = 200
TIMES = 3
TOKENS = 64


def repeats(tokens, period, times):
    params = RepetitionDetectionParams(
        max_pattern_size=period, min_pattern_size=period, min_count=times
    )
    return check_sequence_repetition(tokens, params)


def outputs():
    """Outputs of few different tokens, most of which end in nearly a loop."""
    chance = random.Random(1)
    for _ in range(500):
        period = chance.choice([1, 2, 3, 7, 20, 22, 60, 199, 200, 201])
        pattern = [chance.randrange(3) for _ in range(period)]
        times = chance.choice([1.5, 2.9, 3, 3.1, 4, 40])
        tokens = (pattern * 41)[: min(round(period * times), 640)]
        if chance.random() < 0.3:
            tokens[chance.randrange(len(tokens))] = 5
        yield tokens


def main():
    """Returns what is wrong; empty if nothing is."""
    loops = others = wrong = 0
    for tokens in outputs():
        periods = range(1, PERIOD + 1)
        # vLLM counts whole patterns, the plug-in the tokens that they fill.
        surely = any(repeats(tokens, one, max(TIMES, ceil(TOKENS / one))) for one in periods)
        maybe = any(repeats(tokens, one, max(TIMES, TOKENS // one)) for one in periods)
        said = specdec_plugin.is_loop(tokens)
        loops += said
        others += not said
        wrong += (surely and not said) or (said and not maybe)

    if wrong or min(loops, others) < 100:
        return f"{loops} loops, {others} others, {wrong} of them not as vLLM says"
    return ""


if __name__ == "__main__":
    sys.exit(main() or 0)

"""Prompts of one template count as one."""

import pytest

from specdec_tools.measuring.templates import template_numbers
from specdec_tools.measuring.workload import BUILT_IN

SYSTEM = "You are a helpful assistant. Answer in one sentence."


def numbers(*prompts):
    return list(template_numbers(prompts).values())


def test_the_built_in_prompts_are_all_of_their_own():
    assert numbers(*BUILT_IN) == list(range(len(BUILT_IN)))


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        (("What is known about chess?", "Who was the first king?"), [0, 1]),
        (("What is known about chess?", "what is KNOWN about bread?"), [0, 0]),
        (("Chess: what is it all about?", "Bread: what is it all about?"), [0, 0]),
        (("Add 17 to 4 quickly", "Add 3 to 99 quickly", "Divide it all by two"), [0, 0, 2]),
        # a third one connects two that share neither beginning nor end
        (("tell me now a b c", "tell me now x y z", "ask them all x y z"), [0, 0, 0]),
        (("one", "two", "three"), [0, 1, 2]),
    ],
)
def test_prompts_that_begin_or_end_with_the_same_words_are_one(prompts, expected):
    assert numbers(*prompts) == expected


def test_what_all_prompts_begin_with_makes_no_template():
    """Such as a system prompt before each."""
    prompts = [f"{SYSTEM} {prompt}" for prompt in BUILT_IN]

    assert numbers(*prompts) == list(range(len(BUILT_IN)))


def test_a_prompt_that_is_there_twice_is_one():
    assert template_numbers(("a b c d", "e f g h", "a b c d")) == {"a b c d": 0, "e f g h": 1}

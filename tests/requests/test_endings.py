"""When the end of an output is a repetition loop: by vLLM's own rule, and in real kinds of text."""

import random
import re
from itertools import pairwise
from types import SimpleNamespace

import pytest

from sidecar.requests import plugin

PERIOD = 200
TIMES = 3
TOKENS = 64  # a shorter output is too short to tell


def repeats(tokens, period, times):
    """vLLM's rule (``check_sequence_repetition``), said again.

    The last ``times`` patterns of a length are the same token by token.
    """
    if period * times > len(tokens):
        return False
    patterns = [
        tokens[len(tokens) - number * period : len(tokens) - (number - 1) * period or None]
        for number in range(1, times + 1)
    ]
    return all(one == other for one, other in pairwise(patterns))


def is_loop(tokens):
    """What the plug-in should say of an output that was cut off.

    A pattern shorter than a third of ``TOKENS`` has to fill these.
    """
    return len(tokens) >= TOKENS and any(
        repeats(tokens, period, TIMES)
        and tokens[-TOKENS:-period] == tokens[len(tokens) - TOKENS + period :]
        for period in range(1, PERIOD + 1)
    )


def ending(tokens, outcome):
    request = SimpleNamespace(num_output_tokens=len(tokens), output_token_ids=tokens)
    return plugin.ending_of(request, outcome)


def outputs():
    """Outputs of few different tokens, most of which end in nearly a loop."""
    chance = random.Random(0)
    for _ in range(3000):
        period = chance.choice([1, 2, 3, 7, 20, 21, 22, 60, 199, 200, 201, 250])
        pattern = [chance.randrange(3) for _ in range(period)]
        times = chance.choice([1.5, 2, 2.9, 3, 3.1, 4, 40])
        looped = (pattern * 41)[: min(round(period * times), 640)]
        begun = [chance.randrange(3) for _ in range(chance.choice([0, 5, 90]))]
        tokens = begun + looped
        if chance.random() < 0.3:
            tokens[chance.randrange(len(tokens))] = 5
        yield tokens


def test_a_loop_is_what_vllm_s_own_detection_calls_one():
    """On thousands of random outputs that repeat themselves, or nearly do."""
    said = {True: 0, False: 0}
    for tokens in outputs():
        expected = is_loop(tokens)
        said[expected] += 1

        assert ending(tokens, "length") == ("loop" if expected else "normal"), tokens

    assert min(said.values()) > 500  # both are well tried


NAMES = ("host", "port", "path", "user", "limit", "retries", "backoff", "proxy", "verify")
WORD = re.compile(r"\w+|\n| +|([^\w\s])\1*")


def code():
    return "\n".join(
        f"    def test_{name}(self):\n        result = {name}(1, {place})\n"
        f"        self.assertEqual(result, {place * place})\n"
        for place, name in enumerate(NAMES)
    )


def assignments():
    return "\n".join(f"        self.{name} = {name}" for name in NAMES)


def table():
    return "\n".join(f"| {row} | {row * 7 % 13} | {row * row} | yes |" for row in range(40))


def csv():
    return "\n".join(f"2026-11-{day:02},{day * 3 % 7},ok,ok,ok" for day in range(1, 29))


def json_list():
    return ", ".join(f'{{"id": {row}, "name": "item {row}", "ok": true}}' for row in range(30))


def numbers():
    return "\n".join(f"{row}. Step {row}: wait, then go on." for row in range(1, 40))


def multiplication():
    return "\n".join(f"{row} x 7 = {row * 7}" for row in range(1, 60))


def song():
    verse = "We walk along the shore and sing, and all the bells begin to ring. "
    return "".join(f"Verse {row}. Line of its own about {row} birds. {verse}" for row in range(8))


def tool_call():
    return '{"name": "get_weather", "arguments": {"city": "Berlin", "unit": "celsius"}}'


def ascii_art():
    return "\n".join("*" * row for row in range(1, 50))


def separator():
    return "A short answer.\n" + "-" * 60


def tokens_of(text):
    """Words, numbers, signs and spaces, as tokenizers cut them: a run of one sign is a token."""
    words = [found[0] for found in WORD.finditer(text)]
    numbered = {word: place for place, word in enumerate(dict.fromkeys(words))}
    return [numbered[word] for word in words]


# What was generated, and how it ended. The outputs that are cut off are the hard ones: those that
# stop by themselves are never loops.
SILENT = {
    "code": (code(), "length"),
    "assignments": (assignments(), "length"),
    "a table": (table(), "length"),
    "CSV": (csv(), "length"),
    "a JSON list": (json_list(), "length"),
    "a numbered list": (numbers(), "length"),
    "a multiplication table": (multiplication(), "length"),
    "a song with a refrain": (song(), "length"),
    "a drawing in characters": (ascii_art(), "length"),
    "a rule of dashes": (separator(), "length"),
    "the client leaves within code": (code(), "aborted"),
    "the client leaves within a table": (table(), "aborted"),
    "a stop string within a list": (numbers(), "aborted"),
    "a stop string at once": ("Answer", "aborted"),
    "the client leaves before the first token": ("", "aborted"),
    "one token was asked for": ("7", "length"),
    "yes": ("Yes .", "stopped"),
    "a tool call": (tool_call(), "stopped"),
    "the same tool call three times": (tool_call() * 3, "stopped"),
    "a poem of one word that stops": ("rose " * 100, "stopped"),
    "a short answer that is cut off": ("no " * 20, "length"),
    "an error of the engine": ("", "error"),
}


SHORT = {"one token was asked for", "a short answer that is cut off", "a rule of dashes"}


@pytest.mark.parametrize("situation", SILENT)
def test_usual_outputs_are_no_loops(situation):
    """Tables, code and lists repeat much, but not until they are cut off."""
    text, outcome = SILENT[situation]
    tokens = tokens_of(text)

    assert len(tokens) >= TOKENS or outcome != "length" or situation in SHORT
    assert ending(tokens, outcome) == "normal"


END = 0  # the token that ends an output; vLLM counts it


@pytest.mark.parametrize(
    ("tokens", "outcome", "expected"),
    [
        ([7, END], "stopped", "normal"),  # "Yes"
        ([END], "stopped", "empty"),
        ([], "stopped", "empty"),
        ([7], "length", "normal"),  # one token was asked for
        ([7], "aborted", "normal"),  # a stop string at once
    ],
)
def test_a_reply_is_empty_if_it_stops_with_nothing_before_its_end_token(tokens, outcome, expected):
    """A "yes" is the shortest that is not: one token, and the one that ends it."""
    assert ending(tokens, outcome) == expected


@pytest.mark.parametrize("outcome", ["length", "aborted"])
@pytest.mark.parametrize(
    "text",
    [
        "I am sorry, but I cannot do that. " * 20,
        '{"id": 1, "name": "item"}, ' * 30,
        "the the " * 60,
        f"It began well. {'0 ' * 80}",
        f"[{'0, ' * 80}",  # an array of zeros, which may be right: vLLM's detection ends it, too
    ],
)
def test_an_output_that_repeats_itself_until_it_is_cut_off_is_a_loop(text, outcome):
    """Whether the limit of tokens or the client cuts it off."""
    assert ending(tokens_of(text), outcome) == "loop"


class Counted(list):
    """Counts how many tokens are taken from it, alone and in slices, and how often in slices."""

    taken = 0
    slices = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        self.taken += len(found) if isinstance(place, slice) else 1
        self.slices += isinstance(place, slice)
        return found


def chosen_outputs():
    """What a client may have the model say, to make the search for a loop take long."""
    yield [1000] * 640
    for gap in (1, 20, 21, 40, 43, 44, 60, 63, 64, 80, 127, 128, 129, 199, 200, 300, 390, 599):
        yield ([1000] * gap + [2000] + [1000] * (639 - gap))[::-1]
    for block in (2, 3, 5, 7, 11, 13, 20, 21, 43, 63, 100, 199):
        backwards = []
        while len(backwards) < 640:
            backwards += [1000] * block + [2000 + len(backwards)]
        yield backwards[:640][::-1]
    for every in (2, 3, 10):
        yield [11 if place % every == 0 else 256 * place for place in range(640)]
    # Tokens whose lowest bytes are the same, so that each place looks like a candidate.
    yield [256 * place for place in range(5000)]
    for period in (1, 22, 64, 200):
        yield [256 * (place // period) + place % period for place in range(5000)]
        looped = [256 * (place % period) for place in range(640)]
        yield [*looped[:20], 7, *looped[21:]]
    chance = random.Random(2)
    for _ in range(300):
        yield [chance.choice((5, 261)) for _ in range(640)]


def test_whether_an_output_loops_takes_about_the_same_whatever_it_is():
    """Its last tokens once, and a few candidates: not a list at each place that looks like one."""
    tokens = Counted(range(10_000))
    assert ending(tokens, "length") == "normal"
    assert (tokens.slices, tokens.taken) == (1, 328)

    most_taken = most_slices = 0
    for output in (*outputs(), *chosen_outputs()):
        tokens = Counted(output)
        ending(tokens, "aborted")
        most_taken = max(most_taken, tokens.taken)
        most_slices = max(most_slices, tokens.slices)

    assert most_slices <= 1 + 9
    assert most_taken <= 328 + 9 * (600 + 4)


def test_an_output_of_any_tokens_is_looked_at():
    """They are any integers of a vocabulary."""
    assert ending([2**31, 5, 2**40] * 30, "length") == "loop"
    assert ending([-1] * 64, "aborted") == "loop"

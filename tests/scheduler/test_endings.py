"""How outputs end: loops are found, and clients cannot choose an output that takes long."""

import itertools
import random

import pytest

from tests.scheduler.engine import make_request, sampling

LENGTH = 700  # tokens


class Token(int):
    """A token that counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other):
        Token.compared += 1
        return int(self) == int(other)

    __hash__ = int.__hash__


def text(rng):
    return [rng.randrange(1000, 50_000) for _ in range(LENGTH)]


def runs(length):
    """The same token so many times, then another, and so on; the last run is a whole one."""

    def make(rng):
        backwards = []
        while len(backwards) < LENGTH:
            backwards += [11] * length + [rng.randrange(1000, 50_000)]
        return backwards[:LENGTH][::-1]

    return make


def other_at(place):
    """The same token but for one, so far from the end."""

    def make(_):
        return ([11] * place + [12] + [11] * LENGTH)[:LENGTH][::-1]

    return make


ADVERSE = {
    "every second token is the same": lambda rng: [
        11 if place % 2 else rng.randrange(1000, 50_000) for place in range(LENGTH)
    ],
    "tokens of two kinds": lambda rng: [rng.choice([11, 12]) for _ in range(LENGTH)],
    "multiples of 256": lambda rng: [256 * rng.randrange(500) for _ in range(LENGTH)],
    "multiples of 65,536": lambda rng: [65_536 * rng.randrange(3) for _ in range(LENGTH)],
    "nearly a loop": lambda rng: [
        place % 40 if rng.random() < 0.97 else 99 for place in range(LENGTH)
    ],
    "Fibonacci's word": lambda _: _fibonacci(LENGTH),
    **{f"runs of {length}": runs(length) for length in (2, 3, 7, 20, 31, 43, 60, 63, 100, 127)},
    **{f"another at {place}": other_at(place) for place in (20, 40, 43, 62, 63)},
}


def _fibonacci(length):
    shorter, longer = [11], [11, 12]
    while len(longer) < length:
        shorter, longer = longer, longer + shorter
    return longer[:length]


def compared(engine, tokens):
    """How many comparisons of tokens the end of a request with this output takes."""
    engine.add("r", max_tokens=LENGTH + 1, prompt=4)
    for _ in range(4):
        engine.step(lengths=1)
    request = engine.scheduler.requests["r"]
    for token in tokens[request.num_output_tokens :]:
        request.append_output_token_ids(Token(token))
    request._output_token_ids[:] = map(Token, tokens)
    Token.compared = 0
    engine.abort(["r"])
    number = Token.compared
    engine.run()
    return number


@pytest.mark.parametrize("name", ADVERSE)
def test_an_end_compares_a_bounded_number_of_tokens_whatever_the_output(name, engine, sidecar):
    """Not as many as a loop's tail for each of two hundred periods."""
    engine = engine(running=2)
    tokens = ADVERSE[name](random.Random(3))
    assert compared(engine, tokens) <= 3 * LENGTH
    sidecar.until(lambda: len(sidecar.engine().finished), 1)


def test_text_is_compared_hardly_at_all(engine):
    assert compared(engine(running=2), text(random.Random(3))) <= LENGTH


def loop(body, times=8):
    return [*range(1000, 1050), *(body * times)]


LOOPS = {
    "one token": loop([7], 80),
    "a phrase": loop([7, 8, 9, 7, 11], 20),
    "a sentence": loop([*range(500, 530)]),
    "a sentence with spaces": loop([11 if place % 2 else place + 500 for place in range(60)]),
    "a paragraph": loop([place * 7 % 183 + 100 for place in range(183)], 4),
    "a table": loop([*([11] * 50), 12], 5),
    "a long rule": loop([*([11] * 150), 12, 13], 4),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("cut", [0, 3])
def test_an_output_that_repeats_itself_until_it_is_cut_off_is_a_loop(name, cut, engine, sidecar):
    engine = engine(running=2)
    tokens = LOOPS[name][: len(LOOPS[name]) - cut]
    engine.add("r", parameters=sampling(max_tokens=len(tokens)), prompt=4)
    sampled = iter(tokens)
    while engine.has_work():
        engine.step(lengths=1, tokens=itertools.chain(sampled, itertools.repeat(3)))
    sidecar.until(lambda: [one.ending for one in sidecar.engine().finished], ["loop"])
    assert sidecar.engine().endings == {"loop": 1}


def test_text_that_is_cut_off_ends_normally_and_an_output_of_one_end_token_is_empty(
    engine, sidecar
):
    engine = engine(running=2)
    rng = random.Random(1)
    engine.add("text", max_tokens=300)
    while engine.has_work():
        engine.step(tokens=iter(lambda: rng.randrange(3, 50_000), None))
    empty = make_request("empty", parameters=sampling(ignore_eos=False))
    empty.sampling_params.update_from_generation_config({}, 1)
    engine.scheduler.add_request(empty)
    while engine.has_work():
        engine.step(tokens=itertools.repeat(1))
    sidecar.until(lambda: [one.ending for one in sidecar.engine().finished], ["normal", "empty"])

"""Equal servers are called equal, others are found, and what would be found is true."""

import asyncio
import json
import math
from collections import Counter, defaultdict
from functools import cache
from random import Random

import pytest
from aiohttp import web

from specdec_tools.commands.fidelity import Asked, Fidelity, Required, Server
from specdec_tools.outputs.greedy import compare_greedy, control_of, parts_more, tokens_for
from specdec_tools.outputs.homogeneity import homogeneity, total
from specdec_tools.outputs.replies import END, GreedyReply
from specdec_tools.outputs.sampled import compare_sampled, samples_for
from tests.commands.commands_tools import command
from tests.marks import slow

VOCABULARY = 12
MARKER = "zebrafish"


@cache
def chances(prompt, last):
    """How likely each token is after another: one of them about 0.3."""
    random = Random(f"{prompt} {last}")
    weights = [random.expovariate(1.0) + 0.05 for _ in range(VOCABULARY - 1)]
    return [0.3, *(0.7 * weight / sum(weights) for weight in weights)]


def shifted(weights, change):
    """The likeliest token less likely, and the others more."""
    first, *others = weights
    return [first - change, *(one * (1 + change / (1 - first)) for one in others)]


def outputs(random, prompts, samples, length, *, change=0.0, since=1, until=99):
    """Sampled outputs; the distribution is shifted at positions from ``since`` to ``until``."""
    return [
        chain(random, prompt, samples, length, change=change, where=range(since, until + 1))
        for prompt in range(prompts)
    ]


def chain(random, prompt, samples, length, *, change, where):
    """One prompt's outputs: position by position, what follows the same token is drawn together."""
    found = [(VOCABULARY,)] * samples
    for position in range(1, length + 1):
        by_last = defaultdict(list)
        for tokens in found:
            by_last[tokens[-1]].append(tokens)
        found = []
        for last, alike in by_last.items():
            weights = chances(prompt, last)
            if position in where:
                weights = shifted(weights, change)
            drawn = random.choices(range(VOCABULARY), weights, k=len(alike))
            found += [(*tokens, token) for tokens, token in zip(alike, drawn, strict=True)]
    return [tokens[1:] for tokens in found]


def compared(seed, prompts=2, samples=150, length=4, **changed):
    random = Random(seed)
    plain = outputs(random, prompts, samples, length)
    return compare_sampled(outputs(random, prompts, samples, length, **changed), plain)


@pytest.mark.slow
def test_of_a_thousand_equal_pairs_at_most_five_percent_are_called_different():
    different = sum(compared(seed, samples=80, length=3).differs for seed in range(1000))

    assert different <= 50


def test_many_small_contexts_do_not_add_up_to_a_difference():
    """Equal samples of 12 choices each differ on average by as much as the degrees of freedom say.

    They differed by a part in 24 more, so that two of five equal pairs with thousands of contexts
    were called different.
    """
    random = Random(1)
    contexts = 30_000
    compared = (
        homogeneity(*(Counter(random.choices((0, 1), k=12)) for _ in "12")) for _ in range(contexts)
    )
    found = total(context for context in compared if context is not None)

    error = math.sqrt(2 / found.freedom)
    assert found.freedom > contexts / 2
    assert found.square / found.freedom == pytest.approx(1, abs=2.5 * error)


def open_beginning(random):
    """An open first token, then one of three branches, which most of what follows repeats."""
    branch = random.choice((1, 2, 3))
    rest = [branch if random.random() < 0.9 else random.choice((1, 2, 3)) for _ in range(3)]
    return (random.randrange(3000), branch, *rest)


@pytest.mark.slow
def test_equal_outputs_whose_tokens_follow_from_a_rare_one_are_called_different_as_seldom():
    """One difference by chance must not count again at each position that repeats it.

    It did: a quarter of such pairs were called different.
    """
    different = 0
    for seed in range(200):
        random = Random(seed)
        one, other = ([[open_beginning(random) for _ in range(150)] for _ in "1234"] for _ in "12")
        different += compare_sampled(one, other).differs

    assert different <= 16  # 5 % of 200, and two standard errors


def test_outputs_that_are_always_the_same_show_as_much_as_others():
    """A change there makes a second class, so that it shows."""
    plain = [[(1, 2, 3)] * 200] * 20
    found = compare_sampled(plain, plain)

    assert (found.p, found.differs) == (1, False)
    assert found.noticeable_anywhere == pytest.approx(0.04, abs=0.01)
    changed = [[(1, 2, 3)] * 180 + [(1, 9, 3)] * 20] * 20
    assert compare_sampled(changed, plain).differs


@pytest.mark.parametrize("samples", [300, 1200])
@pytest.mark.slow
def test_the_difference_that_is_said_to_be_noticeable_is_noticed(samples):
    """In four of five comparisons, with the change at every drafted position."""
    equal = compared(1, samples=samples)
    found = [
        compared(seed, samples=samples, change=equal.noticeable, since=2).differs
        for seed in range(50)
    ]

    assert sum(found) >= 0.7 * len(found)
    third = [
        compared(seed, samples=samples, change=equal.noticeable / 3, since=2).differs
        for seed in range(50)
    ]
    assert sum(third) <= 0.4 * len(third)


@pytest.mark.slow
def test_a_difference_at_the_last_drafted_position_alone_is_noticed():
    """Though no two of so varied outputs share all that precedes it."""
    equal = compared(1, prompts=10, samples=100, length=5)
    change = equal.noticeable_at[5]
    found = [
        compared(seed, prompts=10, samples=100, length=5, change=change, since=5)
        for seed in range(30)
    ]

    assert list(equal.noticeable_at) == [2, 3, 4, 5]
    assert equal.noticeable_anywhere == max(equal.noticeable_at.values())
    assert sum(one.differs for one in found) >= 0.7 * len(found)
    named = {place.position for one in found for place in one.places if place.position}
    assert 5 in named


def test_what_is_noticeable_is_unknown_if_a_position_could_not_be_compared():
    """Of ten prompts one has outputs that are so long, and too few to compare."""
    short = [[(1, 2, END)] * 8]
    long = [[(1, 2, 3, 4)] * 8]
    found = compare_sampled(9 * short + long, 9 * short + long)

    assert found.noticeable_at[4] is None
    assert found.noticeable_anywhere is None
    fewer = compare_sampled(30 * short + long, 30 * short + long)
    assert list(fewer.noticeable_at) == [2, 3]  # what few outputs reach is left out


def test_a_difference_of_two_points_takes_as_many_samples_as_the_textbook_says():
    """Some 8,200 for a choice of two at p = 0.3, a false alarm in 20 and a power of 80 %."""
    seen = Counter({0: 2460, 1: 5740})

    assert total([homogeneity(seen, seen)]).noticeable(0.05) == pytest.approx(0.02, rel=0.03)


def test_as_many_samples_as_are_asked_for_show_the_difference():
    few = compared(1, samples=200)
    half = few.noticeable_anywhere / 2
    needed = samples_for(few, half)

    assert needed == 800
    assert compared(1, samples=needed).noticeable_anywhere == pytest.approx(half, rel=0.35)


def test_the_prompt_and_the_position_that_differ_are_named():
    only_third = compared(3, prompts=3, samples=2000, change=0.1, since=3, until=3)

    positions = {place.position for place in only_third.places if place.position is not None}
    assert positions == {3}
    assert {place.prompt for place in only_third.places if place.prompt} <= {1, 2, 3}
    assert not only_third.first_differs


def test_first_tokens_that_differ_are_no_fault_of_speculation():
    assert compared(3, samples=2000, change=0.1, since=1, until=1).first_differs


def test_an_output_that_ends_is_a_choice_like_others():
    plain = [[(1, 2), (1, END)] * 100]
    ends_less = [[(1, 2)] * 150 + [(1, END)] * 50]

    assert compare_sampled(ends_less, plain).differs
    assert not compare_sampled(plain, plain).differs


def test_outputs_that_share_no_beginning_are_compared_together():
    def outputs_with(token):
        return [[(number, token) for number in range(100)]]

    one = outputs_with(1)
    assert not compare_sampled(one, one).differs
    assert compare_sampled(one, one).noticeable_anywhere is not None
    assert compare_sampled(outputs_with(2), one).differs


def test_single_outputs_show_nothing():
    one = [[(1, 2)]]
    found = compare_sampled(one, one)

    assert (found.differs, found.noticeable, samples_for(found, 0.05)) == (False, None, None)


def test_rare_choices_are_one_class():
    common = Counter({0: 100}) + Counter(range(1, 31))
    rare = Counter({0: 100}) + Counter(range(31, 61))

    assert homogeneity(common, rare).square == pytest.approx(0.0)
    assert homogeneity(common, rare).freedom == 1
    assert total([]).p == 1


def test_samples_of_very_different_sizes_do_not_differ_more_often():
    """A choice that the smaller one is hardly expected to have is no class of its own.

    It was one, and 2 % of such pairs were called different where 0.5 % must be.
    """
    weights = [1 / place for place in range(1, 301)]

    def sample(random, size):
        return Counter(random.choices(range(300), weights, k=size))

    different = 0
    for seed in range(600):
        random = Random(seed)
        found = homogeneity(sample(random, 40), sample(random, 1600))
        different += total([found]).p < 0.005

    assert different <= 6


LIKELY = {5: -0.5, 6: -0.6, 7: -3.0}


def greedy(*tokens, likely=LIKELY):
    return GreedyReply(tokens, (likely,) * len(tokens))


@pytest.mark.parametrize(
    ("tested", "kind", "gap"),
    [
        (greedy(5, 5, 5), None, None),
        (greedy(5, 6, 9), "ties", 0.1),
        (greedy(5, 7, 5), "partings", 2.5),
        (greedy(5, 9, 5), "partings", 2.5),
        (greedy(5, END), "partings", None),
    ],
)
def test_only_a_difference_that_numerics_do_not_explain_counts(tested, kind, gap):
    found = compare_greedy([tested], [greedy(5, 5, 5)])

    assert found.has_partings == (kind == "partings")
    if kind is not None:
        (parting,) = getattr(found, kind)
        assert (parting.prompt, parting.position) == (1, 2)
        assert parting.gap == pytest.approx(gap)


def test_where_a_grammar_hides_the_likeliest_token_nothing_is_said():
    found = compare_greedy([greedy(5, 6)], [greedy(5, 7)])

    assert (found.has_partings, len(found.unclear)) == (False, 1)


def test_the_share_of_tokens_that_would_be_noticed():
    """299 equal tokens rule out, with 95 %, a fault in one of a hundred."""
    found = compare_greedy([greedy(*[5] * 299)], [greedy(*[5] * 299)])

    assert (found.compared, found.tokens) == (299, 299)
    assert found.noticeable == pytest.approx(0.01, abs=0.0001)
    assert tokens_for(0.01) == 299


def test_what_follows_a_near_tie_rules_out_no_fault():
    """It is not compared, whatever the outputs are there."""
    found = compare_greedy([greedy(5, 6, 9, 9), greedy(5, 5, 5, 5)], [greedy(5, 5, 5, 5)] * 2)

    assert (len(found.ties), found.same) == (1, 1)
    assert (found.compared, found.tokens) == (2 + 4, 8)
    assert compare_greedy([], []).noticeable is None


def test_more_near_ties_than_the_reference_s_own_are_a_difference():
    """Numerics alone part as often as the control does, by token."""
    reference = [greedy(*[5] * 100)] * 20
    early = compare_greedy([greedy(5, 6)] * 20, reference)
    late = compare_greedy([greedy(*[5] * 90, 6)] * 20, reference)
    few = compare_greedy([greedy(5, 6)] * 2 + reference[2:], reference)

    assert parts_more(early, late)
    assert not parts_more(late, early)
    assert not parts_more(late, late)
    assert not parts_more(few, few)
    assert not parts_more(early, compare_greedy([], []))


def moving(size):
    """The reference's own outputs, whose two likeliest tokens' gap has moved by so much."""
    return [greedy(*[5] * 100, likely={5: -0.5, 6: -0.6 - size, 7: -3.0})] * 20


@pytest.mark.parametrize(("size", "is_steady"), [(0.0, True), (0.25, True), (0.3, False)])
def test_a_reference_that_moves_by_more_than_numerics_is_not_steady(size, is_steady):
    control = control_of(moving(size), [greedy(*[5] * 100)] * 20)

    assert control.movement.p99 == pytest.approx(size)
    assert control.is_steady == is_steady


def test_a_few_positions_that_move_further_are_within_the_last_percent():
    still = moving(0.0)
    one = greedy(*[5] * 10, likely={5: -0.5, 6: -1.6})

    assert control_of([*still, one], [*still, greedy(*[5] * 10)]).is_steady
    assert not control_of([*still, *[one] * 10], [*still, *[greedy(*[5] * 10)] * 10]).is_steady


SERVERS = {"tested": Server("http://a", "m"), "reference": Server("http://b", "m")}
ASKED_OF_BOTH = Asked(
    prompts=2,
    contexts=(20, 40),
    max_tokens=100,
    sampled_tokens=5,
    temperature=1.0,
    extra_body={},
)


def numerics(seed, *, reference=0.0, tested=0.0):
    """Samples of the tested server, the reference and its control, from sharp contexts."""
    random = Random(seed)
    plain = outputs(random, 2, 600, 4)
    again = outputs(random, 2, 600, 4, change=reference, since=2)
    return compare_sampled(outputs(random, 2, 600, 4, change=tested, since=2), plain, again)


@pytest.mark.parametrize(
    ("greedy_differs", "control_differs", "sampled", "verdict"),
    [
        (False, False, {}, "no_difference_found"),
        (True, False, {}, "different"),
        (False, False, {"tested": 0.2}, "different"),
        (False, True, {}, "reference_not_steady"),
        (True, True, {"tested": 0.2}, "reference_not_steady"),
        (False, False, {"reference": 0.25}, "reference_not_steady"),
    ],
)
def test_beside_a_reference_that_does_not_repeat_itself_nothing_is_concluded(
    *, greedy_differs, control_differs, sampled, verdict
):
    """It may hide the fault that its twin has as well."""
    reference = [greedy(*[5] * 100)] * 20
    broken = [greedy(5, 7)] * 20
    found = Fidelity(
        **SERVERS,
        asked=ASKED_OF_BOTH,
        greedy=compare_greedy(broken if greedy_differs else reference, reference),
        control=control_of(broken if control_differs else reference, reference),
        sampled=numerics(1, **sampled),
    )

    assert found.verdict(Required(0.3)) == verdict


def test_what_the_reference_differs_by_from_itself_is_allowed_for():
    """A small change of every context is a difference only where the control shows none."""
    without = numerics(1, tested=0.1)
    allowed = numerics(1, tested=0.1, reference=0.1)

    assert (without.differs, allowed.differs) == (True, False)
    assert allowed.numerics.at_most > without.numerics.at_most
    assert allowed.noticeable_anywhere > without.noticeable_anywhere


def test_one_prompt_alone_shows_less_than_all_of_them():
    """Which a statement about any position of all prompts would hide."""
    few = compared(1, prompts=1)
    many = compared(1, prompts=8)

    assert many.noticeable < few.noticeable
    assert many.noticeable_in_one > few.noticeable


def serving(
    change=0.0,
    *,
    seed=5,
    wrong=False,
    ids=True,
    gap=2.0,
    seen=None,
    model="m",
    where=lambda body, length: True,
):
    """Puts out tokens as vLLM does; with ``wrong`` its greedy outputs differ from the second on.

    Its samples change only ``where`` that holds of the request and its prompt's length in words.
    """
    random = Random(seed)

    async def handler(request):
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": model}]})
        body = await request.json()
        if body.get("stream"):
            return web.Response(text="data: [DONE]\n\n", content_type="text/event-stream")
        if seen is not None:
            seen.append(body)

        length = body["max_tokens"]
        if body["temperature"] == 0:
            tokens = [0] + [1 if wrong else 0] * (length - 1)
            likely = {"token_id:0": -0.1, "token_id:1": -0.1 - gap}
            choices = [{"token_ids": tokens, "logprobs": {"top_logprobs": [likely] * length}}]
        else:
            here = change if where(body, len(body["prompt"].split())) else 0.0
            (sampled,) = outputs(random, 1, body["n"], length, change=here, since=2)
            choices = [{"token_ids": list(tokens)} for tokens in sampled]
        if not ids:
            choices = [{"text": "x"} for _ in choices]
        usage = {"prompt_tokens": len(body["prompt"].split())}
        return web.json_response({"choices": choices, "usage": usage})

    return handler


ASKED = (
    *("--samples", "600", "--concurrency", "16", "--max-tokens", "8"),
    *("--difference", "25%", "--token-share", "20%"),
)


async def fidelity(finished, served, tmp_path, tested, reference, *more):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"{MARKER} one\n{MARKER} two\n")
    async with served(tested) as url, served(reference) as other:
        return await finished(
            *("fidelity", "--url", url, "--against", other, "--prompts", str(prompts)),
            *(*ASKED, *more),
        )


@pytest.mark.parametrize(
    ("tested", "more", "code", "lines"),
    [
        ({}, (), 0, ["greedy: the same for 2 of 2 prompts", "no difference found"]),
        slow({}, ("--difference", "1%"), 3, ["for 1.0%, set --samples"]),
        ({"change": 0.15}, (), 1, ["sampled at temperature 1: different", "token 2 differs: p"]),
        slow({"change": 0.15}, ("--mode", "greedy"), 0, ["verdict: no_difference_found"]),
        slow({"wrong": True}, (), 1, ["prompt 2 differs from token 2 on: 2.00 nat"]),
        slow({"wrong": True}, ("--mode", "sampled"), 0, ["no difference found"]),
        slow({"wrong": True}, ("--near-tie", "2.5"), 3, ["2 first differ at a near tie"]),
        slow({}, ("--token-share", "1%"), 3, ["a fault in 1.00% of them takes 299: give more"]),
        slow({"model": "other"}, (), 0, ["(other) against", "the two models have different names"]),
    ],
)
async def test_the_exit_code_says_whether_two_servers_differ(
    finished, served, tmp_path, *, tested, more, code, lines
):
    found, out, err = await fidelity(
        finished, served, tmp_path, serving(**tested), serving(seed=6), *more
    )

    assert (found, [line for line in lines if line not in out]) == (code, []), out + err
    assert MARKER not in out + err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "more"),
    [
        (lambda _body, length: length >= 4000, ("--context", "8000")),  # a stale KV cache
        (lambda body, _length: "top_p" in body, ("--extra-body", '{"top_p": 0.9}')),
    ],
    ids=["from 4,000 tokens on", "with top-p"],
)
async def test_a_fault_elsewhere_is_named_as_not_looked_at_and_found_there(
    finished, served, tmp_path, where, more
):
    """Exit 0 says what was looked at, and how to look further."""
    servers = serving(change=0.2, where=where), serving(seed=6)
    code, out, err = await fidelity(finished, served, tmp_path, *servers, "--mode", "sampled")
    (missing,) = [line for line in out.splitlines() if line.startswith("Not looked at: ")]
    assert (code, more[0] in missing) == (0, True), out + err

    servers = serving(change=0.2, where=where), serving(seed=6)
    code, out, err = await fidelity(
        finished, served, tmp_path, *servers, "--mode", "sampled", *more
    )
    assert (code, "verdict: different" in out) == (1, True), out + err
    assert MARKER not in out + err


def sidecar_with(**shares):
    """A sidecar's page: requests by group."""

    async def handler(_request):
        groups = {
            ("sampling", "plain"): 60,
            ("prompt_tokens", "0-512"): 100,
            ("output", "free"): 100,
            **{tuple(key.split("__")): number for key, number in shares.items()},
        }
        lines = ["# TYPE specdec_group_requests_total counter"]
        lines += [
            f'specdec_group_requests_total{{model_name="m",by="{by}",group="{group}"}} {number}'
            for (by, group), number in groups.items()
        ]
        return web.Response(text="\n".join(lines) + "\n")

    return handler


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        (
            {"sampling__filtered": 40, "output__structured": 0},
            (
                "Not looked at: top-p, top-k or min-p, 40% of the traffic (--extra-body"
                """ '{"top_p": 0.9}')."""
            ),
        ),
        ({}, "The sidecar's traffic has nothing else in 1% of its requests or more."),
    ],
)
async def test_what_the_traffic_has_is_what_to_look_at_next(
    finished, served, tmp_path, shares, says
):
    async with served(sidecar_with(**shares)) as url:
        servers = serving(), serving(seed=6)
        code, out, err = await fidelity(
            finished, served, tmp_path, *servers, "--mode", "greedy", "--sidecar", url
        )

    assert (code, says in out.splitlines()) == (0, True), out + err


async def test_a_sidecar_without_requests_by_group_is_refused(finished, served, tmp_path):
    async def empty(_request):
        return web.Response(text="")

    async with served(empty) as url:
        servers = serving(), serving()
        code, _, err = await fidelity(finished, served, tmp_path, *servers, "--sidecar", url)

    assert code == 2
    assert "no requests by group; does its vLLM have the plug-in?" in err


@pytest.mark.slow
async def test_each_exit_code_has_a_sentence(finished, served, tmp_path):
    """What was found, and what to do where nothing can be."""
    sentences = {}
    for tested, reference, more in (
        ({}, {}, ()),
        ({"change": 0.15, "wrong": True}, {}, ()),
        ({}, {}, ("--difference", "1%")),
        ({}, {"change": 0.3, "where": lambda body, _length: body["n"] < 16}, ()),
    ):
        servers = serving(**tested), serving(seed=6, **reference)
        code, out, _ = await fidelity(
            finished, served, tmp_path, *servers, "--samples", "592", *more
        )
        verdict, _, said = out.partition("verdict: ")[2].partition("\n")
        sentences[code, verdict] = said

    assert list(sentences) == [
        (0, "no_difference_found"),
        (1, "different"),
        (3, "undecided"),
        (3, "reference_not_steady"),
    ]
    nothing, different, undecided, unsteady = sentences.values()
    assert "No difference was found in what was looked at: 2 prompts, prompts of 2 to 2" in nothing
    assert "This would have shown a fault in " in nothing
    assert "in a single prompt only" in nothing
    assert "part where the reference was sure of its token by more than 0.3 nat; samp" in different
    assert "for 1.0%, set --samples " in undecided
    assert "The reference is not steady: asked the same at another number of requ" in unsteady


async def test_what_is_asked_of_the_servers(finished, served, tmp_path):
    seen = []
    of_reference = []
    more = ("--extra-body", '{"top_k": 20}', "--tokens", "5", "--temperature", "0.7")
    servers = serving(seen=seen), serving(seen=of_reference)
    await fidelity(finished, served, tmp_path, *servers, *more)

    greedy_ones = [body for body in seen if body["temperature"] == 0]
    greedy_of_reference = [body for body in of_reference if body["temperature"] == 0]
    sampled = [body for body in seen if body["temperature"] == 0.7]
    assert {body["max_tokens"] for body in greedy_ones} == {8}
    # Only the reference's preferences count; the tested server answers as in production.
    assert not any("logprobs" in body for body in greedy_ones)
    # The control asks the reference once more, and first comes the length of each prompt.
    asked = Counter((body["max_tokens"], body.get("logprobs")) for body in greedy_of_reference)
    assert asked == {(1, None): 2, (8, 20): 2 * 2}
    sampled_of_reference = [body for body in of_reference if body["temperature"] == 0.7]
    assert sum(body["n"] for body in sampled_of_reference) == 2 * 2 * 600
    assert {body["n"] for body in sampled_of_reference} == {16, 8, 4}
    # Positions up to K + 2, and one more that is not compared.
    assert {body["max_tokens"] for body in sampled} == {8}
    assert sum(body["n"] for body in sampled) == 2 * 600
    assert {body["top_k"] for body in seen} == {20}
    assert all(body["return_token_ids"] for body in seen)


@pytest.mark.slow
async def test_json_names_places_and_no_text(finished, served, tmp_path):
    code, out, err = await fidelity(
        finished, served, tmp_path, serving(change=0.15, wrong=True), serving(), "--json"
    )

    document = json.loads(out)
    assert (code, document["verdict"]) == (1, "different"), err
    assert document["greedy"]["partings"][0] == {
        "prompt": 1,
        "position": 2,
        "gap": pytest.approx(2.0),
        "has_ended": False,
    }
    assert document["sampled"]["places"]
    assert MARKER not in out


@pytest.mark.slow
async def test_as_many_samples_are_asked_for_as_the_difference_needs(finished, served, tmp_path):
    """Of each prompt and server, unless the user says how many."""
    seen = []
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    asked = ("--mode", "sampled", "--difference", "14%", "--prompts", str(prompts))
    async with served(serving(seen=seen)) as url, served(serving(seed=6)) as other:
        code, out, err = await finished("fidelity", "--url", url, "--against", other, *asked)

    samples = sum(body["n"] for body in seen) // 2
    assert (code, samples > 200) == (0, True), out + err
    assert f"{samples:,} samples each on both" in out


@pytest.mark.slow
async def test_a_server_compared_with_itself_is_named(finished, served, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n")
    asked = ("--mode", "greedy", "--prompts", str(prompts), "--token-share", "5%")
    async with served(serving()) as url:
        code, out, err = await finished("fidelity", "--url", url, "--against", url, *asked)

    assert code == 0, out + err
    assert "this is one server, compared with itself" in out
    assert "the same for 1 of 1 prompt" in out


async def test_a_seed_is_refused(finished):
    """vLLM gives the choices of a request the seeds that follow it: all requests are alike."""
    asked = ("--url", "http://a", "--against", "http://b", "--extra-body", '{"seed": 1}')
    code, _, err = await finished("fidelity", *asked)

    assert code == 2
    assert "vLLM repeats the same samples" in err


@pytest.mark.slow
async def test_a_server_that_fails_leaves_it_undecided(finished, served, tmp_path):
    """A rollout's gate tells a failed request from a difference."""
    servers = serving(ids=False), serving()
    code, out, err = await fidelity(finished, served, tmp_path, *servers, "--json")

    document = json.loads(out)
    assert (code, document["verdict"]) == (3, "undecided")
    assert "the reply has no token ids" in document["reason"]
    assert document["reason"] in err
    assert "Traceback" not in err


@pytest.mark.slow
async def test_the_time_is_bounded_and_what_was_found_in_it_counts(finished, served, tmp_path):
    """Greedy outputs that differ stay different, however long the samples take."""
    more = ("--samples", "1000000", "--duration", "2s")
    code, out, err = await fidelity(finished, served, tmp_path, serving(), serving(), *more)

    assert (code, "verdict: undecided" in out) == (3, True)
    assert "the time was over (--duration) before all outputs were there" in err

    servers = serving(wrong=True), serving()
    code, out, err = await fidelity(finished, served, tmp_path, *servers, *more)
    assert (code, "verdict: different" in out) == (1, True), out + err


async def test_a_server_that_never_answers_is_given_up(finished, served, tmp_path):
    async def silent(request):
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        return await asyncio.Event().wait()

    more = ("--duration", "100ms")
    code, _, err = await fidelity(finished, served, tmp_path, silent, serving(), *more)

    assert code == 3
    assert "before there was anything to compare" in err


def test_a_reference_is_needed():
    with pytest.raises(SystemExit):
        command("fidelity")

"""What the plug-in counts, on a double of vLLM's scheduler."""

import json
import random
import re
from dataclasses import dataclass, fields
from types import SimpleNamespace

import pytest

from sidecar import __version__
from sidecar.requests import plugin
from sidecar.requests.messages import FinishedRequest
from tests.requests.scheduler_double import OldScheduler, Scheduler, request


def steps(number, seconds, decodes, request_seconds, tokens, *, drafts, context, prefill=0):
    return {
        "steps": number, "seconds": pytest.approx(seconds), "decodes": decodes,
        "request_seconds": pytest.approx(request_seconds), "tokens": tokens,
        "prefill_tokens": prefill, "context_tokens": pytest.approx(context, rel=0.03),
        "drafts": drafts,
    }  # fmt: skip


def tally(
    *, drafts=0, draft_tokens=0, accepted_tokens=0, drafted_at=(), accepted_at=(), **outcomes
):
    ended = {"stopped": 0, "length": 0, "repetition": 0, "aborted": 0, "error": 0} | outcomes
    return ended | {
        "drafts": drafts, "draft_tokens": draft_tokens, "accepted_tokens": accepted_tokens,
        "drafted_at": list(drafted_at), "accepted_at": list(accepted_at),
    }  # fmt: skip


def random_traffic(scheduler, *, requests=40, invalid=False, seed=1):
    """Requests that start, draft, come back without a token now and then, and end in all ways."""
    rng, number = random.Random(seed), 0
    while number < requests or scheduler.requests:
        if number < requests and rng.random() < 0.5:
            temperature, prompt = rng.choice([0, 0.29, 0.7]), rng.choice([1, 512, 513])
            limits = {"adapter": rng.choice([None, "a"]), "max_tokens": rng.randint(1, 30)}
            scheduler.add_request(request(f"r{number}", temperature, prompt, **limits))
            number += 1
        results = {}
        for name, running in scheduler.requests.items():
            drafted = rng.randint(0, 3) if running.num_output_tokens else 0
            results[name] = (
                drafted,
                0 if drafted and rng.random() < 0.03 else rng.randint(1, drafted + 1),
            )
        rejects = [name for name, (drafted, tokens) in results.items() if tokens <= drafted]
        rejected = {name: 1 for name in rejects if rng.random() < 0.2}
        scheduler.step(results, invalid=rejected if invalid else None)
        if scheduler.requests and rng.random() < 0.1:
            scheduler.end(rng.choice([*scheduler.requests]), status="FINISHED_ABORTED")


@pytest.mark.parametrize("base", [Scheduler, OldScheduler])
def test_totals_are_the_schedulers_own_and_every_table_sums_to_them(base, plain, made, clock):
    """The split is shown only where it adds up to what vLLM itself counted."""
    scheduler = made(base=base)
    random_traffic(scheduler, invalid=base is Scheduler)
    expected = (40, *scheduler.counted)
    for table in plugin.Key._fields:
        plain.until(lambda table=table: plain.only.sums(table), expected)
    life = plain.only
    assert life.totals() == scheduler.counted
    assert not plain.torn
    plain.until(lambda: life.finished()[:3], expected[:3])
    assert set(life.tables["temperature"]) == {0, 29, 70}
    assert set(life.tables["prompt_tokens"]) == {0, 9, 10}  # up to 1, 512 and 1024 tokens
    assert set(life.tables["adapter"]) == {"", "a"}
    for row in life.tables["temperature"].values():
        assert sum(row["drafted_at"]) == row["draft_tokens"]
        # -1 for each draft that came back without a token
        assert 0 <= sum(row["accepted_at"]) - row["accepted_tokens"] < 9
        first, second, third = row["drafted_at"]
        assert row["drafts"] >= first >= second >= third


def test_a_finished_request_is_reported_with_all_its_fields(plain, made, clock):
    """They are those that the sidecar reads, and none besides."""
    parameters = {"min_p": 0.1, "logit_bias": {}, "logprobs": None}
    scheduler = made(
        request("a", 0.301, 600, structured=True, adapter="ä", max_tokens=6, **parameters)
    )
    for at, result in ((11.0, (0, 1)), (11.5, (3, 4)), (12.0, (2, 1))):
        clock.at = at
        scheduler.step({"a": result})
    expected = {
        "temperature": 31, "drafts": 2, "draft_tokens": 5, "accepted_tokens": 3,
        "prompt_tokens": 600, "output_tokens": 6,
        "arrival": 1000.0, "first_token": 2011.0, "last_token": 2012.0, "outcome": "length",
        "structured": True, "sampling": "filtered", "adapter": "ä", "parameters": ["min_p"],
        "cached_tokens": 0, "ending": None,
    }  # fmt: skip
    plain.until(lambda: len(plain.only.done), 1)
    (done,) = plain.only.done

    assert {name: done[name] for name in expected} == expected
    assert done.keys() == {field.name for field in fields(FinishedRequest)}


def test_a_step_counts_the_requests_that_decode_and_the_time_since_the_last_step(
    plain, made, clock
):
    """Prefill and idle time are no part of what a decode step takes."""
    scheduler = made(*map(request, "abc"))
    scheduler.step({"a": (0, 1), "b": (0, 1)})
    clock.at += 0.1
    # The first token of c is not one of decoding.
    scheduler.step({"a": (3, 2), "b": (3, 3), "c": (0, 1)})
    clock.at += 0.2
    scheduler.step({"a": (3, 1), "b": (3, 1), "c": (3, 4)})
    scheduler.end(*"abc")
    clock.at += 1000  # idle: not a step's length
    scheduler.add_request(request("d"))
    scheduler.step({"d": (0, 1)})
    clock.at += 0.4
    scheduler.step({"d": (3, 1)})
    scheduler.end("d")
    expected = {
        (0, 4, False): steps(1, 0.4, 1, 0.4, 1, drafts=1, context=102),
        (1, 4, False): steps(1, 0.1, 2, 0.2, 5, drafts=2, context=206, prefill=1),
        (2, 4, False): steps(1, 0.2, 3, 0.6, 6, drafts=3, context=308),
    }
    plain.until(lambda: plain.only.tables["steps"], expected)


def test_a_preempted_request_that_is_listed_as_new_again_has_no_second_prefill(plain, made, clock):
    """As with vLLM's model runner V2, which receives everything about it again."""
    scheduler = made(*map(request, "ab"))
    scheduler.step({"a": (0, 1), "b": (0, 1)})
    clock.at += 0.1
    scheduler.step({"a": (3, 4), "b": (3, 4)})
    clock.at += 0.1
    scheduler.step({"a": (0, 1), "b": (3, 4)}, resumed="a")
    scheduler.end("a", "b")
    plain.until(
        lambda: plain.only.tables["steps"],
        {(1, 4, False): steps(2, 0.2, 4, 0.4, 13, drafts=3, context=420)},
    )


def test_with_two_pipeline_stages_a_step_lasts_from_the_one_before_the_last(plain, made, clock):
    """Each request is in every other step then."""
    scheduler = made(*map(request, "ab"), stages=2)
    for number in range(6):
        scheduler.step({"ab"[number % 2]: (0, 1)})
        clock.at += 0.1
    scheduler.end("a", "b")
    plain.until(
        lambda: plain.only.tables["steps"],
        {(0, 4, False): steps(4, 0.8, 4, 0.8, 4, drafts=0, context=407)},
    )


def test_a_request_whose_sampling_parameters_change_counts_under_each_and_ends_once(plain, made):
    """vLLM's streaming sessions resume a request with another temperature."""
    scheduler = made(request("a", 0.2))
    scheduler.step({"a": (0, 1)})
    scheduler.step({"a": (3, 2)})
    scheduler.requests["a"].sampling_params = SimpleNamespace(temperature=0.9)
    scheduler.step({"a": (3, 4)}, resumed="a")
    scheduler.end("a", status="FINISHED_ABORTED")
    plain.until(lambda: len(plain.only.done), 1)
    assert plain.only.tables["temperature"] == {
        20: tally(
            drafts=1, draft_tokens=3, accepted_tokens=1, drafted_at=[1, 1, 1], accepted_at=[1, 0, 0]
        ),
        90: tally(
            aborted=1,
            drafts=1,
            draft_tokens=3,
            accepted_tokens=3,
            drafted_at=[1, 1, 1],
            accepted_at=[1, 1, 1],
        ),
    }


def test_a_second_end_counts_nothing_and_a_request_that_never_ran_ends_without_a_token(plain, made):
    """With a KV connector, vLLM frees a request twice."""
    scheduler = made(request("a"))
    ended = scheduler.requests["a"]
    scheduler.step({"a": (0, 1)})
    scheduler.end("a")
    scheduler._free_request(ended)
    scheduler.add_request(request("b"))
    scheduler.end("b", status="FINISHED_ERROR")
    plain.until(lambda: len(plain.only.done), 2)
    assert plain.only.tables["temperature"][50] == tally(
        stopped=1, error=1, drafted_at=[0] * 3, accepted_at=[0] * 3
    )
    assert plain.only.done[1]["first_token"] is None


def test_pooling_requests_are_left_alone(made):
    """They have no sampling parameters, so nothing to count them by."""
    scheduler = made(request("a"))
    pooling = scheduler.requests["a"]
    pooling.sampling_params = None
    scheduler.step({"a": (0, 1)})
    scheduler.end("a")
    assert not hasattr(pooling, "_specdec")
    assert not scheduler._specdec.finished


@pytest.mark.parametrize(
    ("temperature", "key"),
    [
        (0, 0),
        (0.07, 7),
        (0.29, 29),
        (0.301, 31),
        (0.57, 57),
        (1, 100),
        (1.1, 110),
        (1.995, 200),
        (2, 200),
        (2.001, plugin.ABOVE_2),
        (1e9, plugin.ABOVE_2),
        (float("nan"), 0),
    ],
)
def test_temperatures_are_rounded_up_to_hundredths(temperature, key):
    """A bucket's upper edge is inclusive, so 0.301 must not become 0.30."""
    assert plugin.hundredths(temperature) == key


@pytest.mark.parametrize(
    ("temperature", "parameters", "group"),
    [
        (0, {"top_k": 20, "presence_penalty": 1.0}, "greedy"),  # vLLM ignores the filters then
        (0.7, {}, "plain"),
        # vLLM's defaults
        (0.7, {"top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}, "plain"),
        (0.7, {"top_k": 0}, "plain"),
        (0.7, {"top_k": 20}, "filtered"),
        (0.7, {"top_p": 0.95}, "filtered"),
        (0.7, {"min_p": 0.05}, "filtered"),
        (0.7, {"presence_penalty": -0.5}, "penalties"),
        (0.7, {"frequency_penalty": 0.5}, "penalties"),
        (0.7, {"repetition_penalty": 1.1, "top_p": 0.9}, "penalties"),
    ],
)
def test_requests_are_grouped_by_what_shapes_the_targets_distribution(
    temperature, parameters, group
):
    """Filters and penalties lower the acceptance rate, each in its own way."""
    assert plugin.sampling(request("a", temperature, **parameters).sampling_params) == group


def test_vllms_repetition_is_an_outcome_of_its_own(plain, made):
    """It is a fault of the output, not one more request that stopped."""
    scheduler = made(request("a"))
    scheduler.step({"a": (0, 1)})
    scheduler.end("a", status="FINISHED_REPETITION")
    plain.until(lambda: [done["outcome"] for done in plain.only.done], ["repetition"])
    assert plain.only.tables["sampling"]["plain"]["repetition"] == 1


UNKNOWN = dict.fromkeys((*plugin.SPECULATION, "draft_architectures"))


def test_hello_identifies_the_plugin_the_engine_and_its_speculation(plain, made):
    """The sidecar compares by engine and explains by method."""
    made()
    speculation = {
        "method": "draft_model", "num_speculative_tokens": 3, "per_batch_size": False,
        "adaptive_verification": False, "rejection_sample_method": "standard",
        "parallel_drafting": False, "schedule": [],
        "options": '{"method":"draft_model","model":"demo-draft","num_speculative_tokens":3}',
        "draft_sample_method": "greedy",
    }  # fmt: skip
    expected = {
        "plugin": __version__,
        "vllm": "0.32.0",
        "model": "m",
        "engine": 2,
        "state": "observing",
        "reason": "",
    }
    expected["speculation"] = UNKNOWN | speculation
    others = ("drops_cache_block", "block_size")
    expected["configuration"] = dict.fromkeys((*plugin.CONFIGURATION, *others))
    expected["configuration"]["pipeline_parallel_size"] = 1
    expected["tables"] = [*plugin.TABLES]
    plain.until(lambda: {name: plain.only.hello.get(name) for name in expected}, expected)


class Refusing:
    """A configuration with a property that raises, as some of vLLM's do until they are complete."""

    @property
    def async_scheduling(self):
        raise AssertionError

    max_num_seqs = 64


def test_hello_has_the_configuration_that_explains_a_loss_and_none_where_it_is_unknown():
    """What vLLM made of its options, whatever its version has; never a guess."""
    draft = SimpleNamespace(
        quantization="fp8", max_model_len=2048, architectures=["Eagle3LlamaForCausalLM"]
    )
    speculative = SimpleNamespace(
        method="eagle3", num_speculative_tokens=3,
        num_speculative_tokens_per_batch_size=[[1, 4, 3], [5, 64, 0]],
        draft_sample_method="greedy", use_local_argmax_reduction=False, draft_model_config=draft,
    )  # fmt: skip
    model = SimpleNamespace(
        served_model_name="m", quantization=object(), hf_text_config=None, max_model_len=8192
    )
    vllm = SimpleNamespace(
        model_config=model,
        parallel_config=SimpleNamespace(data_parallel_index=0), scheduler_config=Refusing(),
        speculative_config=speculative, use_v2_model_runner=True, num_hash_lookahead_tokens=0,
        kv_transfer_config=SimpleNamespace(kv_role="kv_both"),
    )  # fmt: skip
    scheduler = SimpleNamespace(vllm_config=vllm, use_eagle=True, use_eagle_block_drop=False)

    hello = plugin.introduction(scheduler, "0.32.0")

    known = {
        "draft_sample_method": "greedy", "local_argmax": False, "draft_quantization": "fp8",
        "draft_max_model_len": 2048, "schedule": [[1, 4, 3], [5, 64, 0]],
        "draft_architectures": ["Eagle3LlamaForCausalLM"],
    }  # fmt: skip
    assert known.items() <= hello["speculation"].items()
    assert hello["speculation"]["heterogeneous_vocab"] is None
    known = {
        "model_runner_v2": True, "max_num_seqs": 64, "max_model_len": 8192,
        "drops_cache_block": False, "lookahead_hash_tokens": 0, "kv_connector_role": "kv_both",
        "block_size": None,
    }  # fmt: skip
    assert hello["configuration"] == dict.fromkeys(plugin.CONFIGURATION) | known


def test_before_vllm_could_keep_the_last_cached_block_eagle_always_drops_it(made):
    """From 0.32 on vLLM's scheduler says whether it does."""
    scheduler = made()
    scheduler.use_eagle = True

    assert plugin.introduction(scheduler, "0.31.0")["configuration"]["drops_cache_block"] is True


@dataclass
class Options:
    """Fields as vLLM's SpeculativeConfig has them, among them those that it fills in itself."""

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int = None
    num_speculative_tokens_per_batch_size: list | None = None
    draft_sample_method: str = "greedy"
    prompt_lookup_max: int | None = None
    access_token: str | None = None  # none of vLLM's today
    suffix_decoding_max_spec_factor: float = 1.0
    draft_model_config: object = None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, {}),
        ({"draft_sample_method": "probabilistic"}, {"draft_sample_method": "probabilistic"}),
        ({"num_speculative_tokens_per_batch_size": [[1, 4, 3]]},) * 2,
        ({"model": "m" * 5000}, None),
        ({"prompt_lookup_max": 0}, {}),
        ({"access_token": "secret"}, {}),
        ({"suffix_decoding_max_spec_factor": 0}, {"suffix_decoding_max_spec_factor": 0}),
    ],
)
def test_hello_has_the_whole_speculative_config_but_its_defaults(changes, told):
    """A reader changes one option of it; objects, secrets and what is huge are left out."""
    given = {"method": "eagle3", "model": "/models/head", "num_speculative_tokens": 3}
    options = plugin.options(Options(**{**given, "draft_model_config": object(), **changes}))

    assert options is None if told is None else json.loads(options) == {**given, **told}
    assert plugin.options(SimpleNamespace(method="ngram")) is None


def test_without_speculation_requests_are_counted(plain, made):
    """A baseline is measured from them."""
    scheduler = made(request("a"), depth=0)
    scheduler.step({"a": (0, 1)})
    scheduler.end("a")
    plain.until(lambda: plain.only.tables["temperature"], {50: tally(stopped=1)})
    assert plain.only.hello["speculation"] is None


def test_tables_and_packets_are_bounded_whatever_the_requests_are(plain, made):
    """Each request here has keys of its own."""
    scheduler = made(depth=80)
    for number in range(300):
        scheduler.add_request(request("a", number / 100, adapter=f"{number} " + "\ud800ä🙂" * 200))
        scheduler.step({"a": (0, 1)})
        scheduler.step({"a": (80, 81)})
        scheduler.end("a")

    def finished():
        scheduler._specdec.go_on(scheduler)  # again, in case the socket was full
        return len(plain.only.done)

    plain.until(finished, 300)
    temperatures, adapters = plain.only.tables["temperature"], plain.only.tables["adapter"]
    assert set(temperatures) == {*range(202)}
    assert temperatures[plugin.ABOVE_2]["drafted_at"][-1] == 99 * (80 - 31)
    assert len(adapters) == plugin.MAX_ADAPTERS // 2 + 1
    assert adapters["other"]["drafts"] == 300 - plugin.MAX_ADAPTERS // 2
    assert len(scheduler._specdec.starting) == 0


def test_adapters_that_are_used_much_get_a_row_however_many_came_first():
    """Half of the rows are kept for those that prove to be busy."""
    adapters = plugin.Adapters()
    for number in range(5000):
        adapters.key(f"seldom {number}")

    keys = [adapters.key("busy") for _ in range(plugin.BUSY)]

    assert keys[0] == "other"
    assert keys[-1] == "busy"
    assert adapters.key("seldom 0") == "seldom 0", "a row stays"
    assert len(adapters.named) <= plugin.MAX_ADAPTERS
    assert len(adapters.candidates) <= plugin.MAX_CANDIDATES


def test_a_step_that_computes_many_prompt_tokens_is_a_mixed_one(plain, made, clock):
    """It takes longer by the prefill, so it is no measure of decoding."""
    scheduler = made(*map(request, "ab"))
    scheduler.step({"a": (0, 1)})
    for prefill in (64, 65):
        clock.at += 0.1
        scheduler.step({"a": (3, 1)}, computes={"b": prefill})
    scheduler.end("a")

    expected = {
        (0, 4, False): steps(1, 0.1, 1, 0.1, 1, drafts=1, context=102, prefill=64),
        (0, 4, True): steps(1, 0.1, 1, 0.1, 1, drafts=1, context=102, prefill=65),
    }
    plain.until(lambda: plain.only.tables["steps"], expected)


def test_the_context_of_many_requests_is_sampled(made, clock):
    """Looking at all of them would take too long."""
    scheduler = made(*(request(f"r{number}", prompt=number) for number in range(1000)))
    names = [*scheduler.requests]
    scheduler.step(dict.fromkeys(names, (0, 1)))
    clock.at += 0.1

    scheduler.step(dict.fromkeys(names, (0, 1)))

    assert scheduler._specdec.context == pytest.approx(1 + 500, rel=0.02)


@pytest.mark.parametrize(
    ("tokens", "status", "ending"),
    [
        ([1, 2, 3, 4] * 16, "LENGTH_CAPPED", "loop"),
        ([1, 2, 3, 4] * 16, "ABORTED", "loop"),
        ([1, 2, 3, 4] * 16, "STOPPED", "normal"),  # it ended by itself
        ([7] * 64, "LENGTH_CAPPED", "loop"),
        ([*range(200)] * 3, "LENGTH_CAPPED", "loop"),
        ([*range(500, 600), *[*range(200)] * 3], "LENGTH_CAPPED", "loop"),
        ([*range(201)] * 3, "LENGTH_CAPPED", "normal"),  # a longer period is none
        ([*range(100)] * 2, "LENGTH_CAPPED", "normal"),  # twice is not three times
        ([7] * 63, "LENGTH_CAPPED", "normal"),  # too short to tell
        ([*range(10), *[7] * 63], "LENGTH_CAPPED", "normal"),
        ([*[1, 2] * 40, 3], "LENGTH_CAPPED", "normal"),
        ([*range(64)], "REPETITION", "loop"),  # vLLM's own detection
        ([1], "STOPPED", "empty"),
        ([1, 2], "STOPPED", "normal"),
        ([1], "ABORTED", "normal"),
        ([1], "ERROR", "normal"),
    ],
)
def test_a_finished_request_says_how_its_output_ends(tokens, status, ending, plain, made):
    """A loop is one only if it goes on to where the output was cut off."""
    scheduler = made(request("a", output=tokens))
    scheduler.step({"a": (0, 1)})
    scheduler.step({"a": (3, 3)})
    scheduler.requests["a"].num_output_tokens = len(tokens)
    scheduler.end("a", status=f"FINISHED_{status}")

    plain.until(lambda: [done["ending"] for done in plain.only.done], [ending])
    (row,) = plain.only.tables["ending"].items()
    assert row[0] == ending
    assert (row[1]["drafts"], row[1]["draft_tokens"], row[1]["accepted_tokens"]) == (1, 3, 2)
    assert sum(row[1][outcome] for outcome in plugin.Tally._fields[:5]) == 1
    assert plain.only.hello["tables"] == [*plugin.TABLES, "ending"]


def test_an_error_in_how_an_output_ends_disables_nothing_but_that(plain, made):
    """The split does not depend on it."""
    scheduler = made(request("a", output=[1, 2]))
    scheduler.step({"a": (0, 1)})
    scheduler.requests["a"].output_token_ids = None
    scheduler.end("a", status="FINISHED_LENGTH_CAPPED")
    scheduler.add_request(request("b"))
    scheduler.step({"b": (0, 1)})
    scheduler.end("b")

    plain.until(lambda: [done["ending"] for done in plain.only.done], [None, None])
    assert (plain.only.state, plain.only.hello["tables"]) == ("observing", [*plugin.TABLES])


def test_cached_tokens_are_those_of_the_prefill_though_vllm_forgets_them(plain, made):
    """vLLM from 0.20 on drops them at the first token."""
    scheduler = made(request("a"))
    scheduler.requests["a"].prefill_stats = SimpleNamespace(num_cached_tokens=64)
    scheduler.step({"a": (0, 1)})
    scheduler.requests["a"].prefill_stats = None
    scheduler.end("a")

    plain.until(lambda: [done["cached_tokens"] for done in plain.only.done], [64])


@pytest.mark.parametrize("arrival", [float("nan"), float("inf"), -1.0, "now"])
def test_an_arrival_that_is_no_time_is_unknown(arrival, plain, made):
    """It comes from the API server, and the sidecar would refuse the packet."""
    scheduler = made(request("a"))
    scheduler.requests["a"].arrival_time = arrival
    scheduler.step({"a": (0, 1)})
    scheduler.end("a")

    plain.until(lambda: [done["arrival"] for done in plain.only.done], [None])


def test_a_number_of_drafts_that_is_impossible_disables_the_plugin(plain, made):
    """A sidecar would refuse the packet, and all that comes after it."""
    scheduler = made(request("a"))
    scheduler.step({"a": (0, 1)})

    scheduler._specdec.count(scheduler.requests["a"], 1, 3)
    scheduler.end("a")

    assert scheduler._specdec is None
    plain.until(lambda: plain.only.state, "disabled")
    assert re.fullmatch(r"after_step: ValueError at line \d+", plain.only.hello["reason"])

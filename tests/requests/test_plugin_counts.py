"""What the plug-in counts, on a double of vLLM's scheduler."""

import json
import random
import re
from dataclasses import dataclass, fields
from types import SimpleNamespace

import pytest

from sidecar import __version__
from sidecar.requests import messages, plugin
from sidecar.requests.keys import sampling_of
from sidecar.requests.messages import FinishedRequest, read_packet
from tests.requests.packets import FILTERED, LOGIT_BIAS, MIN_P, OWN, PENALTIES, STRUCTURED
from tests.requests.scheduler_double import request


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


def random_traffic(scheduler, *, requests=40, seed=1):
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
        scheduler.step(results, invalid=rejected)
        if scheduler.requests and rng.random() < 0.1:
            scheduler.end(rng.choice([*scheduler.requests]), status="FINISHED_ABORTED")


def test_totals_are_the_schedulers_own_and_every_table_sums_to_them(plain, made, clock):
    """The split is shown only where it adds up to what vLLM itself counted."""
    scheduler = made()
    random_traffic(scheduler)
    expected = (40, *scheduler.counted)
    for table in ("temperature", "prompt_tokens", "output", "sampling", "adapter"):
        plain.until(lambda table=table: plain.only.sums(table), expected)
    life = plain.only
    assert life.totals() == scheduler.counted
    assert not plain.fallen
    plain.until(life.finished, expected)
    assert set(life.tables["temperature"]) == {0, 29, 70}
    assert set(life.tables["prompt_tokens"]) == {0, 9, 10}  # up to 1, 512 and 1024 tokens
    assert set(life.tables["adapter"]) == {"", "a"}
    for row in life.tables["temperature"].values():
        assert sum(row["drafted_at"]) == row["draft_tokens"]
        assert sum(row["accepted_at"]) == row["accepted_tokens"]
        first, second, third = row["drafted_at"]
        assert row["drafts"] >= first >= second >= third


def test_a_finished_request_is_reported_with_all_its_fields(plain, made, clock):
    """They are those that the sidecar reads, in that order, and none besides."""
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
        "cached_tokens": 0, "ending": "normal", "is_own": False,
    }  # fmt: skip
    plain.until(lambda: len(plain.only.done), 1)
    (done,) = plain.only.done

    assert {name: done[name] for name in expected} == expected
    assert done.keys() == {field.name for field in fields(FinishedRequest)}
    assert len(plain.only.rows[0]) == len(messages._Finished._fields)


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
        (1, 4, False): steps(1, 0.4, 1, 0.4, 1, drafts=1, context=102),
        (2, 4, False): steps(1, 0.1, 2, 0.2, 5, drafts=2, context=206, prefill=1),
        (3, 4, False): steps(1, 0.2, 3, 0.6, 6, drafts=3, context=308),
    }
    plain.until(lambda: plain.only.tables["steps"], expected)


def test_a_step_that_only_prefills_counts_by_itself_from_when_it_was_scheduled(plain, made, clock):
    """So all steps together are the time that the engine worked, idle time left out."""
    scheduler = made(*map(request, "ab"))
    for name in "ab":
        clock.at += 1000  # idle
        scheduler._specdec.before_schedule()
        clock.at += 0.3
        scheduler.step({}, computes={name: 200})  # a part of the prompt
        scheduler._specdec.before_schedule()
        clock.at += 0.5
        scheduler.step({name: (0, 1)})
        scheduler._specdec.before_schedule()
        clock.at += 0.1
        scheduler.step({name: (3, 2)})
        scheduler.end(name)

    def only_prefilled(number, seconds, prefill):
        return steps(number, seconds, 0, 0.0, 0, drafts=0, context=0, prefill=prefill)

    expected = {
        (0, 0, True): only_prefilled(2, 0.6, 400),
        (0, 0, False): only_prefilled(2, 1.0, 2),
        (1, 4, False): steps(2, 0.2, 2, 0.2, 4, drafts=2, context=204),
    }
    plain.until(lambda: plain.only.tables["steps"], expected)


def test_the_step_that_was_in_flight_when_the_engine_became_idle_is_none(plain, made, clock):
    """With async scheduling one more is under way when a request ends; nobody knows its length."""
    scheduler = made(request("a", max_tokens=3))
    scheduler.step({"a": (0, 1)})
    scheduler.schedule()
    scheduler.schedule()
    clock.at += 0.1
    scheduler.step({"a": (3, 2)})
    clock.at += 50
    scheduler.step({}, computes={"a": 4})
    plain.until(lambda: len(plain.only.done), 1)
    seconds = [row["seconds"] for row in plain.only.tables["steps"].values()]
    assert sum(seconds) == pytest.approx(0.1)


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
        {(2, 4, False): steps(2, 0.2, 4, 0.4, 13, drafts=3, context=420)},
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
        {(1, 4, False): steps(4, 0.8, 4, 0.8, 4, drafts=0, context=407)},
    )


def test_a_pipeline_with_one_batch_in_flight_has_step_times_in_spite_of_its_empty_rounds(
    plain, made, clock
):
    """vLLM puts an empty batch into the queue after each one while all requests are in flight."""
    scheduler = made(request("a"), stages=2)
    scheduler.step({"a": (0, 1)})
    for _ in range(10):
        scheduler.step({})
        clock.at += 0.1
        scheduler.step({"a": (3, 2)})
    scheduler.end("a")
    plain.until(lambda: len(plain.only.done), 1)
    (row,) = plain.only.tables["steps"].values()
    assert (row["steps"], row["seconds"]) == (10, pytest.approx(1.0))


class NumPyInteger:
    """As a KV connector may return one: a number that Python does not write as JSON has it."""

    def __init__(self, number):
        self.number = number

    def __int__(self):
        return self.number

    def __radd__(self, other):
        return NumPyInteger(self.number + int(other))

    __add__ = __radd__

    def __sub__(self, other):
        return NumPyInteger(self.number - int(other))

    def __gt__(self, other):
        return self.number > int(other)

    def __repr__(self):
        return f"np.int64({self.number})"


@pytest.mark.parametrize("number", [500, NumPyInteger(500)])
def test_a_prompt_that_is_computed_again_after_a_preemption_is_prefill(number, plain, made, clock):
    """The request has tokens, so that its step looks like one of decoding."""
    scheduler = made(*map(request, "ab"))
    scheduler.step({"a": (0, 1), "b": (0, 1)})
    clock.at += 0.1
    scheduler.step({"a": (0, 1), "b": (3, 4)}, computes={"a": number})
    scheduler.end("a", "b")
    plain.until(lambda: len(plain.only.done), 2)
    ((key, row),) = plain.only.tables["steps"].items()
    assert (key[2], row["prefill_tokens"]) == (True, 499)


def test_a_mass_abort_while_a_report_is_under_way_loses_records_and_nothing_else(plain, made):
    """More requests end between two packets of a report than are kept."""
    names = [f"r{number}" for number in range(plugin.MAX_FINISHED + 200)]
    scheduler = made(*(request(name, number % 150 / 100) for number, name in enumerate(names)))
    running = names[:300]
    scheduler.step(dict.fromkeys(running, (0, 1)))
    scheduler.step(dict.fromkeys(running, (3, 2)))
    scheduler.finish_requests(names, SimpleNamespace(name="FINISHED_ABORTED"))
    scheduler.step({})
    plain.until(lambda: (plain.only.state, plain.total), ("observing", scheduler.counted))
    assert scheduler._specdec.lost == 200


def test_a_session_counts_under_the_parameters_of_each_turn_and_ends_as_one_request(plain, made):
    """vLLM's streaming sessions resume a request with others, and forget the turns before."""
    scheduler = made(request("a", 0.2))
    scheduler.step({"a": (0, 1)})
    scheduler.step({"a": (3, 2)})
    for temperature, prompt, result in ((0.9, 600, (3, 4)), (0.2, 2000, (3, 1))):
        session = scheduler.requests["a"]
        session.sampling_params = SimpleNamespace(temperature=temperature)
        session.num_prompt_tokens = prompt
        session.output_token_ids = []
        scheduler.step({"a": (0, 1)}, resumed="a")
        scheduler.step({"a": result})
    scheduler.end("a", status="FINISHED_ABORTED")
    plain.until(lambda: len(plain.only.done), 1)

    drafts = {"drafts": 1, "draft_tokens": 3, "drafted_at": [1, 1, 1]}
    second = {"drafts": 2, "draft_tokens": 6, "drafted_at": [2, 2, 2]}
    assert plain.only.tables["temperature"] == {
        20: tally(aborted=1, **second, accepted_tokens=1, accepted_at=[1, 0, 0]),
        90: tally(**drafts, accepted_tokens=3, accepted_at=[1, 1, 1]),
    }
    assert [*plain.only.tables["prompt_tokens"]] == [7, 10, 11]
    (done,) = plain.only.done
    known = {"temperature": 20, "prompt_tokens": 2000, "drafts": 3, "draft_tokens": 9}
    unknown = dict.fromkeys(
        ("cached_tokens", "output_tokens", "arrival", "first_token", "last_token", "ending")
    )
    known |= {"accepted_tokens": 4, "outcome": "aborted"}
    assert {name: done[name] for name in (known | unknown)} == known | unknown
    assert not plain.only.tables["ending"]


def test_a_session_whose_last_turn_is_over_ends_with_the_parameters_that_it_had(plain, made):
    """vLLM may have taken these away by then."""
    scheduler = made(request("a", 0.2))
    scheduler.step({"a": (0, 1)})
    scheduler.step({"a": (3, 2)})
    scheduler.requests["a"].sampling_params = None
    scheduler.end("a")

    plain.until(lambda: [done["temperature"] for done in plain.only.done], [20])
    assert plain.only.tables["temperature"][20]["stopped"] == 1


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
    pooling.sampling_params, pooling.pooling_params = None, "embed"
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
    told, bits, _ = plugin.traits_of(request("a", temperature, **parameters))

    assert sampling_of(told, bits) == group


def test_vllms_repetition_is_an_outcome_of_its_own(plain, made):
    """It is a fault of the output, not one more request that stopped."""
    scheduler = made(request("a"))
    scheduler.step({"a": (0, 1)})
    scheduler.end("a", status="FINISHED_REPETITION")
    plain.until(lambda: [done["outcome"] for done in plain.only.done], ["repetition"])
    assert plain.only.tables["sampling"]["plain"]["repetition"] == 1


UNKNOWN = dict.fromkeys((*plugin.SPECULATION, "draft_architectures")) | {"draft_sizes": {}}
UNKNOWN_CONFIGURATION = {
    **dict.fromkeys((*plugin.CONFIGURATION, "drops_cache_block", "block_size", "accelerator")),
    "sizes": {},
}


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
    expected["configuration"] = UNKNOWN_CONFIGURATION | {"pipeline_parallel_size": 1}
    expected |= {"server": "a1b2", "own": [], "full": False}
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

    hello = plugin.introduction(scheduler)

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
    }  # fmt: skip
    assert hello["configuration"] == UNKNOWN_CONFIGURATION | known


H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("files", "known"),
    [
        ([f"Model: \t\t {H100}\nIRQ:   \t\t 96\n"] * 8, H100),
        (
            [f"Model: \t\t {H100}\n", f"Model: \t\t {A100}\n"],
            None,
        ),  # whose turn it is, nobody knows
        (["IRQ: 96\n"], None),
        ([b"Model: \xff\n".decode("latin-1") * 999], "\ufffd\ufffd"),
        ([None], None),  # a folder without the file
        ([], None),
    ],
)
def test_the_accelerator_is_what_the_drivers_files_say(monkeypatch, made, tmp_path, files, known):
    """No driver, or one that says something else, is no fault."""
    monkeypatch.setattr(plugin, "GPUS", str(tmp_path / "gpus"))
    for number, content in enumerate(files):
        folder = tmp_path / "gpus" / f"0000:{number:02}:00.0"
        folder.mkdir(parents=True)
        if content is not None:
            (folder / "information").write_text(content)

    assert plugin.introduction(made())["configuration"]["accelerator"] == known


class HeadConfig:
    """A model's configuration with more than the sizes, and with sizes that are none."""

    hidden_size = 4096
    num_hidden_layers = 1
    tie_word_embeddings = False
    head_dim = None
    num_experts_per_tok = [2, 4]  # noqa: RUF012 - a number for each layer, as some have it
    moe_intermediate_size = 0.5
    intermediate_size = -1
    vocab_size = "128k"
    model_type = "llama"
    _name_or_path = "/models/secret"
    eos_token_id = 7

    @property
    def num_attention_heads(self):
        raise AssertionError


def test_hello_has_the_sizes_of_target_and_draft_and_nothing_else_of_their_configurations(made):
    """Whole numbers of a short list; whatever else a configuration has or does stays there."""
    scheduler = made()
    vllm = scheduler.vllm_config
    vllm.model_config.hf_text_config = SimpleNamespace(num_experts=128, vocab_size=1000)
    vllm.speculative_config = SimpleNamespace(
        method="eagle3",
        num_speculative_tokens=3,
        draft_model_config=SimpleNamespace(hf_text_config=HeadConfig()),
    )

    hello = plugin.introduction(scheduler)

    assert hello["configuration"]["sizes"] == {"num_experts": 128, "vocab_size": 1000}
    sizes = {"hidden_size": 4096, "num_hidden_layers": 1, "tie_word_embeddings": 0}
    assert hello["speculation"]["draft_sizes"] == sizes
    assert "secret" not in json.dumps(hello)


def test_before_vllm_could_keep_the_last_cached_block_eagle_always_drops_it(made):
    """From 0.32 on vLLM's scheduler says whether it does."""
    scheduler = made()
    scheduler.use_eagle = True

    assert plugin.introduction(scheduler)["configuration"]["drops_cache_block"] is True


def coordinator(*sizes, **groups):
    managers = [SimpleNamespace(block_size=size) for size in sizes]
    return SimpleNamespace(single_type_managers=managers, **groups)


@pytest.mark.parametrize(
    ("coordinator", "size"),
    [
        (None, None),
        (coordinator(16), 16),
        (coordinator(16, 16), 0),  # before 0.20: each group drops one
        (coordinator(256, 64), 0),
        (coordinator(16, 16, eagle_group_ids={0, 1}), 16),
        (coordinator(256, 64, eagle_group_ids={0}), 256),
        (coordinator(256, 64, drop_eagle_group_ids=[1], eagle_group_ids={0}), 64),
        (coordinator(256, 64, 128, drop_eagle_group_ids=[1, 2]), 128),
        (coordinator(256, 64, eagle_group_ids=set()), 0),
        (coordinator(), 0),
    ],
)
def test_the_size_of_a_dropped_block_is_that_of_the_group_that_drops_it(coordinator, size, made):
    """Not the smallest group's, which hybrid models have in their configuration."""
    scheduler = made()
    scheduler.vllm_config.cache_config = SimpleNamespace(block_size=16)
    if coordinator is not None:
        scheduler.kv_cache_manager = SimpleNamespace(coordinator=coordinator)

    assert plugin.introduction(scheduler)["configuration"]["block_size"] == size


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


def test_a_step_that_computes_many_prompt_tokens_is_a_mixed_one(plain, made, clock):
    """It takes longer by the prefill, so it is no measure of decoding."""
    scheduler = made(*map(request, "ab"))
    scheduler.step({"a": (0, 1)})
    for prefill in (64, 65):
        clock.at += 0.1
        scheduler.step({"a": (3, 1)}, computes={"b": prefill})
    clock.at += plugin.PERIOD
    scheduler.end("a")

    expected = {
        (1, 4, False): steps(1, 0.1, 1, 0.1, 1, drafts=1, context=102, prefill=64),
        (1, 4, True): steps(1, 0.1, 1, 0.1, 1, drafts=1, context=102, prefill=65),
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
    scheduler = made(request("a"))
    scheduler.step({"a": (0, 1)})
    scheduler.step({"a": (3, 3)})
    scheduler.requests["a"].output_token_ids = tokens
    scheduler.end("a", status=f"FINISHED_{status}")

    plain.until(lambda: [done["ending"] for done in plain.only.done], [ending])
    (row,) = plain.only.tables["ending"].items()
    assert row[0] == ending
    assert (row[1]["drafts"], row[1]["draft_tokens"], row[1]["accepted_tokens"]) == (1, 3, 2)
    assert sum(row[1][outcome] for outcome in plugin.OUTCOMES) == 1


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


@pytest.mark.parametrize(
    ("drafted", "accepted"),
    [
        (3, -1),  # as vLLM before 0.16 counts a draft that came back without a token
        (1, 3),
        (4, 0),  # more than a draft has
        (4, 4),
        (-1, 0),
    ],
)
def test_a_draft_that_is_impossible_disables_the_plugin_by_name(drafted, accepted, plain, made):
    """A sidecar would refuse the packet, and all that comes after it."""
    scheduler = made(request("a"))
    scheduler.step({"a": (0, 1)})

    stats = SimpleNamespace(num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0)
    stats.num_accepted_tokens_per_pos = [0] * 9
    scheduler.make_spec_decoding_stats(stats, drafted, accepted, None, "a")
    scheduler.end("a")

    assert scheduler._specdec is None
    plain.until(lambda: plain.only.state, "disabled")
    assert re.fullmatch(r"count: ImpossibleDraftError at line \d+", plain.only.hello["reason"])
    assert not plain.only.totals()[0], "nothing of it was told"


def combinations():
    """Requests, each with another key."""
    yield {"temperature": 0.5}
    yield {"temperature": 0.51}
    yield {"temperature": 0}
    yield {"prompt": 500}
    yield {"structured": True}
    yield {"adapter": "tenant"}
    yield {"adapter": "other"}
    yield {"adapter": ""}
    yield {"top_k": 5}
    yield {"min_p": 0.1}
    yield {"presence_penalty": 1}
    yield {"logit_bias": {1: 2}}
    yield {"name": "cmpl-specdec-own-1"}


def test_there_is_a_cell_for_each_combination_of_what_requests_are_counted_by(plain, made):
    """And only one, however many requests have it."""
    scheduler = made()
    for round_ in range(3):
        for number, asked in enumerate(combinations()):
            name = asked.get("name", f"r{number}")
            scheduler.add_request(request(**{"name": name, **asked}))
            scheduler.step({name: (0, 1)})
            scheduler.step({name: (3, round_ + 1), "nobody": (0, 0)})
            scheduler.end(name)

    plain.until(lambda: len(plain.only.done), 3 * 13)
    assert plain.only.cells == {
        key: [3, 0, 0, 0, 0, 0, 0, 0, 3, 1, 1, 1, 0]
        for key in (
            *((50, 0, 7, None), (51, 0, 7, None), (0, 0, 7, None), (50, 0, 9, None)),
            *((50, STRUCTURED, 7, None), (50, 0, 7, "tenant"), (50, 0, 7, "other")),
            *((50, 0, 7, ""), (50, FILTERED, 7, None), (50, FILTERED | MIN_P, 7, None)),
            *((50, PENALTIES, 7, None), (50, LOGIT_BIAS, 7, None), (50, OWN, 7, None)),
        )
    }
    assert [done["is_own"] for done in plain.only.done] == [*[False] * 12, True] * 3


def test_drafts_are_counted_by_their_length_and_what_was_accepted(plain, made):
    """From which the positions follow, for drafts that the grammar cut short, too."""
    scheduler = made(request("a"))
    scheduler.step({"a": (0, 1)})
    for drafted, sampled, rejected in ((3, 4, 0), (3, 1, 0), (1, 2, 0), (3, 2, 2), (3, 1, 3)):
        scheduler.step({"a": (drafted, sampled)}, invalid={"a": rejected, "b": 1})
    scheduler.end("a")

    plain.until(lambda: len(plain.only.done), 1)
    lengths = [1, 2, 0, 2]
    accepted = [2, 2, 0, 1]
    assert plain.only.cells[50, 0, 7, None] == [1, 0, 0, 0, 0, *lengths, *accepted]
    assert plain.only.totals() == scheduler.counted == (5, 8, 5)


def test_however_many_parameters_a_client_tries_each_temperature_stays_exact(plain, made, clock):
    """What is new past the limit is told apart by its temperature alone, and the hello says so."""
    rng = random.Random(4)
    truth = {}
    scheduler = made(request("a", 0.5, 100), request("b", 0.5, 100, adapter="first"))
    for name in "ab":
        scheduler.step({name: (0, 1)})
    plain.until(lambda: plain.only.hello.get("full"), expected=False)

    for number in range(3000):
        clock.at += 0.01
        hundredths = rng.randrange(210)
        name = f"r{number}" + rng.choice(["", "specdec-own-"])
        asked = {"prompt": rng.randrange(1, 9000), "adapter": f"tenant {number}"}
        scheduler.add_request(request(name, hundredths / 100, **asked))
        scheduler.step({name: (0, 1)})
        drafted, sampled = rng.randrange(1, 4), rng.randrange(1, 3)
        sampled = min(sampled, drafted + 1)
        scheduler.step({name: (drafted, sampled), "a": (3, 3)})
        scheduler.end(name)
        row = truth.setdefault(min(hundredths, plugin.ABOVE_2), [0, 0, 0, 0])
        row[:] = map(sum, zip(row, [1, 1, drafted, sampled - 1], strict=True))
    scheduler.end("a", "b")
    row = truth[50]
    row[:] = map(sum, zip(row, [2, 3000, 9000, 6000], strict=True))

    def told():
        names = ("requests", "drafts", "draft_tokens", "accepted_tokens")
        rows = plain.by_temperature()
        return {key: [row[name] for name in names] for key, row in rows.items()}

    plain.until(told, truth)
    life = plain.only
    assert (plain.total, plain.fallen) == (scheduler.counted, 0)
    assert life.hello["full"]
    coarse = {key for key in life.cells if key[2] is None}
    assert len(life.cells) - len(coarse) == plugin.MAX_CELLS
    assert {key[0] for key in coarse} == {*range(202)}
    assert {key[1:] for key in coarse} == {(0, None, None), (OWN, None, None)}
    assert life.tables["adapter"]["first"]["stopped"] == 1, "what was there keeps its cell"


def test_packets_are_bounded_whatever_the_requests_are(plain, made, clock):
    """Each request here has a key of its own, and a name that no packet has room for."""
    scheduler = made(depth=80)
    for number in range(300):
        name = f"{number} " + "\ud800ä🙂\x00" * 200
        scheduler.add_request(request("a", number / 100, adapter=name))
        scheduler.step({"a": (0, 1)})
        scheduler.step({"a": (80, 81)})
        scheduler.end("a")

    def finished():
        clock.at += plugin.PERIOD  # in case the socket was full
        scheduler.step({})
        return len(plain.only.done)

    plain.until(finished, 300)
    temperatures, adapters = plain.only.tables["temperature"], plain.only.tables["adapter"]
    assert set(temperatures) == {*range(202)}
    assert temperatures[plugin.ABOVE_2]["drafted_at"] == [99] * 80
    assert len(adapters) == 300
    assert {len(name) for name in adapters} == {plugin.MAX_NAME}
    assert len(scheduler._specdec.starting) == 0


@pytest.mark.parametrize("depth", [0, 1, 3, 64, 1024])
def test_the_largest_cells_fit_into_a_packet(depth, made):
    """Every number after 10,000 years, the longest name, and the end of the report."""
    observer = made(depth=depth)._specdec
    largest = 10**15 - 1
    name = "\x01" * plugin.MAX_NAME
    numbers = [largest] * observer.size
    rows = [[201, 63, 20, name, numbers]] * observer.report.max_items
    end = dict.fromkeys(("steps", "generation_tokens", "running", "waiting", "lost"), largest)
    end |= {"at": 2e9 + 1 / 3, "endings": {ending: [largest] * 8 for ending in plugin.ENDINGS}}
    report = plugin.encode({"requests": rows, "steps": [], "end": end, "finished": []})

    assert len(f'{{"v":4,"report":{report}}}'.encode()) <= plugin.MAX_BYTES
    possible = report.replace(str(largest), "0")
    read_packet(f'{{"v":4,"report":{possible}}}'.encode())


NONSENSE = (
    *({"temperature": temperature} for temperature in (None, "0.5", 1j, [], float("nan"))),
    *({"top_k": None}, {"top_p": "1"}, {"min_p": None}, {"presence_penalty": object()}),
)


@pytest.mark.parametrize("changed", NONSENSE)
def test_parameters_that_another_plugin_has_changed_disable_nothing(changed, plain, made):
    """What cannot be read of a request is unknown, and its drafts still count."""
    scheduler = made(request("a"), request("b", 0.7))
    vars(scheduler.requests["a"].sampling_params).update(changed)
    scheduler.step({"a": (0, 1), "b": (0, 1)})
    scheduler.step({"a": (3, 2), "b": (3, 4)})
    scheduler.end("a", "b")

    plain.until(lambda: len(plain.only.done), 2)
    assert plain.only.state == "observing"
    is_readable = "presence_penalty" in changed  # anything is a penalty that is not 0
    key = (50, PENALTIES, 7, None) if is_readable else (None, 0, 7, None)
    assert plain.only.cells[key] == [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0]
    assert plain.only.cells[70, 0, 7, None] == [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert plain.only.done[0]["temperature"] == key[0]


@pytest.mark.parametrize("version", [b"0.32.0", None, 32, "0.32.0" + "x" * 1000])
def test_a_version_that_is_no_text_is_unknown(version, plain, installed):
    """The sidecar would refuse the hello, and with it the plug-in."""
    scheduler = installed(version=version)()
    scheduler.add_request(request("a"))
    scheduler.step({"a": (0, 1)})
    scheduler.end("a")

    plain.until(lambda: len(plain.only.done), 1)
    expected = version[:64] if isinstance(version, str) else None
    assert (plain.only.state, plain.only.hello["vllm"]) == ("observing", expected)


def pause(scheduler, clock):
    clock.at += 10  # such as /pause, or a call that loads an adapter: vLLM schedules nothing


def empty_round(scheduler, clock):
    clock.at += 5
    scheduler.step({})
    clock.at += 5


def empty_rounds(scheduler, clock):
    for _ in range(5):
        clock.at += 2
        scheduler.step({})


@pytest.mark.parametrize(
    ("gap", "stages"),
    [(pause, 1), (empty_round, 1), (empty_rounds, 1), (pause, 2), (empty_rounds, 2)],
)
def test_a_pause_and_a_round_that_schedules_nothing_are_no_steps(gap, stages, plain, made, clock):
    """Four requests at 20 ms a step, once with a gap of ten seconds between two steps."""
    scheduler = made(*map(request, "abcd"), stages=stages)
    scheduler.step(dict.fromkeys("abcd", (0, 1)))
    for number in range(20):
        if number == 10:
            gap(scheduler, clock)
        scheduler.schedule()
        clock.at += 0.02
        scheduler.step(dict.fromkeys("abcd", (3, 2)))
    counted = scheduler._specdec.step_count
    scheduler.end(*"abcd")

    timed = 20  # the first one after the gap, too: from when vLLM scheduled it
    plain.until(lambda: len(plain.only.done), 4)
    (row,) = plain.only.tables["steps"].values()
    assert (row["steps"], row["decodes"]) == (timed, 4 * timed)
    assert row["seconds"] == pytest.approx(0.02 * timed)  # all are in every step
    assert counted == plain.only.end["steps"] == 21


@pytest.mark.parametrize(
    ("number", "key"), [(1, 1), (2, 2), (15, 15), (16, 16), (17, 32), (32, 32), (33, 64)]
)
def test_the_number_of_decodes_is_exact_up_to_16_then_a_power_of_two(number, key, plain, made):
    """A step's length is a staircase over it at first."""
    names = [f"r{number}" for number in range(number)]
    scheduler = made(*map(request, names))
    scheduler.step(dict.fromkeys(names, (0, 1)))
    scheduler.step(dict.fromkeys(names, (3, 2)))
    scheduler.end(*names)

    plain.until(lambda: [*plain.only.tables["steps"]], [(key, 4, False)])
    (row,) = plain.only.tables["steps"].values()
    assert (row["decodes"], row["drafts"]) == (number, number)

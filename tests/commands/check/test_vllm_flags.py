"""Command lines as in old tutorials, and the findings on each."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.commands.check.vllm_command import findings
from sidecar.commands.check.vllm_flags import KEYS, METHODS, TABLE, wrong
from tests.commands.commands_tools import command

GOOD = """vllm serve m --speculative-config
    '{"method": "draft_model", "model": "d", "num_speculative_tokens": 3}'"""


def faults(line, version=(0, 32)):
    return [one.text for one in findings(line, version) if one.is_fault]


def config(**keys):
    return f"vllm serve m --speculative-config '{json.dumps(keys)}'"


@pytest.mark.parametrize(
    "line",
    [
        GOOD,
        "vllm serve m",
        config(method="ngram", num_speculative_tokens=3, prompt_lookup_max=4),
        config(model="RedHatAI/x.eagle3"),
        "vllm serve m -sc.method ngram -sc.num_speculative_tokens 3",
        "vllm serve m --speculative_config.method=suffix",
        "vllm serve m --spec-method ngram --spec-tokens 3",
        config(method="mtp").replace("vllm serve m", "python -m vllm.entrypoints.openai.api_server --model m -tp 4"),
    ],
)
def test_valid_command_lines_have_no_fault(line):
    assert faults(line) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm serve m --speculative-model d --num-speculative-tokens 3", "--speculative-model was removed"),
        ("vllm serve m --speculative_model d", "--speculative-model was removed"),
        ("vllm serve m --num-speculative-tokens=3", "--speculative-config '{\"num_speculative_tokens\": …}'"),
        ("vllm serve m --speculative-disable-by-batch-size 4", "num_speculative_tokens_per_batch_size"),
        ("vllm serve m --speculative-sampling", "--speculative-sampling has never existed in vLLM"),
        ("vllm serve m --speculative-config ngram", "not a JSON object"),
        ("vllm serve m --speculative-config", "not a JSON object"),
        ("vllm serve m --speculative-config '[1]'", "not a JSON object"),
        (config(method="ngram", num_speculative_tokens=3, speculative_sampling=True), "the key speculative_sampling"),
        (config(method="ngram", num_speculative_tokens=3, disable_by_batch_size=4), "has no effect since 0.10"),
        (config(method="ngram", num_speculative_tokens=3, promt_lookup_max=4), "did you mean prompt_lookup_max?"),
        (config(method="mlp", model="d"), "the method mlp has never existed in vLLM; the name was mlp_speculator"),
        (config(method="n-gram", num_speculative_tokens=3), "did you mean ngram?"),
        (config(method="deepseek_mtp"), "the method is mtp"),
        (config(method="eagle3"), "the method eagle3 needs a model"),
        (config(num_speculative_tokens=3), "neither a method nor a model"),
        (config(method="ngram"), "num_speculative_tokens is missing"),
        (config(method="ngram", num_speculative_tokens="3"), "must be a whole number above 0"),
        (config(model="d", num_speculative_tokens=3, tensor_parallel_size=1), "the key is draft_tensor_parallel_size"),
        (config(model="d", draft_tensor_parallel_size=2) + " -tp 4", "must be 1 or the target's 4, not 2"),
        (GOOD + " --disable-log-stats", "hides vLLM's metrics"),
    ],
)
def test_faults_are_reported_with_what_to_write(line, said):
    found = faults(line)
    assert [text for text in found if said in text], found
    assert len(found) <= 2


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ((0, 8, 2), []),
        ((0, 9, 2), []),
        ((0, 10, 0), ["the method draft_model is not supported from 0.10 to 0.13"]),
        ((0, 13), ["the method draft_model is not supported from 0.10 to 0.13"]),
        ((0, 15), []),
        ((0, 33), []),
    ],
)
def test_a_method_is_judged_by_the_version(version, said):
    assert [text.split(" (")[0] for text in faults(GOOD, version)] == said


@pytest.mark.parametrize("flag", ["--pipeline-parallel-size 2", "-pp 2"])
@pytest.mark.parametrize(("version", "refused"), [((0, 15), True), ((0, 15, 1), True), ((0, 16), False)])
def test_pipeline_parallelism_is_refused_to_the_last_release_of_0_15(flag, version, refused):
    line = config(method="ngram", num_speculative_tokens=3)
    assert any("pipeline" in text for text in faults(f"{line} {flag}", version)) == refused
    assert not faults(f"{line} {flag.replace('2', '1')}", version)


def test_refused_sampling_parameters_are_noted_by_version():
    notes = {version: " ".join(one.text for one in findings(GOOD, version)) for version in ((0, 12), (0, 32))}
    assert "rejected with 400" in notes[0, 32]
    assert "served without speculation" in notes[0, 12]


@pytest.mark.parametrize(
    ("listed", "loads"), [("specdec", True), ("lora, specdec", True), ("lora", False), ("", False)]
)
def test_an_allowlist_of_plug_ins_must_have_ours(listed, loads):
    found = faults(f"VLLM_PLUGINS='{listed}' PYTHONPATH=/plugin vllm serve m")
    assert found == (
        [] if loads else [f"VLLM_PLUGINS={listed} does not list specdec, so vLLM does not load the plug-in; add it"]
    )


def test_the_command(capsys):
    assert command("check", "--args", GOOD) == 0
    assert capsys.readouterr().out.splitlines()[0] == "vLLM 0.33: no problems"
    assert command("check", "--args", "vllm serve m --speculative-model d", "--vllm-version", "v0.32.0") == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "vLLM 0.32.0: 1 problem"
    assert command("check", "--args", "vllm serve 'm") == 2
    assert capsys.readouterr().err == "--args: No closing quotation\n"
    with pytest.raises(SystemExit):
        command("check", "--args", "x", "--vllm-version", "new")


def test_names_are_unique_and_none_that_works_is_in_the_table():
    names = [(one.kind, one.name) for one in TABLE]
    assert len(set(names)) == len(names)
    assert not [key for key in KEYS if wrong("key", key, (0, 32)) is not None]
    assert not [method for method in METHODS if wrong("method", method, (0, 32)) is not None]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(sorted(METHODS)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(sorted(KEYS)), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from(
    [one.name for one in TABLE if one.kind == "flag"] + ["-tp", "-sc", "--speculative-config.method"]
)


@given(VALUES, st.lists(WORDS | st.text(alphabet="-=.a1{", max_size=6), max_size=5), st.sampled_from([(0, 7), (0, 33)]))
def test_any_line_that_can_be_split_is_judged(value, words, version):
    line = shlex.join(["vllm", "serve", "m", "--speculative-config", json.dumps(value), *words])
    assert all(one.text for one in findings(line, version))

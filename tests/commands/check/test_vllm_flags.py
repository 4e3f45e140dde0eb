"""Command lines as in old tutorials, and the findings on each."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.commands.check.vllm_flags import FATES, findings
from tests.commands.commands_tools import command

GOOD = """vllm serve m --speculative-config
    '{"method": "draft_model", "model": "d", "num_speculative_tokens": 3}'"""


def faults(line, version=(0, 32)):
    return findings(line, version).faults


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
    found = findings(line, (0, 32))
    assert found.faults == []
    assert found.notes == [
        "speculation is off: there is no --speculative-config"
        if line == "vllm serve m"
        else "requests with min_p or logit_bias are rejected with status 400"
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm serve m --speculative_model d", "--speculative-model was removed"),
        ("vllm serve m --num-speculative-tokens=3", "--speculative-config '{\"num_speculative_tokens\": …}'"),
        ("vllm serve m --speculative-disable-by-batch-size 4", "num_speculative_tokens_per_batch_size"),
        ("vllm serve m --speculative-sampling", "--speculative-sampling has never existed in vLLM"),
        ("vllm serve m --speculative-config ngram", "not a JSON object"),
        ("vllm serve m --speculative-config", "not a JSON object"),
        ("vllm serve m --speculative-config '[1]'", "not a JSON object"),
        (config(method="ngram", num_speculative_tokens=3, speculative_sampling=True), "the key speculative_sampling"),
        (config(method="ngram", num_speculative_tokens=3, disable_by_batch_size=4), "has no effect since 0.10"),
        (config(method="mlp", model="d"), "the method mlp has never existed in vLLM; the name was mlp_speculator"),
        ("vllm serve m -sc.method=mlp", "the method mlp has never existed in vLLM"),
        (config(method="deepseek_mtp"), "the method is mtp"),
        (config(model="d", num_speculative_tokens=3, tensor_parallel_size=1), "the key is draft_tensor_parallel_size"),
        (GOOD + " --disable-log-stats", "hides vLLM's metrics"),
    ],
)
def test_a_fault_is_reported_with_what_to_write(line, said):
    (found,) = faults(line)
    assert said in found


@pytest.mark.parametrize(("version", "works"), [((0, 9, 2), True), ((0, 10), False), ((0, 13), False), ((0, 15), True)])
def test_a_name_is_judged_by_the_version(version, works):
    found = faults(GOOD, version)
    assert [text.split(" (")[0] for text in found] == (
        [] if works else ["the method draft_model is not supported from 0.10 to 0.13"]
    )


@pytest.mark.parametrize(("version", "known"), [((0, 33, 1), True), ((0, 34), False)])
def test_a_version_past_the_table_is_noted(version, known):
    notes = findings(GOOD, version).notes
    assert ("0.33 is the newest version known here: what later ones removed is not found" in notes) is not known


def test_refused_sampling_parameters_are_noted_by_version():
    assert findings(GOOD, (0, 32)).notes == ["requests with min_p or logit_bias are rejected with status 400"]
    slow, without = findings(GOOD, (0, 12)).notes
    assert slow.startswith("requests with min_p or frequency_penalty or ")
    assert slow.endswith(" are served without speculation")
    assert without == "requests with logit_bias are served without it"


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
    none = "vLLM 0.33: nothing removed or obsolete found; vLLM checks the values itself when it starts"
    assert capsys.readouterr().out.splitlines()[0] == none
    assert command("check", "--args", "vllm serve m --speculative-model d", "--vllm-version", "v0.32.0") == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "vLLM 0.32.0: 1 problem"
    assert command("check", "--args", "vllm serve 'm") == 2
    assert command("check", "--args", " ") == 2
    assert capsys.readouterr().err == "--args: No closing quotation\n--args: the command line is empty\n"
    with pytest.raises(SystemExit):
        command("check", "--args", "x", "--vllm-version", "new")


NAMES = [name for fate in FATES for name in fate.remedies]


def test_every_name_has_one_fate():
    assert len(set(NAMES)) == len(NAMES)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5) | st.just("method"), inner),
    max_leaves=6,
)
WORDS = st.sampled_from([*NAMES, "-tp", "-sc", "--speculative-config.method"]) | st.text(alphabet="-=.a1{", max_size=6)


@given(VALUES, st.lists(WORDS, max_size=5), st.sampled_from([(0, 7), (0, 33)]))
def test_any_line_that_can_be_split_is_judged(value, words, version):
    line = shlex.join(["vllm", "serve", "m", "--speculative-config", json.dumps(value), *words])
    assert all(text for texts in findings(line, version) for text in texts)

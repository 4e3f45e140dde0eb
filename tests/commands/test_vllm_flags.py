"""Command lines as in old tutorials, and the findings on each."""

import json

import pytest

from sidecar.commands.vllm_flags import findings
from tests.commands.commands_tools import command

SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 16, 0]]}
SAMPLED = {"draft_sample_method": "probabilistic"}
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
        config(method="eagle3", use_local_argmax_reduction=False, **SAMPLED),
        config(method="eagle3", **SCHEDULE) + " --data-parallel-size 1",
        config(method="mtp").replace("vllm serve m", "python -m vllm.entrypoints.openai.api_server --model m -tp 4"),
    ],
)
def test_valid_command_lines_have_no_fault(line):
    checked = findings(line, (0, 32))
    assert checked.faults == []
    assert checked.notes[0] == (
        "speculation is off: --speculative-config is not set"
        if line == "vllm serve m"
        else "vLLM rejects requests with min_p or logit_bias (status 400) while it speculates"
    )
    assert len(checked.notes) == (1 if line == "vllm serve m" else 2)  # what the method costs, or how it drafts


@pytest.mark.parametrize(
    ("keys", "version", "noted"),
    [
        ({}, (0, 32), "docs/why.md says when probabilistic helps"),
        (SAMPLED, (0, 32), "max_num_seqs x K x vocabulary x 4 bytes"),
        ({}, (0, 21), None),  # which has no draft_sample_method
    ],
)
def test_how_the_draft_chooses_its_tokens_is_noted_where_vllm_lets_one_choose(keys, version, noted):
    notes = findings(config(method="eagle3", **keys), version).notes
    assert [noted in note for note in notes[1:]] == [True] if noted else len(notes) == 1


def test_what_a_method_costs_beside_its_drafts_is_noted():
    notes = findings(config(method="suffix"), (0, 32)).notes
    assert any("does not use async scheduling and model runner V2, which" in note for note in notes)
    assert len(findings(config(method="suffix"), (0, 12)).notes) == 0


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("vllm serve m --speculative_model d", "--speculative-model was removed"),
        ("vllm serve m --num-speculative-tokens=3", "--speculative-config '{\"num_speculative_tokens\": …}'"),
        ("vllm serve m --speculative-disable-by-batch-size 4", "num_speculative_tokens_per_batch_size"),
        ("vllm serve m --draft-model d", "--draft-model has never existed in vLLM"),
        ("vllm serve m --use-v2-block-manager", "belonged to the V0 engine"),
        ("vllm serve m --speculative-config ngram", "not a JSON object"),
        ("vllm serve m --speculative-config", "not a JSON object"),
        ("vllm serve m --speculative-config '[1]'", "not a JSON object"),
        (config(draft_model="d", num_speculative_tokens=3), "the key draft_model has never existed"),
        (config(method="ngram", num_speculative_tokens=3, disable_by_batch_size=4), "has had no effect since 0.10"),
        ("vllm serve m -sc.speculative-model=d", "use model instead"),
        (GOOD + " --disable-log-stats", "hides vLLM's metrics"),
        (config(method="suffix", **SCHEDULE), "ends the engine (AssertionError)"),
        (config(method="custom_class", **SCHEDULE), "has no effect with method custom_class"),
        (config(method="eagle3", **SCHEDULE) + " --data_parallel_size=2", "has no effect with data parallelism"),
        (config(method="eagle3", **SCHEDULE) + " -dp 2", "has no effect with data parallelism"),
        (config(method="eagle3", max_model_len=4096), "is ignored by model runner V2"),
        (config(method="eagle3", use_local_argmax_reduction=True, **SAMPLED), "stops vLLM from starting"),
        (config(method="draft_model", use_heterogeneous_vocab=True, **SAMPLED), "stops vLLM from starting"),
        (
            "vllm serve m -sc.draft_sample_method probabilistic -sc.use-heterogeneous-vocab=true",
            "use_heterogeneous_vocab with draft_sample_method probabilistic",
        ),
    ],
)
def test_a_fault_is_reported_with_what_to_write(line, fault):
    (reported,) = faults(line)
    assert fault in reported


@pytest.mark.parametrize(("version", "works"), [((0, 32, 1), True), ((0, 33), False)])
def test_a_name_is_judged_by_the_version(version, works):
    reported = faults(config(method="medusa", model="d"), version)
    assert reported == ([] if works else ["the method medusa was removed in about 0.33; use eagle3 or mtp"])


@pytest.mark.parametrize(("version", "known"), [((0, 33, 1), True), ((0, 34), False)])
def test_a_version_past_the_table_is_noted(version, known):
    notes = findings(GOOD, version).notes
    assert ("this check knows vLLM up to 0.33, and does not find what later versions removed" in notes) is not known


def test_check_judges_a_command_line_and_refuses_one_that_cannot_be_read(capsys):
    assert command("check", "--args", GOOD) == 0
    none = "vLLM 0.33: nothing removed or obsolete found; vLLM itself finds wrong or missing values when it starts"
    assert capsys.readouterr().out.splitlines()[0] == none
    assert command("check", "--args", "vllm serve m --speculative-model d", "--vllm-version", "v0.32.0") == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "vLLM 0.32.0: 1 problem"
    assert command("check", "--args", "vllm serve 'm") == 2
    assert command("check", "--args", " ") == 2
    assert capsys.readouterr().err == "--args: No closing quotation\n--args: the command line is empty\n"

"""``check --args``: what is said of vLLM's command lines as old and new guides have them."""

import json

import pytest

from specdec_tools.serve_line.findings import line_findings
from specdec_tools.serve_line.reading import read_line
from tests.commands.commands_tools import command

SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 16, 0]]}
SAMPLED = {"draft_sample_method": "probabilistic"}
GOOD = """vllm serve m --speculative-config
    '{"method": "draft_model", "model": "d", "num_speculative_tokens": 3}'"""


def found(line, version=(0, 32)):
    return line_findings(read_line(line), version)


def config(**keys):
    return f"vllm serve m --speculative-config '{json.dumps(keys)}'"


@pytest.mark.parametrize(
    "line",
    [
        GOOD,
        config(method="ngram", num_speculative_tokens=3, prompt_lookup_max=4),
        config(model="RedHatAI/x.eagle3"),
        "vllm serve m -sc.method ngram -sc.num_speculative_tokens 3",
        "vllm serve m --speculative_config.method=suffix",
        "vllm serve m --spec-method ngram --spec-tokens 3",
        config(method="eagle3", use_local_argmax_reduction=False, **SAMPLED),
        config(method="eagle3", **SCHEDULE) + " --data-parallel-size 1",
        config(method="eagle3", num_speculative_tokens_per_batch_size=None) + " -dp 2",
        "vllm serve m -sc.method mtp -sc.num-speculative-tokens-per-batch-size null -dp 2",
        "python -m vllm.entrypoints.openai.api_server --model m -tp 4 -sc.method mtp",
    ],
)
def test_a_valid_line_has_no_fault(line):
    """In each way in which vLLM takes its speculative configuration."""
    checked = found(line)

    assert checked.faults == ()
    rejected = "vLLM rejects requests with min_p or logit_bias (status 400) while it speculates"
    assert checked.notes[0] == rejected


def test_a_line_without_speculation_has_one_note():
    assert found("vllm serve m -tp 4") == found("vllm serve m")
    (note,) = found("vllm serve m").notes
    assert note == "speculation is off: --speculative-config is not set, or empty"


@pytest.mark.parametrize("value", ["''", '""', "None", "null"])
def test_an_empty_configuration_is_none(value):
    """As a template leaves it; vLLM 0.32 starts without speculation."""
    line = f"vllm serve m --speculative-config {value}"
    assert found(line) == found("vllm serve m")
    assert found(f"{line} --spec-method ngram").faults == ()
    assert found(f"{line} -sc.method ngram").faults == ()


@pytest.mark.parametrize("end", ["--speculative-config", "-sc", "-sc --port 8000"])
def test_a_configuration_without_a_value_is_a_fault(end):
    (fault,) = found(f"vllm serve m {end}").faults
    assert fault.startswith("--speculative-config is not a JSON object")


@pytest.mark.parametrize(
    "line",
    [
        """vllm serve m \\\n --speculative-config \\\n '{"method": "medusa"}' \\\n --port 1""",
        "vllm serve m --spec-tokens \\\n 3 \\\n --spec-method \\\n medusa",
        """vllm serve "it's" -sc.method=med\\\nusa""",
        "bash -c 'vllm serve m --spec-method medusa'",
        """docker run vllm-openai:v0.33.0 /bin/sh -lc 'vllm serve m -sc.method "medusa"'""",
    ],
)
def test_a_line_is_read_as_a_shell_reads_it(line):
    (fault,) = found(line, (0, 33)).faults
    assert fault.startswith("the method medusa was removed")


def test_a_shell_s_comments_say_nothing():
    """Quotes in them are none, and a # within a word is no comment."""
    line = f"# it's ours\n{GOOD}  # --disable-log-stats"
    assert found(line) == found(GOOD)
    (fault,) = found("vllm serve a#b --disable-log-stats -sc.method '#'").faults
    assert fault.startswith("--disable-log-stats hides")


def test_no_line_goes_on_in_single_quotes():
    """A shell leaves the backslash, and vLLM then refuses the JSON."""
    (fault,) = found("""vllm serve m -sc '{"method": \\\n "ngram"}'""").faults
    assert fault.startswith("--speculative-config is not a JSON object")


@pytest.mark.parametrize("file", ["--config c.yaml", "--config=c.yaml"])
def test_a_file_of_flags_may_set_what_the_line_does_not(file):
    """So whether speculation is off is not known; what the line sets is judged."""
    (note,) = found(f"vllm serve m {file}").notes
    assert note.startswith("this check does not read the file of --config")

    assert found(f"{GOOD} {file}").notes == (note, *found(GOOD).notes)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("vllm serve m --speculative_model d", "--speculative-model was removed"),
        (
            "vllm serve m --num-speculative-tokens=3",
            "--speculative-config '{\"num_speculative_tokens\": …}'",
        ),
        (
            "vllm serve m --speculative-disable-by-batch-size 4",
            "num_speculative_tokens_per_batch_size (0.24 and later)",
        ),
        ("vllm serve m --draft-model d", "--draft-model has never existed in vLLM"),
        ("vllm serve m --use-v2-block-manager", "belonged to the V0 engine"),
        ("vllm serve m --num-scheduler-steps 8", "--num-scheduler-steps belonged to the V0"),
        ("vllm serve m --scheduler_delay_factor=0.1", "--scheduler-delay-factor belonged to the"),
        ("vllm serve m --speculative-config ngram", "not a JSON object"),
        ("vllm serve m --speculative-config", "not a JSON object"),
        ("vllm serve m --speculative-config '[1]'", "not a JSON object"),
        (config(draft_model="d", num_speculative_tokens=3), "the key draft_model has never"),
        (
            config(method="ngram", num_speculative_tokens=3, disable_by_batch_size=4),
            "the key disable_by_batch_size has had no effect since 0.10",
        ),
        ("vllm serve m -sc.speculative-model=d", "use model instead"),
        (GOOD + " --disable-log-stats", "hides vLLM's metrics"),
        (GOOD + " --uds /tmp/vllm.sock", "neither the sidecar nor Prometheus can read"),
        (
            config(method="mtp", rejection_sample_method="synthetic"),
            "so replies are not the model's",
        ),
        (config(method="suffix", **SCHEDULE), "ends the engine (AssertionError)"),
        (config(method="custom_class", **SCHEDULE), "has no effect with method custom_class"),
        (
            config(method="eagle3", **SCHEDULE) + " --data_parallel_size=2",
            "has no effect with data parallelism",
        ),
        (config(method="eagle3", **SCHEDULE) + " -dp 2", "no effect with data parallelism"),
        (config(method="eagle3", max_model_len=4096), "is ignored by model runner V2"),
        (
            config(method="eagle3", use_local_argmax_reduction=True, **SAMPLED),
            "keeps vLLM from starting with model runner V2",
        ),
        (
            "vllm serve m -sc.draft_sample_method probabilistic -sc.use-heterogeneous-vocab=true",
            "use_heterogeneous_vocab with draft_sample_method probabilistic",
        ),
    ],
)
def test_what_does_not_work_is_said_with_what_to_write(line, fault):
    """One fault each, of flags, keys, methods and what does not go together."""
    (said,) = found(line).faults
    assert fault in said


EAGLE3 = '{"method": "eagle3", "model": "h", "num_speculative_tokens": 2}'
TAKEN_APART = '{"method": "eagle3", "model": "…", "num_speculative_tokens": 3}'


@pytest.mark.parametrize(
    ("given", "example"),
    [
        (EAGLE3, EAGLE3),
        (f'"{EAGLE3}"', EAGLE3),
        (f"{EAGLE3} --port 1", EAGLE3),
        ("{method: eagle3, model: h, num_speculative_tokens: 2}", TAKEN_APART),
        ("{method: mtp}", '{"method": "mtp", "num_speculative_tokens": 3}'),
        ("eagle3", '{"method": "ngram", "num_speculative_tokens": 3}'),
    ],
)
def test_a_configuration_without_quotes_is_shown_with_them(given, example):
    """With the method that was meant; any method if none can be read."""
    (fault,) = found(f"vllm serve m --speculative-config {given}").faults
    assert fault.endswith(f"put it in single quotes: --speculative-config '{example}'")


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.11.0", "0.11.0 (the image's tag)"),
        ("registry:5000/vllm/vllm-openai:v0.8.5.post1", "0.8.5 (the image's tag)"),
        ("vllm-openai-rocm:0.14", "0.14 (the image's tag)"),
        ("vllm/vllm-openai@sha256:0123", "0.33"),
        ("vllm/vllm-openai:latest", "0.33"),
        ("lmcache/vllm-openai:v0.3.9", "0.33"),  # the version of LMCache
    ],
)
def test_the_version_is_that_of_the_image(image, version, capsys):
    line = f"docker run --gpus all -p 8000:8000 {image} --model m -sc.method mtp"

    assert command("check", "--args", line) == 0
    assert capsys.readouterr().out.startswith(f"vLLM {version}: nothing removed")


def test_a_version_that_is_given_counts_more_than_the_images(capsys):
    line = "docker run vllm/vllm-openai:v0.11.0 --model m -sc.method mtp"

    assert command("check", "--args", line, "--vllm-version", "0.32") == 0
    assert capsys.readouterr().out.startswith("vLLM 0.32: ")


@pytest.mark.parametrize(
    ("line", "version", "fault"),
    [
        (config(method="medusa", model="d"), (0, 32, 1), None),
        (
            config(method="medusa", model="d"),
            (0, 33),
            "the method medusa was removed in about 0.33; use eagle3 or mtp",
        ),
        ("vllm serve m --num-speculative-tokens 3", (0, 8, 2), None),
        (config(method="dspark", **SCHEDULE), (0, 32), None),
        (
            config(method="dspark", **SCHEDULE),
            (0, 33),
            f"model runner V1 ignores {next(iter(SCHEDULE))} with method dspark; remove it",
        ),
    ],
)
def test_a_line_is_judged_by_the_version(line, version, fault):
    assert found(line, version).faults == (() if fault is None else (fault,))


@pytest.mark.parametrize(
    ("keys", "version", "noted"),
    [
        ({"method": "eagle3"}, (0, 32), "docs/why.md says when probabilistic helps"),
        ({"method": "eagle3", **SAMPLED}, (0, 32), "plan --sampled-drafts` counts them"),
        ({"method": "eagle3"}, (0, 21), None),  # without draft_sample_method
        ({"method": "eagle3", "parallel_drafting": True}, (0, 32), None),
        ({"method": "ngram_gpu"}, (0, 32), None),
        ({"method": "suffix"}, (0, 32), "does not use async scheduling and model runner V2, which"),
        ({"method": "suffix"}, (0, 12), None),  # plain decoding has neither by default
        ({"method": "suffix"}, (0, 20), "does not use async scheduling, which"),
        ({"method": "suffix"}, (0, 33), "does not use async scheduling and model runner V2, which"),
        ({"method": "ngram"}, (0, 20), "does not use async scheduling, which"),
        ({"method": "ngram"}, (0, 27), "does not use async scheduling and model runner V2, which"),
        ({"method": "ngram"}, (0, 32), "does not use async scheduling, which"),
        ({"method": "ngram"}, (0, 33), None),
        ({"method": "draft_model", "parallel_drafting": True}, (0, 20), "async scheduling, which"),
        ({"method": "draft_model", "parallel_drafting": True}, (0, 32), None),
    ],
)
def test_what_a_method_gives_up_and_how_it_drafts_is_noted(keys, version, noted):
    """Beside the note on refused parameters, which vLLM 0.12 does not refuse."""
    notes = [note for note in found(config(**keys), version).notes if "status 400" not in note]
    assert [noted in note for note in notes] == ([] if noted is None else [True])


@pytest.mark.parametrize(
    ("schedule", "noted"),
    [
        ([[1, 2, 2], [3, 16, 0]], True),
        ({"1-2": 2, "3-16": 0}, True),
        ([[1, 10, 3], [11, 16, 1]], False),
        ({"1-10": 3, "11-16": 1}, False),
        (None, False),
    ],
)
def test_a_schedule_that_reaches_no_draft_is_noted(schedule, noted):
    """Around that load vLLM flaps (vLLM issue 49548)."""
    notes = found(config(method="mtp", num_speculative_tokens_per_batch_size=schedule)).notes
    assert any("reaches 0 draft tokens" in note for note in notes) == noted


@pytest.mark.parametrize(
    ("flags", "most"),
    [
        ("--max-cudagraph-capture-size 6 --max-num-seqs 6", 1),
        ("--max_cudagraph_capture_size=40 --max-num-seqs=12", 10),
        ("--max-cudagraph-capture-size 512", 128),  # of 256 or more requests by default
        ("--max-cudagraph-capture-size 24 --max-num-seqs 6", None),
        ("--max-num-seqs 264", None),
        ("--max-cudagraph-capture-size many", None),
    ],
)
def test_cuda_graphs_of_too_few_requests_are_noted(flags, most):
    """Their size is in tokens (vLLM issues 27325 and 54933)."""
    line = f"{config(method='mtp', num_speculative_tokens=3)} {flags}"
    noted = [note for note in found(line).notes if "CUDA graphs" in note]
    assert [f"beyond {most} running" in note for note in noted] == ([] if most is None else [True])
    assert "CUDA graphs" not in str(found(f"vllm serve m {flags}").notes)


@pytest.mark.parametrize(
    ("version", "noted"), [((0, 8, 5), []), ((0, 13), []), ((0, 14), [0]), ((0, 33), [0])]
)
def test_parameters_are_refused_from_0_14_on(version, noted):
    """An old version is as well known as a new one."""
    line = config(method="eagle3", draft_sample_method="probabilistic")
    notes = found(line, version).notes

    assert [at for at, note in enumerate(notes) if "status 400" in note] == noted
    assert any("draft_sample_method" in note for note in notes) == (version >= (0, 22))


@pytest.mark.parametrize(("version", "known"), [((0, 33, 1), True), ((0, 34), False)])
def test_a_version_past_the_table_is_noted(version, known):
    note = "this check knows vLLM up to 0.33, and does not find what later versions removed"
    assert (note in found(GOOD, version).notes) == (not known)


def test_the_command_prints_what_it_finds_and_its_code_says_whether_the_line_works(capsys):
    """Without reading vLLM's page."""
    assert command("check", "--args", GOOD) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "vLLM 0.33: nothing removed or obsolete found; vLLM itself finds wrong or missing values "
        "when it starts"
    )

    line = "vllm serve m --speculative-model d"
    assert command("check", "--args", line, "--vllm-version", "v0.32.0") == 1
    summary, fault = capsys.readouterr().out.splitlines()
    assert summary == "vLLM 0.32.0: 1 problem"
    assert fault == (
        "  --speculative-model was removed in about 0.8.3; "
        "use --speculative-config '{\"model\": …}'"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--args", "vllm serve 'm"), "--args: No closing quotation"),
        (("--args", " "), "--args: the command line is empty"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused(capsys, arguments, reason):
    assert command("check", *arguments) == 2
    assert reason in capsys.readouterr().err


def test_a_version_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        command("check", "--args", GOOD, "--vllm-version", "latest")

    assert "expected a version such as 0.32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "keys", "dropped"),
    [
        # What vLLM 0.32's own parser makes of each.
        (
            """-sc '{"method": "medusa", "model": "d"}' -sc.num_speculative_tokens 3""",
            {"num_speculative_tokens": 3},
            ("method", "model"),
        ),
        (
            """-sc.num_speculative_tokens 3 -sc '{"method": "ngram"}'""",
            {"num_speculative_tokens": 3},
            ("method",),
        ),
        (
            """-sc '{"method": "ngram"}' -sc.method suffix""",
            {"method": "suffix"},
            (),
        ),
        (
            "--speculative-config.method ngram -sc.num_speculative_tokens 3",
            {"num_speculative_tokens": 3},
            ("method",),
        ),
        (
            """--speculative-config '{"method": "ngram"}' -sc '{"num_speculative_tokens": 3}'""",
            {"num_speculative_tokens": 3},
            ("method",),
        ),
        (
            "-sc.method ngram --spec-tokens 3",
            {"method": "ngram", "num_speculative_tokens": "3"},
            (),
        ),
    ],
)
def test_what_is_said_last_takes_the_place_of_all_before(given, keys, dropped):
    line = read_line(f"vllm serve m {given}")
    assert (line.keys, line.dropped) == (keys, dropped)

    said = [fault for fault in found(f"vllm serve m {given}").faults if "vLLM drops" in fault]
    assert len(said) == bool(dropped)
    assert all(key in fault for key in dropped for fault in said)


@pytest.mark.parametrize("later", ["--spec-tokens 3", "-sc.num_speculative_tokens 3", "-sc '{}'"])
@pytest.mark.parametrize("is_first", [True, False])
def test_broken_json_is_a_fault_whatever_else_the_line_says(later, is_first):
    """vLLM reads each of them, and exits with 2."""
    broken = """--speculative-config {"method": "ngram"}"""
    parts = (broken, later) if is_first else (later, broken)
    (fault,) = found(f"vllm serve m {' '.join(parts)}").faults
    assert fault.startswith("--speculative-config is not a JSON object")


@pytest.mark.parametrize("version", ["0.1.dev20904+g8d599d76a", "v0.1.dev1"])
def test_a_build_from_source_is_taken_for_the_newest(version, capsys):
    """It calls itself 0.1 where there are no tags, whatever its age."""
    line = config(method="medusa", model="d")
    assert command("check", "--args", line, "--vllm-version", version) == 1
    assert "the method medusa was removed" in capsys.readouterr().out


@pytest.mark.parametrize("stages", ["-pp 4", "--pipeline_parallel_size=2"])
def test_pipeline_stages_with_mtp_are_named(stages):
    line = f"{config(method='deepseek_mtp')} {stages}"
    (fault,) = found(line, (0, 28)).faults
    assert "with pipeline stages keeps vLLM from starting" in fault

    newer = found(line, (0, 33))
    assert newer.faults == ()
    assert any("needs model runner V2 and a head that supports them" in n for n in newer.notes)
    assert found(f"{config(method='ngram')} {stages}", (0, 28)).faults == ()
    assert found(f"{config(method='mtp')} -pp 1", (0, 28)).faults == ()


def test_a_thinking_budget_that_is_ignored_is_noted():
    line = f"{config(method='mtp')} --reasoning-parser qwen3"
    assert any("thinking_token_budget" in note for note in found(line, (0, 33)).notes)
    assert not any("thinking" in note for note in found(config(method="mtp"), (0, 33)).notes)
    plain = found("vllm serve m --reasoning-parser qwen3").notes
    assert not any("thinking" in note for note in plain)

import json

import pytest

from sidecar.commands.plan.advice import Fit, draft_cost, plan
from sidecar.commands.plan.memory import Deployment, Model
from tests.commands.commands_tools import command

PAIR = ("--target", "70b", "--target-precision", "int8", "--draft", "8b", "--gpu", "h100", "--gpus", "2")
KV = 327_680  # bytes per token of 80x8x128 at 16 bits


def deployment(target, draft, *, utilization=0.9, kv=None, draft_kv=None):
    return pair(Model(70, target, kv), Model(8, draft, draft_kv), 2, 80.0, utilization)


def pair(target, draft, gpus, gpu_gb, utilization=0.9, *, draft_gpus=None):
    known = {"gpus": gpus, "gpu_gb": gpu_gb, "utilization": utilization, "draft_gpus": draft_gpus or gpus}
    return Deployment(target=target, draft=draft, **known)


@pytest.mark.parametrize(
    ("precisions", "gpu", "weights", "left"),
    [
        (("int8", "bf16"), "h100", 86, 74),
        (("bf16", "bf16"), "h100", 156, 4),
        (("bf16", "bf16"), "h200", 156, 126),
        (("int4", "bf16"), "a100-80", 51, 109),
        (("int4", "int4"), "h100", 39, 121),
        (("int8", "int8"), "h100", 78, 82),
    ],
)
def test_memory_of_known_pairs(capsys, precisions, gpu, weights, left):
    target, draft = precisions
    models = ("--target", "70b", "--draft", "8b", "--target-precision", target, "--draft-precision", draft)
    assert command("plan", *models, "--gpu", gpu, "--gpus", "2", "--json") == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert (memory["weights_gb"], memory["left_gb"]) == (weights, left)


def test_what_is_left_for_the_cache_with_the_draft_and_without_it():
    found = plan(deployment("int8", "bf16", utilization=0.5, draft_kv=100_000))
    assert (found.memory.left_gb, found.memory.kv_gb, found.memory_without_draft.kv_gb) == (74, -6, 10)
    assert found.memory.kv_tokens is None  # without the target's shape
    found = plan(deployment("int8", "bf16", kv=KV))
    assert found.memory.kv_tokens == pytest.approx(58e9 / KV)
    assert found.memory_without_draft.kv_tokens == pytest.approx(74e9 / KV)
    found = plan(deployment("int8", "bf16", kv=300_000, draft_kv=100_000))
    assert found.memory.kv_tokens == pytest.approx(58e9 / 400_000)
    assert found.memory_without_draft.kv_tokens == pytest.approx(74e9 / 300_000)


@pytest.mark.parametrize(
    ("target", "draft", "memory", "broken"),
    [
        (Model(70, "int4"), Model(8.75, "int4"), 160, []),
        (Model(70, "int4"), Model(70 / 12, "int4"), 160, []),
        (Model(70, "int4"), Model(9, "int4"), 160, ["draft to target"]),
        (Model(70, "int4"), Model(5, "int4"), 160, ["draft to target"]),
        (Model(70, "int8"), Model(7, "int8"), 100, []),
        (Model(70, "int8"), Model(7, "int8"), 99.9, ["target's share of memory"]),
        (Model(60, "int4"), Model(7.5, "bf16"), 100, []),
        (Model(60, "int4"), Model(7.5, "bf16"), 99, ["draft's share of memory"]),
    ],
)
def test_the_rules_of_thumb(target, draft, memory, broken):
    found = plan(pair(target, draft, 1, memory, 1.0))
    assert [check.name for check in found.checks if not check.passed] == broken
    assert found.verdict is (Fit.DOUBTFUL if broken else Fit.GOOD)
    assert len(found.reasons) == len(broken)


def test_weights_that_leave_no_room_are_impossible():
    found = plan(deployment("bf16", "bf16"))
    assert found.verdict is Fit.IMPOSSIBLE
    assert "quantize one of the models" in found.reasons[0]
    assert "the target alone" in plan(deployment("fp32", "bf16")).reasons[0]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--target", "big", "not a number of parameters"),
        ("--target", "0b", "not a number of parameters"),
        ("--gpus", "0", "write a whole number from 1 to 4096"),
        ("--utilization", "1.1", "a share above 0"),
        ("--utilization", "nan", "a share above 0"),
        ("--kv", "80x0x128", "layers x KV heads"),
        ("--gpu", "tpu", "invalid choice"),
    ],
)
def test_unusable_arguments_are_refused(capsys, option, value, said):
    given = {"--target": "70b", "--draft": "8b", "--gpu": "h100"} | {option: value}
    with pytest.raises(SystemExit) as ended:
        command("plan", *[word for pair in given.items() for word in pair])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_text_has_the_memory_the_cache_the_rules_and_the_verdict(capsys):
    assert command("plan", *PAIR, "--kv", "80x8x128", "--context", "8192") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines[3:5]] == [["weights", "86.0"], ["left", "74.0"]]
    assert lines[7] == ["KV", "cache", "58.0", "GB", "74.0", "GB", "16.0", "GB"]
    assert lines[8] == ["KV", "tokens", "177,002", "225,830", "48,828"]
    assert lines[9] == ["requests", "of", "8,192", "tokens", "21", "27", "6"]
    assert ["draft", "to", "target", "1:8.8", "8", "to", "12", "yes"] in lines
    assert any("vLLM's own benchmark used 1:140 and won at low load" in " ".join(line) for line in lines)
    assert lines[-1] == ["verdict:", "good"]


def test_without_the_shape_of_the_cache_there_are_no_tokens(capsys):
    assert command("plan", *PAIR, "--context", "8192") == 0
    out = capsys.readouterr().out
    assert "to count the cache in tokens, give --kv" in out
    assert "requests of" not in out


def test_without_a_draft_the_methods_that_need_none_are_listed(capsys):
    assert command("plan", "--target", "70b", "--gpu", "h100", "--gpus", "4", "--kv", "80x8x128") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert rows.keys() >= {"eagle3", "mtp", "ngram", "suffix"}
    assert rows["eagle3"].split()[1:4] == ["2.8", "GB", "yes"]
    assert "in the target" in rows["mtp"]
    assert any("eagle3's memory is estimated: 0.425B x (target / 8B)^0.55 at 16 bits" in line for line in lines)
    assert not [line for line in lines if line.startswith("draft ") or "without it" in line]
    assert lines[-1] == "verdict: good"


def test_a_draft_on_one_gpu_bounds_the_cache_on_all(capsys):
    both, one = (plan(pair(Model(70, "int8"), Model(8, "bf16"), 4, 80.0, draft_gpus=gpus)) for gpus in (4, 1))
    assert (both.memory.kv_gb, one.memory.kv_gb) == (4 * 72 - 86, 4 * (72 - 70 / 4 - 16))
    assert both.memory.weights_gb == one.memory.weights_gb
    assert any("vLLM 0.32 takes draft_tensor_parallel_size 1" in remark for remark in one.remarks)
    for gpus, allowed in (("4", "1 or 4"), ("1", "1")):
        assert command("plan", *PAIR, "--gpus", gpus, "--draft-gpus", "2") == 2
        assert capsys.readouterr().err == f"--draft-gpus=2: with --gpus {gpus} it can only be {allowed}\n"


@pytest.mark.parametrize(
    ("target", "draft", "said"),
    [
        ("int8", "bf16", "quantize the draft first"),
        ("int4", "int4", "compare its acceptance before and after"),
        ("bf16", "int8", "compare its acceptance before and after"),
        ("bf16", "bf16", None),
    ],
)
def test_quantized_pairs_get_a_remark(target, draft, said):
    remarks = plan(deployment(target, draft)).remarks
    found = [text for text in remarks if "quantize the draft first" in text or "before and after" in text]
    assert [said in text for text in found] == ([True] if said else [])


def test_break_even_at_light_load_is_the_drafts_share_of_the_bytes_read():
    """1 + c K tokens a step: an 8B draft of a 70B target; held by one of two GPUs, it is read half as fast."""
    shared, alone = (pair(Model(70, "bf16"), Model(8, "bf16"), 2, 141.0, draft_gpus=gpus) for gpus in (2, 1))
    assert draft_cost(shared) == pytest.approx(8 / 70)
    assert draft_cost(alone) == pytest.approx(2 * 8 / 70)
    assert any("a length of 1 + 0.11 K, an acceptance of 11%" in remark for remark in plan(shared).remarks)
    assert draft_cost(pair(Model(70, "bf16"), None, 2, 141.0)) is None


def test_a_draft_that_is_no_faster_than_its_target_can_never_pay():
    equal, larger = (plan(pair(Model(8, "bf16"), Model(size, "bf16"), 1, 400.0)).remarks for size in (8, 70))
    assert any("takes about 1 target steps, so drafting can never pay" in remark for remark in equal)
    assert any("takes about 8.8 target steps, so drafting can never pay" in remark for remark in larger)
    assert not any("break even" in remark for remark in (*equal, *larger))

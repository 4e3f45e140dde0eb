import json

import pytest

from sidecar.commands.plan.advice import Fit, plan
from sidecar.commands.plan.memory import Deployment, KvShape, Model
from tests.commands.commands_tools import command


def deployment(target, draft, *, utilization=0.9, kv=None, draft_kv=None):
    return Deployment(Model(70, target, kv), Model(8, draft, draft_kv), 2, 80.0, utilization)


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
def test_the_known_table(capsys, precisions, gpu, weights, left):
    target, draft = precisions
    models = ("--target", "70b", "--draft", "8b", "--target-precision", target, "--draft-precision", draft)
    assert command("plan", *models, "--gpu", gpu, "--gpus", "2", "--json") == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert (memory["weights_gb"], memory["left_gb"]) == (weights, left)


def test_text_says_what_json_says(capsys):
    code = command(
        "plan", "--target", "70b", "--target-precision", "int8", "--draft", "8b", "--gpu", "h100", "--gpus", "2"
    )
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[3].split() == ["weights", "86.0", "GB"]
    assert lines[4].split()[:3] == ["left", "74.0", "GB"]
    assert lines[5].split()[:4] == ["KV", "budget", "58.0", "GB"]
    assert "KV tokens               unknown  say --kv" in lines
    assert lines[-1] == "verdict: good"


def test_utilization_bounds_the_budget_and_not_what_is_left():
    found = plan(deployment("int8", "bf16", utilization=0.5)).budget
    assert (found.left_gb, found.kv_gb, found.kv_gb_without_draft) == (74, -6, 10)


def test_tokens_lost_to_the_weights_of_the_draft():
    kv = KvShape(80, 8, 128).bytes_per_token("bf16")
    assert kv == 327_680
    found = plan(deployment("int8", "bf16", kv=kv)).budget
    assert found.kv_tokens == pytest.approx(58e9 / kv)
    assert found.kv_tokens_lost == pytest.approx(16e9 / kv)


def test_the_drafts_own_cache_takes_its_part_of_each_token():
    found = plan(deployment("int8", "bf16", kv=300_000, draft_kv=100_000)).budget
    assert found.kv_tokens == pytest.approx(58e9 / 400_000)
    assert found.kv_tokens_without_draft == pytest.approx(74e9 / 300_000)


def test_tokens_are_unknown_without_the_targets_shape():
    found = plan(deployment("int8", "bf16", draft_kv=100_000)).budget
    assert (found.kv_tokens, found.kv_tokens_lost) == (None, None)


@pytest.mark.parametrize(
    ("target", "draft", "broken"),
    [
        (70, 8.75, []),
        (70, 70 / 12, []),
        (70, 9, ["size_ratio"]),
        (70, 5, ["size_ratio"]),
    ],
)
def test_pairing_is_judged_by_size(target, draft, broken):
    found = plan(Deployment(Model(target, "int4"), Model(draft, "int4"), 2, 80.0, 0.9))
    assert [check.name for check in found.checks if not check.passed] == broken
    assert found.fit is (Fit.DOUBTFUL if broken else Fit.GOOD)
    assert len(found.reasons) == len(broken)


@pytest.mark.parametrize(("memory", "broken"), [(100, []), (99.9, ["target_share"])])
def test_the_target_may_take_seventy_percent(memory, broken):
    found = plan(Deployment(Model(70, "int8"), Model(7, "int8"), 1, memory, 1.0))
    assert [check.name for check in found.checks if not check.passed] == broken


@pytest.mark.parametrize(("memory", "broken"), [(100, []), (99, ["draft_share"])])
def test_the_draft_may_take_fifteen_percent(memory, broken):
    found = plan(Deployment(Model(60, "int4"), Model(7.5, "bf16"), 1, memory, 1.0))
    assert [check.name for check in found.checks if not check.passed] == broken


def test_weights_that_leave_no_room_are_impossible():
    found = plan(deployment("bf16", "bf16"))
    assert found.fit is Fit.IMPOSSIBLE
    assert "quantize one of the models" in found.reasons[0]
    alone = plan(deployment("fp32", "bf16"))
    assert "the target alone" in alone.reasons[0]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--target", "big", "no number of parameters"),
        ("--target", "0b", "no number of parameters"),
        ("--gpus", "0", "no number of GPUs"),
        ("--utilization", "1.1", "a share above 0"),
        ("--utilization", "nan", "a share above 0"),
        ("--kv", "80x0x128", "layers x KV heads"),
        ("--gpu", "tpu", "invalid choice"),
    ],
)
def test_what_can_not_be_used_is_refused(capsys, option, value, said):
    given = {"--target": "70b", "--draft": "8b", "--gpu": "h100"} | {option: value}
    with pytest.raises(SystemExit) as ended:
        command("plan", *[word for pair in given.items() for word in pair])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_millions_and_plain_numbers_are_understood(capsys):
    command("plan", "--target", "8", "--draft", "800M", "--gpu-memory", "24", "--json")
    given = json.loads(capsys.readouterr().out)["deployment"]
    assert (given["target"]["billions"], given["draft"]["billions"]) == (8, 0.8)

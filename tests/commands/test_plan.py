import pytest

from sidecar.commands.plan import Deployment, Model, checked_rules, remarks, verdict
from tests.commands.commands_tools import command

PAIR = ("--target", "70b", "--target-precision", "int8", "--draft", "8b", "--gpu", "h100", "--gpus", "2")
KV = 327_680  # bytes per token of 80x8x128 at 16 bits


def pair(target, draft, gpus=2, gpu_gb=80.0, utilization=0.9):
    return Deployment(target=target, draft=draft, gpus=gpus, gpu_gb=gpu_gb, utilization=utilization)


def judged(deployment):
    """The verdict, and the rules that are broken."""
    rules = list(checked_rules(deployment))
    return verdict(deployment, rules), [rule.name for rule in rules if not rule.met]


def test_the_kv_cache_gets_what_the_weights_leave():
    def with_cache(kv=None, draft_kv=None, utilization=0.9):
        return pair(Model(70, "int8", kv), Model(8, "bf16", draft_kv), utilization=utilization)

    assert pair(Model(70, "int4"), Model(8, "int4")).weights_gb == 39
    assert (with_cache(utilization=0.5).kv_gb, with_cache(draft_kv=100_000).kv_tokens) == (-6, None)
    assert with_cache(KV).kv_tokens == pytest.approx(58e9 / KV)
    assert with_cache(300_000, 100_000).kv_tokens == pytest.approx(58e9 / 400_000)


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
def test_each_rule_of_thumb_holds_up_to_its_bounds(target, draft, memory, broken):
    assert judged(pair(target, draft, 1, memory, 1.0)) == ("doubtful" if broken else "good", broken)


def test_weights_that_leave_no_room_are_impossible(capsys):
    assert judged(pair(Model(70, "bf16"), Model(8, "bf16")))[0] == "impossible"
    assert command("plan", "--target", "70b", "--gpu", "h100") == 1
    out = capsys.readouterr().out
    assert "verdict: impossible\n  the weights leave no room for a KV cache at this utilization" in out


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


def test_the_logits_of_a_draft_that_samples_are_counted_on_each_gpu(capsys):
    assert command("plan", *PAIR, "--draft-logits", "256x3x128256") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[5][:3] == ["logits", "0.4", "GB"]
    assert lines[5][-1] == "0.005"  # of a GPU of 80 GB
    assert lines[8] == ["KV", "cache", "57.2", "GB", "74.0", "GB", "16.8", "GB"]


def test_without_the_shape_of_the_cache_there_are_no_tokens(capsys):
    assert command("plan", *PAIR, "--context", "8192") == 0
    out = capsys.readouterr().out
    assert "to count the cache in tokens, set --kv" in out
    assert "requests of" not in out


def test_without_a_draft_the_methods_that_need_none_are_listed(capsys):
    assert command("plan", "--target", "70b", "--gpu-memory", "80", "--gpus", "4", "--kv", "80x8x128") == 0
    lines = capsys.readouterr().out.splitlines()
    methods = [line.split()[0] for line in lines if line.startswith("  ")]
    assert methods == ["method", "eagle3", "mtp", "ngram", "suffix"]
    assert not [line for line in lines if line.startswith("draft ") or "without it" in line]
    assert lines[-1] == "verdict: good"


def test_the_remarks_follow_from_the_pair():
    """A draft token costs the draft's share of the bytes that are read."""
    text = " ".join(remarks(Model(70, "bf16", KV), Model(8, "bf16")))
    assert "without the draft's own keys and values: set --draft-kv" in text
    assert "a length of 1 + 0.11 K, an acceptance rate of 11%" in text
    assert "quantize" not in text
    assert "quantize the draft first" in " ".join(remarks(Model(70, "int8", KV), Model(8, "bf16", KV)))

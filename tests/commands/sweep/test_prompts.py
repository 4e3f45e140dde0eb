import json

import pytest

from sidecar.commands.sweep import options as module
from sidecar.commands.sweep.options import read_prompts
from sidecar.errors import InputError

MARKER = "zebrafish"


@pytest.fixture
def prompts(tmp_path):
    """The prompts of a file with this content."""

    def read(content, suffix=""):
        file = tmp_path / f"prompts{suffix}"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_prompts(file)

    return read


def test_prompts_come_as_lines_or_as_json(prompts):
    assert prompts('plain\n\n{"a": 1}\n"b" he said\n') == ("plain", '{"a": 1}', '"b" he said')
    assert prompts("".join(f"{number}\n" for number in range(10_001)))[-1] == "9999"
    assert prompts('{"prompt": "a\\nb", "x": 1}\n\n"c"\n{"text": "d"}\n', ".jsonl") == ("a\nb", "c")


@pytest.mark.parametrize(
    ("content", "suffix", "said"),
    [
        (b"", "", "no prompts"),
        (b'[{"zebrafish": 1}, 5]', ".json", "no prompts"),
        (b"{zebrafish", ".jsonl", "not JSON as its name says"),
        (b"1", ".json", "not JSON as its name says"),
        (b"[" * 99, ".json", "not JSON as its name says"),
        (b"\xff", "", "not UTF-8 text"),
        (b"x" * 100, "", "larger than 0 MiB"),
    ],
)
def test_unusable_prompts_are_refused(prompts, content, suffix, said, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 99)
    with pytest.raises(InputError) as found:
        prompts(content, suffix)
    assert said in str(found.value)
    assert MARKER not in str(found.value)


def test_prompts_come_from_conversations(prompts):
    """ShareGPT's format, in which the model may have the first turn, and OpenAI's."""
    shared = [
        {"id": "1", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "no"}]},
        {"id": "2", "conversations": [{"from": "gpt", "value": "no"}, {"from": "human", "value": "b"}]},
        {"id": "3", "conversations": []},
        {"id": "4", "conversations": [{"from": "gpt", "value": "no"}]},
        {"messages": [{"role": "system", "content": "no"}, {"role": "user", "content": "c"}]},
    ]
    assert prompts(json.dumps(shared), ".json") == ("a", "b", "c")
    assert prompts("\n".join(json.dumps(one) for one in shared), ".jsonl") == ("a", "b", "c")

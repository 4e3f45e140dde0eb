import json

import pytest

from sidecar.commands.sweep import prompts as module
from sidecar.commands.sweep.prompts import read_prompts
from sidecar.errors import InputError

MARKER = "zebrafish"


def test_prompts_come_as_lines_or_as_json(tmp_path):
    file = tmp_path / "prompts"
    file.write_text('plain\n\n{"prompt": "a\\nb"}\n"c"\n"d" he said\n{"text": "e", "x": 1}\n')
    assert read_prompts(file) == ("plain", "a\nb", "c", '"d" he said', "e")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no prompts"),
        (b"[]", "no prompts"),
        (b'[{"zebrafish": 1}]', "entry 1: no text under any of"),
        (b'ok\n{"zebrafish": 1}\n', "line 2: no text under any of prompt, text, question, input, conv"),
        (b"{zebrafish", "line 1: not JSON"),
        (b"\xff", "not UTF-8 text"),
    ],
)
def test_unusable_prompts_are_refused(tmp_path, content, said):
    file = tmp_path / "prompts"
    file.write_bytes(content)
    with pytest.raises(InputError) as found:
        read_prompts(file)
    assert said in str(found.value)
    assert MARKER not in str(found.value)


def test_prompts_come_from_conversations(tmp_path):
    """ShareGPT's format, in which the model may have the first turn, and OpenAI's."""
    shared = [
        {"id": "1", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "no"}]},
        {"id": "2", "conversations": [{"from": "gpt", "value": "no"}, {"from": "human", "value": "b"}]},
        {"id": "3", "conversations": []},
        {"id": "4", "conversations": [{"from": "gpt", "value": "no"}]},
        {"messages": [{"role": "system", "content": "no"}, {"role": "user", "content": "c"}]},
    ]
    file = tmp_path / "prompts"
    file.write_text(json.dumps(shared))
    assert read_prompts(file) == ("a", "b", "c")
    file.write_text("\n".join(json.dumps(one) for one in shared))
    assert read_prompts(file) == ("a", "b", "c")


def test_a_line_may_begin_with_a_bracket(tmp_path):
    file = tmp_path / "prompts"
    file.write_text("[1] is a citation\nplain\n")
    assert read_prompts(file) == ("[1] is a citation", "plain")


def test_the_first_ten_thousand_are_taken(tmp_path):
    file = tmp_path / "prompts"
    file.write_text("".join(f"{number}\n" for number in range(10_001)))
    assert read_prompts(file)[-1] == "9999"


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 1024 * 1024)
    file = tmp_path / "prompts"
    file.write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(InputError, match="over 1 MiB"):
        read_prompts(file)

import json
import shlex

import pytest

from specdec_tools.commands.terminal import broken, colored


@pytest.fixture
def columns(monkeypatch):
    """Of the terminal."""

    def set_columns(number):
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(number))

    return set_columns


def test_a_sentence_keeps_its_indent_its_colours_and_its_numbers_with_their_units(columns):
    columns(42)
    sentence = (
        f"  {colored('It saves 24 ms at T 0.7-1 and 9.5 ± 0.2 ms at T 1+ or', 'good')} elsewhere."
    )
    shown = [*broken([sentence])]

    assert all(line.startswith("  ") for line in shown)
    assert " ".join(line.strip() for line in shown) == sentence.strip()
    assert len(shown) == 2
    for unit in ("24 ms", "T 0.7-1", "9.5 ± 0.2 ms", "T 1+"):
        assert any(unit in line for line in shown)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "  all requests  pays  ··········│·····●····  1.50 ± 0.02 x",
        "  https://an.address/that/has/no/space/but/more/than/forty-two/letters",
    ],
)
def test_rows_and_addresses_stay_whole(columns, line):
    columns(42)
    assert [*broken([line])] == [line]


def test_an_option_is_the_same_to_a_shell_where_its_lines_are_broken(columns):
    given = {"method": "eagle3", "num_speculative_tokens": 3, "model": "a/head, of this model"}
    option = f"  --speculative-config '{json.dumps(given)}'"
    columns(72)
    lines = [*broken([option])]

    assert lines == [
        """  --speculative-config '{"method": "eagle3",""",
        """    "num_speculative_tokens": 3, "model": "a/head, of this model"}'""",
    ]
    _, pasted = shlex.split("\n".join(lines))
    assert json.loads(pasted) == given


def test_a_command_within_a_sentence_stays_whole(columns):
    """The terminal breaks it without a line end, which would end the command."""
    command = "`specdec-sidecar baseline --url URL --out baseline.yaml`"
    columns(42)
    assert [*broken([f"First measure what it saves: {command} (docs/measure.md)."])] == [
        "First measure what it saves:",
        command,
        "(docs/measure.md).",
    ]


def test_a_tiny_terminal_still_gets_whole_words(columns):
    columns(1)
    assert [*broken(["Does speculation pay? vLLM does not answer."])] == [
        "Does speculation pay? vLLM does not",
        "answer.",
    ]


def test_a_file_gets_long_lines():
    sentence = "word " * 100
    assert [*broken([sentence])] == [sentence]

import json

import pytest

from sidecar.commands.sweep.measured import encode
from tests.commands.commands_tools import command
from tests.commands.compare.made_sweeps import level, swept

EMPTY = b'{"format":%d,"model":null,"max_tokens":1,"rounds":1,"complete":true,"faults":{},"levels":[]}'


@pytest.fixture
def saved(tmp_path):
    """Two sweeps of one server, and one of a server without speculation that takes twice as long: files by name."""
    made = {"one": level(1), "again": level(2), "plain": level(3, k=0, tpot=0.02)}
    for name, one in made.items():
        (tmp_path / f"{name}.json").write_bytes(encode(swept(one)))
    return {name: str(tmp_path / f"{name}.json") for name in made}


def test_saved_sweeps_are_compared(saved, capsys):
    assert command("compare", saved["one"], saved["again"], "--json") == 0
    again = json.loads(capsys.readouterr().out)
    (level,) = again["levels"]
    assert abs(level["changes"]["acceptance"]["value"]) < level["changes"]["acceptance"]["error"]
    assert (again["result"], level["shown"]) == ("no_difference_shown", [])
    assert command("compare", saved["one"], saved["plain"], "--fail-if-slower", "5%") == 1
    assert " at temperature 0, concurrency 4 is slower by " in capsys.readouterr().err
    assert command("compare", saved["plain"], saved["one"], "--fail-if-slower", "20%") == 0
    assert f"verdict: {saved['one']} is faster than {saved['plain']}" in capsys.readouterr().out


def test_both_sides_and_the_change_are_rows_of_one_table(saved, capsys):
    assert command("compare", saved["one"], saved["plain"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    header = next(number for number, line in enumerate(lines) if line[:1] == ["temperature"])
    before, after, change, error = lines[header + 1 : header + 5]
    assert before[:4] == ["0", "concurrency", "4", "before"]
    assert (after[:3], change[:3]) == (["after", "-", "-"], ["change", "-", "-"])
    assert change[-1].startswith("-")
    assert error[-1].startswith("±")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"{", "not a file that `sweep --save` of this version wrote"),
        (b"[" * 100_000, "not a file that `sweep --save` of this version wrote"),
        (EMPTY % 3, "no request was answered in it"),
        (EMPTY % 2, "not a file that `sweep --save` of this version wrote"),
    ],
)
def test_other_files_are_refused(tmp_path, capsys, content, said):
    file = tmp_path / "a.json"
    if content is not None:
        file.write_bytes(content)
    assert command("compare", str(file), str(file)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["0", "x", "101%", "nan"])
def test_a_limit_that_is_not_a_share_is_refused(limit):
    with pytest.raises(SystemExit) as ended:
        command("compare", "a", "b", "--fail-if-slower", limit)
    assert ended.value.code == 2

import json

import pytest

from sidecar.commands.sweep.results import save
from tests.commands.commands_tools import command
from tests.commands.sweep.sweep_tools import simulated, swept

EMPTY = (
    b'{"format":%d,"model":null,"max_tokens":1,"rounds":1,"complete":true,"capacity":null,"faults":{},'
    b'"temperatures":[],"mixes":[],"levels":[]}'
)


@pytest.fixture
async def saved(tmp_path):
    """Two sweeps of one server, and one of a server without speculation at a quarter of the speed: files by name."""
    files = {}
    for name, options in {"one": {}, "again": {}, "plain": {"num_speculative_tokens": 0, "speed": 1}}.items():
        async with simulated(**{"speed": 4, **options}) as vllm:
            result = await swept(vllm.url, temperatures=(0.0,), at_once=(2,), requests=24, rounds=8)
        files[name] = str(tmp_path / f"{name}.json")
        save(result, tmp_path / f"{name}.json")
    return files


async def test_real_sweeps_are_compared(saved, capsys):
    assert command("compare", saved["one"], saved["again"], saved["plain"], "--json") == 0
    again, plain = json.loads(capsys.readouterr().out)
    acceptance = next(one for one in again["differences"] if one["metric"] == "acceptance")
    assert acceptance["change"]["low"] < 0 < acceptance["change"]["high"]
    assert plain["result"] == "slower"
    shown = {one["metric"] for one in plain["differences"] if one["shown"]}
    assert shown & {"TPOT P50", "tokens/s"}
    assert command("compare", saved["one"], saved["plain"], "--fail-if-slower", "5%") == 1
    assert " at temperature 0, 2 at once is slower by " in capsys.readouterr().err
    assert command("compare", saved["plain"], saved["one"], "--fail-if-slower", "5%") in (0, 3)
    out = capsys.readouterr().out
    assert f"verdict: {saved['one']} is faster than {saved['plain']}" in out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"{", "not a file that `sweep --save` wrote"),
        (b'{"levels": []}', "not a file that `sweep --save` wrote"),
        (b"\xff", "not a file that `sweep --save` wrote"),
        (b"[" * 100_000, "not a file that `sweep --save` wrote"),
        (EMPTY % 1, "no single requests in it"),
        (EMPTY % 9, "format 9; this version reads format 1"),
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

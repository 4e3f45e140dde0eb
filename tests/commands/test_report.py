import asyncio
import base64
import json
from dataclasses import replace

import pytest
from aiohttp import web

from sidecar.analysis.advice import Advice
from sidecar.analysis.change import Change, Median, Moment, Sample
from sidecar.analysis.endings import EndingsReport
from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.engine.health import Ailing, Ailment, HealthReport
from sidecar.analysis.judgement import Gate, Undecided, Verdict
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Phase
from sidecar.errors import BadStatus
from sidecar.export.status import status
from sidecar.requests.messages import Speculation
from sidecar.wording.notes import LIMITATIONS
from specdec_tools.commands.status_rows import axis
from tests.analysis.test_checklist import GOOD, LIGHT
from tests.commands.commands_tools import command
from tests.debian_servers import free_port
from tests.export.reports import (
    EAGLE,
    NEVER_CONNECTED,
    NOW,
    STRUCTURED,
    by_bucket,
    difference,
    down,
    engine,
    group,
    judgement,
    model,
    plain_model,
    report,
    shown,
    speed,
    temperature,
    timed,
    timed_model,
    window,
)
from tests.waiting import START_SECONDS, until

DFLASH = Speculation("dflash", 15)


@pytest.fixture
def reported(capsys, served):
    """What the report on a sidecar with this tree prints."""

    async def run(tree, *options):
        async def handler(_request):
            return web.json_response(status(shown(tree)))

        async with served(handler) as url:
            assert await asyncio.to_thread(command, "report", "--url", url, *options) == 0
        return capsys.readouterr().out.replace(url, "URL")

    return run


async def test_it_says_how_the_last_replies_ended(reported):
    shares = {"normal": 0.5, "loop": 0.38, "empty": 0.12}
    tree = report(model(temperature("0"), endings=EndingsReport(requests=1200, shares=shares)))

    assert (
        "Of the last 1,200 replies, 38% repeat themselves until they are cut off and 12% are empty."
        in await reported(tree, "--all")
    )


async def test_it_says_whose_clock_its_times_are_by(reported):
    """A client measured 265 ms to the first token, and vLLM 193."""
    assert (
        "Times are vLLM's own, from the arrival of a request: its client waits longer."
        in await reported(report(model(temperature("0"))), "--all")
    )


async def test_a_temperature_is_shown_as_the_sidecar_judged_it(reported):
    """By time, by the rule of thumb over an hour, or not at all, each with its reason."""
    over_an_hour = judgement(Verdict.NET_NEGATIVE, 0.6, judged=replace(window(0.3), seconds=3000.0))
    losing = temperature("1+", Verdict.NET_NEGATIVE, 0.6, share=0.5, judgement=over_an_hour)
    by_time = timed("0", Verdict.NET_POSITIVE, 0.7, 30.0, 20.0)
    little = judgement(Verdict.INSUFFICIENT_DATA, 0.3, gate=Gate("min_requests", 20))
    tree = report(timed_model(by_time, losing, temperature("0.7-1", judgement=little), engines=()))
    text = await reported(tree, "--all")
    over = (
        "The acceptance rate is of the last 50 min, since the last 5 min had too little traffic."
        " The model as a whole gains: fewer draft tokens (num_speculative_tokens) would help these"
        " requests, at the expense of those that gain."
    )
    rows = {
        line.split()[0]: line.split()
        for line in text.splitlines()
        if line.startswith(("0 ", "1+ "))
    }
    times = ["80.0", "200.0", "300.0", "20.0", "30.0", "40.0"]
    assert rows["0"] == [
        "0",
        "pays",
        *("1.50", "±", "0.02"),
        "0.700",
        "0.500",
        "0.700",
        "0.800",
        "50%",
        "40",
        *times,
    ]
    assert rows["1+"] == [
        "1+",
        *("low", "acceptance,", "not", "measured"),
        "-",
        "0.300",
        "0.400",
        "0.600",
        "0.700",
        "50%",
        "40",
        *times,
    ]
    assert "model demo: pays (speedup over 300 s)" in text.splitlines()
    assert {
        f"  temperature 1+: {over}",
        "  temperature 0.7-1: No verdict: fewer than 20 requests (thresholds.min_requests).",
        "  speedup 1.500 ± 0.020; break-even acceptance rate 0.310",
    } <= set(text.splitlines())
    page = status(shown(tree))
    assert text.startswith(
        f"Does speculation pay? {page['answer']['text']}\n\n"
        f"As of 22:13:23 UTC.\n{page['answer']['why']}\n"
    )
    assert page["plugin"]["text"] in text


@pytest.mark.parametrize(
    ("rate", "error", "says"),
    [
        (0.31, 0.02, "break-even acceptance rate 0.310 ± 0.040"),
        (1.03, 0.02, "break-even acceptance rate above 0.990, if any"),
        (1.05, 0.02, "no rate breaks even"),
        (1.05, None, ""),
    ],
)
async def test_a_break_even_has_its_error_and_that_none_does_is_said_once_it_is_certain(
    reported, rate, error, says
):
    known = replace(speed(), break_even_acceptance=rate, break_even_error=error)
    text = await reported(report(timed_model(speed=known)), "--all")
    told = f"; {says}" if says else ""
    assert f"  speedup 1.500 ± 0.020{told}" in text.splitlines()


async def test_it_says_that_the_number_of_draft_tokens_fits_if_that_is_known(reported):
    text = await reported(report(timed_model(advice=Advice(fitting=3))), "--all")
    assert "  num_speculative_tokens 3 fits: by the measured step times, neither fewer" in text
    assert "fits" not in await reported(report(timed_model()), "--all")


async def test_who_accepts_less_and_what_each_engine_does(reported):
    """Groups that do not differ are left out, and what is unknown is a dash."""
    unjudged = judgement(Verdict.INSUFFICIENT_DATA)
    nothing = {"judgement": unjudged, "latencies": {}, "speculation": None, "coverage": None}
    limited = engine(limitations=frozenset({Limitation.NO_POSITIONS}), **nothing)
    groups = (
        group("prompt_tokens", "8k-32k", 0.4, difference=difference(0.4, 0.65)),
        group("output", "free"),
    )
    groups += (group("output", "structured", without_drafts=True),)
    text = await reported(
        report(model(temperature("0"), groups=groups, engines=(limited, engine(index="1")))),
        "--all",
    )
    lines = [line.split() for line in text.splitlines()]
    assert ["prompts", "of", "8k-32k", "tokens", "40%", "25", "±", "2", "points", "50%"] in lines
    assert not any(line[:2] == ["free", "output"] for line in lines)
    assert "  No drafts in the window for structured output." in text.splitlines()
    assert ["0", *["-"] * 9] in lines
    times = ["20.0", "60.0", "100.0"] * 2
    assert ["1", "eagle3,", "3", "tokens", "0.600", "1.000", *times] in lines
    assert f"  {LIMITATIONS[Limitation.NO_POSITIONS]}" in text.splitlines()
    assert (
        "  No speedup for demo: the step time without speculation is not known; measure it " in text
    )


async def test_why_it_loses_and_what_to_change(reported):
    tree = report(model(temperature("0"), findings=(STRUCTURED,)))
    lines = (await reported(tree, "--all")).splitlines()
    (why,) = (
        line
        for line in lines
        if line.startswith("  structured_output: Requests with structured output accept")
    )
    after = lines[lines.index(why) + 1 :]
    assert after[0].startswith(
        "  Try n-gram or suffix decoding, which repeats keys and punctuation. Only if that does"
    )
    assert after[1].startswith("  To verify: `specdec-sidecar sweep --url http://CHANGED:8000")


async def test_times_by_vllms_buckets_are_the_ranges_of_these(reported):
    """A quantile in the first bucket is only known to be below its edge."""
    one = by_bucket((0.0, 0.05), (0.06, 0.1), (0.06, 0.1), (0.1, 0.2))
    coarse = dict.fromkeys(Phase, one)
    tree = report(model(temperature("0"), engines=(engine(latencies=coarse),)))
    text = await reported(tree, "--all")
    (header,) = [" ".join(line.split()) for line in text.splitlines() if line.startswith("engine ")]
    assert header.endswith("coverage TTFT P50 P95 P99 TPOT P50 P95 P99")
    assert " <50.0  60.0-100.0  100.0-200.0 " in text


async def test_it_answers_in_the_order_of_the_status_page(reported):
    """What to change, the verdicts with their bars, what presses; tables are asked for.

    A bar of an acceptance rate stood on the axis of the speedups, and read as one.
    """
    by_time = timed("0", Verdict.NET_POSITIVE, 0.7, 30.0, 20.0)
    low = temperature("1+", Verdict.NET_NEGATIVE, 0.3)
    text = await reported(report(timed_model(by_time, low, findings=(STRUCTURED,))))
    lines = text.splitlines()

    answer, pays, hot, change, pressed, last = (
        next(number for number, line in enumerate(lines) if line.startswith(start))
        for start in ("Does ", "  T 0 ", "  T 1+ ", "  To change: ", "  KV cache", "specdec-")
    )
    assert answer < change < pays < hot < pressed < last == len(lines) - 1
    assert lines[pays].split() == [
        "T",
        "0",
        "pays",
        "··········│·····●····",
        "1.50",
        "±",
        "0.02",
        "x",
        "70%",
        "accepted",
    ]
    said = " ".join(lines[hot].split())
    assert said == "T 1+ low acceptance, not measured 30% accepted"
    assert lines[hot].index("30%") == lines[pays].index("70%")
    assert "TTFT P50" not in text
    assert "\033" not in text
    full = await reported(report(timed_model(by_time, low, findings=(STRUCTURED,))), "--all")
    assert len(text.split()) < len(full.split()) / 2


@pytest.mark.parametrize(
    ("ratio", "margin", "bar"),
    [
        (1.0, 0.0, "··········●··········"),
        (0.5, 0.0, "●·········│··········"),
        (9.0, 1.0, "··········│·········●"),
        (1.1, 0.3, "·······───│●────·····"),
    ],
)
def test_a_speedups_bar_has_its_interval_around_it(ratio, margin, bar):
    assert axis(ratio, margin) == bar


@pytest.mark.parametrize(
    ("terminal", "no_color", "is_colored"),
    [(True, "", True), (True, "1", False), (False, "", False)],
)
async def test_colours_are_for_terminals_only(
    reported, monkeypatch, terminal, no_color, is_colored
):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    text = await reported(report(timed_model(timed("0", Verdict.NET_POSITIVE, 0.7, 30.0, 20.0))))

    assert ("\033[1;32mpays" in text) == is_colored
    assert ("\033[" in text) == is_colored


async def test_sentences_break_between_words_on_a_terminal_alone(reported, monkeypatch):
    """The terminal broke them within words."""
    tree = report(timed_model(timed("0", Verdict.NET_POSITIVE, 0.7, 30.0, 20.0)))
    piped = (await reported(tree)).splitlines()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    broken = (await reported(tree)).splitlines()

    assert max(map(len, piped)) > 60
    assert not [line for line in broken if len(line) > 60 and "│" not in line]
    assert " ".join(" ".join(broken).split()) == " ".join(" ".join(piped).split())
    assert json.loads(await reported(tree, "--json"))["version"]


async def test_the_model_that_the_answer_is_about_comes_first(reported):
    """Its remedy is under the answer, as on the page; the first one's, that gains, was."""
    losing = judgement(Verdict.NET_NEGATIVE, 0.4, by_speedup=True)
    models = (timed_model(name="gains"), timed_model(name="loses", judgement=losing))
    for options in ((), ("--format", "markdown")):
        text = await reported(report(*models), *options)
        assert text.index("model loses") < text.index("model gains")


async def test_what_stands_beside_the_rows_of_the_page_is_printed_once(reported):
    """Of a temperature that loses it was not said what to do, nor why there is no verdict."""
    gate = Gate("min_requests", 20)
    little = judgement(Verdict.INSUFFICIENT_DATA, 0.3, gate=gate)
    few = temperature("0", judgement=little)
    losing = temperature("1+", Verdict.NET_NEGATIVE, 0.3)
    lines = (await reported(report(model(few, losing)))).splitlines()

    assert lines.count("  T 0: No verdict: fewer than 20 requests (thresholds.min_requests).") == 1
    assert lines.count("  T 1+: Speculate fewer tokens (num_speculative_tokens).") == 1
    assert not any("Times are vLLM's own" in line for line in lines)  # the page folds that

    same = model(few, temperature("1+", judgement=little), judgement=little)
    assert (await reported(report(same))).count("fewer than 20 requests") == 1


async def test_a_bar_of_an_acceptance_rate_says_what_its_mark_is(reported):
    lines = (await reported(report(model(temperature("0", rate=0.4))))).splitlines()
    [head, whole, cold] = [line for line in lines if "rule of thumb: 50%" in line or "█" in line]

    assert head.index("rule of thumb") == whole.index("█") == cold.index("█")
    assert whole.split()[-3:] == ["██████████│████░░░░░░", "70%", "accepted"]


async def test_it_is_printed_anew_until_it_is_interrupted(reported, monkeypatch):
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("specdec_tools.commands.report.sleep", pause)
    text = await reported(report(model(temperature("0"))), "--watch")

    assert text.count("Does speculation pay?") == 3
    assert pauses == [2, 2, 2]


async def test_markdown_has_tables_of_equal_width(reported):
    text = await reported(
        report(model(temperature("0"), temperature("1+"))), "--format", "markdown"
    )
    assert text.startswith("### Does speculation pay? ")
    tables = [
        [len(line.split("|")) for line in part.splitlines()]
        for part in text.split("\n\n")
        if part[:1] == "|"
    ]
    assert [len(table) for table in tables] == [2 + 2, 2 + 1]
    assert all(len(set(table)) == 1 for table in tables)


async def test_without_a_split_it_says_why_once(reported):
    text = await reported(report(model(), plugin=NEVER_CONNECTED))
    assert text.count("No plug-in has connected yet,") == 1


async def test_a_note_is_left_out_only_of_the_model_that_the_answer_is_about(reported):
    """Two models had the same note, and that of the second one was nowhere."""
    undecided = Undecided(rate=0.51, error=0.02, seconds=1800.0, line=0.5, needed=None)
    judged = judgement(Verdict.INSUFFICIENT_DATA, 0.51, undecided=undecided)
    pair = [model(name=name, judgement=judged) for name in ("a", "b")]
    text = await reported(report(*pair), "--all")
    assert text.count("is not certain to be on one side of 50% yet") == 2


@pytest.mark.parametrize(
    ("judged", "says"),
    [
        (
            judgement(Verdict.NET_POSITIVE, 0.7),
            "high acceptance, not measured (acceptance over 300 s)",
        ),
        (
            judgement(Verdict.INSUFFICIENT_DATA, 0.7, judged=window(0.7), speculation=DFLASH),
            "not measured (over 300 s)",
        ),
    ],
)
async def test_what_the_verdict_is_by_is_said_only_if_it_is_known(reported, judged, says):
    """Where only a speedup could judge, and none is known, it was "not measured (speedup)"."""
    text = await reported(report(model(judgement=judged)), "--all")
    assert f"model demo: {says}" in text.splitlines()


async def test_a_model_whose_engines_all_hang_has_no_verdict(reported):
    """As on the page: a green row of the minutes before stood under the red answer."""
    ailing = Ailing(key=EngineKey("demo", "0"), ailment=Ailment.STALLED, since=NOW - 90)
    tree = report(timed_model(timed("0", Verdict.NET_POSITIVE, 0.7, 30.0, 20.0)))
    health = HealthReport(ailing=(ailing,), hanging=frozenset({"demo"}))
    for arguments in ((), ("--format", "markdown")):
        said = await reported(replace(tree, health=health), *arguments)
        assert "vLLM's engine hangs." in said
        assert "Waiting: 1 (4 running now)" in " ".join(said.split())
        assert "pays" not in said.partition("\n")[2]
        assert "pays" in (await reported(tree, *arguments)).partition("\n")[2]


async def test_a_sidecar_whose_vllm_is_down_says_so(reported):
    """What is known of its models describes another moment."""
    text = await reported(report(model(temperature("0")), scrape=down(BadStatus(500))))
    assert text.startswith(
        "Does speculation pay? The sidecar cannot read vLLM's metrics.\n\n"
        "Last read at 22:13 UTC (0 s ago). As of 22:13:23 UTC.\nStatus 500. "
    )
    assert "model demo" not in text


def test_no_sidecar_at_the_address(capsys):
    assert command("report", "--url", "http://user:secret@127.0.0.1:1") == 1
    err = capsys.readouterr().err
    assert err.startswith("no report from http://***@127.0.0.1:1: ")
    assert err.endswith("; set --url to the address of a running sidecar, not of vLLM\n")
    assert "secret" not in err


@pytest.fixture
async def with_password(served):
    """The address of a sidecar with a password."""

    async def handler(request):
        _, _, encoded = request.headers.get("Authorization", "").partition(" ")
        if base64.b64decode(encoded).decode() != "me:se:cret/%x":
            return web.Response(status=401)
        return web.json_response(status(shown(report(model()))))

    async with served(handler) as url:
        yield url


@pytest.mark.parametrize("by", ["option", "variable", "variable of the file", "url"])
async def test_a_password_comes_from_a_file_or_the_environment(
    capsys, monkeypatch, tmp_path, with_password, by
):
    file = tmp_path / "user"
    file.write_text("me:se:cret/%x\n")
    arguments = ["report", "--url", with_password]
    match by:
        case "option":
            monkeypatch.setenv("SPECDEC_USER_FILE", "/overridden/by/the/option")
            arguments += ["--user-file", str(file)]
        case "variable":
            monkeypatch.setenv("SPECDEC_USER", "me:se:cret/%x")
        case "variable of the file":
            monkeypatch.setenv("SPECDEC_USER_FILE", str(file))
        case "url":
            arguments[2] = with_password.replace("//", "//me:se%3Acret%2F%25x@")

    assert await asyncio.to_thread(command, *arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Does speculation pay?")
    assert "cret" not in out + err


async def test_without_the_password_it_says_where_to_put_it(capsys, with_password):
    """Not on the command line, where everybody on the machine could read it."""
    assert await asyncio.to_thread(command, "report", "--url", with_password) == 1
    assert capsys.readouterr().err.endswith(
        ": status 401 (status); it asks for a password: put NAME:PASSWORD into a file and name it"
        " in --user-file or SPECDEC_USER_FILE\n"
    )


@pytest.mark.parametrize("content", ["", "me", ":secret", "me:", "me:secret\nyou:secret"])
def test_a_file_that_holds_no_password_is_refused_without_showing_it(capsys, tmp_path, content):
    file = tmp_path / "user"
    file.write_text(content)

    assert command("report", "--url", "http://127.0.0.1:1", "--user-file", str(file)) == 2
    assert capsys.readouterr().err == f"{file}: expected one line with NAME:PASSWORD\n"


@pytest.mark.slow
async def test_a_certificate_is_verified_by_an_authority_of_ones_own(
    capsys, authority, finished, program
):
    """The local sidecar's own is trusted without; any other needs the authority."""
    listen = f"127.0.0.1:{free_port()}"
    variables = {
        "SPECDEC_LISTEN": listen,
        "SPECDEC_VLLM_URL": "http://127.0.0.1:1",
        "SPECDEC_WEB_CONFIG_FILE": str(authority.web_config(users={"me": "secret"})),
        "SPECDEC_USER": "me:secret",
    }
    url = f"https://{listen}"
    async with program("run", **variables):
        # Of this machine's own sidecar the certificate need not have the address.
        await until(lambda: _succeeds(finished("report", **variables)), seconds=START_SECONDS)
        trusted = await finished(
            "report", "--url", url, "--cacert", str(authority.certificate), **variables
        )
        distrusted = await finished("report", "--url", url, **variables)

    assert trusted[0] == 0
    assert distrusted[0] == 1
    assert distrusted[2].endswith(
        "is the CA of its certificate in --cacert, and its name in --url?\n"
    )


async def _succeeds(finishing):
    code, _, _ = await finishing
    return code == 0


def test_a_file_without_certificates_is_refused(capsys, tmp_path):
    (tmp_path / "ca.pem").write_text("none")

    for name in ("ca.pem", "gone.pem"):
        arguments = ("--url", "https://127.0.0.1:1", "--cacert", str(tmp_path / name))
        assert command("report", *arguments) == 2
        assert capsys.readouterr().err.startswith(f"{tmp_path / name}: ")


LOSES = judgement(Verdict.NET_NEGATIVE, 0.4, by_speedup=True)
BY_RULE = judgement(Verdict.NET_NEGATIVE, 0.4)
COLLAPSED = judgement(Verdict.NET_NEGATIVE, 0.0, has_collapsed=True)
GAINS = judgement(Verdict.NET_POSITIVE)
EVEN = judgement(Verdict.BREAK_EVEN)
UNKNOWN = judgement(Verdict.INSUFFICIENT_DATA)


@pytest.mark.parametrize(
    ("judged", "code"),
    [
        ([GAINS], 0),
        ([EVEN], 0),
        ([UNKNOWN], 3),
        ([], 3),
        ([GAINS, UNKNOWN], 3),
        ([UNKNOWN, LOSES], 4),
        ([BY_RULE, LOSES], 4),
        ([GAINS, BY_RULE], 5),
        ([UNKNOWN, BY_RULE], 3),
        ([BY_RULE, COLLAPSED], 4),
    ],
)
async def test_for_scripts_the_exit_code_is_the_worst_verdict(capsys, served, judged, code):
    """Only with `--exit-code`; what is not measured is no loss, and unknown is worse than good."""
    models = [model(temperature("0"), judgement=one) for one in judged]

    async def handler(_request):
        return web.json_response(status(shown(report(*models))))

    async with served(handler) as url:
        plain = await asyncio.to_thread(command, "report", "--url", url)
        asked = await asyncio.to_thread(command, "report", "--url", url, "--exit-code", "--json")

    assert (plain, asked) == (0, code)


HOT = replace(GOOD, cool=0.0, hot=1.0)
SUITS, OPEN = plain_model(GOOD, LIGHT), plain_model(HOT, LIGHT)
NOT_NOW = plain_model(replace(GOOD, rejected={"min_p": 0.5}), LIGHT)
TOO_FEW = plain_model(replace(GOOD, requests=3), LIGHT)


@pytest.mark.parametrize(
    ("models", "code"),
    [
        ([SUITS], 0),
        ([TOO_FEW], 3),
        ([plain_model()], 3),
        ([], 3),
        ([NOT_NOW], 4),
        ([OPEN], 5),
        ([SUITS, OPEN], 5),
        ([OPEN, TOO_FEW], 3),
        ([TOO_FEW, NOT_NOW], 4),
        ([model(), SUITS], 6),
    ],
)
async def test_for_scripts_the_exit_code_says_whether_to_try_speculation(
    capsys, served, models, code
):
    """Of several models, the one least ready decides; one that speculates has no such answer."""

    async def handler(_request):
        return web.json_response(status(shown(report(*models))))

    async with served(handler) as url:
        assert await asyncio.to_thread(command, "report", "--url", url, "--ready") == code

    assert ("a model already speculates" in capsys.readouterr().err) == (code == 6)


async def test_the_checklist_and_what_to_try_are_printed_as_on_the_page(reported):
    """The conclusion once, since it is also the reason at the top."""
    tree = report(OPEN)
    page = status(shown(tree))["models"][0]["checklist_text"]
    text = await reported(tree)

    assert text.count(page["conclusion"]) == 1
    assert f"model {tree.models[0].model_name}: does not speculate" in text.splitlines()
    assert "too little data" not in text
    assert "temperatures" in text
    assert "median 0; 0% up to 0.5, 100% above 0.8" in text
    for candidate in page["candidates"]:
        assert f"  to try, {candidate['method']}: {candidate['why']}" in text.splitlines()
        assert f"  {candidate['option']}" in text.splitlines()

    assert "speaks for it" not in text  # no terminal is wide enough
    assert "speaks for it" in await reported(tree, "--all")
    in_ticket = await reported(tree, "--format", "markdown")
    assert "| condition | says | this pod |" in in_ticket


async def test_while_vllm_is_down_there_is_no_verdict(served):
    losing = model(temperature("0"), judgement=LOSES)
    tree = report(losing, scrape=down(BadStatus(500)))

    async def handler(_request):
        return web.json_response(status(shown(tree)))

    async with served(handler) as url:
        assert await asyncio.to_thread(command, "report", "--url", url, "--exit-code") == 3


async def test_json_is_the_sidecars_own(reported):
    tree = report(model(temperature("0")))

    printed = json.loads(await reported(tree, "--json"))

    assert printed == json.loads(json.dumps(status(shown(tree))))


async def test_invalid_settings_of_the_sidecar_are_named(reported):
    text = await reported(report(model(), invalid_settings=("listen=5: expected host:port",)))

    assert "  invalid setting: listen=5: expected host:port" in text.splitlines()


@pytest.mark.parametrize(
    "body", ["[]", "{}", "<html>", '{"answer": 1}', '{"version": "1", "models": [{}]}']
)
async def test_another_server_is_told_from_a_sidecar(capsys, served, body):
    async def handler(_request):
        return web.Response(text=body)

    async with served(handler) as url:
        assert await asyncio.to_thread(command, "report", "--url", url) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"no report from {url}: ")
    assert len(err.splitlines()) == 1


async def test_what_a_change_did_is_in_the_short_report_as_on_the_page(reported):
    median = Median(0.0235, 0.0231, 0.0239)
    slow = Sample(requests=80, timed=80, acceptance=0.42, error=0.01, ttft=None, tpot=median)
    fast = replace(slow, acceptance=0.75, tpot=Median(0.0183, 0.018, 0.0187))
    before = Moment(0.0, EAGLE, 4.0, {"0.7-1": slow})
    now = Moment(900.0, replace(EAGLE, num_speculative_tokens=5), 4.0, {"0.7-1": fast})
    said = await reported(report(model(temperature("0.7-1"), change=Change(60.0, before, now))))

    assert "before and after" in said
    assert "  Before: eagle3, 3 tokens" in said
    assert "23.5 ms (23.1 to 23.9 ms)  18.3 ms (18.0 to 18.7 ms)" in said

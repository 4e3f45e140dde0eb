import asyncio
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from sidecar.analysis.speed.plain import step_time
from sidecar.engine.names import Counter, Phase
from sidecar.errors import MeasurementError
from sidecar.settings import load_settings
from sidecar.settings.baselines import PlainEndings, PlainStepTimes
from specdec_tools.commands.baseline import measure
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.traffic import MIXED, Traffic, TrafficOptions
from specdec_tools.measuring.workload import RequestOptions
from specdec_tools.plain.agreement import agreement, widened
from specdec_tools.plain.document import plain_steps
from specdec_tools.plain.measured import BaselineRun
from specdec_tools.plain.stages import Progress, Prompts
from tests.analysis.analysis_tools import PluginEnd, page, snap
from tests.analysis.test_request_times import WIDE, reading
from tests.app.app_tools import traffic
from tests.commands.commands_tools import Measured, command, measured_plain
from tests.demo.http_vllm import HttpVllm
from tests.engine.engine_tools import snapshot


class Sent:
    """What a plug-in of ``PluginEnd`` sends to: a baseline, in place of a sidecar's state."""

    def __init__(self, measured):
        self.at = 1000.0
        self.server = None  # without an id
        self.state = SimpleNamespace(plugin=measured)


@pytest.mark.slow
async def test_a_vllm_that_speculates_gives_latencies_but_no_plain_step_times(finished, tmp_path):
    """With `--load` it is refused before any request is sent."""
    file = tmp_path / "baseline.yaml"
    async with HttpVllm(SimulatorOptions(speed=5)) as vllm:
        async with traffic(vllm):
            asked = ("--url", vllm.url, "--duration", "3s", "--out", str(file))
            code, out, err = await finished("baseline", *asked)
        load = ("--duration", "1h", "--load", "2", "--plugin-socket", str(tmp_path / "plugin.sock"))
        refused = await finished("baseline", "--url", vllm.url, *load)
    assert (code, out) == (0, ""), err
    written = yaml.safe_load(file.read_text())
    assert set(written) == {"baseline"}
    phases = written["baseline"]["demo"]
    assert set(phases) == {"ttft", "itl", "tpot", "e2e", "queue"}
    loaded = load_settings(None, {"SPECDEC_BASELINE_FILE": str(file)}).measured.latencies("demo")
    assert loaded["tpot"].quantiles[0.99] == phases["tpot"]["p99"] > 0
    coarse = re.search(
        "^demo: (.*): interpolated, since P99 is in vLLM's first bucket$", err, re.MULTILINE
    )
    in_first = phases["queue"]["p99"] <= 0.3  # where no request had to wait for a busy machine
    assert in_first == (coarse is not None and "queue" in coarse[1].split(", "))
    assert refused[:2] == (1, "")
    assert refused[2].endswith(" speculates: --load needs a vLLM that does not\n")


def test_an_engine_whose_counters_cannot_be_used_speculates_too(recorded):
    """Its steps would be taken for plain ones otherwise."""
    measured = BaselineRun()
    measured.scraped(0.0, 0.1, 1.0, snapshot(recorded("vllm-0.9.2-v0.prom")))
    assert len(measured.drafted) == 1


@pytest.mark.slow
async def test_behind_the_rust_frontend_a_load_is_measured_until_something_is_drafted(
    finished, tmp_path
):
    """Its page does not say before whether vLLM speculates, and nor does this plug-in."""
    socket = tmp_path / "plugin.sock"
    async with HttpVllm(SimulatorOptions(speed=5), plugin_socket=socket) as vllm:
        vllm.is_rust = True
        code, out, err = await finished(
            *("baseline", "--url", vllm.url, "--duration", "1h", "--load", "2"),
            *("--plugin-socket", str(socket)),
        )
    assert (code, out) == (1, "")
    assert "concurrency 2" in err  # it has begun
    assert err.endswith(" speculates: --load needs a vLLM that does not\n")


def test_a_plain_vllm_behind_the_rust_frontend_is_measured(recorded):
    measured = BaselineRun()
    measured.scraped(0.0, 0.1, 1.0, snapshot(recorded("vllm-0.33.0-rust-nospec.prom")))
    assert not measured.drafted

    speculating = BaselineRun()
    speculating.scraped(0.0, 0.1, 1.0, snapshot(recorded("vllm-0.33.0-rust.prom")))
    assert len(speculating.drafted) == 1


def test_a_plugin_says_before_the_first_draft_that_vllm_speculates():
    measured = BaselineRun()
    PluginEnd(Sent(measured), speculation=None)
    assert not measured.drafted
    PluginEnd(Sent(measured))
    assert measured.drafted == {"m"}


@pytest.mark.parametrize(
    ("capacities", "expected"), [((1600, 1600), 1600), ((1600, 800), 1200), ((0,), None)]
)
def test_the_capacity_is_that_of_one_engine_and_absent_if_it_is_none(capacities, expected):
    """A capacity of 0 would make the file unusable."""
    measured = BaselineRun()
    counters = {Counter.PREFIX_CACHE_HITS: 0.0, Counter.PREFIX_CACHE_QUERIES: 0.0}
    for at in (0.0, 1.0):
        grown = {counter: value + 10 * at for counter, value in counters.items()}
        engines = [
            replace(snap(str(number), counters=grown), kv_cache_capacity_tokens=capacity)
            for number, capacity in enumerate(capacities)
        ]
        measured.scraped(at, 0.1, 1.0, page(*engines))
    assert measured.caches()["m"].get("capacity_tokens") == expected


async def test_what_ends_the_polls_ends_the_command_and_is_not_taken_for_an_idle_vllm(monkeypatch):
    def scraped(*_):
        raise KeyError("a page that it cannot take in")

    monkeypatch.setattr(BaselineRun, "scraped", scraped)
    async with HttpVllm() as vllm:
        with pytest.raises(KeyError, match="a page that it cannot take in"):
            await measure(vllm.url, load_settings(None, {}), 0.1, (), RequestOptions())


async def test_baseline_of_an_idle_vllm_writes_nothing(finished, tmp_path):
    """An empty file would take the place of a good one."""
    async with HttpVllm() as vllm:
        code, out, err = await finished("baseline", "--duration", "1s", SPECDEC_VLLM_URL=vllm.url)
    assert (code, out) == (1, "")
    assert (
        err.splitlines()[-1]
        == "no requests finished, so there is nothing to write; watch longer, or send traffic"
    )


def test_a_baseline_that_cannot_be_written_is_printed(capsys, monkeypatch):
    """Minutes of measuring are not lost to a full disk."""
    monkeypatch.setattr("specdec_tools.commands.baseline.measure", measured_plain)
    assert command("baseline", "--out", "/dev/full") == 2
    printed = capsys.readouterr()
    assert "--out=/dev/full: No space left on device; printed instead" in printed.err
    assert yaml.safe_load(printed.out)["plain_steps"].keys() == {"lab"}


def test_levels_that_were_measured_for_too_short_a_time_are_named(capsys, monkeypatch):
    """Otherwise a load would be missing in the file without a word."""
    monkeypatch.setattr("specdec_tools.commands.baseline.measure", measured_plain)
    one_context = ("--context", "100", "--plugin-socket", "plugin.sock")
    assert command("baseline", "--load", "1,16", *one_context) == 0
    assert "no step times" not in capsys.readouterr().err
    assert command("baseline", "--load", "1,64", *one_context) == 3
    assert re.search(
        ": no step times with 64 running: measure longer, with --duration$",
        capsys.readouterr().err,
        re.MULTILINE,
    )


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ([], 3, "too short or too noisy to tell what a longer context costs"),
        (["--context", "90,900"], 3, "too noisy to tell what a longer"),
        (["--context", "90"], 0, ""),
    ],
)
def test_a_baseline_that_lacks_what_load_was_to_measure_is_written_and_exits_with_3(
    capsys, monkeypatch, tmp_path, *, options, code, says
):
    """A script would take it for a whole one, and the sidecar then has no speedup."""
    curves = Measured.curves

    def shortened(run):
        return {model: replace(curve, context_seconds=()) for model, curve in curves(run).items()}

    monkeypatch.setattr(Measured, "curves", shortened)
    monkeypatch.setattr("specdec_tools.commands.baseline.measure", measured_plain)
    file = tmp_path / "baseline.yaml"

    asked = ("--load", "1,16", "--plugin-socket", "plugin.sock", "--out", str(file))
    returned = command("baseline", *asked, *options)
    printed = capsys.readouterr().err
    assert (returned, file.is_file()) == (code, True)
    assert says in printed
    assert ("incomplete" in printed) == (code == 3)


def test_load_needs_the_plug_in_s_socket(capsys):
    """The steps of a vLLM without it are known only as means."""
    assert command("baseline", "--load", "1,4") == 2
    printed = capsys.readouterr().err
    assert "--load needs the plug-in in this vLLM" in printed
    assert "`PYTHONPATH=DIR SPECDEC_PLUGIN__SOCKET=PATH vllm serve MODEL`" in printed


async def test_a_vllm_without_the_plug_in_is_refused_with_what_to_do(monkeypatch, tmp_path):
    """Before anything is measured."""
    monkeypatch.setattr("specdec_tools.plain.stages._CONNECTING", 0.2)
    socket = tmp_path / "plugin.sock"
    async with HttpVllm(SimulatorOptions(num_speculative_tokens=0, speed=8)) as vllm:
        with pytest.raises(MeasurementError, match="--load needs the plug-in in this vLLM"):
            await measure(
                *(vllm.url, load_settings(None, {}), 10.0, (1,), RequestOptions()), socket=socket
            )


@pytest.mark.slow  # 48 slots, each longer than the plug-in takes to report
async def test_plain_step_times_of_a_vllm_without_speculation(finished, tmp_path):
    """The command sends the requests itself, and the settings read the file that it writes."""
    file, socket = tmp_path / "baseline.yaml", tmp_path / "plugin.sock"
    options = SimulatorOptions(num_speculative_tokens=0, speed=8)
    async with HttpVllm(options, plugin_socket=socket) as vllm:
        submit, lengths = vllm.engine.submit, []
        vllm.engine.submit = lambda request: lengths.append(request.max_tokens) or submit(request)
        argv = ("--url", vllm.url, "--load", "1,4", "--duration", "65s", "--max-tokens", "40")
        argv = (*argv, "--plugin-socket", str(socket), "--context", "20,800")
        # A slow machine polls less.
        often = {"SPECDEC_SCRAPE_INTERVAL": "150ms", "SPECDEC_SCRAPE_CPU_SHARE": "1"}
        code, out, err = await finished("baseline", *argv, "--out", str(file), **often)
    assert (code, out) == (0, ""), err
    # Clients that began in step with each other would stay so, and nobody would decode while they
    # prefill.
    assert {10, 20, 30} <= set(lengths)
    # Each client's prompt is in the cache before it is repeated: six rounds, short and long.
    assert lengths.count(1) >= 6 * 2 * (1 + 4)
    written = load_settings(None, {"SPECDEC_BASELINE_FILE": str(file)}).measured
    steps, cache = written.plain_steps["demo"], written.plain_cache["demo"]
    assert all(0 < seconds < 5 for seconds in steps.first_token_seconds)
    assert len(steps.first_token_seconds) == len(steps.running)
    # Nothing that depends on requests that are nobody's.
    assert (cache.capacity_tokens, cache.preemptions_ratio, cache.hit_ratio) == (
        4096 * 16,
        None,
        None,
    )
    assert not written.baseline
    assert not written.baseline_by_request
    assert 0 < steps.running[0] <= 1.1  # less where a busy machine is late with the next request
    assert steps.running[0] < steps.running[-1] <= 5
    assert all(0 < seconds < 1 for seconds in steps.seconds)
    assert len(steps.rounds) == 6
    assert 0 < step_time(steps, 2.0).error < 0.5 * step_time(steps, 2.0).seconds
    assert steps.measured is not None
    # Each load was measured with short prompts and with longer ones.
    assert len(steps.context_seconds) == len(steps.running)
    assert steps.contexts[1] > 5 * steps.contexts[0]
    assert steps.prefill_seconds is not None
    assert steps.machine_load is not None  # it ran on this machine


@pytest.mark.slow
@pytest.mark.parametrize(("error", "ends"), [(1.0, True), (1e-9, False)])
async def test_a_load_is_measured_until_step_times_are_known_well_enough(
    monkeypatch, tmp_path, error, ends
):
    """After six rounds at least: fewer do not tell how well they are.

    What the plug-in tells of the machine is part of it.
    """
    monkeypatch.setattr("specdec_tools.plain.stages._LEAST_SLOT", 1.0)
    (tmp_path / "gpus" / "0").mkdir(parents=True)
    (tmp_path / "gpus" / "0" / "information").write_text("Model: NVIDIA H100\n")
    monkeypatch.setattr("sidecar.requests.plugin.GPUS", str(tmp_path / "gpus"))
    socket = tmp_path / "plugin.sock"
    options = SimulatorOptions(num_speculative_tokens=0, speed=8)
    often = {"SPECDEC_SCRAPE_INTERVAL": "150ms", "SPECDEC_SCRAPE_CPU_SHARE": "1"}
    async with HttpVllm(options, plugin_socket=socket) as vllm:
        measured = await measure(
            *(vllm.url, load_settings(None, often), 34.0, (2,), RequestOptions(max_tokens=40)),
            contexts=(20,),
            socket=socket,
            error=error,
        )
    (steps,) = measured.curves().values()
    assert len(steps.rounds) == 6 if ends else 6 < len(steps.rounds) <= 12
    assert plain_steps(steps, measured.until)["accelerator"] == "NVIDIA H100"
    assert (measured.error <= error) == ends
    assert measured.misses("demo", steps)  # how far off is the machine's


@pytest.mark.slow
async def test_prompts_that_are_each_short_enough_are_measured_and_a_refusal_says_why(
    finished, tmp_path
):
    """Together they are longer than the model takes. How far it is is said all along."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"{number} {'word ' * 40}" for number in range(20)))
    socket = tmp_path / "plugin.sock"
    asked = ("--load", "2", "--duration", "3s", "--max-tokens", "20", "--prompts", str(prompts))
    asked = (*asked, "--plugin-socket", str(socket))
    options = SimulatorOptions(num_speculative_tokens=0, speed=8)
    async with HttpVllm(options, plugin_socket=socket) as vllm:
        url = vllm.url
        vllm.most_tokens = 120
        _, _, err = await finished("baseline", "--url", vllm.url, *asked)
        vllm.most_tokens = 20
        refused = await finished("baseline", "--url", vllm.url, *asked)

        vllm.most_tokens = 120
        too_long = await finished("baseline", "--url", vllm.url, *asked, "--context", "60,500")

    assert too_long[:2] == (1, "")
    why = "status 400: the request is longer than the model's 120 tokens"
    assert f"{url}: no request with a prompt of about 500 tokens succeeded: {why}\n" in too_long[2]
    said = re.findall(r"^(\d+) of at most (\d+), (\d+) s left: concurrency 2, ", err, re.MULTILINE)
    stages = len(said)
    assert [number for number, *_ in said] == [str(1 + place) for place in range(stages)]
    assert {total for _, total, _ in said} == {str(stages)}
    assert said[0][-1] == "3"
    assert refused[:2] == (1, "")
    why = "status 400: the request is longer than the model's 20 tokens"
    assert f"{url}: a request for demo failed: {why}\n" in refused[2]


@pytest.mark.parametrize(
    ("factor", "said", "rounds"),
    [
        (1.0, ["1 of at most 24, 2 min left", "13 of at most 24, 60 s left"], 12),
        (1.5, ["1 of at most 24, 2 min left", "13 of at most 16, 30 s left"], 8),
        (4.0, ["1 of at most 24, 2 min left", "3 of at most 12, 3 min left"], 6),
    ],
)
def test_a_measurement_takes_the_time_asked_for_and_says_how_much_is_left(factor, said, rounds):
    """Filling the prefix cache took half an hour where 20 minutes were announced."""
    now = [0.0]
    progress = Progress(120.0, 5.0, stages=2, rounds=12, clock=lambda: now[0])
    told = []
    done = 0
    while done < 12 and (done < 6 or progress.has_time):
        for _ in range(2):
            told.append(progress.step())
            now[0] += factor * 5.0
        done += 1
    assert done == rounds
    assert set(said) <= set(told)


def test_new_prompts_begin_like_no_other_and_a_client_s_own_stays_the_same():
    """So the prefix cache holds nothing of the one and all of the other."""
    prompts = Prompts(("one two three", "four five"))
    cold = [prompts.cold(60) for _ in range(5)]
    assert len({prompt[:12] for prompt in cold}) == 5
    assert {len(prompt) for prompt in cold} == {60}
    assert prompts.warm(3, 60) == prompts.warm(3, 60) != prompts.warm(4, 60)
    assert prompts.cold(None).endswith(("one two three", "four five"))


MEASURED = PlainStepTimes(running=(1.0, 8.0), seconds=(0.01, 0.02), context=100.0, drift=0.03)


@pytest.mark.parametrize(
    ("factor", "holds", "drift"), [(1.05, True, 0.03), (1.29, False, 0.148), (0.8, False, 0.104)]
)
def test_a_second_baseline_says_whether_it_agrees_and_its_error_includes_the_difference(
    factor, holds, drift
):
    """Two measurements that differ are both only as good as their difference."""
    later = replace(MEASURED, seconds=tuple(factor * one for one in MEASURED.seconds))
    found = agreement(later, MEASURED)
    assert (found.difference, found.holds) == (pytest.approx(factor - 1), holds)
    assert widened(later, found).drift == pytest.approx(drift, abs=0.002)


def test_baselines_of_other_loads_or_contexts_are_not_compared():
    """A difference between them would say nothing of the machine.

    Nor would one between two accelerators.
    """
    assert agreement(replace(MEASURED, running=(16.0, 32.0)), MEASURED) is None
    assert agreement(replace(MEASURED, context=500.0), MEASURED) is None
    later, earlier = (replace(MEASURED, accelerator=name) for name in ("H100", "A100"))
    assert agreement(later, earlier) is None
    assert agreement(later, later) is not None


def test_the_file_of_out_is_compared_before_it_is_replaced(capsys, monkeypatch, tmp_path):
    """A first one has nothing to be compared with; a named one that is missing is an error."""
    monkeypatch.setattr("specdec_tools.commands.baseline.measure", measured_plain)
    file = tmp_path / "baseline.yaml"
    assert command("baseline", "--out", str(file)) == 0
    assert "earlier baseline" not in capsys.readouterr().err
    assert command("baseline", "--out", str(file)) == 0
    assert "lab: agrees with the earlier baseline: step times differ by +0 ±" in (
        capsys.readouterr().err
    )
    assert command("baseline", "--beside", str(tmp_path / "none.yaml")) == 2


def test_how_outputs_end_without_speculation_is_written_by_temperature(tmp_path):
    """As the settings read it; the plug-in's key of all temperatures above 2 is one of them."""
    measured = BaselineRun()
    plain = PluginEnd(Sent(measured), speculation=None)
    for temperature, ending in ((0, "loop"), (0, "normal"), (0, "normal"), (70, "empty")):
        plain.finish(temperature, ending=ending)
    plain.finish(70)  # nobody tells how it ended

    written = {"plain_endings": measured.endings()}
    file = tmp_path / "baseline.yaml"
    file.write_text(yaml.safe_dump(written))
    loaded = load_settings(None, {"SPECDEC_BASELINE_FILE": str(file)}).measured.plain_endings

    assert written["plain_endings"]["m"][0.0] == {"loop": 1, "normal": 2}
    assert loaded == {"m": {0.0: PlainEndings(normal=2, loop=1), 0.7: PlainEndings(empty=1)}}


def test_a_model_that_speculates_gives_no_usual_endings():
    """What is usual is how replies end without drafts."""
    measured = BaselineRun()
    PluginEnd(Sent(measured)).finish(0, ending="normal")
    measured.scraped(1000.0, 0.1, 1.0, page(snap(drafts=0)))
    measured.scraped(1001.0, 0.1, 1.0, page(snap(drafts=10)))

    assert measured.endings() == {}


def test_with_the_plug_in_latencies_are_by_the_requests_own_times_and_the_settings_know_it(
    monkeypatch, tmp_path
):
    """Of models whose requests it does not tell, they are by bucket."""
    measured = BaselineRun()
    plain = PluginEnd(Sent(measured), speculation=None)
    before, after = (
        [replace(snap(model=model), histograms={Phase.TPOT: reading(times)}) for model in "mn"]
        for times in ([], WIDE)
    )
    measured.scraped(1000.0, 0.1, 1.0, page(*before))
    for seconds in WIDE:
        plain.finish(first_token=1000.0 - 30 * seconds, is_own=True)  # as --load sends them
    measured.scraped(1060.0, 0.1, 1.0, page(*after))

    async def already_measured(*_, **__):
        return measured

    monkeypatch.setattr("specdec_tools.commands.baseline.measure", already_measured)
    file = tmp_path / "baseline.yaml"
    assert command("baseline", "--out", str(file)) == 0
    loaded = load_settings(None, {"SPECDEC_BASELINE_FILE": str(file)}).measured
    assert loaded.baseline_by_request == {"m": ("tpot",)}
    own, by_bucket = loaded.latencies("m")["tpot"], loaded.latencies("n")["tpot"]
    assert (own.is_exact, by_bucket.is_exact) == (True, False)
    assert own.quantiles[0.99] - own.quantiles[0.5] == pytest.approx(0.013, rel=0.01)


@pytest.mark.slow
async def test_a_baseline_that_only_watches_takes_the_plug_in_s_times(tmp_path):
    socket = tmp_path / "plugin.sock"
    often = {"SPECDEC_SCRAPE_INTERVAL": "150ms", "SPECDEC_SCRAPE_CPU_SHARE": "1"}
    few = TrafficOptions(mixes=(MIXED,), max_requests=150)  # so that all are told in the end
    async with HttpVllm(SimulatorOptions(speed=5), plugin_socket=socket) as vllm:
        sending = asyncio.create_task(Traffic(vllm, few).run())
        measured = await measure(
            *(vllm.url, load_settings(None, often), 5.0, (), RequestOptions()), socket=socket
        )
        await sending
    assert measured.latencies()["demo"][Phase.TPOT].is_exact

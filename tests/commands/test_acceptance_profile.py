"""``report --profile``: production's acceptance in the form that vLLM replays."""

import asyncio
import json
import shlex
from collections import Counter as Counts
from collections import defaultdict
from dataclasses import replace
from random import Random

import pytest
from aiohttp import web

from sidecar.engine.names import Counter
from sidecar.errors import BadStatus
from sidecar.export.status import status
from sidecar.requests.tally import Tally
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.traffic import Traffic, TrafficOptions
from tests.app.app_tools import running_sidecar
from tests.commands.commands_tools import command
from tests.demo.http_vllm import HttpVllm
from tests.export.reports import EAGLE, down, engine, model, report, shown, temperature

OPTIONS = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}
KNOWN = replace(EAGLE, options=json.dumps(OPTIONS))
REPLAYED = 20_000  # drafts


def drafts(number, drafted_at, accepted_at):
    return Tally(
        drafts=number,
        draft_tokens=sum(drafted_at),
        accepted_tokens=sum(accepted_at),
        drafted_at=drafted_at,
        accepted_at=accepted_at,
    )


MANY = drafts(2000, (2000, 2000, 2000), (1500, 1000, 500))
FEW = drafts(999, (999, 999, 999), (900, 800, 700))


@pytest.fixture
def profiled(capsys, served):
    """The exit code and what ``report --profile`` prints on a sidecar with this tree."""

    async def run(tree, *options):
        async def handler(_request):
            return web.json_response(status(shown(tree)))

        async with served(handler) as url:
            code = await asyncio.to_thread(command, "report", "--url", url, "--profile", *options)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def speculating(*temperatures, speculation=KNOWN, **changes):
    return report(model(*temperatures, engines=(engine(speculation=speculation),), **changes))


def replayed_length(rates):
    """The acceptance length of vLLM's synthetic rejection sampler.

    As in unconditional_to_conditional_rates of vllm/v1/spec_decode/utils.py and in its kernels: a
    token is accepted at its rate divided by the one before; the first rejected one ends the draft.
    """
    random = Random(0)
    accepted = 0
    for _ in range(REPLAYED):
        before = 1.0
        for rate in rates:
            if random.random() >= (rate / before if before else 0.0):
                break
            accepted += 1
            before = rate
    return 1 + accepted / REPLAYED


@pytest.mark.slow
async def test_a_benchmark_with_the_rates_has_the_lengths_of_production(finished, socket_path):
    """Within 2 %, at each temperature and for all, as the engine's own requests count them."""
    steps = defaultdict(Counts)  # by temperature: accepted tokens of each verification step

    def ended(request):
        for label in ("all", f"{request.sampling_params.temperature:g}"):
            steps[label].update(dict(enumerate(request.lengths)))

    mix = {0.0: 1, 1.2: 1}
    traffic = TrafficOptions(mixes=(mix,), max_requests=120, min_tokens=60, max_tokens=90)
    engine_options = SimulatorOptions(speed=50.0)
    async with (
        HttpVllm(engine_options, plugin_socket=socket_path) as vllm,
        running_sidecar(socket_path, vllm.url) as page,
    ):
        await Traffic(vllm, traffic, ended=ended).run()
        drafted = vllm.counter("spec_decode_num_drafts")
        await page.until(lambda samples: samples.sum("specdec_drafts_total"), drafted)
        arguments = ("report", "--url", page.url, "--profile", "--json")
        models = []
        while not models:  # on a busy machine, a poll may have failed just now
            code, out, _ = await finished(*arguments)
            models = json.loads(out)["models"]

    (found,) = models
    profiles = {profile["temperature"]: profile for profile in found["profiles"]}
    assert code == 0
    assert set(profiles) == {"all", "0", "1+"}
    for label, counted in {"all": "all", "0": "0", "1+": "1.2"}.items():
        counts = steps[counted]
        accepted = sum(length * number for length, number in counts.items())
        length = 1 + accepted / counts.total()
        profile = profiles[label]
        assert profile["drafts"] == counts.total()
        assert profile["acceptance_length"] == pytest.approx(length)
        replayed = replayed_length(profile["synthetic_acceptance_rates"])
        assert replayed == pytest.approx(length, rel=0.02)

    # or one list would do for both
    assert profiles["0"]["acceptance_length"] > 1.5 * profiles["1+"]["acceptance_length"]


async def test_the_whole_config_is_ready_to_paste(profiled):
    """For all requests and for each temperature, beside the options that the engine has."""
    code, out, err = await profiled(speculating(temperature("0", tally=MANY)))

    lines = [shlex.split(line) for line in out.splitlines() if "--speculative-config" in line]
    assert (code, err) == (0, "")
    assert [option for option, _ in lines] == ["--speculative-config"] * 2  # all, and T 0
    assert json.loads(lines[0][1]) == {
        **OPTIONS,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.75, 0.5, 0.25],
    }
    (row,) = [line.split() for line in out.splitlines() if line.startswith("0 ")]
    assert row == ["0", "2,000", "2.500", "0.750", "0.500", "0.250"]


async def test_markdown_has_a_table(profiled):
    _, out, _ = await profiled(speculating(temperature("0", tally=MANY)), "--format", "markdown")

    assert "| 0 | 2,000 | 2.500 | 0.750 | 0.500 | 0.250 |" in out.splitlines()


async def test_rates_never_rise_since_vllm_would_not_start(profiled):
    """Where only good drafts are long, the rates are merged; as many tokens are accepted."""
    tally = drafts(2000, (2000, 1000, 500), (800, 600, 450))
    _, out, _ = await profiled(speculating(temperature("0", tally=tally)), "--json")

    profile = json.loads(out)["models"][0]["profiles"][1]
    rates = profile["synthetic_acceptance_rates"]
    accepted = [drafted * rate for drafted, rate in zip((2000, 1000, 500), rates, strict=True)]
    assert rates == sorted(rates, reverse=True)
    assert sum(accepted) == pytest.approx(1850, rel=1e-3)
    assert profile["acceptance_length"] == pytest.approx(1 + 1850 / 2000)


async def test_short_drafts_have_two_lengths(profiled):
    """A benchmark may draft as many tokens as production, or always all."""
    tally = drafts(2000, (2000, 1000), (1800, 800))
    code, out, _ = await profiled(speculating(temperature("0", tally=tally)))

    notes = [line for line in out.splitlines() if line.startswith("  temperature 0: ")]
    assert code == 0
    assert notes == [
        "  temperature 0: no draft had more than 2 of 3 tokens; the rates after that are 0.",
        (
            "  temperature 0: drafts were shorter than 3 tokens. Where those of a benchmark are as"
            " short, its length is 2.300; where all are full, 2.700."
        ),
    ]


async def test_a_temperature_with_few_drafts_has_no_rates(profiled):
    """It is named with its number of drafts instead, and is in the sum."""
    tree = speculating(temperature("0", tally=MANY), temperature("1+", tally=FEW))
    code, out, _ = await profiled(tree, "--json")

    (found,) = json.loads(out)["models"]
    assert code == 0
    assert [profile["temperature"] for profile in found["profiles"]] == ["all", "0"]
    assert found["profiles"][0]["drafts"] == 2999
    assert found["too_few_drafts"] == {"1+": 999}


async def test_without_a_plugin_it_has_vllms_own_counts_of_all_temperatures(profiled):
    """Of both engines; what to add to the configuration, since nobody reports the rest."""
    counters = {Counter.DRAFTS: 1000.0}
    both = [
        engine(
            index=index,
            speculation=None,
            counters=counters,
            accepted_per_position=(700.0, accepted, 100.0),
        )
        for index, accepted in (("0", 300.0), ("1", 500.0))
    ]
    code, out, _ = await profiled(report(model(engines=tuple(both))))

    (line,) = [line for line in out.splitlines() if "--speculative-config '" in line]
    assert code == 0
    assert json.loads(shlex.split(line)[1]) == {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.7, 0.4, 0.1],
    }
    assert "add the following to it" in out


def with_depths(*depths):
    engines = tuple(
        engine(index=str(index), speculation=replace(KNOWN, num_speculative_tokens=depth))
        for index, depth in enumerate(depths)
    )
    return report(model(temperature("0", tally=MANY), engines=engines))


SYNTHETIC = replace(KNOWN, rejection_sample_method="synthetic")
NOT_BY_POSITION = engine(
    speculation=None, counters={Counter.DRAFTS: 2000.0}, accepted_per_position=()
)
ABSENT = {
    "synthetic": (
        speculating(temperature("0", tally=MANY), speculation=SYNTHETIC),
        "no profile of demo: this vLLM itself accepts draft tokens at synthetic rates",
    ),
    "no drafts": (
        speculating(temperature("0", tally=Tally())),
        "no profile of demo: vLLM has drafted nothing since it started.",
    ),
    "few drafts": (
        speculating(temperature("0", tally=FEW)),
        "no profile of demo: vLLM has made 999 drafts since it started, and a profile needs 1,000.",
    ),
    "different engines": (
        with_depths(3, 5),
        "no profile of demo: its engines draft different numbers of tokens",
    ),
    "deep drafts": (with_depths(33), "no profile of demo: vLLM drafts up to 33 tokens"),
    "positions": (
        report(model(engines=(NOT_BY_POSITION,))),
        "no profile of demo: acceptance by position is not known.",
    ),
    "no model": (report(), "no profile: "),
    "vLLM is down": (
        report(model(temperature("0", tally=MANY)), scrape=down(BadStatus(500))),
        "no profile: The sidecar cannot read vLLM's metrics.",
    ),
}


@pytest.mark.parametrize("case", ABSENT)
async def test_without_data_it_says_why_and_fails(profiled, case):
    """In one line, with an exit code of its own."""
    tree, sentence = ABSENT[case]
    code, out, err = await profiled(tree)

    assert (code, out) == (3, "")
    assert err.startswith(sentence)
    assert len(err.splitlines()) == 1


async def test_scripts_see_why_in_the_json_too(profiled):
    code, out, _ = await profiled(speculating(temperature("0", tally=FEW)), "--json")

    (found,) = json.loads(out)["models"]
    assert code == 3
    assert found["missing"].startswith("vLLM has made 999 drafts")
    assert found["profiles"] == []

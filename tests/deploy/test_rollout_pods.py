"""Argo's analysis of Pods that serve, from their engines to what Argo concludes.

``test_rollouts.py`` has the rules' cases on series of its own. Here the pages are the product's, so
that a metric or label which the rules name and the sidecar does not have leaves no verdict. The
rules need an hour of both versions and nine hours of the stable one before: they are simulated,
written into Debian's Prometheus, and the rules as shipped are evaluated over them by promtool and
Prometheus. A Prometheus that scrapes live would have to run a changed text, with all windows
shortened.
"""

import asyncio
import json
import re
import subprocess
from contextlib import AsyncExitStack

import aiohttp
import pytest
import yaml

from sidecar.export.exporter import chosen, rendered
from sidecar.settings import load_settings
from specdec_tools.demo.scheduler import SimulatorOptions
from tests.dashboards.reading import STALE, backfill
from tests.debian_servers import running_prometheus
from tests.deploy.argo import RULES, Phase, metrics, phase, queries
from tests.page import Samples
from tests.simulated_pods import Load, SimulatedPod, Traffic, simulated_time

pytestmark = [pytest.mark.servers, pytest.mark.slow]

BEGIN = 1_699_999_200  # Unix seconds
PAST = 9 * 3600  # seconds of the stable version alone
SECONDS = 70 * 60  # of both
END = BEGIN + PAST + SECONDS
POLL = 30  # seconds between two polls of vLLM: twice the default, since polls take most of the time
SCRAPE = 60  # seconds between two scrapes of the sidecar: Prometheus' default
EACH = 2  # Pods of a version
MIXED = {0.0: 1, 1.0: 1}
HOT = {0.0: 1, 1.0: 4}
INCONCLUSIVE = "version:specdec_rollout:inconclusive"
# By what the canary is: its draft model, and the traffic that it gets.
CANARIES = {
    "better": ({"cold_acceptance": 0.99, "hot_acceptance": 0.8}, MIXED),
    "worse": ({"cold_acceptance": 0.9, "hot_acceptance": 0.4}, MIXED),
    "hotter": ({}, HOT),
    "looping": ({"loop_share": 0.5}, MIXED),
}


def engine(**changes):
    """One so slow that its hours take seconds to simulate."""
    return SimulatorOptions(model_name="m", step_seconds=0.8, **changes)


def pods(folder, options, mix, seed, begin=BEGIN + PAST):
    """The scrapes of one version's Pods: the Pod's number, the time and the samples of each."""
    settings = load_settings(None, {"SPECDEC_SCRAPE_INTERVAL": f"{POLL}s"})
    for number in range(EACH):
        load = Load(options=options, traffic=Traffic(mix=mix), seed=seed + number)
        with (
            simulated_time(begin) as clock,
            SimulatedPod(clock, folder / "plugin.sock", settings) as pod,
        ):
            pod.listen()
            pod.start(load)
            pod.poll()
            while pod.at < END:
                yield number, pod.at, scraped(pod)
                pod.run(SCRAPE)


def scraped(pod):
    return Samples.parsed(rendered(pod.shown(), chosen("text/plain", "")).decode())


def lines(version, namespaces, scrapes):
    """The scrapes in OpenMetrics, with the labels that Prometheus takes from the Pods."""
    for number, at, samples in scrapes:
        for namespace in namespaces:
            own = (
                f'namespace="{namespace}",pod="{version}-{number}",'
                f'rollouts_pod_template_hash="{version}"'
            )
            for (name, labels), value in samples.items():
                pairs = ",".join([own, *(f'{label}="{text}"' for label, text in labels)])
                yield f"{name}{{{pairs}}} {value} {at}"


def served(folder):
    """What Prometheus has of all Pods: each canary and the same stable Pods in a namespace."""
    yield from lines("stable", CANARIES, pods(folder, engine(), MIXED, 1, BEGIN))
    for seed, (name, (changes, mix)) in enumerate(CANARIES.items(), start=1):
        scrapes = pods(folder, engine(**changes), mix, 100 * seed)
        yield from lines("canary", [name], scrapes)


def levels():
    """The rules in turn: those of a level read only what earlier levels record."""
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    waiting = group["rules"]
    while waiting:
        unknown = re.compile(rf"\b({'|'.join(rule['record'] for rule in waiting)})\b")
        level = [rule for rule in waiting if not unknown.search(rule["expr"])]
        yield {"groups": [group | {"rules": level}]}
        waiting = [rule for rule in waiting if rule not in level]


async def record(http, folder):
    """Evaluates the rules over this time and writes what they record beside the samples.

    Prometheus finds new blocks when it starts. The rules' file and group keep their names, on which
    depends when Prometheus evaluates a group within its interval.
    """
    rules = folder / "rules.yaml"
    for level in levels():
        rules.write_text(json.dumps(level))
        async with running_prometheus(http, folder, {}, flags=(STALE,)) as prometheus:
            process = await asyncio.create_subprocess_exec(
                *("promtool", "tsdb", "create-blocks-from", "rules", f"--url={prometheus.url}"),
                *(f"--start={BEGIN}", f"--end={END}", "--output-dir=prometheus", "rules.yaml"),
                cwd=folder,
                stdout=subprocess.DEVNULL,
            )
            assert await process.wait() == 0


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Asks Prometheus as of the end of the analysis: pairs of labels and value."""
    folder = tmp_path_factory.mktemp("rollouts")
    backfill(folder, served(folder))

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def start():
            http = await stack.enter_async_context(aiohttp.ClientSession())
            await record(http, folder)
            return await stack.enter_async_context(running_prometheus(http, folder, {}))

        prometheus = runner.run(start())
        yield lambda query: runner.run(prometheus.instant(query, at=END))
        runner.run(stack.aclose())


@pytest.mark.parametrize(
    ("canary", "failing"),
    [
        ("better", set()),
        ("worse", {"time-per-output-token"}),
        ("hotter", set()),
        ("looping", {"broken-endings"}),
    ],
)
def test_a_canary_fails_by_what_is_worse_and_by_nothing_else(ask, canary, failing):
    """A better or worse draft model, another mix of temperatures, replies that end in loops."""
    concluded = {
        name: phase(metrics()[name], [value for _, value in ask(query)])
        for name, query in queries(namespace=canary).items()
    }

    assert concluded == {
        name: Phase.FAILED if name in failing else Phase.SUCCESSFUL for name in metrics()
    }


def test_the_time_per_token_decides_where_the_plug_in_tells_it(ask):
    """Acceptance would as well, if the time were not found."""
    query = queries(namespace="worse")["time-per-output-token"]

    [(labels, _)] = ask(query)
    assert labels["measure"] == "time_per_output_token"


def test_every_rule_finds_what_it_reads_on_the_pages_of_the_pods(ask):
    """One that names a metric wrongly records nothing, which not every verdict would show."""
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]:
        if rule["record"] == "specdec_rollout:tolerance":
            continue  # reads nothing
        for name, matchers in expected_series(rule):
            for namespace in CANARIES:
                selected = f'{name}{{namespace="{namespace}",{matchers}}}'
                assert ask(selected), selected


def expected_series(rule):
    """The series that a rule records, as name and matchers.

    A rule that says why a verdict is missing records nothing here: what it reads stands for it.
    """
    if rule["record"] != INCONCLUSIVE:
        matchers = ",".join(f'{name}="{value}"' for name, value in rule.get("labels", {}).items())
        return [(rule["record"], matchers)]
    read = re.findall(r"(\w+:specdec_[\w:]+)(?:\{(.*?)\})?", rule["expr"])
    assert read
    return read


def test_what_has_a_verdict_is_not_called_inconclusive(ask):
    assert not ask(INCONCLUSIVE)

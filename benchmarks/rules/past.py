"""What looking back an hour or a day costs.

25 hours of a few pods' series are written straight into blocks.
"""

import asyncio
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import yaml

from benchmarks.rules.prometheus import RULES, count, cpu_cost
from tests.debian_servers import running_prometheus

_PODS = 20
_HOURS = 25
_EVERY, _MINUTE, _SELDOM = 30, 60, 120  # seconds
_TEMPERATURES = ("0", "0-0.3", "0.3-0.5", "0.5-0.7", "0.7-1", "1+")
_END = 1_700_000_000
_TIMES = 30  # evaluations per measurement, as CPU time comes in hundredths of a second
_LOOKS_BACK = re.compile(r"\[(1h|24h)|offset")


def _series(pod: int) -> Iterator[tuple[str, float, int]]:
    """The series of one pod, recorded and raw, that rules look back on.

    Each comes with its value and its interval.
    """
    own = f'namespace="prod",job="vllm",instance="pod-{pod}:9911"'
    model = f'{own},model_name="m"'
    yield f"pod:specdec_engine_drafts:rate5m{{{model}}}", 5.0, _MINUTE
    yield f"pod:specdec_engine_draft_tokens:rate5m{{{model}}}", 15.0, _MINUTE
    yield f"pod:specdec_acceptance:judged{{{model}}}", 0.4, _EVERY
    yield f"pod:specdec_engine_accepted_tokens:rate5m{{{model}}}", 12.0, _MINUTE
    for quantile in ("0.5", "0.99"):
        yield (
            f'pod_quantile:specdec_tpot_seconds:max{{{model},quantile="{quantile}"}}',
            0.02,
            _MINUTE,
        )
    for bound in ("least", "most"):
        gap = f'pod:specdec_tpot_gap_seconds:bound{{{model},bound="{bound}"}}'
        yield gap, 0.02, _MINUTE
    yield f"pod:specdec_engine_drafts:max5m{{{model}}}", 5.0, _SELDOM
    yield f"pod:specdec_up:max5m{{{own}}}", 1.0, _SELDOM


def _lately(pod: int) -> Iterator[tuple[str, float]]:
    """The series of one pod of which rules read the last two hours, each with its value.

    Its rate has dropped at every temperature.
    """
    own = f'namespace="prod",job="vllm",instance="pod-{pod}:9911"'
    manner = 'method="eagle3",draft_tokens="3",adaptive_verification="false"'
    yield f"specdec_up{{{own}}}", 1.0
    yield f'specdec_threshold{{{own},name="acceptance_net_negative"}}', 0.5
    yield f'specdec_requests_running{{{own},model_name="m",engine="0"}}', 1.0
    links = 'runbooks="http://runbooks",dashboards="http://dashboards"'
    yield f"specdec_links_info{{{own},{links}}}", 1.0
    yield f'pod:specdec_served:timestamp_seconds{{{own},model_name="m"}}', _END - 60.0
    yield f'pod:specdec_by_time:bool{{{own},model_name="m"}}', 1.0
    yield f'pod:specdec_speedup:ratio{{{own},model_name="m"}}', 1.2
    for temperature in _TEMPERATURES:
        labels = f'model_name="m",temperature="{temperature}",{manner}'
        yield f"pod_temperature:specdec_acceptance:by_manner{{{own},{labels}}}", 0.4
        yield f"pod_temperature:specdec_acceptance:mean8h{{{own},{labels}}}", 0.7
        yield f"pod_temperature:specdec_acceptance:minutes2d{{{own},{labels}}}", 2880.0
        yield f"pod_temperature:specdec_acceptance:variance2d{{{own},{labels}}}", 0.0009
        if pod == 0:
            name = "model_temperature:specdec_acceptance:mean8h"
            yield f'{name}{{namespace="prod",{labels}}}', 0.7
    if pod == 0:
        yield "fleet:specdec_usual:minutes", 2.0
        workload = 'namespace="prod",job="vllm"'
        yield f'workload:specdec_served:timestamp_seconds{{{workload},model_name="m"}}', _END - 60.0
        yield f"workload:specdec_load_seconds:last{{{workload}}}", 300.0
        yield (
            'model:specdec_requested:timestamp_seconds{namespace="prod",model_name="m"}',
            _END - 60,
        )


def _yesterday(pod: int) -> Iterator[tuple[str, float]]:
    """What is recorded of the day before, with its value; six days ago it was of a week ago."""
    own = f'namespace="prod",job="vllm",instance="pod-{pod}:9911",model_name="m"'
    yield f"pod:specdec_acceptance:lowest_day_before{{{own}}}", 0.6
    yield f"pod:specdec_engine_acceptance:day_before{{{own}}}", 0.7
    if pod == 0:
        model = 'namespace="prod",model_name="m"'
        yield f"model:specdec_acceptance:lowest_day_before{{{model}}}", 0.6
        yield f"model:specdec_engine_acceptance:day_before{{{model}}}", 0.7
        yield f"model:specdec_engine_draft_tokens:per_draft_day_before{{{model}}}", 3.0


def _write(path: Path) -> None:
    """Writes OpenMetrics."""
    with path.open("w") as file:
        for pod in range(_PODS):
            for series, value, every in _series(pod):
                file.writelines(
                    f"{series} {value} {at}\n"
                    for at in range(_END - _HOURS * 3600, _END + 1, every)
                )
            for series, value in _lately(pod):
                file.writelines(
                    f"{series} {value} {at}\n" for at in range(_END - 2 * 3600, _END + 1, _EVERY)
                )
            for series, value in _yesterday(pod):
                for now in (_END - 6 * 86_400, _END):
                    file.writelines(
                        f"{series} {value} {at}\n" for at in range(now - 3600, now + 1, _SELDOM)
                    )
        file.write("# EOF\n")


async def past_costs(http: aiohttp.ClientSession) -> tuple[dict[str, float], list[str]]:
    """CPU seconds per pod of one evaluation of each recording rule that looks back.

    Also the rules without a result.
    """
    groups = yaml.safe_load((RULES / "recording.yaml").read_text())["groups"]
    rules = {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}
    costs, empty = {}, []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _write(directory / "day.om")
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "day.om", "prometheus"]
        await asyncio.to_thread(
            subprocess.run, command, cwd=directory, check=True, capture_output=True, timeout=600
        )
        async with running_prometheus(http, directory, {}) as at_rest:
            for record, expr in rules.items():
                if _LOOKS_BACK.search(expr):
                    costs[record] = await cpu_cost(http, at_rest, expr, _END, _TIMES) / _PODS
                    empty += [] if await count(at_rest, expr, _END) else [record]
    return costs, empty

"""What looking back a day costs: ``python -m benchmarks.rules.past [PODS]``, 20 by default.

Writes 25 hours of a few pods' series straight into blocks (``promtool tsdb create-blocks-from``) and measures the CPU
seconds that Prometheus takes to evaluate, at their end, each recording rule that looks back an hour or more. The cost
is linear in the pods; the table scales it to 1,000.
"""

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import yaml

from benchmarks.rules.prometheus import RULES, at_rest, count, cpu_cost
from benchmarks.table import Row, report

_PODS = 1000
_HOURS = 25
_EVERY = 30  # seconds
_END = 1_700_000_000
_CPU_BOUND = 1.0  # seconds
_TIMES = 30  # evaluations per measurement, as CPU time comes in hundredths of a second


def _series(pod: int) -> Iterator[tuple[str, float]]:
    """The series of one pod, recorded and raw, that rules look back on, each with its value."""
    own = f'namespace="prod",job="vllm",instance="pod-{pod}:9911"'
    model = f'{own},model_name="m"'
    yield f"pod:specdec_engine_drafts:rate5m{{{model}}}", 5.0
    yield f"pod:specdec_engine_draft_tokens:rate5m{{{model}}}", 15.0
    yield f"pod:specdec_engine_accepted_tokens:rate5m{{{model}}}", 12.0
    for quantile in ("0.5", "0.99"):
        yield f'pod_quantile:specdec_tpot_seconds:max{{{model},quantile="{quantile}"}}', 0.02
    yield f"specdec_up{{{own}}}", 1.0
    yield f'specdec_build_info{{{own},version="1"}}', 1.0


def _write(path: Path, pods: int) -> int:
    """Writes OpenMetrics; returns the number of samples."""
    samples = 0
    times = range(_END - _HOURS * 3600, _END + 1, _EVERY)
    with path.open("w") as file:
        for pod in range(pods):
            for series, value in _series(pod):
                file.writelines(f"{series} {value} {at}\n" for at in times)
                samples += len(times)
        file.write("# EOF\n")
    return samples


async def main(pods: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        samples = _write(directory / "day.om", pods)
        command = [
            "promtool",
            "tsdb",
            "create-blocks-from",
            "openmetrics",
            str(directory / "day.om"),
            str(directory / "data"),
        ]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=600)
        groups = yaml.safe_load((RULES / "recording.yaml").read_text())["groups"]
        costs: dict[tuple[str, str], float] = {}
        empty: list[str] = []
        async with at_rest(directory) as running, aiohttp.ClientSession() as session:
            for group in groups:
                for rule in group["rules"]:
                    if not re.search(r"\[(1h|24h)|offset 1h", rule["expr"]):
                        continue
                    found = await count(session, running.url, rule["expr"], _END)
                    seconds = await cpu_cost(running, session, rule["expr"], _END, _TIMES)
                    costs[group["name"], rule["record"]] = seconds * _PODS / pods
                    empty += [] if found else [rule["record"]]
    print(f"{pods} pods, {samples} samples; rules without a result: {', '.join(empty) or 'none'}\n")
    for (name, record), cost in sorted(costs.items(), key=lambda one: -one[1]):
        print(f"  {cost:6.3f}  {name}  {record}")
    rows = [
        Row(
            f"group {name}",
            f"one evaluation over {_PODS} pods, CPU",
            sum(cost for (group, _), cost in costs.items() if group == name),
            at_most=_CPU_BOUND,
            unit="s",
        )
        for name in dict.fromkeys(group for group, _ in costs)
    ]
    return report(rows) or bool(empty)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)))

"""Rollouts for deploy/rollouts: Pods that serve, and what the rules conclude of them in promtool.

A Pod is a queue without a limit: requests arrive by chance, decode together, each step the slower
the more of them run, and end by chance. So a Pod that gets more requests runs more than that many
more at once. Noise of a version lasts: an hour by default. Nothing here is the product's but the
rules' file.
"""

import json
import math
import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import yaml

_FOLDER: Final = Path(__file__).parents[2] / "deploy/rollouts"
_RULES: Final = _FOLDER / "rules.yaml"
_VERDICT: Final = "version:specdec_rollout:verdict"
_STEP: Final = 6.0  # seconds of simulated time
_SCRAPE: Final = 60  # seconds
_PAST: Final = 12 * 60  # minutes of the stable version before the canary
_CANARY: Final = 70  # minutes of both
_EVALUATED: Final = 10  # minutes between two evaluations, of which both are whole numbers
_EDGES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS: Final = 500  # of a request, on average
_SECONDS_PER_TOKEN: Final = 0.0274  # with eight running, so that 35 a minute keep eight running
_PER_REQUEST: Final = 0.0433  # how much slower a step is for each further one
_DRAFTED: Final = {"0": (0.57, 3.0), "0.7-1": (0.43, 1.9)}
"""By temperature: the share of requests, and accepted tokens a step of three drafted."""
_BATCH: Final = 5  # rollouts that promtool takes at once


@dataclass(frozen=True)
class Version:
    """One version's Pod and traffic.

    ``requests`` arrive a minute; ``slower`` multiplies its time per token. Each request's time to
    the first token scatters by ``scatter``, its time per token by a fifth. ``noise`` is a version's
    own, in both times, and correlated over ``lasts`` minutes.
    """

    requests: float = 35.0
    slower: float = 1.0
    scatter: float = 0.2
    noise: float = 0.02
    lasts: float = 3.0
    pods: int = 1


def _label(running: int) -> str:
    low = 1
    for edge in _EDGES:
        if running <= edge:
            return f"{edge}" if low == edge else f"{low}-{edge}"
        low = edge + 1
    return "257+"


def _arrivals(random: Random, mean: float) -> int:
    limit = math.exp(-mean)
    number = 0
    product = random.random()
    while product > limit:
        number += 1
        product *= random.random()
    return number


class _Noise:
    """A factor whose logarithm is an autoregressive process of the first order."""

    def __init__(self, random: Random, spread: float, minutes: float) -> None:
        self._random = random
        self._spread = spread
        self._keep = math.exp(-_STEP / 60 / minutes)
        self._level = random.gauss(0, 1)

    def next(self) -> float:
        new = math.sqrt(1 - self._keep**2)
        self._level = self._keep * self._level + new * self._random.gauss(0, 1)
        return math.exp(self._spread * self._level)


def _pod(
    random: Random, version: Version, minutes: int
) -> Iterator[Mapping[tuple[str, str], float]]:
    """What has been counted at each scrape, by metric and further labels."""
    counts: dict[tuple[str, str], float] = defaultdict(float)
    token_noise = _Noise(random, version.noise, version.lasts)
    first_noise = _Noise(random, version.noise, version.lasts)
    per_step = version.requests / version.pods * _STEP / 60
    sigma = math.sqrt(math.log1p(version.scatter**2))
    running = 8
    names = list(_DRAFTED)
    shares = [share for share, _ in _DRAFTED.values()]
    length = 1 + sum(share * accepted for share, accepted in _DRAFTED.values())

    for step in range(round(minutes * 60 / _STEP) + 1):
        if step * _STEP % _SCRAPE == 0:
            counts["specdec_requests_running", ""] = running
            counts["specdec_context_tokens", ""] = 1500.0
            yield dict(counts)

        load = max(0.4, 1 + _PER_REQUEST * (running - 8))
        token = _SECONDS_PER_TOKEN * version.slower * load * token_noise.next()
        first = 0.2 * load * first_noise.next()
        arrived = _arrivals(random, per_step)
        ends = _STEP / (token * _TOKENS)
        ended = sum(random.random() < ends for _ in range(running))
        running += arrived - ended
        if running:
            at = f',running="{_label(running)}"'
            scatter = random.gauss(1, 0.2 / math.sqrt(running * _STEP / (token * _TOKENS)))
            seconds = running * _STEP
            tokens = seconds / token / max(0.2, scatter)
            counts["specdec_decode_seconds_total", at] += seconds
            counts["specdec_decode_tokens_total", at] += tokens
            counts["specdec_decode_steps_total", at] += tokens / length

        for _ in range(ended):
            temperature = random.choices(names, shares)[0]
            label = f',temperature="{temperature}"'
            drafts = _TOKENS / (1 + _DRAFTED[temperature][1])
            counts["specdec_requests_total", f'{label},outcome="stopped"'] += 1
            waited = first * math.exp(random.gauss(0, sigma) - sigma**2 / 2)
            counts["specdec_request_time_to_first_token_seconds_sum", label] += waited
            counts["specdec_request_time_to_first_token_seconds_count", label] += 1
            counts["specdec_drafts_total", label] += drafts
            counts["specdec_draft_tokens_total", label] += 3 * drafts
            accepted = drafts * _DRAFTED[temperature][1] * random.gauss(1, 0.1)
            counts["specdec_accepted_tokens_total", label] += accepted
            ending = "loop" if random.random() < 0.01 else "normal"
            counts["specdec_request_endings_total", f'{label},ending="{ending}"'] += 1
        counts["specdec_engine_requests_total", ""] += ended
        counts["specdec_preemptions_total", ""] += sum(random.random() < 0.01 for _ in range(ended))


def _series(
    name: str, version: Version, model: str, seed: int, *, begin: int
) -> Iterator[Mapping[str, str]]:
    """promtool's input series of all Pods of a version, from minute ``begin`` on."""
    random = Random(f"{name} {seed}")
    minutes = _PAST + _CANARY - begin
    for pod in range(version.pods):
        rows: dict[tuple[str, str], list[float]] = {}
        for number, counted in enumerate(_pod(random, version, minutes)):
            for key, value in counted.items():
                rows.setdefault(key, [0.0] * number).append(value)
        for (metric, labels), values in rows.items():
            own = f'namespace="n",model_name="{model}",rollouts_pod_template_hash="{name}"'
            written = " ".join(f"{value:.6g}" for value in values)
            absent = f"_x{begin} " if begin else ""
            yield {
                "series": f'{metric}{{cluster="c",{own},pod="{name}-{pod}"{labels}}}',
                "values": absent + written,
            }


def rollouts(stable: Version, canary: Version, seeds: Sequence[int]) -> Counter[str]:
    """How many rollouts fail, succeed, and are inconclusive; by measure which fail."""
    found: Counter[str] = Counter()
    for first in range(0, len(seeds), _BATCH):
        batch = seeds[first : first + _BATCH]
        inputs: list[Mapping[str, str]] = []
        for seed in batch:
            model = f"m{seed}"
            inputs += _series("stable", stable, model, seed, begin=0)
            inputs += _series("canary", canary, model, seed, begin=_PAST)
        verdicts, reasons = _concluded(inputs)
        for seed in batch:
            own = verdicts.get(f"m{seed}", {})
            found[_phase(own)] += 1
            found.update(f"{measure} failed" for measure, value in own.items() if value < 0)
            found.update(f"{measure} passed" for measure, value in own.items() if value > 0)
        found.update(f"because {reason}" for reason in reasons)
    return found


def _phase(verdicts: Mapping[str, float]) -> str:
    """Argo's: one failed measure fails the rollout, and all four must succeed."""
    if any(value < 0 for value in verdicts.values()):
        return "failed"
    return "successful" if len(verdicts) == 4 else "inconclusive"


def _concluded(
    inputs: Sequence[Mapping[str, str]],
) -> tuple[Mapping[str, Mapping[str, float]], list[str]]:
    """The canaries' verdicts, by model and measure, and the reasons where there is none."""
    end = f"{_PAST + _CANARY}m"
    reason = "version:specdec_rollout:inconclusive"
    canary = '{rollouts_pod_template_hash="canary"}'
    checks = [
        {"expr": f"{_VERDICT}{canary}", "eval_time": end, "exp_samples": []},
        {"expr": f"{reason}{canary}", "eval_time": end, "exp_samples": []},
    ]
    scene = {
        "rule_files": [str(_RULES)],
        "evaluation_interval": f"{_EVALUATED}m",
        "tests": [{"interval": f"{_SCRAPE}s", "input_series": inputs, "promql_expr_test": checks}],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scene.json"
        path.write_text(json.dumps(scene))
        done = subprocess.run(
            ["promtool", "test", "rules", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )

    said = done.stdout + done.stderr
    if "parse error" in said or "error executing" in said:
        raise RuntimeError(said[:2000])
    verdicts: dict[str, dict[str, float]] = defaultdict(dict)
    for labels, value in re.findall(rf'{{__name__="{_VERDICT}", ([^}}]*)}} (-?[0-9.Ee+]+)', said):
        verdicts[_read(labels, "model_name")][_read(labels, "measure")] = float(value)
    reasons = [
        f"{_read(labels, 'measure')}: {_read(labels, 'because')}"
        for labels in re.findall(rf'{{__name__="{reason}", ([^}}]*)}}', said)
    ]
    return verdicts, reasons


def _read(labels: str, name: str) -> str:
    found = re.search(rf'\b{name}="((?:[^"\\]|\\.)*)"', labels)
    return found.group(1) if found else ""


def template() -> Mapping[str, object]:
    """The analysis that the rules are for."""
    loaded: Mapping[str, object] = yaml.safe_load((_FOLDER / "analysis-template.yaml").read_text())
    return loaded


EQUAL: Final = Version()
"""Noise of 2 %, 35 requests a minute."""


def with_requests(version: Version, factor: float) -> Version:
    """The same with another number of requests."""
    return replace(version, requests=version.requests * factor)

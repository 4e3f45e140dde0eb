"""The copy of the rules in Python, by which they are calibrated, says what Prometheus says."""

import json
import os
import subprocess
from itertools import pairwise
from random import Random

import pytest
import yaml

from benchmarks.calibration.rules import Rules, Scraped
from tests.alerts.scene import RULES, Scene, concerned, shipped

LOW, REGRESSED = "SpecDecodeAcceptanceLow", "SpecDecodeAcceptanceRegressed"
POD = {"namespace": "n", "job": "j", "instance": "i", "pod": "p"}
SCRAPE = 60  # seconds
HOUR = 3600 // SCRAPE
DAY = 24 * HOUR
DRAFTED = 1800  # by scrape
MADE = {
    "fall": "pod:specdec_acceptance:fall",
    "spread": "pod:specdec_acceptance:spread2d",
    "past": "pod:specdec_engine_acceptance:past",
}


def scrapes(hours, falls, seed=0):
    """A rate that wanders about 0.62, and is lower by so much within ``falls`` (hours)."""
    random = Random(seed)
    drift, totals, is_low = 0.0, [(0, 0)], None
    for number in range(int(hours * HOUR)):
        drift = 0.98 * drift + random.gauss(0, 0.2)
        less = sum(by for start, end, by in falls if start * HOUR <= number < end * HOUR)
        rate = 0.62 + 0.03 * drift - less + random.gauss(0, 0.01)
        totals.append((totals[-1][0] + DRAFTED, totals[-1][1] + round(DRAFTED * rate)))
        first, last = totals[max(-6, -len(totals))], totals[-1]
        judged = (last[1] - first[1]) / (last[0] - first[0])
        if judged < 0.47 or (is_low and judged < 0.52):
            is_low = True
        elif judged > 0.52:
            is_low = False
        yield Scraped(judged if number >= 2 else None, is_low, bool(is_low), *totals[-1])


def modelled(scraped):
    """By scrape, what is recorded and which alerts fire."""
    rules = Rules()
    for one in scraped:
        fired = rules.step(one)
        values = {name: getattr(rules, name) for name in MADE}
        yield values, {LOW: fired.page, REGRESSED: fired.regressed}, rules.has_dropped


def series(scraped):
    """As promtool reads it."""

    def of(metric, values, **labels):
        named = ",".join(f'{name}="{value}"' for name, value in {**POD, **labels}.items())
        return {"series": f"{metric}{{{named}}}", "values": " ".join(values)}

    def shown(values):
        return ["_" if value is None else repr(float(value)) for value in values]

    model = {"model_name": "m"}
    engine = model | {"engine": "0"}
    always = [f"1x{len(scraped) - 1}"]
    for name, value in (
        ("acceptance_net_negative", 0.5),
        ("acceptance_low_is_critical", 0),
        ("acceptance_regression", 0.05),
    ):
        yield of("specdec_threshold", [f"{value}x{len(scraped) - 1}"], name=name)
    yield of("specdec_up", always)
    yield of("specdec_model_acceptance_ratio", shown(one.rate for one in scraped), **model)
    yield of("specdec_model_acceptance_low", shown(one.is_low for one in scraped), **model)
    loses = shown(one.loses for one in scraped)
    yield of("specdec_model_verdict", loses, verdict="net_negative", **model)
    never = [f"0x{len(scraped) - 1}"]
    yield of("specdec_model_verdict_basis", never, basis="speedup", **model)
    drafts = shown(one.drafted / 3 for one in scraped)
    yield of("specdec_engine_drafts_total", drafts, **engine)
    yield of("specdec_engine_draft_tokens_total", shown(one.drafted for one in scraped), **engine)
    yield of(
        "specdec_engine_accepted_tokens_total", shown(one.accepted for one in scraped), **engine
    )


def groups():
    """The shipped rules that the two alerts need, in their groups."""
    needed = [
        rule
        for alert in (LOW, REGRESSED)
        for rule in concerned(shipped(), Scene("", alert, at=(0,)))
    ]
    wanted = {str(rule.get("record") or rule["alert"]) for rule in needed}
    for name in ("recording.yaml", "alerts.yaml"):
        for group in yaml.safe_load((RULES / name).read_text())["groups"]:
            kept = [
                {key: value for key, value in rule.items() if key != "annotations"}
                for rule in group["rules"]
                if (rule.get("record") or rule["alert"]) in wanted
            ]
            if kept:
                yield group | {"rules": kept}


def expected(at, values, fires, has_dropped):
    """What promtool must find at a scrape."""
    when = f"{at * SCRAPE}s"

    def there(expr, is_there, value=1):
        found = [{"labels": "{}", "value": value}] if is_there else []
        return {"expr": expr, "eval_time": when, "exp_samples": found}

    for name, record in MADE.items():
        value = values[name]
        near = record if value is None else f"abs({record} - {value!r}) < bool 1e-9"
        yield there(f"sum({near})", value is not None)
    yield there("group(pod:specdec_acceptance:dropped)", has_dropped)
    for alert, severity in ((LOW, "critical"), (REGRESSED, "warning")):
        labels = f'alertname="{alert}", severity="{severity}", alertstate="firing"'
        yield there(f"group(ALERTS{{{labels}}})", fires[alert])


CASES = {
    "two falls in a day, and one of the same hour a day later": (
        30,
        ((3, 4.5, 0.3), (12, 12.2, 0.3), (26, 29, 0.25), (27, 28.5, 0.12)),
    ),
}


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.limit(600)
@pytest.mark.parametrize("case", CASES)
def test_the_model_says_at_each_minute_what_prometheus_says(case, tmp_path):
    hours, falls = CASES[case]
    scraped = list(scrapes(hours, falls))
    told = list(modelled(scraped))
    # around each change of an alert, and every hour and a half
    changes = [at for at, (one, two) in enumerate(pairwise(told)) if one[1:] != two[1:]]
    near = {at + off for at in changes for off in (-1, 0, 1)}
    looked = sorted(at for at in near | set(range(0, len(told), 97)) if 20 <= at < len(told))
    alerts = [fires for _, fires, _ in told]
    assert any(fires[LOW] for fires in alerts)
    assert any(fires[REGRESSED] for fires in alerts)

    test = {
        "interval": f"{SCRAPE}s",
        "input_series": list(series(scraped)),
        "promql_expr_test": [one for at in looked for one in expected(at, *told[at])],
    }
    shown = list(groups())
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{SCRAPE}s",
        "group_eval_order": [group["name"] for group in shown],
        "tests": [test],
    }
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": shown}))
    (tmp_path / "test.yaml").write_text(json.dumps(document))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]

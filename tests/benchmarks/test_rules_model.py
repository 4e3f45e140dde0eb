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
        if name == "past" and at < DAY + HOUR:
            continue  # of a pod's first minutes Prometheus' rate() extrapolates
        value = values[name]
        near = record if value is None else f"abs({record} - {value!r}) < bool 1e-9"
        yield there(f"sum({near})", value is not None)
    yield there("group(pod:specdec_acceptance:dropped)", has_dropped)
    for alert, severity in ((LOW, "critical"), (REGRESSED, "warning")):
        labels = f'alertname="{alert}", severity="{severity}", alertstate="firing"'
        yield there(f"group(ALERTS{{{labels}}})", fires[alert])


# hours: two in a day, which page, and one that was low at the same hour of the day before
FALLS = ((3, 4.5, 0.3), (12, 12.2, 0.3), (26, 29, 0.25), (27, 28.5, 0.12))


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.limit(1800)
def test_the_model_says_minute_by_minute_what_prometheus_says(tmp_path):
    """What is recorded to the ninth digit, and when alerts begin and end."""
    scraped = list(scrapes(30, FALLS))
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
    run(tmp_path, document, {"groups": shown})


def run(directory, document, rules):
    """What promtool says of these tests: nothing is wrong."""
    (directory / "rules.yaml").write_text(json.dumps(rules))
    (directory / "test.yaml").write_text(json.dumps(document))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"],
        cwd=directory,
        env=os.environ | {"TMPDIR": str(directory)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]


def labelled(name, **labels):
    named = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{named}}}"


SIX_DAYS = 6 * 24  # hours
K = "model:specdec_engine_draft_tokens:per_draft_day_before"


@pytest.mark.servers
@pytest.mark.parametrize(
    ("record", "day_before", "with_other_k"),
    [
        (
            "pod:specdec_acceptance:lowest_before",
            "specdec_acceptance:lowest_day_before",
            0.5,
        ),
        ("pod:specdec_engine_acceptance:past", "specdec_engine_acceptance:day_before", 0.7),
    ],
)
def test_the_lower_one_of_yesterday_and_a_week_ago_counts(
    record, day_before, with_other_k, tmp_path
):
    """A pod that was not there has its model's. What was recorded six days ago is a week old."""
    rates = {  # a week ago, yesterday, and what counts
        ("m", "weekend"): (0.5, 0.7, 0.5),
        ("m", "worse"): (0.8, 0.6, 0.6),
        ("m", "young"): (None, 0.7, 0.55),
        ("m", "new"): (None, None, 0.55),
        ("sank", "newer"): (None, None, 0.65),
        ("other", "k"): (0.5, 0.7, with_other_k),
    }
    given = {
        labelled(f"model:{day_before}", namespace="n", model_name="m"): (0.55, 0.65),
        labelled(f"model:{day_before}", namespace="n", model_name="sank"): (0.75, 0.65),
        labelled(K, namespace="n", model_name="m"): (3, 3.1),
        labelled(K, namespace="n", model_name="sank"): (3, 3),
        labelled(K, namespace="n", model_name="other"): (3.5, 3),
    }
    for (model, name), (week_ago, yesterday, _) in rates.items():
        own = {"namespace": "n", "instance": name, "model_name": model}
        given[labelled(f"pod:{day_before}", **own)] = week_ago, yesterday
        given[labelled("pod:specdec_acceptance:judged", **own)] = None, 0.6

    (rule,) = [one for one in shipped() if one.get("record") == record]
    tests = [
        {
            "expr": f"sum by (instance) (({rule['expr']}) and on (instance) "
            f'pod:specdec_acceptance:judged{{instance="{name}"}})',
            "eval_time": f"{SIX_DAYS}h",
            "exp_samples": [{"labels": labelled("", instance=name), "value": counts}],
        }
        for (_, name), (_, _, counts) in rates.items()
    ]
    values = {
        name: f"{'_' if was is None else was} _x{SIX_DAYS - 1} {'_' if now is None else now}"
        for name, (was, now) in given.items()
    }
    test = {
        "interval": "1h",
        "input_series": [{"series": name, "values": text} for name, text in values.items()],
        "promql_expr_test": tests,
    }
    run(tmp_path, {"evaluation_interval": "1h", "tests": [test]}, {})


def test_a_weekend_like_the_last_one_is_no_regression():
    """Of ten days, the sixth, the seventh and the eighth accept less: the first of these warns."""
    rules = Rules()
    regressed = []
    for minute in range(15 * 24 * 60):
        is_weekend = minute // 1440 % 7 in {5, 6}
        rate = 0.5 if is_weekend else 0.7
        fired = rules.step(Scraped(rate, False, False, 1800 * minute, round(1800 * minute * rate)))
        regressed.append(fired.regressed)
    days = [any(regressed[1440 * day : 1440 * (day + 1)]) for day in range(15)]

    assert days[5]
    assert not any(days[:5] + days[6:])

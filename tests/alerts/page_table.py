"""Who is paged in each situation, when, and with which title, as a table.

``.venv/bin/python -m tests.alerts.page_table [PART OF A NAME ...]`` runs the shipped rules and a
model of Alertmanager on the situations of test_one_page.py.
"""

import sys
from collections.abc import Iterator

from scripts.alert_texts import alert_rules
from sidecar.alerting.rule import filled
from tests.alerts.notified import firing, notices, route_of
from tests.alerts.test_one_page import OUTAGES, QUIET, Situation


def main(parts: list[str]) -> int:
    """The number of situations that page otherwise than they should."""
    chosen = [
        situation
        for situation in (*OUTAGES, *QUIET)
        if not parts or any(part in situation.name for part in parts)
    ]
    _say("| situation | begins at | pages | after | at most | the page's title begins |")
    _say("|---|---|---|---|---|---|")
    wrong = 0
    for situation in chosen:
        rows = list(_pages(situation))
        wrong += len(rows) != (situation.page is not None)
        for page, minute, title in rows or [("none", None, "")]:
            begins = f"minute {situation.start:g}" if situation.page else ""
            late = f"{minute - situation.start:g} min" if minute is not None else ""
            limit = f"{situation.within:g} min" if situation.page else ""
            _say(f"| {situation.name} | {begins} | {page} | {late} | {limit} | {title} |")
    return wrong


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()  # each takes seconds


def _pages(situation: Situation) -> Iterator[tuple[str, float, str]]:
    """Each page: the alert, the minute of its notification, and what its title says first."""
    by_minute = firing(situation.pods, situation.minutes)
    for notice in notices(by_minute):
        if notice.receiver == "pagerduty":
            alert = next(alert for alert in by_minute[notice.minute] if _is_of(alert, notice))
            yield notice.alert.removeprefix("SpecDecode"), notice.minute, _title(alert)


def _is_of(alert: dict[str, str], notice) -> bool:
    group = (alert.get(label, "") for label in route_of(alert)["group_by"])
    is_its_own = alert["alertname"] == notice.alert and alert["severity"] == "critical"
    return is_its_own and tuple(group)[1:] == notice.group


def _title(alert: dict[str, str]) -> str:
    rules = {(rule.name, rule.severity): rule for rule in alert_rules()}
    rule = rules[alert["alertname"], "critical"]
    return f"{filled(rule.summary, alert, 0.0)} … First: {rule.first}"


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))

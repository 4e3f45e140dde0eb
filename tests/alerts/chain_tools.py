"""Real servers around the sidecar, on free ports of this machine."""

import asyncio
import json
import re
from contextlib import asynccontextmanager

import yaml
from aiohttp import web

from sidecar.settings import load_settings
from tests.alerts.pods import DASHBOARDS, RUNBOOKS
from tests.alerts.scene import RULE_FILES, RULES
from tests.debian_servers import ready_server, running_prometheus, scraping

PACE = 1 / 100  # factor for how long conditions have to hold
# The rules' windows and intervals, shortened: the shipped text and its replacement. A scrape may
# take a second, and a window holds fifteen scrapes, so that a busy machine delays the alerts but
# does not interrupt them.
INTERVAL = "1s"
FASTER = (
    (r"\[1h\] offset 23h30m\) >= 15$", "[30s] offset 5s) >= 5"),
    (r"\[(6m|5m|3m)\]", "[15s]"),
    (r"\[1h\]", "[30s]"),
    (r"\[24h\]", "[60s]"),
    (r"\[20m\]", "[15s]"),
    (r"\[25m:1m\]\) >= 11", "[15s:1s]) >= 6"),
    (r"\[25m:1m\]\) >= 3", "[15s:1s]) >= 3"),
    (r"\[10m:1m\]\) >= 10", "[15s:1s]) >= 10"),
    (r"offset 23h30m", "offset 5s"),
    (r"interval: (30s|1m)", f"interval: {INTERVAL}"),
    (r"interval: 2m", "interval: 2s"),
)
SECRET = "from-a-file"


class Receivers:
    """The webhook, Slack and PagerDuty in one: ``alerts`` are the webhook's."""

    def __init__(self):
        self.alerts = []
        self.messages = []  # Slack's
        self.pages = []  # PagerDuty's

    async def take(self, request):
        body = await request.json()
        match request.path:
            case "/webhook" if request.headers["Authorization"] == f"Bearer {SECRET}":
                self.alerts += body["alerts"]
            case "/slack":
                self.messages += body["attachments"]
            case "/pagerduty" if body["routing_key"] == SECRET:
                self.pages.append(body)
            case _:
                return web.Response(status=400)
        return web.Response(status=202 if request.path == "/pagerduty" else 200)

    async def until(self, name, status, source):
        """The first such alert at the webhook; ``source`` is the label that the sidecar adds."""
        sought = (name, status, source)

        def is_sought(alert):
            labels = alert["labels"]
            return (labels["alertname"], alert["status"], labels.get("source")) == sought

        return await first(self.alerts, is_sought)

    def statuses(self, name):
        """What the webhook has been told of such alerts, in turn."""
        return [alert["status"] for alert in self.alerts if alert["labels"]["alertname"] == name]


async def first(received, is_sought):
    """The first that is sought, once it has been received; a busy machine may bring others."""
    while not (sought := list(filter(is_sought, received))):
        await asyncio.sleep(0.05)
    return sought[0]


@asynccontextmanager
async def alertmanager(http, directory, receivers_url):
    """Runs Alertmanager with the shipped configuration.

    The receivers' addresses and secrets are replaced, and the times are shortened.
    """
    secret = directory / "secret"
    secret.write_text(SECRET)
    content = yaml.safe_load((RULES / "alertmanager" / "alertmanager.yaml").read_text())
    content["templates"] = [str(RULES / "alertmanager" / "templates" / "*.tmpl")]
    for route in (content["route"], *content["route"]["routes"]):
        route.update({"group_wait": "100ms", "group_interval": "500ms"})
    (directory / "slack").write_text(f"{receivers_url}/slack")
    authorization = {"authorization": {"credentials_file": str(secret)}}
    addresses = {
        "pagerduty": {"url": f"{receivers_url}/pagerduty", "routing_key_file": str(secret)},
        "slack": {"api_url_file": str(directory / "slack")},
        "webhook": {"url": f"{receivers_url}/webhook", "http_config": authorization},
    }
    for receiver in content["receivers"]:
        for config in receiver.get(f"{receiver['name']}_configs", ()):
            config.update(addresses.get(receiver["name"], {}))  # none is sent by e-mail here
    path = directory / "alertmanager.yaml"
    path.write_text(yaml.safe_dump(content))
    storage = f"--storage.path={directory / 'alertmanager'}"
    command = (
        "prometheus-alertmanager",
        f"--config.file={path}",
        storage,
        "--cluster.listen-address=",
    )
    async with ready_server(http, *command) as url:
        yield url


def faster(text):
    """A rule file with short windows and every ``for`` and ``keep_firing_for`` at ``PACE``."""

    def held(match):
        seconds = int(match[2]) * {"s": 1, "m": 60, "h": 3600}[match[3]] * PACE
        return f"{match[1]}{seconds * 1000:.0f}ms"

    for pattern, replacement in FASTER:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return re.sub(r"(for: )(\d+)([smh])$", held, text, flags=re.MULTILINE)


def unused():
    """The patterns of ``FASTER`` that shorten nothing in the shipped rules any more."""
    text, found = "\n".join((RULES / name).read_text() for name in RULE_FILES), []
    for pattern, replacement in FASTER:
        text, times = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        found += [] if times else [pattern]
    return found


@asynccontextmanager
async def prometheus(http, directory, page_url, alertmanager_url):
    """Debian's Prometheus with the shipped rules at the fast pace."""
    for name in RULE_FILES:
        (directory / name).write_text(faster((RULES / name).read_text()))
    config = scraping(page_url.removeprefix("http://"), job="vllm", interval=INTERVAL)
    config["global"]["evaluation_interval"] = INTERVAL
    config["rule_files"] = list(RULE_FILES)
    alertmanagers = [{"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}]
    config["alerting"] = {"alertmanagers": alertmanagers}
    async with running_prometheus(http, directory, config) as running:
        yield running.url


def settings_of(vllm_url, socket, alertmanager_url):
    """The sidecar with short windows and a direct push at the fast pace."""
    alerting = {
        "RUNBOOKS": RUNBOOKS, "DASHBOARDS": DASHBOARDS,
        "ALERTMANAGERS": json.dumps([alertmanager_url]),
        "INTERVAL": "500ms", "PACE": str(PACE), "INSTANCE": "pod-7",
        "TIMEOUT": "60s",  # a busy machine answers late
    }  # fmt: skip
    environment = {
        "VLLM_URL": vllm_url, "LISTEN": "127.0.0.1:0", "PLUGIN__SOCKET": str(socket),
        "SCRAPE_INTERVAL": INTERVAL, "SCRAPE_CPU_SHARE": "1", "LATENCY_WINDOW": "15s",
        "HISTORY": "60s", "THRESHOLDS__MIN_REQUESTS": "10",
        "THRESHOLDS__ACCEPTANCE_LOW_IS_CRITICAL": "true",
    } | {f"ALERTING__{name}": value for name, value in alerting.items()}  # fmt: skip
    return load_settings(None, {f"SPECDEC_{name}": value for name, value in environment.items()})

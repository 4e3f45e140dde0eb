"""How the plug-in sends its reports.

Over several steps, as one cut, and while the sidecar is away or hangs.
"""

import json
import os
import socket
import weakref
from contextlib import contextmanager, suppress
from itertools import count
from math import ceil

import pytest

from sidecar.requests import plugin
from tests.requests.conftest import descriptors
from tests.requests.scheduler_double import request

TWENTY = [f"r{number}" for number in range(20)]


@pytest.fixture
def slow_clock(clock):
    """Like ``clock``, but a report takes long.

    So long that a step has only time for one piece of its work.
    """
    clock.perf_counter = count().__next__
    return clock


def work(scheduler, requests=1):
    """Each request drafts once: three tokens, two of them accepted."""
    for _ in range(requests):
        scheduler.add_request(request("a"))
        scheduler.step({"a": (0, 1)})
        scheduler.step({"a": (3, 3)})
        scheduler.end("a")


def test_a_report_is_spread_over_steps_and_ends(plain, made, slow_clock):
    """Few rows in each packet, so that no step waits for a whole report."""
    scheduler = made(*(request(name, place / 100) for place, name in enumerate(TWENTY)))
    for _ in range(40):
        slow_clock.at += 0.001
        scheduler.step(dict.fromkeys(TWENTY, (3, 2)))
    assert scheduler._specdec.slices is None, "the first report is over, and the next not due"
    plain.until(lambda: plain.only.reports, 1)
    rows = sum(map(len, plain.only.tables.values()))

    assert len(plain.only.tables["temperature"]) == 20
    assert plain.only.packets == ceil(rows / plugin.LEAST_ROWS)


def test_requests_that_wait_are_never_visited(made, slow_clock):
    """There may be tens of thousands."""
    scheduler = made(*map(request, ["a", *TWENTY]))
    for name in TWENTY:
        scheduler.requests[name] = None  # any look at one of them raises

    for _ in range(10):
        slow_clock.at += 0.2
        scheduler.step({"a": (3, 2)})

    assert scheduler._specdec is not None


def test_a_report_under_way_keeps_no_request_that_has_ended(made, slow_clock):
    """vLLM's requests may be large, and a report may take many steps."""
    scheduler = made(*(request(name, place / 100) for place, name in enumerate(TWENTY)))
    scheduler.step(dict.fromkeys(TWENTY, (3, 2)))
    ended = weakref.ref(scheduler.requests["r10"])
    scheduler.end("r10")

    assert (scheduler._specdec.slices is not None, ended()) == (True, None)


def test_a_report_takes_a_small_share_of_a_step(made):
    """1 % of it, but at least what one part takes, and never more than half a millisecond."""
    observer = made()._specdec
    allowances = []
    for seconds in (0.0, 0.001, 0.03, 10.0):
        observer.step_seconds = seconds
        allowances.append(observer.allowance())

    assert allowances == pytest.approx([20e-6, 20e-6, 300e-6, 500e-6])


def test_totals_that_grow_fast_are_reported_sooner_than_in_a_second(plain, made, clock):
    """So what a young engine has reported is never far behind its counters."""
    scheduler, seen = made(request("a")), []
    for _ in range(200):
        clock.at += 0.05
        scheduler.step({"a": (3, 2)})
        seen.append((clock.at, scheduler._specdec.total.drafts, scheduler.counted[0]))

    late = [(at, mine / theirs) for at, mine, theirs in seen if at > 12]
    assert min(share for _, share in late) > 0.9
    assert plain.only.reports < 60


def test_all_numbers_of_a_report_are_of_one_moment_of_vllms_counters(plain, made, slow_clock):
    """However many steps it takes, and though each step counts more of every request."""
    requests = [request(f"r{number}", number / 100, prompt=1 << number % 9) for number in range(90)]
    scheduler = made(*requests)
    results = {one.request_id: (3, 2) for one in requests}
    counted = {}
    for step in range(1, 800):
        slow_clock.at += 0.05
        scheduler.step(results)
        counted[step] = scheduler.counted

    def is_one_moment():
        end = plain.only.end
        return bool(end) and plain.only.totals() == counted[end["steps"]]

    plain.until(is_one_moment, True)
    assert plain.only.reports > 3
    assert (plain.torn, plain.fallen) == (0, 0)


def test_the_end_of_a_report_is_a_heartbeat(plain, made, clock):
    """An engine that is busy and makes no step hangs; the sidecar tells it from these."""
    scheduler = made(*map(request, "abc"))
    scheduler.step({"a": (0, 1), "b": (0, 1)})
    clock.at += plugin.PERIOD
    scheduler.step({"a": (3, 4), "b": (3, 2)})

    expected = {"at": 2011.0, "steps": 2, "generation_tokens": 8, "running": 2, "waiting": 1}
    plain.until(lambda: {name: plain.only.end.get(name) for name in expected}, expected)


def test_no_finished_request_is_lost_at_hundreds_a_second(plain, made, clock):
    """While requests run and the report takes its small share of each step."""
    scheduler = made(request("long"))
    for number in range(2000):
        name = f"r{number}"
        scheduler.add_request(request(name))
        clock.at += 1 / 300
        scheduler.step({"long": (3, 2), name: (0, 1)})
        scheduler.end(name)
    scheduler.end("long")

    plain.until(lambda: (len(plain.only.done), plain.only.lost), (2001, 0))


def test_a_forked_process_sends_nothing_and_keeps_no_connection(plain, made, clock):
    """Two processes that send as one engine would contradict each other."""
    scheduler = made(request("a"))
    scheduler.step({"a": (0, 1)})
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        observer = scheduler._specdec
        was_closed = observer.socket is None
        clock.at += 2 * plugin.PERIOD
        scheduler.step({"a": (3, 2)})
        os.write(writing, b"y" if was_closed and observer.socket is None else b"n")
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reading, 1) == b"y"
    clock.at += 3 * plugin.PERIOD
    scheduler.step({"a": (3, 4)})
    plain.until(lambda: plain.total, scheduler.counted)
    assert plain.only.hellos == 1


def test_aborting_many_requests_at_once_makes_one_report(plain, made, monkeypatch):
    """Not one for each that ends, while the others wait."""
    reports, own = [], plugin.Observer.report
    monkeypatch.setattr(plugin.Observer, "report", lambda *given: reports.append(1) or own(*given))
    scheduler = made(*map(request, TWENTY))
    scheduler.step(dict.fromkeys(TWENTY, (3, 2)))
    reports.clear()
    scheduler.end(*TWENTY, status="FINISHED_ABORTED")
    assert len(reports) == 1
    plain.until(lambda: len(plain.only.done), 20)


def test_a_report_ends_though_requests_finish_in_every_step(plain, made, slow_clock):
    """What finishes after the cut goes with the next report."""
    scheduler = made(request("long"))
    for number in range(40):
        scheduler.add_request(request(f"r{number}"))
        slow_clock.at += plugin.PERIOD / 10
        scheduler.step({"long": (3, 2), f"r{number}": (0, 1)})
        scheduler.end(f"r{number}")
    assert scheduler.running  # the engine has not gone idle, where a report is sent in one go
    plain.until(lambda: (min(len(plain.only.done), 20), min(plain.only.totals()[0], 20)), (20, 20))


def test_a_report_is_one_cut_though_counts_change_while_it_is_sent(plain, made, slow_clock):
    """Its rows and its total are those of the step in which it began.

    It does not matter how many steps its packets take.
    """
    requests = [
        request(f"r{number}", number / 100, adapter=f"tenant {number}") for number in range(40)
    ]
    scheduler, results = made(*requests), {request.request_id: (3, 2) for request in requests}
    for _ in range(400):
        slow_clock.at += 0.04
        scheduler.step(results)
    plain.until(lambda: min(plain.only.reports, 3), 3)
    assert (plain.torn, plain.fallen) == (0, 0)


def test_a_report_that_the_socket_cuts_off_is_whole_with_the_next(plain, made, clock):
    """Rows that were not sent are sent with their later totals."""
    names = [f"r{number}" for number in range(100)]
    scheduler = made(*(request(name, place / 100) for place, name in enumerate(names)))
    own, budget = scheduler._specdec.send, [5]

    def full_after_some(kind, message):
        budget[0] -= 1
        return budget[0] >= 0 and own(kind, message)

    scheduler._specdec.send = full_after_some
    scheduler.step(dict.fromkeys(names, (0, 1)))
    clock.at += plugin.PERIOD
    scheduler.step(dict.fromkeys(names, (3, 2)))
    assert budget[0] < 0, "the report was cut off"
    budget[0] = 10**6
    scheduler.end(*names)
    plain.until(
        lambda: (plain.only.finished(), plain.only.sums("temperature")), ((100, 100, 300, 100),) * 2
    )
    assert (plain.torn, plain.fallen) == (0, 0)


def test_a_request_that_ends_while_a_full_queue_is_sent_is_of_the_next_report(
    listen, made, slow_clock, monkeypatch
):
    """Its end drops the oldest finished request, of which the report then has one less."""
    monkeypatch.setattr(plugin, "MAX_FINISHED", 10)
    scheduler, parts = made(), []
    work(scheduler, 10)
    scheduler.add_request(request("b"))
    scheduler.step({"b": (3, 2)})
    listen()
    own = scheduler._specdec.send
    scheduler._specdec.send = lambda kind, text: (
        own(kind, text) and (parts.append((kind, json.loads(text))) or True)
    )
    slow_clock.at += 5
    while "report" not in dict(parts):
        scheduler.step({"b": (3, 2)})
    scheduler.end("b", status="FINISHED_ABORTED")
    aborted, ends = 0, set()
    for part in (part for kind, part in parts if kind == "report"):
        aborted += sum(done["outcome"] == "aborted" for done in part["finished"])
        if part["end"]:
            assert aborted <= part["end"]["total"]["aborted"]
            ends.add(part["end"]["total"]["aborted"])
    assert (aborted, ends) == (1, {0, 1})


def test_a_row_says_when_its_key_first_appeared(plain, made, clock):
    """The sidecar names the adapters that came first."""
    scheduler = made()
    for name in ("b", "a", "b"):
        clock.at += 1
        scheduler.add_request(request("r", adapter=name))
        scheduler.step({"r": (0, 1)})
        scheduler.end("r")
    plain.until(lambda: len(plain.only.done), 3)
    assert [plain.only.since["adapter", name] for name in "ba"] == [2011.0, 2012.0]


def test_while_the_sidecar_is_away_the_newest_finished_requests_are_kept_and_the_rest_counted(
    listen, made, clock, monkeypatch
):
    """Totals lose nothing; the histograms say how much they miss."""
    monkeypatch.setattr(plugin, "MAX_FINISHED", 10)
    scheduler = made()
    work(scheduler, 25)
    plain = listen()
    clock.at += 1
    work(scheduler)
    plain.until(
        lambda: (plain.total, len(plain.only.done), plain.only.lost), ((26, 78, 52), 11, 15)
    )


def test_without_a_descriptor_the_plugin_connects_later(plain, made, clock):
    """When there is none as the engine starts, and again after the sidecar was away."""
    with descriptors(free=0):
        scheduler = made()
        work(scheduler)
    clock.at += 1
    scheduler.add_request(request("b", 0.9))
    scheduler.step({"b": (0, 1)})
    scheduler.end("b")
    work(scheduler)
    plain.until(lambda: plain.total, (2, 6, 4))
    plain.die()
    with descriptors(free=0):
        work(scheduler, 3)
    plain.live_again()
    plain.lives.clear()
    clock.at += 1
    work(scheduler)
    plain.until(lambda: plain.total, (6, 18, 12))
    # what has not changed since then, too
    plain.until(lambda: set(plain.only.tables["temperature"]), {50, 90})


@contextmanager
def hanging(path):
    """A sidecar that listens and never reads."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(1)
        yield listener


def pending_reports(connection):
    """The reports that wait in a socket."""
    connection.setblocking(False)
    with suppress(BlockingIOError):
        while packet := connection.recv(65_537):
            if report := json.loads(packet).get("report"):
                yield report


def test_a_sidecar_that_hangs_costs_no_time_and_loses_no_total(socket_path, made, clock):
    """A full socket is noticed at once, and never waited for."""
    with hanging(socket_path) as listener:
        scheduler = made()
        connected = scheduler._specdec.socket
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        work(scheduler, 2000)
        assert scheduler._specdec.finished, "the socket is full"
        assert scheduler._specdec.socket is connected
        connection = listener.accept()[0]
    with connection:
        reports = [*pending_reports(connection)]
        work(scheduler)
        while scheduler._specdec.finished:
            work(scheduler)
            reports += pending_reports(connection)
        reports += pending_reports(connection)
    *_, total = [report["end"]["total"] for report in reports if report["end"]]
    assert (total["drafts"], total["draft_tokens"], total["accepted_tokens"]) == scheduler.counted
    assert sum(len(report["finished"]) for report in reports) == total["drafts"]


def test_when_many_requests_end_at_once_the_totals_do_not_wait_for_all_of_them(
    socket_path, listen, made, clock
):
    """The socket takes some hundred finished requests while nobody reads.

    An idle engine sends the rest later.
    """
    names = [f"r{number}" for number in range(1000)]
    with hanging(socket_path) as listener:
        scheduler = made(*map(request, names))
        scheduler.step(dict.fromkeys(names, (0, 1)))
        scheduler.step(dict.fromkeys(names, (3, 3)))
        scheduler.end(*names)
        connection = listener.accept()[0]
    with connection:
        reports = [*pending_reports(connection)]
    *_, whole = [report["end"]["total"] for report in reports if report["end"]]
    assert (whole["stopped"], whole["drafts"]) == (1000, 1000)
    finished = sum(len(report["finished"]) for report in reports)
    assert 0 < finished < 1000
    plain = listen()
    clock.at += plugin.PERIOD
    work(scheduler)
    plain.until(lambda: plain.total, (1001, 3003, 2002))
    while scheduler._specdec.finished:  # each step of an idle engine sends what the socket takes
        scheduler.step({})
    plain.until(lambda: len(plain.only.done) + finished, 1001)

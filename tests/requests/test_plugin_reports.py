"""How the plug-in sends its reports.

When, over how many steps, as one cut, and while the sidecar is away or hangs.
"""

import json
import os
import socket
import weakref
from contextlib import contextmanager, suppress
from itertools import pairwise
from math import ceil

import pytest

from sidecar.requests import plugin
from tests.requests.conftest import descriptors
from tests.requests.plain_receiver import OUTCOMES
from tests.requests.scheduler_double import request

TWENTY = [f"r{number}" for number in range(20)]
MANY = [f"r{number}" for number in range(150)]


def many():
    """Requests, each with a key of its own."""
    return [request(name, adapter=name) for name in MANY]


def work(scheduler, requests=1):
    """Each request drafts once: three tokens, two of them accepted."""
    for _ in range(requests):
        scheduler.add_request(request("a"))
        scheduler.step({"a": (0, 1)})
        scheduler.step({"a": (3, 3)})
        scheduler.end("a")


def test_an_engine_that_counts_fewer_than_no_requests_is_idle(plain, made, clock):
    """As 0.16 does, which counts a streaming session that waits twice."""
    scheduler = made()
    scheduler.get_num_unfinished_requests = lambda: len(scheduler.running) or -2
    work(scheduler)
    plain.until(lambda: plain.total, (1, 3, 2))


def link_of(scheduler):
    return scheduler._specdec_link.report.link


def sent(scheduler, takes=lambda: True):
    """The packets that the sidecar's socket takes from now on; it is full if not ``takes()``."""
    link = link_of(scheduler)
    own, packets = link.send, []

    def send(kind, message):
        is_taken = takes() and own(kind, message)
        if is_taken:
            packets.append((kind, json.loads(message)))
        return is_taken

    link.send = send
    return packets


def items(report):
    return [*report["requests"], *report["steps"], *report["finished"]]


class Reading:
    """Puts the cuts together from the packets that were sent."""

    def __init__(self):
        self.arriving, self.cells, self.cuts = {}, {}, []

    def take(self, packets):
        for kind, report in packets:
            if kind != "report":
                continue
            for *key, numbers in report["requests"]:
                self.arriving[tuple(key)] = numbers
            if report["end"] is not None:
                self.cells |= self.arriving
                self.arriving = {}
                self.cuts.append((report["end"], dict(self.cells)))
        return self

    @staticmethod
    def totals(cells):
        """Drafts, draft tokens and accepted tokens."""
        drafts = tokens = accepted = 0
        for numbers in cells.values():
            half = (len(numbers) - 5) // 2
            by_length, by_accepted = numbers[5 : 5 + half], numbers[5 + half :]
            drafts += sum(by_length)
            tokens += sum(length * times for length, times in enumerate(by_length))
            accepted += sum(length * times for length, times in enumerate(by_accepted))
        return drafts, tokens, accepted

    @staticmethod
    def ended(cells):
        return sum(sum(numbers[: len(OUTCOMES)]) for numbers in cells.values())


def test_a_report_takes_a_packet_of_at_most_64_items_in_each_step(plain, made, clock):
    """So that no step waits for a whole report."""
    scheduler = made(*many())
    packets = sent(scheduler)
    by_step = []
    for _ in range(10):
        clock.at += 0.01
        scheduler.step(dict.fromkeys(MANY, (3, 2)))
        by_step.append(len(packets))

    assert by_step == [1, 2, 3, *[3] * 7], "150 cells, and one of steps once it is known"
    assert [len(items(report)) for _, report in packets] == [64, 64, 22]
    assert [report["end"] is None for _, report in packets] == [True, True, False]
    plain.until(lambda: len(plain.only.tables["adapter"]), 150)


def test_an_idle_engine_sends_all_of_a_report_at_once(plain, made, clock):
    """The next step may be far off."""
    scheduler = made(*many())
    scheduler.step(dict.fromkeys(MANY, (0, 1)))
    packets = sent(scheduler)
    scheduler.finish_requests(MANY, status())
    assert not packets, "nothing is sent while vLLM ends requests"

    scheduler.step({})

    assert sum(len(items(report)) for _, report in packets) == 150 + 150
    assert len(packets) == ceil(300 / 64)
    plain.until(lambda: (len(plain.only.done), plain.only.sums("adapter")[0]), (150, 150))


def status(name="FINISHED_STOPPED"):
    return type("Status", (), {"name": name})


def test_at_most_one_report_a_second_is_begun_while_the_engine_is_busy(plain, made, clock):
    """However much is counted, and however young the engine is."""
    scheduler = made(*map(request, TWENTY))
    packets = sent(scheduler)
    begun = []
    for _ in range(400):
        clock.at += 0.03125
        before = len(packets)
        scheduler.step(dict.fromkeys(TWENTY, (3, 2)))
        begun += [clock.at] * (len(packets) - before)

    assert len(begun) == 13, "12.5 seconds"
    assert {after - before for before, after in pairwise(begun)} == {1.0}


def test_an_engine_that_goes_idle_reports_once_and_idle_rounds_without_news_do_not(
    plain, made, clock
):
    """As while a finished request waits for its KV transfer, when vLLM makes a round at once."""
    scheduler = made(request("a"))
    scheduler.step({"a": (0, 1)})
    scheduler.step({"a": (3, 2)})
    packets = sent(scheduler)
    for _ in range(2000):
        scheduler.step({})  # "a" still waits or runs
        assert not packets
    scheduler.end("a")
    assert [kind for kind, _ in packets] == ["report"]

    for _ in range(2000):
        clock.at += 0.01
        scheduler.step({})
    assert len(packets) == 1

    scheduler.add_request(request("b"))
    scheduler.end("b", status="FINISHED_ABORTED")  # which never ran, so there was no step
    assert len(packets) == 2
    plain.until(lambda: (len(plain.only.done), plain.only.cuts), (2, 3))


def test_requests_that_wait_are_never_visited(made, clock):
    """There may be tens of thousands."""
    scheduler = made(*map(request, ["a", *TWENTY]))
    for name in TWENTY:
        scheduler.requests[name] = None  # any look at one of them raises

    for _ in range(10):
        clock.at += 0.2
        scheduler.step({"a": (3, 2)})

    assert scheduler._specdec is not None


def test_a_report_under_way_keeps_no_request_that_has_ended(plain, made, clock):
    """vLLM's requests may be large, and a report may take many steps."""
    scheduler = made(*many())
    scheduler.step(dict.fromkeys(MANY, (3, 2)))
    ended = weakref.ref(scheduler.requests["r10"])
    scheduler.end("r10")

    assert (scheduler._specdec.report.is_under_way, ended()) == (True, None)


def test_all_numbers_of_a_report_are_of_one_moment_of_vllms_counters(plain, made, clock):
    """However many steps it takes, though each step counts more, and while requests come and go."""
    requests = [
        request(f"r{number}", number / 100, prompt=1 << number % 9, adapter=f"t{number % 40}")
        for number in range(190)
    ]
    scheduler = made(*requests)
    packets = sent(scheduler)
    results = {one.request_id: (3, 2) for one in requests}
    counted = {0: (0, 0, 0)}
    for step in range(1, 400):
        clock.at += 0.05
        scheduler.step(results)
        counted[step] = scheduler.counted
        if step % 5 == 0:
            scheduler.finish_requests([f"r{step // 5}"], status())
            del results[f"r{step // 5}"]
            assert step == scheduler._specdec.step_count

    reading = Reading().take(packets)
    assert len(reading.cuts) > 10
    assert max(len(items(report)) for kind, report in packets if kind == "report") == 64
    for end, cells in reading.cuts:
        assert reading.totals(cells) == counted[end["steps"]]
        # A request that ends after a step is in the cut that is made in the next.
        assert reading.ended(cells) == (end["steps"] - 1) // 5
    plain.until(lambda: plain.only.cuts, len(reading.cuts))
    assert plain.fallen == 0


def test_the_end_of_a_report_is_a_heartbeat(plain, made, clock):
    """An engine that is busy and makes no step hangs; the sidecar tells it from these."""
    scheduler = made(*map(request, "abc"))
    scheduler.step({"a": (0, 1), "b": (0, 1)})
    clock.at += plugin.PERIOD
    scheduler.step({"a": (3, 4), "b": (3, 2)})

    expected = {"at": 2011.0, "steps": 2, "generation_tokens": 8, "running": 2, "waiting": 1}
    plain.until(lambda: {name: plain.only.end.get(name) for name in expected}, expected)


def test_no_finished_request_is_lost_at_hundreds_a_second(plain, made, clock):
    """While requests run, and each step sends a packet at most."""
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
        link = link_of(scheduler)
        was_closed = not link.is_open
        clock.at += 20 * plugin.PERIOD
        scheduler.step({"a": (3, 2)})
        os.write(writing, b"y" if was_closed and not link.is_open else b"n")
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reading, 1) == b"y"
    clock.at += 3 * plugin.PERIOD
    scheduler.step({"a": (3, 4)})
    plain.until(lambda: plain.total, scheduler.counted)
    assert plain.only.hellos == 1


def test_aborting_many_requests_at_once_makes_one_report(plain, made, clock):
    """Not one for each that ends, while the others wait."""
    scheduler = made(*map(request, TWENTY))
    scheduler.step(dict.fromkeys(TWENTY, (3, 2)))
    packets = sent(scheduler)
    scheduler.end(*TWENTY, status="FINISHED_ABORTED")

    assert len(packets) == 1
    plain.until(lambda: len(plain.only.done), 20)


def test_a_report_ends_though_requests_finish_in_every_step(plain, made, clock):
    """What finishes after the cut goes with the next report."""
    scheduler = made(request("long"))
    for number in range(40):
        scheduler.add_request(request(f"r{number}"))
        clock.at += plugin.PERIOD / 10
        scheduler.step({"long": (3, 2), f"r{number}": (0, 1)})
        scheduler.end(f"r{number}")
    assert scheduler.running  # the engine has not gone idle, where a report is sent in one go
    plain.until(lambda: (min(len(plain.only.done), 20), min(plain.only.totals()[0], 20)), (20, 20))


def test_finished_requests_come_with_or_after_the_end_of_their_cut(plain, made, clock):
    """So no request is known that its cell does not have yet; at each packet's end."""
    scheduler = made(*many())
    packets = sent(scheduler)
    left = list(MANY)
    for step in range(300):
        clock.at += 0.02
        scheduler.step(dict.fromkeys(left, (3, 2)))
        if step % 2 and left:
            scheduler.finish_requests([left.pop()], status())
    assert scheduler._specdec.finished or len(left) < 20

    reading, finished = Reading(), 0
    for packet in packets:
        finished += len(packet[1].get("finished", ()))
        reading.take([packet])
        assert finished <= reading.ended(reading.cells)
    assert finished > 100


def test_a_report_that_the_socket_cuts_off_is_whole_with_the_next(plain, made, clock):
    """Cells that were not sent are sent as they are by then, and no others again."""
    scheduler = made(*many())
    room = [2]

    def takes():
        room[0] -= 1
        return room[0] >= 0

    packets = sent(scheduler, takes)
    for _ in range(4):
        clock.at += 0.01
        scheduler.step(dict.fromkeys(MANY, (3, 2)))
    assert len(packets) == 2, "the report was cut off in its third packet, and not tried again"
    assert link_of(scheduler).is_open

    room[0] = 10**6
    clock.at += plugin.PERIOD
    scheduler.end(*MANY)

    told = (150, 600, 1800, 600)
    plain.until(lambda: (plain.only.hellos, plain.only.finished()), (1, told))
    assert plain.only.sums("adapter") == (150, 600, 1800, 600)
    assert plain.only.sums("temperature") == (150, *scheduler.counted)
    assert (plain.only.hellos, plain.fallen) == (1, 0)


def test_a_cell_that_a_cut_off_report_has_told_is_not_told_again(plain, made, clock):
    """It has not changed, and the sidecar keeps it for the end that comes later."""
    scheduler = made(request("long"), *many())
    scheduler.step({"long": (3, 2), **dict.fromkeys(MANY, (3, 2))})
    for _ in range(3):
        scheduler.step({"long": (3, 2)})
    takes = [True]
    packets = sent(scheduler, lambda: takes[0])
    clock.at += plugin.PERIOD
    scheduler.step(dict.fromkeys(MANY, (3, 2)))  # begins a report
    told = {tuple(row[:-1]) for _, report in packets for row in report["requests"]}
    takes[0] = False
    scheduler.step({"long": (3, 2)})
    takes[0] = True
    del packets[:]

    clock.at += plugin.PERIOD
    for _ in range(4):
        scheduler.step({"long": (3, 2)})

    again = {tuple(row[:-1]) for _, report in packets for row in report["requests"]}
    assert len(told) == 64
    assert told & again == {(50, 0, 7, None)}, "of the request that went on"
    assert len(told | again) == 151
    scheduler.end(*MANY, "long")
    plain.until(lambda: plain.only.sums("adapter"), (151, *scheduler.counted))


@pytest.mark.parametrize("full_for", [1, 4, 30])
def test_a_socket_that_is_full_is_tried_again_a_second_later(full_for, plain, made, clock):
    """Nothing is encoded in vain in between, and the connection stays."""
    scheduler = made(request("a"))
    scheduler.step({"a": (0, 1)})
    tries = []
    until = clock.at + full_for
    packets = sent(scheduler, lambda: tries.append(clock.at) or clock.at >= until)
    while not packets:
        clock.at += 0.125
        scheduler.step({"a": (3, 2)})
        assert len(tries) < 100

    assert tries == [clock.at - full_for + 1 + number for number in range(full_for)]
    scheduler.end("a")
    plain.until(lambda: (plain.total, plain.only.hellos), (scheduler.counted, 1))


def test_past_the_limit_the_oldest_finished_requests_are_dropped_while_a_report_sends_them(
    listen, made, clock, monkeypatch
):
    """What it says to be lost and what it sends are together all that ended."""
    monkeypatch.setattr(plugin, "MAX_FINISHED", 100)
    monkeypatch.setattr(plugin, "MAX_ITEMS", 10)
    scheduler = made(request("long"))
    scheduler.step({"long": (0, 1)})

    def end(*names):
        for name in names:
            scheduler.add_request(request(name, adapter=name[0]))
        scheduler.step({"long": (3, 2), **dict.fromkeys(names, (0, 1))})
        scheduler.finish_requests(names, status("FINISHED_ABORTED"))

    end(*(f"a{number}" for number in range(150)))
    plain = listen()
    clock.at += 5
    for step in range(40):
        clock.at += 0.1
        end(*(f"{'bcd'[number % 3]}{step} {number}" for number in range(20)))
        report = scheduler._specdec.report
        assert report.unsent <= len(scheduler._specdec.finished) <= 100
    clock.at += plugin.PERIOD
    scheduler.end("long")

    plain.until(lambda: plain.only.sums("adapter")[0], 951)
    assert plain.only.lost > 50
    plain.until(lambda: len(plain.only.done) + plain.only.lost, 951)


def test_a_request_that_ends_while_a_full_queue_is_sent_is_of_the_next_report(
    listen, made, clock, monkeypatch
):
    """Its end drops the oldest finished request, of which the report then has one less."""
    monkeypatch.setattr(plugin, "MAX_FINISHED", 10)
    monkeypatch.setattr(plugin, "MAX_ITEMS", 1)
    scheduler = made()
    work(scheduler, 10)
    scheduler.add_request(request("b"))
    listen()
    packets = sent(scheduler)
    clock.at += 5
    scheduler.step({"b": (3, 2)})
    assert [kind for kind, _ in packets] == ["hello", "report"], "the report is under way"
    scheduler.finish_requests("b", status("FINISHED_ABORTED"))
    for _ in range(5):
        scheduler.step({})

    reading, aborted, ends = Reading(), 0, []
    for kind, report in packets[1:]:
        assert kind == "report"
        reading.take([(kind, report)])
        aborted += sum("aborted" in row for row in report["finished"])
        told = sum(numbers[3] for numbers in reading.cells.values())
        assert aborted <= told
        if report["end"]:
            ends.append((told, report["end"]["lost"]))
    assert (aborted, ends) == (1, [(0, 0), (1, 1)])
    assert sum(len(report["finished"]) for _, report in packets[1:]) == 10


def test_while_the_sidecar_is_away_the_newest_finished_requests_are_kept_and_the_rest_counted(
    listen, made, clock, monkeypatch
):
    """Totals lose nothing; the histograms say how much they miss."""
    monkeypatch.setattr(plugin, "MAX_FINISHED", 10)
    scheduler = made()
    work(scheduler, 25)
    plain = listen()
    clock.at += plugin.MAX_RETRY
    work(scheduler)
    plain.until(
        lambda: (plain.total, len(plain.only.done), plain.only.lost), ((26, 78, 52), 11, 15)
    )


def test_connecting_backs_off_and_a_hello_is_not_encoded_in_vain(made, clock, monkeypatch):
    """Without a sidecar, neither a busy engine nor one with many short requests pays for it."""
    scheduler = made(request("long"))
    link, report = link_of(scheduler), scheduler._specdec.report
    tries, encoded = [], []
    own, begun = link.connect, clock.at
    monkeypatch.setattr(link, "connect", lambda: tries.append(clock.at - begun) or own())
    encode = plugin.encode
    monkeypatch.setattr(plugin, "encode", lambda value: encoded.append(value) or encode(value))

    for number in range(480):
        name = f"r{number}"
        scheduler.add_request(request(name))
        clock.at += 0.125
        scheduler.step({"long": (3, 2), name: (0, 1)})
        scheduler.end(name)

    # One try was made when the scheduler was constructed, and the next is in the first step.
    assert [at - tries[0] for at in tries] == [0, 1, 3, 7, 15, 25, 35, 45, 55]
    assert not [value for value in encoded if isinstance(value, dict)], "a hello"
    assert sum(len(value) > 10 for value in encoded) == 480, "a record of each finished request"
    assert len(report.cells) == 0


def test_an_idle_engine_without_a_sidecar_does_not_try_at_each_round(made, clock, monkeypatch):
    """Nor at the end of each request, when one comes at a time."""
    scheduler = made()
    tries = []
    link = link_of(scheduler)
    own = link.connect
    monkeypatch.setattr(link, "connect", lambda: tries.append(clock.at) or own())
    for _ in range(100):
        work(scheduler)
        for _ in range(5):
            scheduler.step({})
        clock.at += 0.0625

    assert tries == [10, 11, 13], "6.25 seconds"


def test_an_idle_engine_that_finds_its_connection_lost_tells_the_next_sidecar_at_once(
    plain, made, clock
):
    """The next step may be far off."""
    scheduler = made()
    work(scheduler)
    plain.until(lambda: plain.total, scheduler.counted)
    plain.die()
    plain.lives.clear()
    plain.live_again()
    clock.at += plugin.PERIOD
    scheduler.add_request(request("b", 0.9))
    scheduler.end("b", status="FINISHED_ABORTED")

    plain.until(lambda: plain.total, scheduler.counted)
    plain.until(lambda: set(plain.only.tables["temperature"]), {50, 90})
    assert [done["outcome"] for done in plain.only.done] == ["aborted"]


def test_an_idle_engine_tries_once_where_each_connection_is_lost_at_once(plain, made, clock):
    """As by a sidecar that refuses the hello, and closes the connection: vLLM must not wait."""
    scheduler = made(request("a"))
    scheduler.step({"a": (3, 2)})
    link = link_of(scheduler)
    connect, tries = link.connect, []

    def counted():
        if not link.is_open:
            tries.append(clock.at)
        return len(tries) < 20 and connect()

    def lost(kind, message):
        if kind == "report":
            link.close()
        return kind == "hello"

    link.connect, link.send = counted, lost
    clock.at += plugin.PERIOD
    scheduler.end("a")
    assert len(tries) <= 1
    for _ in range(100):
        scheduler.step({})
    assert len(tries) <= 1
    clock.at += plugin.PERIOD
    scheduler.step({})
    assert len(tries) <= 2


def test_a_lost_connection_is_tried_again_soon_however_long_the_sidecar_was_away_before(
    listen, made, clock, monkeypatch
):
    """The time between two tries is 1 s again after one that succeeds."""
    scheduler = made(request("a"))
    for _ in range(600):
        clock.at += 0.1
        scheduler.step({"a": (3, 2)})
    plain = listen()
    clock.at += plugin.MAX_RETRY
    scheduler.step({"a": (3, 2)})
    plain.until(lambda: plain.only.hellos, 1)
    plain.die()
    clock.at += plugin.PERIOD
    scheduler.step({"a": (3, 2)})  # notices
    assert not link_of(scheduler).is_open
    tries = []
    link = link_of(scheduler)
    own = link.connect
    monkeypatch.setattr(link, "connect", lambda: tries.append(clock.at) or own())
    begun = clock.at
    for _ in range(80):
        clock.at += 0.125
        scheduler.step({"a": (3, 2)})

    assert [at - begun for at in tries] == [1, 2, 4, 8]


def test_a_new_connection_gets_every_cell(plain, made, clock):
    """Also what has not changed for long: a sidecar that restarts remembers nothing."""
    scheduler = made(*many(), request("long"))
    scheduler.step({**dict.fromkeys(MANY, (0, 1)), "long": (0, 1)})
    for name in MANY:
        clock.at += 0.1
        scheduler.step({name: (3, 2), "long": (3, 3)})
    scheduler.finish_requests(MANY, status())
    clock.at += plugin.PERIOD
    for _ in range(10):
        scheduler.step({"long": (3, 3)})
        clock.at += 0.0625
    plain.until(lambda: len(plain.only.done), 150)
    before = plain.only

    plain.die()
    clock.at += plugin.PERIOD
    scheduler.step({"long": (3, 3)})  # notices that nobody reads
    plain.lives.clear()
    plain.live_again()
    clock.at += plugin.PERIOD
    for _ in range(5):
        scheduler.step({"long": (3, 3)})

    plain.until(lambda: plain.only.cuts, 1)
    assert plain.only.cells.keys() == before.cells.keys()
    assert plain.only.steps.keys() == before.steps.keys()
    assert sum(numbers[0] for numbers in plain.only.steps.values()) == 150 + 10 + 2
    assert plain.only.hello == before.hello
    scheduler.end("long")
    plain.until(lambda: plain.total, scheduler.counted)


def test_a_new_connection_gets_the_cells_in_the_order_of_the_one_before(plain, made, clock):
    """The sidecar names the adapters that came first: after its restart, the same ones."""
    late, *others = MANY
    scheduler = made(*many())
    scheduler.step(dict.fromkeys(MANY, (0, 1)))  # all have a cell, and none has drafted
    for names in (others[::-1], [late], MANY):
        clock.at += plugin.PERIOD
        for _ in range(4):  # packets
            scheduler.step(dict.fromkeys(names, (3, 2)))
    plain.until(lambda: len(plain.only.tables["adapter"]), 150)
    before = [*plain.only.cells]
    plain.die()
    clock.at += plugin.PERIOD
    scheduler.step(dict.fromkeys(MANY[70:90], (3, 2)))

    plain.live_again()
    plain.lives.clear()
    clock.at += plugin.MAX_RETRY
    for _ in range(5):
        scheduler.step({MANY[120]: (3, 2)})

    plain.until(lambda: [*plain.only.cells], before)


def test_a_connection_that_is_lost_within_a_report_costs_no_count(plain, made, clock):
    """Every packet may be the last that the sidecar reads."""
    scheduler = made(*many())
    for number in range(12):
        for _ in range(number % 4):
            clock.at += 0.3
            scheduler.step(dict.fromkeys(MANY, (3, 2)))
        plain.die()
        clock.at += 0.3
        scheduler.step(dict.fromkeys(MANY, (3, 2)))
        plain.live_again()
        clock.at += plugin.MAX_RETRY
        scheduler.step(dict.fromkeys(MANY, (3, 2)))
    clock.at += plugin.MAX_RETRY
    scheduler.end(*MANY)

    plain.until(lambda: plain.only.sums("adapter"), (150, *scheduler.counted))
    assert plain.fallen == 0


def test_the_hello_says_that_the_cells_are_full_on_the_same_connection(
    plain, made, clock, monkeypatch
):
    """It is sent once more, and nothing else again."""
    monkeypatch.setattr(plugin, "MAX_CELLS", 4)
    scheduler = made()
    packets = sent(scheduler)
    for number in range(6):
        scheduler.add_request(request("a", adapter=f"t{number}"))
        scheduler.step({"a": (0, 1)})
        scheduler.step({"a": (3, 2)})
        clock.at += plugin.PERIOD
        scheduler.end("a")

    hellos = [hello for kind, hello in packets if kind == "hello"]
    assert [hello["full"] for hello in hellos] == [True]
    plain.until(lambda: (len(plain.only.done), plain.only.hellos), (6, 2))
    assert plain.only.tables["adapter"].keys() == {"t0", "t1", "t2", "t3", "other"}
    assert plain.only.tables["adapter"]["other"]["stopped"] == 2
    at = packets.index(("hello", hellos[0]))
    assert packets[at + 1][1]["requests"][0][3] == "t3", "not those that it has told before"


def test_without_a_descriptor_the_plugin_connects_later(plain, made, clock):
    """When there is none as the engine starts, and again after the sidecar was away."""
    with descriptors(free=0):
        scheduler = made()
        work(scheduler)
    clock.at += plugin.MAX_RETRY
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
    clock.at += plugin.MAX_RETRY
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
        while packet := connection.recv(131_073):
            if report := json.loads(packet).get("report"):
                yield report


def test_a_sidecar_that_hangs_costs_no_time_and_loses_no_total(socket_path, made, clock):
    """A full socket is noticed at once, and never waited for."""
    with hanging(socket_path) as listener:
        scheduler = made()
        connected = link_of(scheduler).socket
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        work(scheduler, 2000)
        assert scheduler._specdec.finished, "the socket is full"
        assert link_of(scheduler).socket is connected
        connection = listener.accept()[0]
    with connection:
        reports = [*pending_reports(connection)]
        clock.at += plugin.PERIOD
        work(scheduler)
        while scheduler._specdec.finished:
            clock.at += plugin.PERIOD
            work(scheduler)
            reports += pending_reports(connection)
        reports += pending_reports(connection)
    reading = Reading().take(("report", report) for report in reports)
    assert reading.totals(reading.cells) == scheduler.counted
    ended = reading.ended(reading.cells)
    assert sum(len(report["finished"]) for report in reports) == ended == scheduler.counted[0]


def test_when_many_requests_end_at_once_the_totals_do_not_wait_for_all_of_them(
    socket_path, listen, made, clock
):
    """The socket takes some hundred finished requests while nobody reads.

    An idle engine sends the rest later.
    """
    names = [f"r{number}" for number in range(4000)]
    with hanging(socket_path) as listener:
        scheduler = made(*map(request, names))
        link_of(scheduler).socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        scheduler.step(dict.fromkeys(names, (0, 1)))
        scheduler.step(dict.fromkeys(names, (3, 3)))
        scheduler.end(*names)
        connection = listener.accept()[0]
    with connection:
        reports = [*pending_reports(connection)]
    reading = Reading().take(("report", report) for report in reports)
    assert (reading.ended(reading.cells), reading.totals(reading.cells)[0]) == (4000, 4000)
    finished = sum(len(report["finished"]) for report in reports)
    assert 0 < finished < 4000
    plain = listen()
    clock.at += plugin.PERIOD
    work(scheduler)  # notices
    clock.at += plugin.MAX_RETRY
    while scheduler._specdec.finished:  # an idle engine sends what the socket takes
        clock.at += plugin.PERIOD
        scheduler.step({})
    plain.until(lambda: plain.total, (4001, 12_003, 8002))
    plain.until(lambda: len(plain.only.done) + finished, 4001)

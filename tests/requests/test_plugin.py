"""What the plug-in counts and tells, on a double of vLLM's scheduler."""

import json
import random
import socket
import weakref
from contextlib import suppress
from itertools import count
from types import SimpleNamespace

import pytest

from sidecar import __version__
from sidecar.requests import plugin
from sidecar.requests.messages import read_packet
from tests.requests.conftest import CheckingReceiver, descriptors
from tests.requests.scheduler_double import OldScheduler, Scheduler, request


@pytest.fixture
def clock(monkeypatch):
    """The plug-in's clocks, which stand until they are moved; a report takes no time."""
    now = SimpleNamespace(monotonic=lambda: now.at, time=lambda: 2000 + now.at, perf_counter=lambda: 0.0, at=10.0)
    monkeypatch.setattr(plugin, "time", now)
    return now


def steps(number, seconds, decodes, request_seconds, tokens):
    return {
        "steps": number, "seconds": pytest.approx(seconds), "decodes": decodes,
        "request_seconds": pytest.approx(request_seconds), "tokens": tokens,
    }  # fmt: skip


def tally(*, drafts=0, draft_tokens=0, accepted_tokens=0, drafted_at=(), accepted_at=(), **outcomes):
    ended = {"stopped": 0, "length": 0, "aborted": 0, "error": 0} | outcomes
    return ended | {
        "drafts": drafts, "draft_tokens": draft_tokens, "accepted_tokens": accepted_tokens,
        "drafted_at": list(drafted_at), "accepted_at": list(accepted_at),
    }  # fmt: skip


def random_traffic(scheduler, *, requests=40, invalid=False, seed=1):
    """Requests that start, draft, come back without a token now and then, and end in all ways."""
    rng, number = random.Random(seed), 0
    while number < requests or scheduler.running:
        if number < requests and rng.random() < 0.5:
            temperature, prompt, adapter = (
                rng.choice([0, 0.29, 0.7]),
                rng.choice([1, 512, 513]),
                rng.choice([None, "a"]),
            )
            one = request(f"r{number}", temperature, prompt, adapter=adapter)
            one.max_tokens = rng.randint(1, 30)
            scheduler.add(one)
            number += 1
        results = {}
        for one in scheduler.running:
            drafted = rng.randint(0, 3) if one.num_output_tokens else 0
            results[one.request_id] = drafted, 0 if drafted and rng.random() < 0.03 else rng.randint(1, drafted + 1)
        if invalid:
            rejects = [name for name, (drafted, tokens) in results.items() if tokens <= drafted]
            scheduler.invalid = {name: 1 for name in rejects if rng.random() < 0.2}
        scheduler.step(results)
        if scheduler.running and rng.random() < 0.1:
            scheduler.end(rng.choice(scheduler.running).request_id, status="FINISHED_ABORTED")


@pytest.mark.parametrize("base", [Scheduler, OldScheduler])
def test_totals_are_the_schedulers_own_and_every_table_sums_to_them(base, plain, made, clock):
    scheduler = made(base)
    random_traffic(scheduler, invalid=base is Scheduler)
    expected = (40, *scheduler.counted)
    plain.until(lambda: plain.engines and plain.only.sums("adapter") == expected)
    engine = plain.only
    plain.until(lambda: all(engine.sums(table) == expected for table in ("temperature", "prompt_tokens", "output")))
    assert engine.totals() == tuple(scheduler.counted)
    assert not plain.torn
    plain.until(lambda: engine.finished()[:3] == expected[:3])
    assert set(engine.tables["temperature"]) == {0, 29, 70}
    assert set(engine.tables["prompt_tokens"]) == {0, 9, 10}  # up to 1, 512 and 1024 tokens
    assert set(engine.tables["adapter"]) == {"", "a"}
    for row in engine.tables["temperature"].values():
        assert sum(row["drafted_at"]) == row["draft_tokens"]
        # -1 for each draft that came back without a token
        assert 0 <= sum(row["accepted_at"]) - row["accepted_tokens"] < 9
        first, second, third = row["drafted_at"]
        assert row["drafts"] >= first >= second >= third


def test_a_finished_request_is_told_with_all_that_is_its_own(plain, made, clock):
    scheduler = made()
    scheduler.add(request("a", 0.301, 600, structured=True, adapter="ä", min_p=0.1, logit_bias={}, logprobs=None))
    clock.at = 11.0
    scheduler.step({"a": (0, 1)})
    clock.at = 11.5
    scheduler.step({"a": (3, 4)})
    scheduler.requests["a"].max_tokens = 6
    clock.at = 12.0
    scheduler.step({"a": (2, 1)})
    plain.until(lambda: plain.engines and plain.only.done)
    assert plain.only.done == [
        {
            "temperature": 31, "drafts": 2, "draft_tokens": 5, "accepted_tokens": 3, "lengths": [1, 0, 0, 1],
            "prompt_tokens": 600, "output_tokens": 6,
            "arrival": 1000.0, "first_token": 2011.0, "last_token": 2012.0, "outcome": "length",
            "structured": True, "adapter": "ä", "parameters": ["min_p"],
        }
    ]  # fmt: skip


def test_a_step_counts_those_that_decode_and_the_time_since_the_step_before(plain, made, clock):
    scheduler = made()
    for name in "abc":
        scheduler.add(request(name))
    scheduler.step({"a": (0, 1), "b": (0, 1)})
    clock.at += 0.1
    scheduler.step({"a": (3, 2), "b": (3, 3), "c": (0, 1)})  # the first token of c is not one of decoding
    clock.at += 0.2
    scheduler.step({"a": (3, 1), "b": (3, 1), "c": (3, 4)})
    for name in "abc":
        scheduler.end(name)
    clock.at += 1000  # idle: not a step's length
    scheduler.add(request("d"))
    scheduler.step({"d": (0, 1)})
    clock.at += 0.4
    scheduler.step({"d": (3, 1)})
    scheduler.end("d")
    plain.until(lambda: plain.engines and 0 in plain.only.tables["steps"])
    assert plain.only.tables["steps"] == {
        0: steps(1, 0.4, 1, 0.4, 1),
        1: steps(1, 0.1, 2, 0.2, 5),
        2: steps(1, 0.2, 3, 0.6, 6),
    }


def test_a_preempted_request_that_is_new_again_has_no_second_prefill(plain, made, clock):
    """As with vLLM's model runner V2, which is told everything of it anew."""
    scheduler = made()
    for name in "ab":
        scheduler.add(request(name))
    scheduler.step({"a": (0, 1), "b": (0, 1)})
    clock.at += 0.1
    scheduler.step({"a": (3, 4), "b": (3, 4)})
    clock.at += 0.1
    scheduler.new = [SimpleNamespace(req_id="a")]
    scheduler.step({"a": (0, 1), "b": (3, 4)})
    scheduler.end("a", "b")
    plain.until(lambda: plain.engines and plain.only.tables["steps"])
    assert plain.only.tables["steps"] == {1: steps(2, 0.2, 4, 0.4, 13)}


def test_with_two_pipeline_stages_a_step_lasts_from_the_one_before_the_last(plain, made, clock):
    scheduler = made(stages=2)
    for name in "ab":
        scheduler.add(request(name))
    for number in range(6):
        scheduler.step({"ab"[number % 2]: (0, 1)})
        clock.at += 0.1
    for name in "ab":
        scheduler.end(name)
    plain.until(lambda: plain.engines and plain.only.tables["steps"])
    assert plain.only.tables["steps"] == {0: steps(4, 0.8, 4, 0.8, 4)}


def test_a_report_is_spread_over_steps_and_comes_to_its_end(plain, made, clock):
    scheduler = made()
    clock.perf_counter = iter(range(10**6)).__next__  # each slice is over after its first piece of work
    for number in range(20):
        scheduler.add(request(f"r{number}", number / 100))
    for _ in range(40):
        clock.at += 0.001
        scheduler.step({f"r{number}": (3, 2) for number in range(20)})
    assert scheduler._specdec.slices is None, "the first report is over, and the next not due"
    plain.until(lambda: plain.engines and plain.only.packets >= 6)
    assert len(plain.only.tables["temperature"]) == 20
    assert (plain.only.packets, plain.only.reports) == (
        6,
        1,
    )  # 20 temperatures, a prompt length, an output, an adapter, and a step's row


def test_requests_that_wait_for_their_first_step_share_a_reports_work_too(made, clock):
    scheduler = made()
    clock.perf_counter = iter(range(10**6)).__next__  # each slice is over after its first piece of work
    scheduler.add(request("a"))
    for number in range(20):
        scheduler.requests[f"waiting {number}"] = request(f"waiting {number}")
    for _ in range(20):
        scheduler.step({"a": (3, 2)})
    assert scheduler._specdec.slices is not None, "the first report is still under way"


def test_a_report_under_way_keeps_no_request_that_has_ended(made, clock):
    scheduler = made()
    clock.perf_counter = iter(range(10**6)).__next__  # each slice is over after its first piece of work
    for number in range(20):
        scheduler.add(request(f"r{number}"))
    scheduler.step({f"r{number}": (3, 2) for number in range(20)})
    counts = weakref.ref(scheduler.requests["r10"]._specdec)  # freed with it
    scheduler.end("r10")
    assert (scheduler._specdec.slices is not None, counts()) == (True, None)


def test_aborting_many_at_once_makes_one_report(plain, made, monkeypatch):
    reports, own = [], plugin.Observer.report
    monkeypatch.setattr(plugin.Observer, "report", lambda *given: reports.append(1) or own(*given))
    scheduler, names = made(), [f"r{number}" for number in range(100)]
    for name in names:
        scheduler.add(request(name))
    scheduler.step(dict.fromkeys(names, (3, 2)))
    reports.clear()
    scheduler.end(*names, status="FINISHED_ABORTED")
    assert len(reports) == 1
    plain.until(lambda: plain.engines and len(plain.only.done) == 100)


def test_a_report_ends_though_requests_finish_in_every_step(plain, made, clock):
    clock.perf_counter = count().__next__  # one packet a step, whatever it holds
    scheduler = made()
    scheduler.add(request("long"))
    for number in range(40):
        scheduler.add(request(f"r{number}"))
        clock.at += plugin.PERIOD / 10
        scheduler.step({"long": (3, 2), f"r{number}": (0, 1)})
        scheduler.end(f"r{number}")
    plain.until(lambda: plain.engines and len(plain.only.done) >= 20)
    assert scheduler.running  # the engine has not gone idle, where a report is sent in one go
    assert plain.only.totals()[0] >= 20


def test_a_session_whose_parameters_change_counts_for_each_and_ends_once(plain, made):
    scheduler = made()
    one = request("a", 0.2)
    scheduler.add(one)
    scheduler.step({"a": (0, 1)})
    scheduler.step({"a": (3, 2)})
    one.sampling_params = SimpleNamespace(temperature=0.9)
    scheduler.new = [SimpleNamespace(req_id="a")]
    scheduler.step({"a": (3, 4)})
    scheduler.end("a", status="FINISHED_ABORTED")
    plain.until(lambda: plain.engines and plain.only.done)
    assert plain.only.tables["temperature"] == {
        20: tally(drafts=1, draft_tokens=3, accepted_tokens=1, drafted_at=[1, 1, 1], accepted_at=[1, 0, 0]),
        90: tally(aborted=1, drafts=1, draft_tokens=3, accepted_tokens=3, drafted_at=[1, 1, 1], accepted_at=[1, 1, 1]),
    }


def test_a_second_end_and_a_request_that_never_ran(plain, made):
    scheduler = made()
    one = request("a")
    scheduler.add(one)
    scheduler.step({"a": (0, 1)})
    assert scheduler.end("a") == [("transfer parameters", None)]
    scheduler._free_request(one)
    scheduler.add(request("b", num=1))
    scheduler.end("b", status="FINISHED_ERROR")
    plain.until(lambda: plain.engines and len(plain.only.done) == 2)
    assert plain.only.tables["temperature"][50] == tally(stopped=1, error=1, drafted_at=[0] * 3, accepted_at=[0] * 3)
    assert plain.only.done[1]["first_token"] is None


def test_pooling_requests_are_left_alone(made):
    scheduler = made()
    one = request("a")
    one.sampling_params = None
    scheduler.add(one)
    scheduler.step({"a": (0, 1)})
    scheduler.end("a")
    assert not hasattr(one, "_specdec")
    assert not scheduler._specdec.finished


@pytest.mark.parametrize(
    ("temperature", "key"),
    [(0, 0), (0.07, 7), (0.29, 29), (0.301, 31), (0.57, 57), (1, 100), (1.1, 110), (1e9, 10_000), (float("nan"), 0)],
)
def test_temperatures_are_rounded_up_to_hundredths(temperature, key):
    assert plugin.RequestCounts(request("a", temperature), 3).temperature == key


def test_hello_says_who_it_is(plain, made):
    made()
    plain.until(lambda: plain.engines)
    hello = plain.only.hello
    assert (hello["plugin"], hello["vllm"], hello["model"], hello["engine"]) == (__version__, "0.32.0", "m", 2)
    assert (hello["state"], hello["reason"]) == ("observing", "")
    assert hello["speculation"] == {
        "method": "eagle3", "num_speculative_tokens": 3, "per_batch_size": False, "adaptive_verification": False,
        "rejection_sample_method": None, "parallel_drafting": False,
    }  # fmt: skip


def test_without_speculation_requests_and_steps_are_told(plain, made):
    scheduler = made(depth=0, speculative=None)
    scheduler.add(request("a"))
    scheduler.step({"a": (0, 1)})
    scheduler.end("a")
    plain.until(lambda: plain.engines and plain.only.done)
    assert plain.only.hello["speculation"] is None
    assert plain.only.tables["temperature"] == {50: tally(stopped=1)}


def test_tables_and_packets_are_bounded_whatever_the_requests_are(plain, made):
    scheduler = made(depth=80)
    for number in range(300):
        scheduler.add(request("a", number / 100, adapter=f"{number} " + "\ud800ä🙂" * 200))
        scheduler.step({"a": (0, 1)})
        scheduler.step({"a": (80, 81)})
        scheduler.end("a")

    def all_told():
        scheduler._specdec.go_on(scheduler)  # again, in case the socket was full
        return plain.engines and len(plain.only.done) == 300

    plain.until(all_told)
    for table in ("temperature", "adapter"):
        rows = plain.only.tables[table]
        assert len(rows) == 257
        assert rows["other"]["drafts"] == 300 - 256
    assert plain.only.tables["temperature"]["other"]["drafted_at"][-1] == 44 * (80 - 31)
    assert all(len(one["lengths"]) == 33 and sum(one["lengths"]) == one["drafts"] for one in plain.only.done)
    assert len(scheduler._specdec.starting) == 0


# The sidecar is away, hangs, or comes back.


def work(scheduler, count=1, *, to_end=True):
    for _ in range(count):
        scheduler.add(request("a"))
        scheduler.step({"a": (0, 1)})
        scheduler.step({"a": (3, 3)})
        if to_end:
            scheduler.end("a")


def test_while_it_is_away_the_newest_finished_requests_are_kept_and_the_rest_counted(
    socket_path, made, clock, monkeypatch
):
    monkeypatch.setattr(plugin, "MAX_FINISHED", 10)
    scheduler = made()
    work(scheduler, 25)
    plain = CheckingReceiver(socket_path)
    work(scheduler)
    plain.until(lambda: plain.engines and plain.total == (26, 78, 52) and plain.only.done)
    assert (len(plain.only.done), plain.only.lost) == (10, 16)
    plain.die()


def test_without_a_descriptor_it_connects_later(plain, made, clock):
    """For want of one when the engine starts, and again after the sidecar was away."""
    with descriptors(free=0):
        scheduler = made()
        work(scheduler)
    scheduler.add(request("b", 0.9))
    scheduler.step({"b": (0, 1)})
    scheduler.end("b")
    work(scheduler)
    plain.until(lambda: plain.total == (2, 6, 4))
    plain.die()
    with descriptors(free=0):
        work(scheduler, 3)
    plain.live_again()
    plain.engines.clear()
    work(scheduler)
    plain.until(lambda: plain.total == (6, 18, 12))
    plain.until(lambda: set(plain.only.tables["temperature"]) == {50, 90})  # what has not changed since then, too


def test_a_sidecar_that_hangs_costs_no_time_and_loses_no_total(socket_path, made, clock):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(socket_path))
    listener.listen(1)
    scheduler = made()
    scheduler._specdec.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    work(scheduler, 2000)
    assert scheduler._specdec.finished, "the socket is full"
    connection, _ = listener.accept()
    connection.setblocking(False)
    packets = []

    def read_all():
        with suppress(BlockingIOError):
            while packet := connection.recv(65_537):
                packets.append(read_packet(packet))

    read_all()
    work(scheduler)
    read_all()
    while scheduler._specdec.finished:
        work(scheduler)
        read_all()
    reports = [packet.report for packet in packets if packet.report]
    (*_, total) = [report.end.total for report in reports if report.end]
    assert [total.drafts, total.draft_tokens, total.accepted_tokens] == scheduler.counted
    assert sum(len(report.finished) for report in reports) == total.drafts
    connection.close()
    listener.close()


def test_a_report_is_one_cut_though_counts_change_while_it_is_sent(plain, made, clock):
    """Its rows and its total are those of the step in which it began, however many steps its packets take."""
    clock.perf_counter = count().__next__  # one packet a step
    scheduler = made()
    for number in range(40):
        scheduler.add(request(f"r{number}", number / 100, adapter=f"tenant {number}"))
    for _ in range(400):
        clock.at += 0.04
        scheduler.step({f"r{number}": (3, 2) for number in range(40)})
    plain.until(lambda: plain.engines and plain.only.reports >= 3)
    assert (plain.torn, plain.fallen) == (0, 0)


def test_a_report_that_the_socket_cuts_off_is_whole_with_the_next(socket_path, made, clock):
    plain = CheckingReceiver(socket_path)
    scheduler = made()
    for number in range(100):
        scheduler.add(request(f"r{number}", number / 100))
    own, budget = scheduler._specdec.send, [5]

    def full_after_some(kind, message):
        budget[0] -= 1
        return budget[0] >= 0 and own(kind, message)

    scheduler._specdec.send = full_after_some
    scheduler.step({f"r{number}": (0, 1) for number in range(100)})
    clock.at += plugin.PERIOD
    scheduler.step({f"r{number}": (3, 2) for number in range(100)})
    assert budget[0] < 0, "the report was cut off"
    budget[0] = 10**6
    scheduler.end(*[f"r{number}" for number in range(100)])
    plain.until(
        lambda: plain.engines and plain.only.finished() == plain.only.sums("temperature") == (100, 100, 300, 100)
    )
    assert (plain.torn, plain.fallen) == (0, 0)
    plain.die()


def test_a_request_that_ends_while_a_full_queue_is_sent_is_of_the_next_report(socket_path, made, clock, monkeypatch):
    """Its end drops the oldest finished request, of which the report then has one less."""
    monkeypatch.setattr(plugin, "MAX_FINISHED", 10)
    scheduler = made()
    work(scheduler, 10)
    scheduler.add(request("b"))
    scheduler.step({"b": (3, 2)})
    plain, parts = CheckingReceiver(socket_path), []
    own = scheduler._specdec.send
    scheduler._specdec.send = lambda kind, text: own(kind, text) and (parts.append((kind, json.loads(text))) or True)
    clock.perf_counter, clock.at = count().__next__, clock.at + 5  # one packet a step
    while not [kind for kind, _ in parts if kind == "report"]:
        scheduler.step({"b": (3, 2)})
    scheduler.end("b", status="FINISHED_ABORTED")
    aborted, ends = 0, set()
    for _, part in [one for one in parts if one[0] == "report"]:
        aborted += sum(done["outcome"] == "aborted" for done in part["finished"])
        if part["end"]:
            assert aborted <= part["end"]["total"]["aborted"]
            ends.add(part["end"]["total"]["aborted"])
    assert (aborted, ends) == (1, {0, 1})
    plain.die()


def test_when_many_requests_end_at_once_the_totals_do_not_wait_for_all_of_them(socket_path, made, clock):
    """The socket takes some hundred finished requests while nobody reads; an idle engine sends the rest later."""
    scheduler, many = made(), [f"r{number}" for number in range(1000)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(socket_path))
        listener.listen(1)
        for name in many:
            scheduler.add(request(name))
        scheduler.step(dict.fromkeys(many, (0, 1)))
        scheduler.step(dict.fromkeys(many, (3, 3)))
        scheduler.end(*many)
        reading = listener.accept()[0]
    with reading:
        reading.setblocking(False)
        parts = [*received(reading)]
    (whole,) = {json.dumps(part["end"]["total"]) for part in parts if part["end"]}
    assert (json.loads(whole)["stopped"], json.loads(whole)["drafts"]) == (1000, 1000)
    assert 0 < sum(len(part["finished"]) for part in parts) < 1000
    plain = CheckingReceiver(socket_path)
    clock.at += plugin.PERIOD
    work(scheduler)
    plain.until(lambda: plain.engines and plain.only.totals() == (1001, 3003, 2002))
    while scheduler._specdec.finished:  # each step of an idle engine sends what the socket takes
        scheduler.step({})
    plain.until(lambda: len(plain.only.done) + sum(len(part["finished"]) for part in parts) == 1001)
    plain.die()


def received(reading):
    """The reports that wait in a socket."""
    with suppress(BlockingIOError):
        while packet := reading.recv(65_537):
            if report := json.loads(packet).get("report"):
                yield report


def test_a_row_says_when_its_key_first_appeared(socket_path, made, clock):
    rows = {}

    class Dated(CheckingReceiver):
        def _report(self, report, engine):
            rows.update({row["key"]: row["since"] for row in report.get("adapter", [])})
            return super()._report(report, engine)

    plain = Dated(socket_path)
    scheduler = made()
    for name in ("b", "a", "b"):
        clock.at += 1
        scheduler.add(request("r", adapter=name))
        scheduler.step({"r": (0, 1)})
        scheduler.end("r")
    plain.until(lambda: rows == {"b": 2011.0, "a": 2012.0})
    plain.die()

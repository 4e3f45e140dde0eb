"""Asking vLLM only for what is used.

It is enabled once it is proven to work, and disabled when it does not.
"""

import re
import threading
from urllib.parse import parse_qs, urlsplit

import pytest

from sidecar.engine.exposition import PageReader
from sidecar.engine.page_filter import RECHECK
from sidecar.engine.page_source import PageSource
from sidecar.engine.snapshot import SnapshotReader
from sidecar.errors import BadStatus, Interrupted, ScrapeError, TimedOut
from sidecar.settings.groups import Limits
from tests.engine.engine_tools import snapshot


class FakeVllm:
    """In a ``Fetcher``'s place: a vLLM's page, and how its ``name[]`` filter behaves.

    Counts whole and filtered polls.

    ``hangs``: it answers nothing.
    """

    def __init__(self, body):
        self.body, self.filtering, self.hangs = body, "works", False
        self.whole = self.part = 0
        self.asked = set()

    async def get(self, path):
        if self.hangs:
            raise TimedOut
        url = urlsplit(path)
        if not url.query:
            self.whole += 1
            return self.body
        assert url.path == "/metrics/"  # without the slash vLLM ignores the filter
        self.part += 1
        self.asked = set(parse_qs(url.query)["name[]"])
        errors = {"404": BadStatus(404), "no answer": TimedOut(), "interrupted": Interrupted()}
        if self.filtering in errors:
            raise errors[self.filtering]
        bodies = {
            "empty": b"",
            "cut": self.filtered()[:-2],
            "ignored": self.body,
            "works": self.filtered(),
        }
        return bodies[self.filtering]

    def filtered(self):
        """As prometheus_client: the samples of these names under their families' headers."""
        kept, header = [], []
        for line in self.body.splitlines(keepends=True):
            if line.startswith(b"# HELP"):
                header = [line]
            elif line.startswith(b"# TYPE"):
                header.append(line)
            elif line.split(b"{")[0].split(b" ")[0].decode() in self.asked:
                kept += [*header, line]
                header = []
        return b"".join(kept)


@pytest.fixture
def vllm(recorded):
    return FakeVllm(recorded("vllm-0.33.0.prom"))


@pytest.fixture
def source(vllm):
    return PageSource(vllm, Limits(), filtered=True)


async def polls(source, number=1):
    """The snapshot of the last of so many polls."""
    for _ in range(number):
        last = await source.next()
    return last


async def reads(source, body, polls):
    """Asserts that each of so many polls gives what the whole page would."""
    for _ in range(polls):
        assert await source.next() == snapshot(body)


def restarted(body, start):
    """The page of another process, which started at this time."""
    return re.sub(rb"(?m)^(process_start_time_seconds) .*", rb"\1 " + start, body)


def without_speculation(body):
    return b"".join(line for line in body.splitlines(keepends=True) if b"spec_decode" not in line)


async def test_a_filtered_page_is_used_and_gives_the_same(vllm, source):
    """After one whole page, and with less than half of its bytes."""
    await reads(source, vllm.body, 5)

    assert (vllm.whole, vllm.part) == (1, 4)
    assert {name for name in vllm.asked if name.endswith(("_created", "_sum"))} == {
        "vllm:generation_tokens_created",
        "vllm:request_prefill_time_seconds_sum",
        "vllm:request_queue_time_seconds_sum",
        "vllm:time_to_first_token_seconds_sum",
    }
    assert len(vllm.filtered()) < len(vllm.body) / 2


async def test_the_filter_can_be_switched_off(vllm):
    """Then every poll fetches the whole page."""
    source = PageSource(vllm, Limits(), filtered=False)
    await reads(source, vllm.body, 5)

    assert vllm.part == 0


@pytest.mark.parametrize("filtering", ["empty", "404", "cut", "no answer", "interrupted"])
async def test_a_filter_that_does_not_work_is_tried_once(filtering, vllm, source):
    """Every poll still gives what the whole page has."""
    vllm.filtering = filtering
    await reads(source, vllm.body, 50)

    assert (vllm.whole, vllm.part) == (50, 1)


async def test_a_filter_that_worked_outlasts_a_poll_without_an_answer(vllm, source):
    """vLLM is slow or down, which says nothing of the filter."""
    await polls(source, 3)
    vllm.hangs = True
    with pytest.raises(TimedOut):
        await source.next()
    vllm.hangs = False
    await source.next()

    assert (vllm.whole, vllm.part) == (1, 3)


@pytest.mark.parametrize("filtering", ["empty", "404", "cut"])
async def test_a_filter_that_stops_working_costs_no_poll(filtering, vllm, source):
    """The whole page is fetched at once, in the same poll."""
    await polls(source, 5)
    vllm.filtering = filtering
    await reads(source, vllm.body, 20)

    assert vllm.part <= 4 + 2 + 20 // RECHECK


async def test_a_server_that_ignores_the_filter_sends_whole_pages(vllm, source):
    """These have all that is wanted, so the filter counts as working."""
    vllm.filtering = "ignored"
    await reads(source, vllm.body, 2 * (RECHECK + 1))

    assert (vllm.whole, vllm.part) == (2, 2 * RECHECK)


async def test_a_page_of_several_processes_is_never_filtered(vllm, source, recorded):
    """vLLM's filter would give an empty page there."""
    vllm.body = recorded("vllm-0.33.0-multiproc.prom")
    await reads(source, vllm.body, 10)

    assert vllm.part == 0


@pytest.mark.parametrize(
    "changed",
    [
        "vllm-0.33.0-dp2.prom",
        "vllm-0.33.0-nospec.prom",
        "vllm-0.10.2-v1.prom",
        "vllm-0.33.0-multiproc.prom",
    ],
)
async def test_another_vllm_at_the_same_address_is_detected_in_the_same_poll(
    changed, vllm, source, recorded
):
    """No poll shows the old one's series, or lacks the new one's."""
    await polls(source, 3)
    before = vllm.whole
    vllm.body = restarted(recorded(changed), b"1.8e+09")
    changed_page = await source.next()

    assert changed_page.process_start == snapshot(vllm.body).process_start
    assert {engine.key for engine in changed_page.engines} == {
        engine.key for engine in snapshot(vllm.body).engines
    }
    assert await polls(source, 10) == snapshot(vllm.body)
    assert vllm.whole > before


async def test_errors_are_raised_and_the_next_poll_works(vllm, source):
    """After an error there is no page to re-export."""
    await polls(source, 5)
    assert source.whole_page == vllm.body
    sound, vllm.body = vllm.body, b"<html>"
    for _ in range(3):
        with pytest.raises(ScrapeError):
            await source.next()
        assert source.whole_page == b""
    vllm.body = sound

    assert await source.next() == snapshot(sound)


@pytest.mark.parametrize("seen", [1, 3, 30])
async def test_a_family_that_appears_later_is_found(seen, vllm, source):
    """Filtered pages can't show it; the whole one comes at every tenth poll."""
    body = vllm.body
    vllm.body = without_speculation(body)
    await polls(source, seen)
    vllm.body = body

    assert await polls(source, RECHECK + 12) == snapshot(body)


async def test_a_restart_shows_on_a_filtered_page_and_new_families_at_the_next_poll(vllm, source):
    """The process's start is on the filtered page, too."""
    body = vllm.body
    vllm.body = without_speculation(body)
    await polls(source, 5)
    vllm.body = restarted(body, b"1.8e+09")

    assert (await source.next()).process_start == 1.8e9
    assert (vllm.whole, vllm.part) == (1, 5)
    assert await source.next() == snapshot(vllm.body)


async def test_pages_are_read_outside_of_the_event_loop(monkeypatch, source):
    """A large page must not delay the sidecar's own pages."""
    threads = []

    def noted(read):
        return lambda *arguments: threads.append(threading.current_thread()) or read(*arguments)

    for part in (PageReader, SnapshotReader):
        monkeypatch.setattr(part, "read", noted(part.read))
    await polls(source, 3)

    assert len(threads) == 6
    assert threading.main_thread() not in threads


async def test_the_server_s_id_is_on_the_filtered_page_as_well(vllm, source):
    vllm.body += b'# TYPE specdec_server_info gauge\nspecdec_server_info{id="a1"} 1.0\n'
    for _ in range(3):
        assert (await source.next()).servers == {"a1"}
    assert vllm.part == 2
    assert "specdec_server_info" in vllm.asked

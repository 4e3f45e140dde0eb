"""vLLM's own series on our page."""

import asyncio
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.export.exporter import chosen, rendered
from sidecar.export.reexport import Reexport, own_series
from tests.export import reports


def families(text):
    return [*text_string_to_metric_families(text.decode())]


def samples(parsed):
    return {
        (sample.name, frozenset(sample.labels.items()), repr(float(sample.value)))
        for family in parsed
        for sample in family.samples
    }


def test_reexported_series_are_vllms_own(page_name, recorded):
    """Value by value, and nothing but vLLM's, on a page that can be parsed."""
    body = recorded(page_name)
    theirs = {sample for sample in samples(families(body)) if sample[0].startswith("vllm:")}
    own = rendered(reports.shown(reports.report()), chosen("", ""))
    page = families(own + own_series(body, 10**6))

    assert {
        sample for sample in samples(page) if not sample[0].startswith(("specdec_", "process_"))
    } == theirs
    assert len(theirs) > 100


@pytest.mark.parametrize("limit", [0, 1, 50, 300])
def test_families_are_whole_and_their_series_bounded(limit, recorded):
    def sizes(limit):
        return {family.name: len(family.samples) for family in families(own_series(body, limit))}

    body = recorded("vllm-0.33.0.prom")

    assert sum(sizes(limit).values()) <= limit
    assert sizes(limit).items() <= sizes(10**6).items()
    assert bool(sizes(limit)) == (limit > 0)


def test_exemplars_and_a_family_that_is_cut_off_are_left_out():
    page = (
        b'# HELP vllm:x X.\n# TYPE vllm:x counter\nvllm:x_total{a="b"} 5.0 # {id="7"} 1.0\n# HELP'
        b" vllm:y Y.\n# TYPE vll"
    )

    assert (
        own_series(page, 9) == b'# HELP vllm:x X.\n# TYPE vllm:x counter\nvllm:x_total{a="b"} 5.0\n'
    )
    assert own_series(b"\xff<html>\n", 9) == b""
    assert own_series(f"{GOOD}#a comment\n".encode(), 9) == GOOD.encode()


GOOD = "# HELP vllm:x X.\n# TYPE vllm:x counter\nvllm:x_total 5.0\n"


@pytest.mark.parametrize(
    "line",
    [
        "vllm:x_total 5.0 5.0",
        "vllm:x_total",
        "vllm:x_total five",
        'vllm:x_total{a="b" 5.0',
        'vllm:x_total{a="b",a="c"} 5.0',
        'vllm:x_total{__name__="specdec_up"} 5.0',
        'vllm:x_total{a="b"} 5.0 1712345678000',
        "vllm:x_total 5.0",
        "vllm:y_total 5.0",
        "specdec_up 0.0",
        "",
        "\t",
    ],
)
def test_a_family_with_a_line_that_is_not_its_own_or_no_sample_is_left_out(line):
    other = GOOD.replace("vllm:x", "vllm:z")

    assert own_series(f"{GOOD}{line}\n{other}".encode(), 9) == other.encode()


@pytest.mark.parametrize(
    "page",
    [
        GOOD + GOOD,
        GOOD + "# HELP vllm:y Y.\n# TYPE vllm:y number\nvllm:y 5.0\n",
        GOOD + "# HELP vllm:y Y.\n# TYPE vllm:z gauge\nvllm:y 5.0\n",
        GOOD + "# HELP vllm:y Y.\nvllm:y 5.0\n",
        "# TYPE vllm:y gauge\nvllm:y 5.0\n" + GOOD,
        "# HELP specdec_up U.\n# TYPE specdec_up gauge\nspecdec_up 0.0\n" + GOOD,
    ],
)
def test_a_family_that_is_not_vllms_not_declared_or_declared_twice_is_left_out(page):
    assert own_series(page.encode(), 9) == GOOD.encode()


def test_bytes_that_are_no_unicode_do_not_reach_the_page():
    page = b'# HELP vllm:x \xff\n# TYPE vllm:x gauge\nvllm:x{a="\xff"} 5.0\n'

    assert own_series(page, 9).decode().count("\ufffd") == 2


def test_a_page_of_families_without_end_is_read_as_far_as_its_limit():
    many = "".join(GOOD.replace("vllm:x", f"vllm:x{number}") for number in range(100))

    assert (
        own_series((GOOD.replace("5.0", "5.0\nvllm:x_total 5.0") * 100 + many).encode(), 9) == b""
    )


async def test_a_page_is_read_once_and_not_in_the_event_loop(monkeypatch, recorded):
    """A page of megabytes would stop everything else for a third of a second."""
    threads = []

    def noted(page, limit):
        threads.append(threading.current_thread())
        return own_series(page, limit)

    monkeypatch.setattr("sidecar.export.reexport.own_series", noted)
    reexport, page = Reexport(), recorded("vllm-0.33.0.prom")

    answers = await asyncio.gather(*(reexport.series(page, 300) for _ in range(5)))

    assert set(answers) == {own_series(page, 300)}
    assert len(threads) == 1
    assert threading.main_thread() not in threads

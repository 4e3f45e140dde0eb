"""The declaration of the tables that tally requests, and what has to be as it says."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from scripts.plugin_reference import plugin_reference
from sidecar.requests import plugin
from sidecar.requests.messages import (
    Configuration,
    FinishedRequest,
    Hello,
    ReportEnd,
    Speculation,
    StepTally,
)
from sidecar.requests.tables import GROUPED, Table
from sidecar.requests.tally import Tally
from tests.requests.scheduler_double import request

DOCS = Path(__file__).parents[2] / "docs" / "plugin.md"


def test_the_plugin_counts_requests_by_the_tables_that_are_declared():
    """It has a declaration of its own, ``Key``, since it imports nothing."""
    summed = {table for table in Table if table.declared.sums_to_total}

    assert {*plugin.Key._fields} == summed, "Key in plugin.py, Table in tables.py"


def test_the_page_of_the_plugin_has_the_tables_that_are_declared():
    """A reviewer approves what it says."""
    page = DOCS.read_text(encoding="utf-8")

    assert plugin_reference(page) == page, "`scripts/docs` updates docs/plugin.md"


@pytest.mark.parametrize(
    "sent", [Hello, Speculation, Configuration, FinishedRequest, Tally, StepTally, ReportEnd]
)
def test_the_page_of_the_plugin_names_every_field_that_is_sent(sent):
    """It says that nothing else leaves vLLM's process."""
    named = set(re.findall(r"`(\w+)`", DOCS.read_text(encoding="utf-8")))

    assert {field.name for field in fields(sent)} <= named


@pytest.mark.parametrize(
    "asked", [{}, {"structured": True, "adapter": "legal", "temperature": 0.7, "top_k": 20}]
)
def test_a_finished_request_is_in_the_groups_whose_rows_have_counted_it(asked, plain, made):
    """Else the rows of one group would be compared with the requests of another."""
    scheduler = made(request("a", prompt=600, max_tokens=1, **asked))
    scheduler.step({"a": (0, 1)})
    plain.until(lambda: len(plain.only.done), 1)
    (done,) = plain.only.done
    finished = TypeAdapter(FinishedRequest).validate_python(done, strict=False)

    for table, declared in GROUPED.items():
        if declared.key_of is None:
            continue
        (key,) = plain.only.tables[table]
        told = declared.key_of(finished)

        assert told is not None, f"finished_request in plugin.py, RequestGroups: {table}"
        assert declared.label(told) == declared.label(key), table

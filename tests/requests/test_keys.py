"""The declaration of what requests are counted by, and what has to be as it says."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from pydantic import TypeAdapter

from sidecar.requests import keys, messages, plugin
from sidecar.requests.keys import ABOVE_2, ENDINGS, GROUPED, OWN_MARK, Bit, CellKey
from sidecar.requests.messages import (
    MAX_ITEMS,
    MAX_PACKET_BYTES,
    VERSION,
    HelloState,
)
from sidecar.requests.tally import Outcome
from tests.requests.scheduler_double import request

DOCS = Path(__file__).parents[2] / "docs" / "plugin.md"


def test_the_plugin_declares_the_same_as_the_sidecar():
    """It has declarations of its own, since it imports nothing."""
    bits = {bit.name: getattr(plugin, bit.name) for bit in Bit}

    assert bits == {bit.name: bit.value for bit in Bit}
    assert list(plugin.OUTCOMES) == [*Outcome]
    assert plugin.ENDINGS == ENDINGS
    assert plugin.ABOVE_2 == ABOVE_2
    assert plugin.OWN_MARK == OWN_MARK
    assert (plugin.FORMAT, plugin.MAX_ITEMS) == (VERSION, MAX_ITEMS)
    assert plugin.MAX_BYTES == MAX_PACKET_BYTES


def test_every_name_that_the_plugin_cuts_off_is_one_that_the_sidecar_reads():
    """Else it would refuse the packet."""
    (limit,) = (field for field in get_args(keys.Name)[1].metadata if field.max_length)

    assert limit.max_length >= plugin.MAX_NAME


@pytest.mark.parametrize(
    "said",
    [
        *("__init__", *plugin.KNOWN, "schedule"),  # what it wraps
        *(state.value for state in HelloState if state is not HelloState.OBSERVING),
        *("hello", "report", *(field.name for field in fields(messages._Report))),
        *(plugin.SERVER, "SPECDEC_PLUGIN__SOCKET", plugin.GAUGE, "_specdec", "_specdec_link"),
        *(*ENDINGS, *(f"_{name.strip('_')}" for name in plugin.SECRET if name != "password")),
        *("min_p", "logit_bias", "password"),
    ],
)
def test_the_page_of_the_plugin_names(said):
    """A reviewer approves what it says."""
    named = re.findall(r"`(\w+)", DOCS.read_text(encoding="utf-8"))

    assert said in named


@pytest.mark.parametrize(
    "limit",
    [
        f"{plugin.MAX_CELLS:,} combinations",
        f"{plugin.MAX_FINISHED:,} records",
        f"at most {plugin.MAX_ITEMS} items a packet",
        f"at most {plugin.MAX_SAMPLED} requests",
        f"more than {plugin.MIXED} tokens of prompts",
        f"(up to {plugin.EXACT_DECODES}, then powers of two)",
        f"last {plugin.LOOP_TIMES * plugin.LOOP_PERIODS[-1][1]} output tokens",
        f"after {plugin.PERIOD:.0f} s, then 2, 4, 8 and {plugin.MAX_RETRY:.0f}",
        "six bits",
    ],
)
def test_the_page_of_the_plugin_has_its_limits(limit):
    """They are the plug-in's own constants."""
    assert limit in " ".join(DOCS.read_text(encoding="utf-8").split())
    assert len(Bit) == 6


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"structured": True, "adapter": "legal", "temperature": 0.7, "top_k": 20},
        {"temperature": 0, "presence_penalty": 1.0},
        {"temperature": 0.7, "presence_penalty": 1.0, "min_p": 0.1},
        {"temperature": None},
    ],
)
def test_a_finished_request_is_in_the_groups_in_which_its_cell_is(asked, plain, made):
    """Else the cells of one group would be compared with the requests of another."""
    scheduler = made(request("a", prompt=600, max_tokens=1, **asked))
    scheduler.step({"a": (0, 1)})
    plain.until(lambda: len(plain.only.done), 1)
    (row,) = plain.only.rows
    finished = TypeAdapter(messages._Finished).validate_python(row, strict=False).request()
    (key,) = (CellKey(*key) for key in plain.only.cells)

    for table, declared in GROUPED.items():
        if declared.key_of is not None:
            assert declared.key_of(finished) == declared.key_of_cell(key), table

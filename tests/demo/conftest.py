"""Shared by the tests of the simulated vLLM."""

import re
from pathlib import Path

import aiohttp
import pytest

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture
def data():
    return DATA


@pytest.fixture
async def client():
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield session


@pytest.fixture
def parse_page():
    """A page as {family: (type, help, [(sample, labels, value)])}, independent of the code under test."""

    def parse(text):
        families = {}
        family = None
        for line in text.splitlines():
            if line.startswith("# HELP "):
                family, _, help_text = line[7:].partition(" ")
                families[family] = [None, help_text, []]
            elif line.startswith("# TYPE "):
                families[family][0] = line.split(" ")[3]
            else:
                sample, labels, value = re.fullmatch(r"([^{ ]+)(?:\{(.*)\})? (\S+)", line).groups()
                pairs = tuple(re.findall(r'(\w+)="([^"]*)"', labels or ""))
                families[family][2].append((sample, pairs, float(value)))
        return families

    return parse


@pytest.fixture
def counters(client, parse_page):
    """The values of a served page as {sample: {labels but the common ones: value}}."""

    async def read(sim):
        async with client.get(f"{sim.url}/metrics") as response:
            page = parse_page(await response.text())
        values = {}
        for _, _, samples in page.values():
            for sample, labels, value in samples:
                own = tuple(pair for pair in labels if pair[0] not in {"engine", "model_name"})
                values.setdefault(sample, {})[own] = value
        return values

    return read

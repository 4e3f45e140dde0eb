"""The speedup of a simulated engine against its step law's own answer (docs/speedup.md).

The law decides how long a step takes: as on the lab's CPU, or as on a GPU by public figures. The
truth is the wall time of a token on the engine without speculation / with it, with as many requests
at once.
"""

from dataclasses import replace
from functools import cache

import pytest

from sidecar.analysis.speed.withheld import Withheld
from sidecar.demo.step_law import H100, LAB
from tests.analysis.step_laws import REQUESTS, Cell, baseline, seconds_per_token, shown

BAR = 0.07
FEW = 60  # requests of a cell, where every run has to be short


@cache
def plain_seconds(law, cell):
    """A token's wall time on the engine without speculation."""
    return seconds_per_token(law, cell, 0)


def off(law, cell, curve, *, plugin=False, requests=REQUESTS):
    """How far the shown speedup is from the truth; None if it is withheld."""
    model, actual_seconds = shown(law, cell, curve, plugin=plugin, requests=requests)
    if model.speed.speedup is None:
        return None
    return model.speed.speedup.ratio - plain_seconds(law, cell) / actual_seconds


@pytest.fixture(scope="module")
def curves():
    """What ``baseline`` measured: by the page alone, and with the plug-in."""
    found = {}

    def measured(law, *, plugin, loads=(1, 8), prompts=(20, 400, 2048)):
        key = (law, plugin, loads, prompts)
        if key not in found:
            found[key] = baseline(law, loads, prompts, plugin=plugin)
        return found[key]

    return measured


@pytest.mark.parametrize(
    "cell",
    [
        Cell(8, 20, 64, is_warm=False),
        Cell(8, 1900, 64, is_warm=True),
        Cell(8, 1900, 64, is_warm=False),
        Cell(1, 1900, 64, is_warm=False),
    ],
    ids=lambda cell: cell.name,
)
@pytest.mark.parametrize("law", [LAB, H100], ids=["lab", "gpu"])
def test_by_the_page_alone_it_is_the_law_s_whatever_the_context_and_the_cache(law, cell, curves):
    """The page tells prefill only as a sum, which is enough for these cells."""
    found = off(law, cell, curves(law, plugin=False), requests=FEW)
    assert found == pytest.approx(0, abs=BAR)


# Short outputs of new prompts, which hold more prefill than anything else: in one step, in chunks,
# and more of them than steps can take in, so that requests wait.
HARD = [
    (LAB, Cell(4, 32_000, 32, is_warm=False)),
    (LAB, Cell(8, 1000, 32, is_warm=False)),
    (H100, Cell(4, 8000, 32, is_warm=False)),
    (H100, Cell(8, 200, 32, is_warm=False)),
]


def name(law, cell):
    return f"{'lab' if law is LAB else 'gpu'}-{cell.name}"


@pytest.mark.slow
@pytest.mark.parametrize(("law", "cell"), HARD, ids=[name(*pair) for pair in HARD])
def test_with_the_plug_in_the_cells_with_most_prefill_are_within_the_bar(law, cell, curves):
    curve = curves(law, plugin=True, prompts=(20, 800, 32_000))
    assert off(law, cell, curve, plugin=True, requests=FEW) == pytest.approx(0, abs=BAR)


def test_a_baseline_of_one_context_is_right_there_and_withheld_elsewhere(curves):
    """Withheld rather than extrapolated."""
    curve = curves(LAB, plugin=False, prompts=(20,))
    near, far = Cell(8, 20, 128, is_warm=True), Cell(8, 1900, 64, is_warm=True)
    assert off(LAB, near, curve, requests=FEW) == pytest.approx(0, abs=BAR)
    model, _ = shown(LAB, far, curve, requests=FEW)
    assert (model.speed.speedup, model.speed.withheld) == (None, Withheld.CONTEXT)


def test_a_file_that_does_not_say_its_context_claims_nothing(curves):
    """As the files of earlier versions."""
    old = replace(
        curves(LAB, plugin=False),
        contexts=(),
        context_ranges=(),
        slopes=(),
        slope_errors=(),
        prefill_tokens=(),
        prefill_seconds=(),
        prefill_errors=(),
    )
    model, _ = shown(LAB, Cell(8, 20, 64, is_warm=True), old, requests=FEW)
    assert (model.speed.speedup, model.speed.withheld) == (None, Withheld.CONTEXT)


LOADS = {LAB: (1, 4, 8, 16), H100: (1, 4, 16, 64, 256)}
GRID = [
    (law, Cell(load, prompt, output, is_warm))
    for law in (LAB, H100)
    for load in LOADS[law]
    for prompt in (20, 200, 1000, 8000, 32_000)
    for output in (32, 256)
    for is_warm in (False, True)
]


@pytest.mark.slow
@pytest.mark.parametrize(("law", "cell"), GRID, ids=[name(*pair) for pair in GRID])
def test_every_cell_is_within_the_bar(law, cell, curves):
    curve = curves(law, plugin=True, loads=LOADS[law], prompts=(20, 800, 32_000))
    assert off(law, cell, curve, plugin=True) == pytest.approx(0, abs=BAR)


@pytest.mark.slow
@pytest.mark.parametrize(("law", "cell"), GRID, ids=[name(*pair) for pair in GRID])
def test_a_baseline_of_one_context_is_never_wrong(law, cell, curves):
    """It is withheld, or within the bar."""
    curve = curves(law, plugin=True, loads=LOADS[law], prompts=(1000,))
    found = off(law, cell, curve, plugin=True)
    assert found is None or found == pytest.approx(0, abs=BAR)

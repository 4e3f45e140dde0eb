"""The speedup of a simulated engine against its step law's own answer (docs/speedup.md).

The law decides how long a step takes: as on the lab's CPU, or as on a GPU by public figures. The
truth is the wall time of a token on the engine without speculation / with it.
"""

from dataclasses import replace

import pytest

from sidecar.analysis.speed.withheld import Withheld
from sidecar.demo.step_law import H100, LAB
from tests.analysis.step_laws import Cell, baseline, shown, truth

BAR = 0.07
SECONDS = {LAB: 40.0, H100: 5.0}


def off(law, cell, curve, *, plugin=False, seconds=None):
    """How far the shown speedup is from the truth; None if it is withheld."""
    seconds = seconds or 1.5 * SECONDS[law]
    speed = shown(law, cell, curve, seconds=seconds, plugin=plugin).speed
    if speed.speedup is None:
        return None
    return speed.speedup.ratio - truth(law, cell, seconds)


@pytest.fixture(scope="module")
def curves():
    """What ``baseline`` measured: by the page alone, and with the plug-in."""
    found = {}

    def measured(law, *, plugin, loads=(1, 8), prompts=(20, 400, 2048)):
        key = (law, plugin, loads, prompts)
        if key not in found:
            found[key] = baseline(law, loads, prompts, seconds=SECONDS[law], plugin=plugin)
        return found[key]

    return measured


@pytest.mark.parametrize("plugin", [False, True])
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
def test_the_speedup_is_the_law_s_whatever_the_context_and_the_cache(law, cell, plugin, curves):
    found = off(law, cell, curves(law, plugin=plugin), plugin=plugin)
    assert found == pytest.approx(0, abs=BAR)


def test_a_baseline_of_one_context_is_right_there_and_withheld_elsewhere(curves):
    curve = curves(LAB, plugin=False, prompts=(20,))
    near, far = Cell(8, 20, 128, is_warm=True), Cell(8, 1900, 64, is_warm=True)
    assert off(LAB, near, curve) == pytest.approx(0, abs=BAR)
    model = shown(LAB, far, curve, seconds=SECONDS[LAB])
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
    model = shown(LAB, Cell(8, 20, 64, is_warm=True), old, seconds=SECONDS[LAB])
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


@pytest.mark.measured
@pytest.mark.parametrize(
    ("law", "cell"),
    GRID,
    ids=[f"{'lab' if law is LAB else 'gpu'}-{cell.name}" for law, cell in GRID],
)
def test_every_cell_is_within_the_bar(law, cell, curves):
    curve = curves(law, plugin=True, loads=LOADS[law], prompts=(20, 800, 32_000))
    assert off(law, cell, curve, plugin=True) == pytest.approx(0, abs=BAR)


@pytest.mark.measured
@pytest.mark.parametrize(
    ("law", "cell"),
    GRID,
    ids=[f"{'lab' if law is LAB else 'gpu'}-{cell.name}" for law, cell in GRID],
)
def test_a_baseline_of_one_context_is_never_wrong(law, cell, curves):
    curve = curves(law, plugin=True, loads=LOADS[law], prompts=(1000,))
    found = off(law, cell, curve, plugin=True)
    assert found is None or found == pytest.approx(0, abs=BAR)

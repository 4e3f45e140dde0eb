"""What an engine's page does not export."""

import pytest

from sidecar.analysis.engine.engine_state import Limitation
from sidecar.engine.names import Trait
from sidecar.engine.plan import EngineKey
from sidecar.wording.notes import LIMITATIONS
from tests.analysis.analysis_tools import Server, snap


@pytest.mark.parametrize(
    ("snapshot", "start", "expected"),
    [
        (snap(drafts=1), 1.0, {Limitation.NO_REQUEST_TPOT}),
        (snap(drafts=1), None, {Limitation.NO_REQUEST_TPOT, Limitation.SEVERAL_PROCESSES}),
        (snap(counters={}), 1.0, {Limitation.NO_REQUEST_TPOT, Limitation.NO_SPECULATION}),
        (snap(counters={}, traits=[Trait.OVERCOUNTED]), 1.0, {Limitation.NO_REQUEST_TPOT, Limitation.V0_COUNTERS}),
        (snap(counters={}, traits=[Trait.DIFFUSION]), 1.0, {Limitation.NO_REQUEST_TPOT, Limitation.DIFFUSION}),
    ],
)
def test_limitations(snapshot, start, expected):
    server = Server()
    server.poll(snapshot, start=start)
    assert server.engines()[EngineKey("m", "0")].limitations == expected


def test_every_limitation_is_explained():
    assert set(LIMITATIONS) == set(Limitation)

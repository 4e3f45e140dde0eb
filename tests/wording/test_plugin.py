"""The sentences on the plug-in's state, and on why a model has no split."""

from dataclasses import replace

import pytest

from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginState
from sidecar.engine.engine_key import EngineKey
from sidecar.wording.plugin import no_split_sentence, plugin_sentence
from tests.export.reports import NEVER_CONNECTED, OBSERVING

REFUSED = "The plug-in does not observe engine 0 of vLLM 0.32.0: no method f."
DISABLED = (
    "The plug-in failed on engine 0 and disabled itself, so its model has no split by temperature:"
    " no method f. vLLM is not affected; it loads the plug-in again when it restarts."
)
OTHER = (
    "The plug-in uses message format 3, but this sidecar reads format 4. Rewrite the plug-in with"
    " this"
)
OTHER_9 = "The plug-in uses message format 9, but this sidecar reads format"
WITHOUT = "There is no split by temperature: "


def in_state(state):
    (engine,) = OBSERVING.engines
    return replace(
        OBSERVING, state=state, engines=(replace(engine, state=state, reason="no method f"),)
    )


PLAIN = replace(in_state(PluginState.IDLE).engines[0], speculates=False)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (
            NEVER_CONNECTED,
            ("will connect with the next request. If it failed to load, vLLM's log has a"),
        ),
        (
            replace(NEVER_CONNECTED, has_served=True),
            "Mostly vLLM has not loaded it: `specdec-sidecar plugin DIR` writes it",
        ),
        (
            replace(NEVER_CONNECTED, is_loaded=True),
            "vLLM has loaded the plug-in, which connects with the next request",
        ),
        (
            replace(NEVER_CONNECTED, is_loaded=True, has_served=True),
            "vLLM has loaded the plug-in and serves requests, but no plug-in has connected, so",
        ),
        (
            replace(
                OBSERVING,
                state=PluginState.SEVERAL_SENDERS,
                shared=(EngineKey("demo", "0"),),
            ),
            "are connected as engine 0, and nothing tells which of them is this vLLM's. Give each",
        ),
        (
            replace(NEVER_CONNECTED, heard=True),
            "The plug-in is no longer connected: vLLM has restarted without it, or",
        ),
        (
            replace(NEVER_CONNECTED, problem="No access"),
            "The sidecar cannot listen for the plug-in (No access), so",
        ),
        (replace(in_state(PluginState.OTHER_FORMAT), unreadable_format=3), OTHER),
        (
            replace(in_state(PluginState.OTHER_FORMAT), unreadable_format=9),
            f"{OTHER_9} 4. Update the sidecar",  # it is the older one
        ),
        (in_state(PluginState.REFUSED), REFUSED),
        (in_state(PluginState.DISABLED), DISABLED),
        (
            in_state(PluginState.IDLE),
            "The plug-in is connected and reports requests; vLLM has drafted for none of them yet.",
        ),
        (
            replace(in_state(PluginState.IDLE), engines=(PLAIN,)),
            "The plug-in is connected and reports requests; this vLLM does not speculate.",
        ),
        (
            replace(OBSERVING, state=PluginState.ELSEWHERE, observed=0, engines=(), elsewhere=1),
            "of another server than vLLM's metrics, or of engines that are not in them, so another",
        ),
        (
            replace(
                OBSERVING,
                state=PluginState.ELSEWHERE,
                engines=(),
                replicas=(EngineKey("demo", "0@aaa"), EngineKey("demo", "0@bbb")),
            ),
            "several engines of the same number (0@aaa, 0@bbb), and a plug-in says only the number",
        ),
        (
            replace(
                OBSERVING,
                state=PluginState.ELSEWHERE,
                engines=(),
                renamed=(("chat", "/models/qwen3"),),
            ),
            "calls its model chat, and vLLM's metrics call theirs /models/qwen3. If both are one",
        ),
        (OBSERVING, "The plug-in observes the engine."),
        (replace(OBSERVING, observed=2, expected=2), "The plug-in observes every engine."),
        (
            replace(OBSERVING, expected=2),
            "The plug-in observes 1 of 2 engines: the split by temperature covers only",
        ),
        (replace(OBSERVING, expected=2, unreadable_format=9), f"these. {OTHER_9}"),
        (
            replace(OBSERVING, unreadable_format=9),
            "The plug-in observes the engine.",
        ),
    ],
)
def test_a_state_says_what_it_means(report, words):
    assert words in plugin_sentence(report)


@pytest.mark.parametrize("has_served", [False, True])
def test_while_vllm_is_away_a_plug_in_that_never_connected_is_no_matter(has_served):
    """How to load it took four lines under "Connection refused"."""
    never = replace(NEVER_CONNECTED, has_served=has_served)
    assert plugin_sentence(never, is_up=False) == "No plug-in has connected yet."


@pytest.mark.parametrize(
    ("code", "details", "words"),
    [
        (NoSplitReason.REFUSED, {"reason": "no method f", "vllm_version": "0.32.0"}, REFUSED),
        (NoSplitReason.DISABLED, {"reason": "no method f"}, DISABLED),
        (
            NoSplitReason.RESTARTED_WITHOUT,
            {},
            "has restarted, and since then no plug-in observes engine 0, so its",
        ),
        (
            NoSplitReason.CONTRADICTS_ITSELF,
            {},
            f"{WITHOUT}a number of the plug-in of engine 0 has fallen",
        ),
        (NoSplitReason.SEVERAL_SENDERS, {}, f"{WITHOUT}several plug-ins are connected as engine 0"),
        (NoSplitReason.SILENT, {}, "and its plug-in has reported nothing of it. With its next"),
        (NoSplitReason.FIRST_REPORT, {}, "begins with the next report of engine 0's plug-in"),
        (
            NoSplitReason.COUNTS_OTHERWISE,
            {"ratio": 0.91},
            "on engine 0 the plug-in counted 91.0% of what vLLM counted",
        ),
        (
            NoSplitReason.COUNTS_OTHERWISE,
            {"ratio": 1.004},
            "on engine 0 the plug-in counted other numbers than vLLM (",
        ),
        (
            NoSplitReason.COUNTS_OTHERWISE,
            {},
            "on engine 0 the plug-in counted other numbers than vLLM (",
        ),
        (
            NoSplitReason.COUNTS_OTHERWISE,
            {"own": ("update_from_output",)},
            "Its scheduler's class has a method of its own (update_from_output), which may",
        ),
        (
            NoSplitReason.NOT_COMPARED,
            {},
            "connected as engine 0 is this vLLM's, so the split by temperature begins once it has",
        ),
        (
            NoSplitReason.NOT_REPORTED,
            {},
            f"{WITHOUT}engine 0 has drafted, and no plug-in of it is connected.",
        ),
    ],
)
def test_a_model_without_a_split_says_why(code, details, words):
    assert words in no_split_sentence(NoSplit(code, "0", **details), OBSERVING)


def test_a_model_that_no_plugin_reports_has_the_plugin_s_own_sentence():
    """The page says it once, then."""
    sentence = no_split_sentence(NoSplit(NoSplitReason.NOT_CONNECTED), NEVER_CONNECTED)
    assert sentence == plugin_sentence(NEVER_CONNECTED)


def test_every_reason_has_its_sentence():
    assert all(no_split_sentence(NoSplit(code, "0"), OBSERVING) for code in NoSplitReason)

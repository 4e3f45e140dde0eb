"""Windows of even steps to test with."""

from dataclasses import replace

from sidecar.analysis.attribution.windows import Growth, Window, Windows

GROWTH = Growth(drafts=40.0, draft_tokens=120.0, accepted=60.0, generated=110.0, steps=10.0)


def window(start, end, *, growth=GROWTH, busy=None):
    return Window(start=start, end=end, growth=growth, steps=growth.steps, busy=busy)


def windows(*, count=10, busy=None, steps=None, history=1e6):
    found = Windows(history)
    for number in range(count):
        growth = GROWTH if steps is None else replace(GROWTH, steps=steps[number])
        found.append(window(float(number), number + 1.0, growth=growth, busy=busy))
    return found

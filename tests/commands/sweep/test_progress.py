import io

import pytest

from sidecar.commands.sweep.progress import Progress


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_on_terminals_and_a_line_per_level_elsewhere(terminal):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    progress = Progress(20, stream)
    for ended in range(1, 11):
        progress("temperature 0.7, 4 at once" if ended > 5 else "temperature 0, 4 at once")
    progress.clear()
    said = stream.getvalue()
    if terminal:
        assert "[###############---------------] 10/20, about " in said
        assert said.endswith("\r\x1b[K")
    else:
        assert said.splitlines() == [
            "0/20 requests done; measuring temperature 0, 4 at once",
            "5/20 requests done; measuring temperature 0.7, 4 at once",
        ]

"""What ``report`` prints, as a terminal shows it."""

import pytest

from specdec_tools.commands.terminal import COLORS, colored
from tests.export.page.terminal import as_html


@pytest.mark.parametrize("tone", [*COLORS, "mute"])
def test_each_colour_of_the_report_has_one_in_the_picture(tone):
    shown = as_html(f"a < b {colored('pays & <b>', tone)} > c\nd")

    before, _, rest = shown.partition('<b style="color:#')
    colour, _, after = rest.partition('">')
    assert before.endswith(">a &lt; b ")
    assert set(colour) <= set("0123456789abcdef")
    assert after.startswith("pays &amp; &lt;b&gt;</b> &gt; c\nd</pre>")


def test_codes_that_are_no_colours_are_refused():
    """Rather than left out, so that a picture shows all that a terminal does."""
    with pytest.raises(ValueError, match="no colour"):
        as_html("\033[2Ja")

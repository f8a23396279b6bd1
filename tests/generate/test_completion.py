"""Stop strings, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.generate.completion import StopStrings, Timings


@given(st.text("ab\n", max_size=30), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3), st.data())
def test_cuts_do_not_matter(text, stops, data):
    stopper, out = StopStrings(stops), ""
    rest = text
    while rest:
        n = data.draw(st.integers(1, len(rest)))
        out += stopper.push(rest[:n])
        rest = rest[n:]
    out += stopper.flush() if not stopper.found else ""
    ends = [at for s in stops if (at := text.find(s)) >= 0]
    assert stopper.found == bool(ends)
    if not ends:
        assert out == text
    else:
        assert any(out == text[: text.find(s)] for s in stops if s in text)


@pytest.mark.parametrize("stops", [[], [""]])
def test_no_stops(stops):
    stopper = StopStrings(stops)
    assert stopper.push("abc") == "abc"
    assert stopper.flush() == ""


def test_rates_of_nothing():
    assert Timings(0.0, 0.0, 3, 0).decode_rate == 0.0

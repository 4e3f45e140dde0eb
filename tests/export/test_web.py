from sidecar.export.web import at_most_every


def test_what_was_made_holds_for_its_time():
    now, made = [0.0], []

    def make():
        made.append(now[0])
        return made[-1]

    recent = at_most_every(1.0, make, lambda: now[0])
    for at, found in ((0.0, 0.0), (0.9, 0.0), (1.0, 1.0), (1.9, 1.0), (7.0, 7.0)):
        now[0] = at
        assert recent() == found
    assert made == [0.0, 1.0, 7.0]


def test_a_failure_is_not_kept():
    outcomes = iter([ValueError, 5])

    def make():
        if (outcome := next(outcomes)) is ValueError:
            raise ValueError
        return outcome

    recent = at_most_every(1.0, make, lambda: 0.0)
    try:
        recent()
    except ValueError:
        assert recent() == 5

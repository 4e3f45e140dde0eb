"""Series as promtool's scenes write them: one sample a minute."""

from itertools import groupby

DAY = 1440  # minutes


def number(value):
    return f"{value:.12g}"


def counter(*phases, start=0):
    """A counter from phases of (minutes, growth per minute); None as growth: no samples. It falls to 0 at "reset"."""
    parts, value = [f"_x{start}"] if start else [], 0.0
    for phase in phases:
        if phase == "reset":
            value = 0.0
            continue
        minutes, growth = phase
        if growth is None:
            parts.append(f"_x{minutes}")
            continue
        parts.append(f"{number(value)}+{number(growth)}x{minutes - 1}")
        value += growth * minutes
    return " ".join(parts)


def gauge(*phases, start=0):
    """A gauge from phases of (minutes, value); None: no samples."""
    parts = [f"_x{start}"] if start else []
    parts += [f"_x{minutes}" if value is None else f"{number(value)}x{minutes - 1}" for minutes, value in phases]
    return " ".join(parts)


def values_of(samples, start):
    """The notation for values by minute from ``start`` on; stale after the last one, as in Prometheus."""
    every = [samples.get(minute) for minute in range(max(samples) + 1)]
    texts = ["_"] * start + ["_" if value is None else number(value) for value in every] + ["stale"]
    runs = [(text, len(list(run))) for text, run in groupby(texts)]
    return " ".join(
        text if times == 1 else f"_x{times}" if text == "_" else f"{text}x{times - 1}" for text, times in runs
    )


def named(metric, /, **labels):
    pairs = [f'{key}="{value}"' for key, value in labels.items() if value is not None]
    return f"{metric}{{{','.join(pairs)}}}"

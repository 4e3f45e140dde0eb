"""PromQL, built from the contract of metrics so that every name exists.

Quotes around variables are single ones: a double one takes four bytes of a ConfigMap, of which a
client-side apply can store 256 KiB.

Every selector carries the page's variables: those of a scrape's labels, and of ``$model_name`` and
``$temperature`` those that the metric has as labels.
"""

import re

from sidecar.export.metrics import METRICS

# Labels of a scrape that a site may lack; "All" matches then, too.
OPTIONAL = ("cluster", "namespace", "pod")
_SCRAPE = ("cluster", "namespace", "job", "instance", "pod")
SIDECAR = ", ".join(_SCRAPE)
POD = f"{SIDECAR}, model_name"  # one model on one server
MODEL = "cluster, namespace, model_name"
BUCKET = "model_name, temperature"

# How a label counts what there should be none of: one, and several, where $1 is the number.
PHRASES = {
    "missing": (", 1 pod missing", ", $1 pods missing"),
    "part": (", 1 in part", ", $1 in part"),
    "unmeasured": (", 1 not measured", ", $1 not measured"),
}

# Prometheus has scraped something, of whatever job, for as long as a pod takes to be missing.
_WATCHED = "(last_over_time(up{job=~'.+'}[2m]) and last_over_time(up{job=~'.+'}[3m] offset 3m))"

_LABELS = {metric.name.removeprefix("specdec_"): metric.labels for metric in METRICS}
_VARIABLES = ("model_name", "temperature")  # labels that a variable of the same name narrows
_EMPTY_TOO = tuple(f"{label}=~'(${label})?'" for label in (*_SCRAPE, *_VARIABLES))


def _selector(name: str, matchers: tuple[str, ...]) -> str:
    return f"{name}{{{','.join(matchers)}}}"


def series(metric: str, *matchers: str, suffix: str = "") -> str:
    """The selector of one of the sidecar's metrics, named without ``specdec_``.

    ``suffix`` is a histogram's ``_bucket``, ``_sum`` or ``_count``.
    """
    variables = (*_SCRAPE, *(label for label in _VARIABLES if label in _LABELS[metric]))
    return _selector(
        f"specdec_{metric}{suffix}", (*(f"{label}=~'${label}'" for label in variables), *matchers)
    )


def recorded(name: str, by: str = "model", *matchers: str) -> str:
    """The selector of a series that a recording rule makes.

    ``name`` lacks the prefix, ``model:specdec_``, in which ``by`` takes the place of ``model``.
    """
    labels = {"pod": POD, "sidecar": SIDECAR}.get(by, MODEL).split(", ")
    return _selector(
        f"{by}:specdec_{name}", (*(f"{label}=~'${label}'" for label in labels), *matchers)
    )


def lately(selector: str) -> str:
    """Its last value, for three minutes as the rules have it.

    Neither a failed scrape nor the end of a pod ends it sooner.
    """
    return f"last_over_time({selector}[3m])"


def banded(selector: str) -> str:
    """Its highest value within each step of a range, however long; in short ones as ``lately``."""
    return f"(max_over_time({selector}[$__interval]) or {lately(selector)})"


def missing(by: str, selector: str, *, at_once: bool = False) -> str:
    """1 for what has no series lately, or ``at_once`` none now, and should have one.

    It had one within the last hour, and Prometheus still has its target, or it was the last of its
    model and had requests until it went. A pod that a rollout or an autoscaler removed is not
    missing, nor is a model that was idle when it was scaled to zero, nor anything while Prometheus
    itself scrapes nothing.
    """
    here = selector if at_once else lately(selector)
    gone = f"last_over_time({selector}[1h]) unless on ({by}) {here}"
    # Grouped only at the end: to group hundreds of pods at each point costs more than all the rest.
    return f"(group by ({by}) ({_expected(f'({gone})', here, by, at_once=at_once)}))"


def known(by: str, selector: str) -> str:
    """1 for what has a series lately or is missing."""
    here = lately(selector)
    return f"(group by ({by}) ({here} or {_expected(f'last_over_time({selector}[1h])', here, by)}))"


def _expected(pods: str, here: str, by: str, *, at_once: bool = False) -> str:
    """Those of ``pods`` that are targets still, or the last of a model that had requests.

    ``here`` are live. Where Prometheus scrapes nothing, targets end when their series do.
    """
    up = _of_any_job("up")
    targets = f"{pods} and on ({SIDECAR}) {up if at_once else lately(up)}"
    if "model_name" not in by:
        return targets
    served = f"last_over_time({recorded('serves:bool', 'pod')}[1h]) == 1"
    return (
        f"{targets} or {pods} and on ({POD}) ({served}) and on () {_WATCHED}"
        f" unless on ({MODEL}) {here}"
    )


def phrase(label: str, count: str) -> str:
    """1 with the number as a phrase of ``PHRASES`` in the ``label``; empty where it is 0."""
    one, many = PHRASES[label]
    none = relabelled(f'count_values("{label}", {count})', label, "", label, "0")
    single = relabelled(none, label, one, label, "1")
    return relabelled(single, label, many, label, "([0-9]+)")


def number(expression: str) -> str:
    """How many series it has."""
    return f"(count({expression}) or on () vector(0))"


def at_end(expression: str) -> str:
    """Its value at the end of the page's time range."""
    return re.sub(r"\}(\[[^]]+])?", r"\g<0> @ end()", expression)


def first(count: int, expression: str, *, lowest: bool = False) -> str:
    """The ``count`` highest or lowest series, by their value at the end of the time range.

    They are the same series at all times.
    """
    choose = "bottomk" if lowest else "topk"
    return f"({expression}) and {choose}({count}, {at_end(expression)})"


def who(expression: str) -> str:
    """With the label ``who``: the pod, or the instance where a scrape has no pod.

    Of a long name the end is kept: there the pods of one model differ.
    """
    named = copied(copied(expression, "who", "instance"), "who", "pod")
    return relabelled(named, "who", "…$1", "who", ".{3,}(.{16})")


def short_model(expression: str) -> str:
    """With the end of a long model's name, where models of one family differ."""
    return relabelled(expression, "model_name", "…$1", "model_name", ".{3,}(.{24})")


def relabelled(expression: str, label: str, text: str, source: str, pattern: str = "(.+)") -> str:
    """With a ``label`` made from another one, if that matches the pattern."""
    return f'label_replace({expression}, "{label}", "{text}", "{source}", "{pattern}")'


def copied(expression: str, label: str, source: str) -> str:
    """With another label's text as a ``label``."""
    return relabelled(expression, label, "$1", source)


def labelled(expression: str, label: str, text: str) -> str:
    """With a label of a fixed text."""
    return f'label_replace({expression}, "{label}", "{text}", "", "")'


def reached() -> str:
    """``up`` of every target that was a sidecar within the last six hours.

    A sidecar that is gone has no other series left.
    """
    seen = f"max_over_time({series('build_info')}[6h])"
    return f"({_of_any_job('up')} and on ({SIDECAR}) {seen})"


def of_process(name: str, form: str = "{}") -> str:
    """A ``process_*`` metric of the sidecars; ``form`` is what is made of its selector."""
    return f"({form.format(_of_any_job(name))} and on ({SIDECAR}) {series('build_info')})"


def _of_any_job(name: str) -> str:
    """The selector of a metric that every target has.

    With all jobs selected it finds other programs' series, too.
    """
    return _selector(name, tuple(f"{label}=~'${label}'" for label in _SCRAPE))


def alerts(*matchers: str, name: str = "ALERTS") -> str:
    """Our alerts within the selection, and those that a rule took the selection's labels from.

    ``.+`` does not match a label that is missing, so the variables are optional here: an alert
    about a whole fleet has no instance, and must not be hidden from someone who was paged.
    VictoriaMetrics takes ``.+|`` for ``.+``, and reads ``(.+)?`` right.
    """
    return _selector(name, ('alertname=~"SpecDecode.*"', *_EMPTY_TOO, *matchers))


def rate(metric: str, *matchers: str, suffix: str = "") -> str:
    """A counter's growth per second."""
    return f"rate({series(metric, *matchers, suffix=suffix)}[$__rate_interval])"


def total(by: str, metric: str, *matchers: str) -> str:
    """A counter's growth per second, summed; ``by`` names labels, none for one sum over all."""
    return f"sum{_by(by)} ({rate(metric, *matchers)})"


def worst(by: str, expression: str) -> str:
    """The highest value of each group."""
    return f"max{_by(by)} ({expression})"


def least(by: str, expression: str) -> str:
    """The lowest value of each group."""
    return f"min{_by(by)} ({expression})"


def ratio(by: str, part: str, whole: str, *matchers: str) -> str:
    """Summed growth over summed growth.

    Groups whose ``whole`` did not grow have no value rather than NaN.
    """
    return f"{total(by, part, *matchers)} / ({total(by, whole, *matchers)} > 0)"


def quantile(share: float, by: str, histogram: str, *matchers: str) -> str:
    """A quantile over a histogram's latest observations.

    Without observations it has no value rather than NaN.
    """
    labels = f"le, {by}" if by else "le"
    return (
        f"histogram_quantile({share:g}, sum by ({labels})"
        f" ({rate(histogram, *matchers, suffix='_bucket')})) >= 0"
    )


def growth_by_bucket(histogram: str) -> str:
    """A histogram's latest observations by bucket, for a heatmap."""
    return f"sum by (le) (increase({series(histogram, suffix='_bucket')}[$__rate_interval]))"


def threshold(name: str) -> str:
    """A threshold as the selected sidecars have it; if they differ, the highest."""
    return f"max({series('threshold', _named(name))})"


def own_threshold(name: str) -> str:
    """A threshold as each sidecar has it, one series each."""
    return worst(SIDECAR, series("threshold", _named(name)))


def at_least(expression: str, name: str, *, as_number: bool = True) -> str:
    """A comparison by pod with its own threshold; 0 or 1 ``as_number``, else a filter."""
    modifier = " bool" if as_number else ""
    return f"{expression} >={modifier} on ({SIDECAR}) group_left () {own_threshold(name)}"


def before(expression: str) -> str:
    """The same, the variable ``$past`` ago."""
    return expression.replace("[$__rate_interval]", "[$__rate_interval] offset $past")


def _named(threshold_name: str) -> str:
    return f'name="{threshold_name}"'


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""

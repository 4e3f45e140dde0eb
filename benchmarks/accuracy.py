"""``python -m benchmarks.accuracy``: how far the inference is off, on recorded traffic of a real vLLM.

The truth is vLLM's own numbers for each request, which the inference does not see. The bars are those of design: 0.03 a
bucket (n-gram 0.05), and for draft models 0.02 in the median and 0.10 at P90 of single requests. The exit code is 1
where one of the two shared recordings misses a bar.
"""

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from sidecar.analysis.attribution.result import AttributedRequest
from sidecar.recording.recording import read_requests
from sidecar.recording.replay import replay
from sidecar.requests.record import RequestAcceptance

RECORDINGS = Path(__file__).parents[1] / "tests" / "data" / "recordings"
JUDGED = {"draft_model-k3": 0.03, "ngram-k3": 0.05}


def rate(pairs: Iterable[tuple[float, float]]) -> float:
    """Accepted / drafted over (accepted, drafted) pairs."""
    accepted, drafted = map(sum, zip(*pairs, strict=True))
    return accepted / drafted


def bucket_errors(found: list[AttributedRequest], truth: dict[str, RequestAcceptance]) -> dict[str, float]:
    """By temperature, how far the acceptance rate is off, over the requests that have numbers."""
    by_label: dict[str, list[AttributedRequest]] = defaultdict(list)
    for request in found:
        if request.draft_tokens > 0 and request.id in truth:
            by_label[request.temperature].append(request)
    return {
        label: abs(
            rate((one.accepted_tokens, one.draft_tokens) for one in requests)
            - rate((truth[one.id].accepted_tokens, truth[one.id].draft_tokens) for one in requests)
        )
        for label, requests in by_label.items()
    }


def main() -> int:
    print("| recording | requests | coverage | residual | worst bucket | per request: median | P90 |")
    print("|---|---|---|---|---|---|---|")
    missed = False
    for folder in sorted(path for path in RECORDINGS.iterdir() if path.is_dir()):
        truth = {record.id: record.acceptance for record in read_requests(folder) if record.acceptance is not None}
        result = replay(folder, infer=True)
        errors = bucket_errors(list(result.requests), truth)
        single = sorted(
            abs(one.acceptance - truth[one.id].accepted_tokens / truth[one.id].draft_tokens)
            for one in result.requests
            if one.acceptance is not None and one.id in truth and truth[one.id].draft_tokens
        )
        worst = max(errors.values(), default=float("nan"))
        median = statistics.median(single) if single else float("nan")
        p90 = single[int(0.9 * (len(single) - 1))] if single else float("nan")
        print(
            f"| {folder.name} | {len(truth)} | {result.coverage:.3f} | {result.residual:.4f} | {worst:.3f} "
            f"| {median:.3f} | {p90:.3f} |"
        )
        missed |= folder.name in JUDGED and worst > JUDGED[folder.name]
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

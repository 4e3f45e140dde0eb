"""The rules of the alerts that the direct push sends, by alert and severity.

Written by scripts/docs from alerts/alerts.yaml.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sidecar.alerting.rule import Rule

# ruff: noqa: E501 - texts are as they are sent
# fmt: off
_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        name="SpecDecodeAcceptanceLow",
        severity="critical",
        scope="model",
        wait=120.0,
        keep=900.0,
        summary="{model_name}: low acceptance rate",
        description="{model_name} on {instance} accepts {percent} of the tokens that its draft proposes (threshold acceptance_net_negative; the alert ends once it is certain to be above it). Requests do not fail, but responses are probably slower than without speculation. First run specdec-sidecar report: at its end it says why, if it knows, and which option of vLLM to change. If it does not, look for what was deployed last: the draft model, the quantization, the chat template. If it was none of these, look at the acceptance rate by temperature and by prompt length. It is critical because the rate dropped: it is lower than what each temperature's own past gives at today's shares, by more than it varies, with the same speculative configuration (or because acceptance_low_is_critical is set).",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeAcceptanceLow",
        severity="warning",
        scope="model",
        wait=600.0,
        keep=900.0,
        summary="{model_name}: low acceptance rate; whether this is slower has not been measured",
        description="{percent} of the draft tokens of {model_name} on {instance} are accepted (limit: the threshold acceptance_net_negative; the alert ends once it is certain to be above it); whether this is slower has not been measured. Try fewer draft tokens (num_speculative_tokens in --speculative-config) on one pod. To measure, run specdec-sidecar baseline against a pod without --speculative-config, or keep one such pod of this model running: then the measured time decides.",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeAcceptanceCollapsed",
        severity="critical",
        scope="fault",
        wait=600.0,
        keep=1200.0,
        summary="{model_name}: drafts not accepted",
        description="{model_name} on {instance} accepts {percent} of the tokens that its draft proposes, at every temperature and from the first position on. Requests do not fail, but they are slower than without speculation, and replies may be wrong. First run specdec-sidecar report: its finding mismatch names the likely causes, and says how many of the last replies were empty or repeated themselves. Then send this pod a prompt, read the reply, and restart this vLLM (kubectl delete pod). If that does not help, remove --speculative-config and roll out the deployment. High temperatures alone do not cause this: it is a bug in vLLM, a draft model that does not match the target model, or n-gram decoding of text that repeats nothing.",
        first="prompt it, read the reply",
    ),
    Rule(
        name="SpecDecodeOutputWorse",
        severity="warning",
        scope="output",
        wait=600.0,
        keep=900.0,
        summary="{model_name}: more replies than usual repeat themselves or are empty",
        description="{percent} of the replies of {model_name} on {instance} repeat themselves until they are cut off, or are empty. Some of them may be usual for this model, but so many clearly are not. No request fails, and the pod looks as fast as ever, or faster. First send this pod a prompt and read the reply. If it is wrong, restart this vLLM (kubectl delete pod) and read a reply again: the restart can end this alert, since what was usual is then forgotten, and leave the fault. If it is still wrong, remove --speculative-config and roll out the deployment. If it is right, one client may be sending the same prompt again and again. Usual is what requests at the same temperatures get without speculative decoding where that is known, otherwise what they got from this pod before.",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeSlowerThanPlain",
        severity="critical",
        scope="model_time",
        wait=600.0,
        keep=900.0,
        summary="{model_name}: slower with speculation",
        description="{model_name} on {instance} decodes at {value:.2f} times the speed it would have without speculative decoding at this load (threshold speedup_net_negative; the alert ends clearly above it). Requests do not fail, but responses take longer. First run specdec-sidecar report: at its end it says why, if it knows, and which option of vLLM to change. If the load is unusually high, add pods, which restarts nothing. If neither helps, lower num_speculative_tokens in --speculative-config, or remove --speculative-config, and roll out the deployment.",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeEngineStalled",
        severity="critical",
        scope="vllm",
        wait=0.0,
        keep=600.0,
        summary="vLLM's engine hangs, requests wait",
        description="The vLLM that the sidecar {instance} watches hangs. It has requests to answer, and for at least engine_health.stalled_after (two minutes unless you set it) it has generated nothing for any of them. Clients wait until they give up. Its /health still says 200, so nothing restarts it unless vLLM's container has the liveness probe of docs/restarts.md (then the kubelet does, within minutes). If you can do so at once, take a stack dump (py-spy dump, see the runbook). Then restart this vLLM (kubectl delete pod).",
        first="py-spy dump, then delete pod",
    ),
    Rule(
        name="SpecDecodeVLLMDown",
        severity="critical",
        scope="outage",
        wait=0.0,
        keep=600.0,
        summary="{model_name}: vLLM down, requests fail",
        description="No vLLM answers for {model_name}, or at most half of its pods do: requests fail. It crashes, hangs, does not start, or keeps restarting. First look at the state of the vLLM containers (kubectl describe pod) and at the end of their logs (kubectl logs POD -c vllm, with --previous if it has restarted). If vLLM runs but hangs, restart it (kubectl delete pod). If it began with a rollout, roll that back.",
        first="kubectl describe pod, logs",
    ),
    Rule(
        name="SpecDecodeAcceptanceLow",
        severity="info",
        scope="model",
        wait=600.0,
        keep=300.0,
        summary="{model_name}: low acceptance rate, which alone needs no action",
        description="{model_name} on {instance} accepts {percent} of its draft tokens (threshold acceptance_net_negative), now or over the last hour. That alone needs no action: either a measured time without speculation decides whether it is slower, and SpecDecodeSlowerThanPlain fires if it is, or the rate is not certain to stay low, and a warning follows once it is.",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeSlowerThanPlainAtTemperature",
        severity="warning",
        scope="temperature_time",
        wait=600.0,
        keep=300.0,
        summary="{model_name}: slower than without speculation at T {temperature}",
        description="{model_name} on {instance} decodes requests at temperature {temperature} at {value:.2f} times the speed they would have without speculation (threshold speedup_net_negative; the alert ends clearly above it). If the model as a whole loses, lower num_speculative_tokens; if it gains, that would cost the other temperatures. The runbook says what else there is.",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeAcceptanceLowAtTemperature",
        severity="warning",
        scope="temperature",
        wait=0.0,
        keep=0.0,
        summary="{model_name}: low acceptance rate at T {temperature}",
        description="{model_name} on {instance} accepts {percent} of the draft tokens at temperature {temperature} (threshold acceptance_net_negative; the alert ends once it is certain to be above it). These requests are probably slower for it. Sample the drafts if vLLM can; if the model as a whole loses, lower num_speculative_tokens.",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeAcceptanceP10Low",
        severity="warning",
        scope="requests",
        wait=840.0,
        keep=0.0,
        summary="{model_name}: one request in ten has a low acceptance rate",
        description="One request in ten for {model_name} on {instance} accepts at most {percent} of its draft tokens, below the threshold acceptance_p10. To find out which requests these are, compare the temperatures on the sidecar's status page, and see its table \"Requests with a lower acceptance rate\".",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeNotSpeculating",
        severity="warning",
        scope="model_gain",
        wait=600.0,
        keep=300.0,
        summary="{model_name}: configured to speculate, but nothing is drafted",
        description="{model_name} on {instance} generates tokens with a draft model loaded and drafts none. Requests do not fail. Look in vLLM's log for what switched drafting off, and restart it.",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeLatencyGapWide",
        severity="warning",
        scope="load",
        wait=840.0,
        keep=300.0,
        summary="{model_name}: P99 latency has moved away from the median",
        description="The gap between P99 and P50 of the time per output token of {model_name} on {instance} is at least {value:.3g} times that of the baseline or, without one, of the same time yesterday (threshold latency_gap_growth). If the sidecar's status page shows neither a net negative temperature nor a full KV cache, the cause is long prompts or the load.",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeKVCachePressure",
        severity="warning",
        scope="load",
        wait=600.0,
        keep=300.0,
        summary="{model_name}: the KV cache is full and requests wait for it",
        description="KV-cache usage of {model_name} on {instance} peaks at {percent}, above the threshold kv_cache_usage, on an engine that requests wait for. Add pods, or limit concurrent requests with --max-num-seqs.",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeVLLMNeverUp",
        severity="warning",
        scope="vllm",
        wait=0.0,
        keep=0.0,
        summary="The sidecar has never reached vLLM",
        description="The sidecar {instance} has run for longer than the threshold startup_time and has never scraped vLLM's /metrics: either vLLM does not start, or vllm_url is wrong. Check vLLM's log, and compare vllm_url with the port that vLLM listens on. If the model takes longer to load, raise the threshold.",
        first="specdec-sidecar report",
    ),
    Rule(
        name="SpecDecodeVLLMUnreadable",
        severity="warning",
        scope="vllm",
        wait=600.0,
        keep=300.0,
        summary="vLLM responds, but without metrics that the sidecar can read",
        description="What the sidecar {instance} scrapes responds, but not with vLLM's metrics, so nothing is known about this vLLM and no other alert about it can fire. Its requests are not affected. First look whether vLLM was started with --disable-log-stats, then whether vllm_url is vLLM's own address; specdec-sidecar check says which.",
        first="specdec-sidecar report",
    ),
)
# fmt: on
RULES: Final[Mapping[tuple[str, str], Rule]] = MappingProxyType(
    {(rule.name, rule.severity): rule for rule in _RULES}
)

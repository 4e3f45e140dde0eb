"""The simulated vLLM's response bodies, key by key in the order of the recorded exchanges."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from sidecar.demo.driver import Delta
from sidecar.demo.generation import FinishReason, Generation
from sidecar.demo.inference_requests import BadRequest, InferenceRequest

_FINGERPRINT: Final = "vllm-0.32.0-5df78fb7"
_WORDS: Final = ("draft", "token", "verify", "accept", "reject", "sample", "cache", "block", "batch", "queue")

_encode = msgspec.json.encode


def filler(start: int, tokens: int) -> str:
    """Text for ``tokens`` tokens from token number ``start`` on: one word each."""
    return "".join(f"{_WORDS[(start + offset) % len(_WORDS)]} " for offset in range(tokens))


def error_body(error: BadRequest, model: str) -> bytes:
    """An OpenAI error object; vLLM's message for an unknown model names the known one."""
    message = f"{error.message} Valid aliases: {model}." if error.status == 404 else error.message
    return _encode({"error": {"message": message, "type": error.kind, "param": error.param, "code": error.status}})


def _speculative_decoding(generations: Sequence[Generation]) -> dict[str, Any] | None:
    """VLLM's per-request acceptance; None for several choices and if nothing was drafted."""
    if len(generations) != 1 or not generations[0].drafts:
        return None
    generation = generations[0]
    positions = len(generation.histogram) - 1
    return {
        "mean_acceptance_length": 1 + generation.accepted_tokens / generation.drafts,
        "draft_acceptance_rate": generation.accepted_tokens / (generation.drafts * positions),
        "acceptance_histogram": generation.histogram,
        "num_spec_steps": generation.drafts,
        "num_accepted_draft_tokens": generation.accepted_tokens,
        "num_draft_tokens": generation.drafts * positions,
        "num_spec_tokens": positions,
    }


def _usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def _sse(body: dict[str, Any]) -> bytes:
    return b"data: " + _encode(body) + b"\n\n"


class Reply:
    """Builds the response to one request; ``exact``: with vLLM's per-request acceptance."""

    def __init__(self, request: InferenceRequest, model: str, *, chat: bool, exact: bool) -> None:
        self._request = request
        self._chat = chat
        self._exact = exact
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(8)}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._event_head = self._head | ({"object": "chat.completion.chunk"} if chat else {})
        self._sent: dict[int, int] = {}  # choice -> tokens streamed so far

    def whole(self, generations: Sequence[Generation]) -> bytes:
        """The body of a reply that is not streamed; every generation has finished."""
        usage = _usage(self._request.prompt_tokens, sum(each.output_tokens for each in generations))
        usage |= {"prompt_tokens_details": None, "completion_tokens_details": None}
        body: dict[str, Any] = {**self._head, "choices": [self._choice(each) for each in generations]}
        body |= {"service_tier": None, "system_fingerprint": _FINGERPRINT, "usage": usage}
        if self._chat:
            body |= dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))
        body |= dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics"))
        acceptance = _speculative_decoding(generations) if self._exact else None
        if acceptance is not None:
            times = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms")
            steps = dict.fromkeys(("per_step_accepted", "per_step_drafted"))
            body["metrics"] = {
                **dict.fromkeys((*times, "tokens_per_second")),
                "speculative_decoding": acceptance | steps,
            }
        return _encode(body)

    def event(self, delta: Delta) -> bytes:
        """The SSE events for new tokens of a choice; without usage, each choice's last one has the fingerprint."""
        start = self._sent.get(delta.index)
        events = self._role_event(delta.index) if start is None and self._chat else b""
        sent = self._sent[delta.index] = (start or 0) + delta.tokens
        text = filler(start or 0, delta.tokens)
        body = {**self._event_head, "choices": [self._delta(delta.index, text, delta.reason)]}
        if self._request.continuous_usage:
            body["usage"] = self._running_usage(delta.index, sent)
        elif delta.reason is not None and not self._request.include_usage:
            body["system_fingerprint"] = _FINGERPRINT
        return events + _sse(body)

    def end(self, generations: Sequence[Generation]) -> bytes:
        """The end of a stream: a usage event if the client asked for it, and the end mark."""
        if not self._request.include_usage:
            return b"data: [DONE]\n\n"
        usage = _usage(self._request.prompt_tokens, sum(each.output_tokens for each in generations))
        body: dict[str, Any] = {**self._event_head, "choices": [], "usage": usage, "system_fingerprint": _FINGERPRINT}
        acceptance = _speculative_decoding(generations) if self._exact else None
        if acceptance is not None:
            body["metrics"] = {"speculative_decoding": acceptance}
        return _sse(body) + b"data: [DONE]\n\n"

    def _choice(self, generation: Generation) -> dict[str, Any]:
        text = filler(0, generation.output_tokens)
        finish = {"logprobs": None, "finish_reason": generation.finished, "stop_reason": None, "token_ids": None}
        if not self._chat:
            none = dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "routed_experts"))
            return {"index": generation.index, "text": text, **finish, **none}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        return {"index": generation.index, "message": message, **finish, "routed_experts": None}

    def _role_event(self, index: int) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        body: dict[str, Any] = {**self._event_head, "choices": [choice]}
        if self._request.continuous_usage:
            body["usage"] = self._running_usage(index, 0)
        return _sse(body | {"prompt_token_ids": None, "prompt_text": None})

    def _delta(self, index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
        finish = {"logprobs": None, "finish_reason": reason}
        if not self._chat:
            none = dict.fromkeys(("stop_reason", "prompt_token_ids", "token_ids"))
            return {"index": index, "text": text, **finish, **none}
        stop = {} if reason is None else {"stop_reason": None}
        return {"index": index, "delta": {"content": text}, **finish, **stop, "token_ids": None}

    def _running_usage(self, index: int, tokens: int) -> dict[str, Any]:
        usage = _usage(self._request.prompts[index // self._request.n].tokens, tokens)
        return usage | {"completion_tokens_details": None} if self._chat else usage

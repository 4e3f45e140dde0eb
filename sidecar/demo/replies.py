"""The simulated vLLM's response bodies, key by key in the order of the recorded exchanges."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sidecar.demo.driver import Delta
from sidecar.demo.generation import FinishReason, Generation
from sidecar.demo.inference_requests import BadRequest, InferenceRequest

FINGERPRINT = "vllm-0.32.0-5df78fb7"
WORDS = "draft token verify accept reject sample cache block batch queue prompt step "
_WORD_LIST = WORDS.split(" ")[:-1]

encode = msgspec.json.encode


def filler(start: int, tokens: int) -> str:
    """Text for ``tokens`` tokens from token number ``start`` on: one word each."""
    size = len(_WORD_LIST)
    return "".join(f"{_WORD_LIST[(start + offset) % size]} " for offset in range(tokens))


def error_body(error: BadRequest, model: str) -> bytes:
    """An OpenAI error object. The known name of an unknown model is part of vLLM's message."""
    message = error.message
    if error.status == 404:
        message = f"{message} Valid aliases: {model}."
    return encode({"error": {"message": message, "type": error.kind, "param": error.param, "code": error.status}})


def speculative_decoding(generations: Sequence[Generation]) -> dict[str, Any] | None:
    """What vLLM says of a request of one choice; None for several choices and where nothing was drafted."""
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
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }


@dataclass(slots=True)
class Reply:
    """Builds what one request is answered with; ``exact``: with vLLM's per-request acceptance."""

    request: InferenceRequest
    model: str
    chat: bool
    exact: bool
    id: str = ""
    created: int = 0
    _sent: dict[int, int] = field(default_factory=dict)  # choice -> tokens streamed so far

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(8)}"
        self.created = int(time.time())

    def whole(self, generations: Sequence[Generation]) -> bytes:
        """The body of a reply that is not streamed; every generation has finished."""
        usage = _usage(self.request.prompt_tokens, sum(each.output_tokens for each in generations))
        usage |= {"prompt_tokens_details": None, "completion_tokens_details": None}
        body = self._head("chat.completion" if self.chat else "text_completion")
        body["choices"] = [self._choice(each) for each in generations]
        body |= {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage}
        if self.chat:
            body |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        body |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        acceptance = speculative_decoding(generations) if self.exact else None
        if acceptance is not None:
            body["metrics"] = {
                "time_to_first_token_ms": None,
                "generation_time_ms": None,
                "queue_time_ms": None,
                "mean_itl_ms": None,
                "tokens_per_second": None,
                "speculative_decoding": {
                    **acceptance,
                    "per_step_accepted": None,
                    "per_step_drafted": None,
                },
            }
        return encode(body)

    def event(self, delta: Delta, *, last: bool) -> bytes:
        """The SSE events for new tokens of a choice; ``last``: no choice is open after it."""
        start = self._sent.get(delta.index)
        events = b""
        if start is None:
            start = 0
            if self.chat:
                events = self._role_event(delta.index)
        self._sent[delta.index] = start + delta.tokens
        text = filler(start, delta.tokens)
        body = self._head("chat.completion.chunk" if self.chat else "text_completion")
        body["choices"] = [self._delta(delta.index, text, delta.reason)]
        if self.request.continuous_usage:
            body["usage"] = self._running_usage(delta.index, start + delta.tokens)
        elif last and not self.request.include_usage:
            body["system_fingerprint"] = FINGERPRINT
        return events + _sse(body)

    def end(self, generations: Sequence[Generation]) -> bytes:
        """What closes a stream: the usage event where it was asked for, and the mark of the end."""
        if not self.request.include_usage:
            return b"data: [DONE]\n\n"
        body = self._head("chat.completion.chunk" if self.chat else "text_completion")
        body["choices"] = []
        body["usage"] = _usage(self.request.prompt_tokens, sum(each.output_tokens for each in generations))
        body["system_fingerprint"] = FINGERPRINT
        acceptance = speculative_decoding(generations) if self.exact else None
        if acceptance is not None:
            body["metrics"] = {"speculative_decoding": acceptance}
        return _sse(body) + b"data: [DONE]\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, generation: Generation) -> dict[str, Any]:
        text = filler(0, generation.output_tokens)
        ending = {"logprobs": None, "finish_reason": generation.finished, "stop_reason": None}
        if not self.chat:
            return {
                "index": generation.index,
                "text": text,
                **ending,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
        message: dict[str, Any] = {"role": "assistant", "content": text}
        message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        return {
            "index": generation.index,
            "message": message,
            **ending,
            "token_ids": None,
            "routed_experts": None,
        }

    def _role_event(self, index: int) -> bytes:
        body = self._head("chat.completion.chunk")
        delta = {"role": "assistant", "content": ""}
        body["choices"] = [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]
        if self.request.continuous_usage:
            body["usage"] = self._running_usage(index, 0)
        return _sse(body | {"prompt_token_ids": None, "prompt_text": None})

    def _delta(self, index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
        if not self.chat:
            return {
                "index": index,
                "text": text,
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "prompt_token_ids": None,
                "token_ids": None,
            }
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": text},
            "logprobs": None,
            "finish_reason": reason,
        }
        if reason is not None:
            choice["stop_reason"] = None
        return choice | {"token_ids": None}

    def _running_usage(self, index: int, tokens: int) -> dict[str, Any]:
        usage = _usage(self.request.prompts[index // self.request.n].tokens, tokens)
        return usage | {"completion_tokens_details": None} if self.chat else usage


def _sse(body: dict[str, Any]) -> bytes:
    return b"data: " + encode(body) + b"\n\n"

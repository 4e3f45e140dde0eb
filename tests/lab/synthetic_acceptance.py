"""A plug-in for vLLM's CPU build, whose sampler asserts that acceptance is not synthetic.

With it, ``rejection_sample_method: synthetic`` accepts draft tokens by chance, as vLLM's kernels
for GPUs do. It is for a test of what that does to outputs.
"""


def register():
    """The entry point: replaces the two kernels before vLLM's platform takes them."""
    from vllm.utils import cpu_triton_utils as kernels

    kernels._rejection_greedy_sample_kernel_impl = greedy
    kernels._rejection_random_sample_kernel_impl = sampled


def greedy(*given):
    """The kernel for greedy requests: what is rejected becomes the target's likeliest token."""
    output, ends, drafts, likeliest, bonus, is_greedy, _, uniform, rates, *_ = given
    for request in range(len(output)):
        if is_greedy is None or is_greedy[request]:
            start, end = bounds(ends, request)
            accepted = accepted_tokens(drafts[start:end], uniform[start:end], rates)
            write(
                output[request], drafts[start:end], accepted, likeliest[start:end], bonus[request]
            )


def sampled(*given):
    """The kernel for sampled requests: what is rejected becomes another sample."""
    output, ends, drafts, _, _, bonus, recovered, uniform, is_greedy, _, _, rates, *_ = given
    for request in range(len(output)):
        if not is_greedy[request]:
            start, end = bounds(ends, request)
            accepted = accepted_tokens(drafts[start:end], uniform[start:end], rates)
            write(
                output[request], drafts[start:end], accepted, recovered[start:end], bonus[request]
            )


def bounds(ends, request):
    """Where a request's draft tokens begin and end."""
    return (int(ends[request - 1]) if request else 0), int(ends[request])


def accepted_tokens(drafts, uniform, rates):
    """How many draft tokens are accepted: those before the first that is not."""
    for position, draft in enumerate(drafts):
        if draft < 0 or uniform[position] >= rates[position]:
            return position
    return len(drafts)


def write(output, drafts, accepted, instead, bonus):
    """Writes the accepted tokens and one more."""
    output[:accepted] = drafts[:accepted]
    output[accepted] = instead[accepted] if accepted < len(drafts) else bonus.item()

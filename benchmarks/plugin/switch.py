"""Takes the plug-in out of an idle vLLM, or puts it back.

The id of the next request decides.
"""

from typing import Any

WITHOUT = "without"
_WRAPPED = ("make_spec_decoding_stats", "update_from_output", "_free_request")


def register() -> None:
    """Registers the plug-in, and the switch in ``Scheduler.add_request``.

    vLLM loads this in the plug-in's place.
    """
    import specdec_plugin  # type: ignore[import-not-found]  # noqa: PLC0415 - only where vLLM is
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - as above

    bare = {name: getattr(Scheduler, name) for name in _WRAPPED}
    specdec_plugin.register()
    wrapped = {name: getattr(Scheduler, name) for name in _WRAPPED}
    add_request = Scheduler.add_request

    def switch(self: Any, request: Any) -> None:
        if not self.requests:
            for name, method in (bare if WITHOUT in request.request_id else wrapped).items():
                setattr(Scheduler, name, method)
        add_request(self, request)

    Scheduler.add_request = switch

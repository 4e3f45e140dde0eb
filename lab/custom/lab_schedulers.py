"""Custom schedulers: ``lab/serve METHOD --scheduler lab_schedulers.Cooperative``."""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class Cooperative(Scheduler):
    """Overrides a method and calls vLLM's."""

    steps = 0

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Counts the steps."""
        result = super().update_from_output(scheduler_output, model_runner_output)
        self.steps += 1
        return result


class ByHelper(Scheduler):
    """Calls vLLM's method from another one, as NVIDIA Dynamo's scheduler does."""

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Leaves it to the helper."""
        return self._update(scheduler_output, model_runner_output)

    def _update(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        return super().update_from_output(scheduler_output, model_runner_output)


class Replacing(Scheduler):
    """Stands for a scheduler with an implementation of its own.

    It bypasses what a plug-in wrapped around vLLM's.
    """

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Calls vLLM's method, unwrapped."""
        method = Scheduler.update_from_output
        return getattr(method, "__wrapped__", method)(self, scheduler_output, model_runner_output)

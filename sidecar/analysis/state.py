"""The state of one vLLM: takes in its pages and what the plug-in sends.

It gives the report of the last poll.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sidecar.analysis.build import Moment, evidence, model_report
from sidecar.analysis.engine.engines import Engines
from sidecar.analysis.engine.scrape_report import ScrapeReport
from sidecar.analysis.model_state import ModelState
from sidecar.analysis.report import OwnReport, Report
from sidecar.analysis.series import shown_positions
from sidecar.analysis.speed.speedup import LoadTotals
from sidecar.analysis.speed.steps import Steps
from sidecar.analysis.split.life import NO_STEPS
from sidecar.analysis.split.lives import Lives
from sidecar.analysis.verdict import Judge, ModelJudgement
from sidecar.engine.identity import EngineKey
from sidecar.engine.merge import OTHER
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.requests.messages import Speculation, StepTally
from sidecar.settings import Settings

_NO_OWN: Final = OwnReport()


class State:
    """A scrape sink; ``plugin`` is the sink for what plug-ins send.

    Bounded whatever vLLM and the traffic do. Everything that plug-ins sent before a poll is taken
    in with that poll, so the report describes one moment.
    """

    def __init__(self, settings: Settings, listening_since: float) -> None:
        """``listening_since`` is as in ``Lives``."""
        self._settings = settings
        self._scrape = ScrapeReport(interval=settings.scrape_interval)
        self._engines = Engines(settings)
        self._speculation: dict[str, Speculation] = {}  # by model, as the plug-in said last
        self._models: dict[str, ModelState] = {}
        self._overflow = Counter(position=0, group=0)
        self._judge = Judge(settings.thresholds, settings.latency_window)
        self.plugin = Lives(listening_since, settings.thresholds.coverage)

    @property
    def is_polled(self) -> bool:
        """Whether at least one poll has ended, successfully or not."""
        return self._scrape.last_scrape is not None or self._scrape.last_error is not None

    def apply(self, settings: Settings) -> None:
        """Judges by these settings' thresholds from the next poll on."""
        self._settings = settings
        self._judge.apply(settings.thresholds)
        self.plugin.lowest_coverage = settings.thresholds.coverage

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        """Takes in one poll's page; see ``ScrapeSink``.

        One that is of another server, or may be, counts as a failed poll.
        """
        try:
            restarts = self._engines.observe(at, page)
        except ScrapeError as error:
            self.failed(at, error)
            return

        before = self._scrape.last_scrape
        self._scrape = self._scrape.scraped(at, duration, interval, page.malformed)
        most = shown_positions(self._settings, len(self._engines.states))
        past = max((len(engine.accepted_per_position) - most for engine in page.engines), default=0)
        self._overflow["position"] = max(self._overflow["position"], past)
        self.plugin.polled(at, page, has_restarted=restarts.vllm, reset=restarts.engines)
        self._forget_other_speculation(at)
        self._keep_models(has_restarted=restarts.vllm)
        reported = self._take_counts(at)
        if before is not None and before < at:
            self._take_steps(before, at, reported)
        for key, early, recent in self.plugin.take_finished():
            if key.model_name in self._models:
                self._models[key.model_name].finished(at, key.engine, early, recent)
            else:  # past ``limits.models``
                self.plugin.leave_out(len(early) + len(recent))
        for model in self._models.values():
            model.mark(at)
        thresholds, models = self._settings.thresholds, self._models.values()
        self._judge.judge(
            [evidence(model, self._engines, self.plugin, at, thresholds) for model in models], at
        )

    # The signature is the protocol's.
    def failed(self, at: float, error: ScrapeError) -> None:  # noqa: ARG002
        """Takes in a failed poll; see ``ScrapeSink``."""
        self._scrape = self._scrape.failed(error)

    @property
    def last_error(self) -> ScrapeError | None:
        """Why the last poll gave no usable page; None if it did."""
        return self._scrape.last_error

    @property
    def restarts(self) -> int:
        """How often vLLM has restarted."""
        return self._engines.restarts

    def report(self, now: float, own: OwnReport = _NO_OWN, problem: str = "") -> Report:
        """The report at ``now``, Unix seconds; ``problem`` is as in ``Lives.report``."""
        scrape = self._scrape.at(now, self._engines.restarts)
        judged = self._judge.held(now, fresh=scrape.up)
        moment = Moment(self._scrape.last_scrape or now, scrape.up, self._settings.thresholds)
        return Report(
            at=now,
            scrape=scrape,
            plugin=self.plugin.report(problem),
            models=tuple(
                model_report(
                    model, self._engines, self.plugin, judged.get(name, ModelJudgement()), moment
                )
                for name, model in self._models.items()
            ),
            own=replace(own, label_overflow={"engine": self._engines.overflowed, **self._overflow}),
        )

    def _forget_other_speculation(self, at: float) -> None:
        """Forgets a model whose engines speculate in another way, as after a restart.

        From now on, the model is judged by what its engines do since then.
        """
        before, self._speculation = self._speculation, {}
        for name in [*self._models]:
            engines = self._engines.of(name)
            known = (self.plugin.speculation(state.key) for state in engines)
            now = next(filter(None, known), before.get(name))
            if now is not None:
                self._speculation[name] = now
                if now != before.get(name, now):
                    del self._models[name]
                    for state in engines:
                        state.judge_from(at)

    def _keep_models(self, *, has_restarted: bool) -> None:
        """Keeps a state for each model with an engine.

        Drops it with the last engine, a while after that left the page.
        """
        known, self._models = self._models, {}
        for key in self._engines.states:
            name = key.model_name
            model = known.get(name) or self._models.get(name)
            self._models[name] = model or ModelState(name, self._settings)

        for model in self._models.values():
            model.speed.forget_all_but(self._engines.states.keys())
            if has_restarted:  # it may speculate in another way
                model.speed.loads = LoadTotals()

    def _take_counts(self, at: float) -> Mapping[EngineKey, StepTally]:
        """Passes what the plug-ins have counted on to the models.

        Returns the growth of the plug-ins' steps, by engine.
        """
        steps: dict[EngineKey, StepTally] = {}
        for model in self._models.values():
            lives = self.plugin.counting(model.name)
            self._overflow["group"] += model.count(at, lives)
            for life in lives:
                steps[life.key] = steps.get(life.key, NO_STEPS) + life.take_steps()
        return steps

    def _take_steps(self, start: float, at: float, reported: Mapping[EngineKey, StepTally]) -> None:
        """Takes in what each engine decoded since the last poll.

        It is by vLLM's counters, else by the plug-in's reports.
        """
        speculating: dict[str, dict[EngineKey, Steps]] = {name: {} for name in self._models}
        for key, state in self._engines.states.items():
            if key == OTHER or state.seen_at != at:
                continue
            steps = state.steps
            if state.untimed is not None and state.grown is not None:
                steps = state.reported(state.grown, reported.get(key, NO_STEPS))
            if steps is None:
                continue
            state.loads.add(steps)
            if state.speculates:
                speculating[key.model_name][key] = steps

        for name, decoded in speculating.items():
            self._models[name].speed.polled(start, at, decoded)

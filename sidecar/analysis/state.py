"""The state of one vLLM: takes in its pages and what the plug-in sends.

It gives the report of the last poll.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sidecar.analysis.alerts import model_alerts, vllm_alert
from sidecar.analysis.build import model_report
from sidecar.analysis.checklist.traffic import TrafficWindow
from sidecar.analysis.drops import DropWatch
from sidecar.analysis.engine.engine_state import EngineState
from sidecar.analysis.engine.engines import Engines
from sidecar.analysis.engine.health import HealthWatch, vitals
from sidecar.analysis.engine.probes import Probes
from sidecar.analysis.engine.scrape_report import Age, ScrapeReport
from sidecar.analysis.gather import gather
from sidecar.analysis.judgement import ModelJudgement
from sidecar.analysis.model_state import ModelState
from sidecar.analysis.pod_alert import PodAlert
from sidecar.analysis.report import ModelReport, OwnReport, Report
from sidecar.analysis.series import shown_positions
from sidecar.analysis.speed.speedup import LoadTotals
from sidecar.analysis.speed.steps import Steps
from sidecar.analysis.split.life import NO_STEPS, LifeSteps
from sidecar.analysis.split.lives import Lives
from sidecar.analysis.split.view import LivesView
from sidecar.analysis.values import ModelValues
from sidecar.analysis.verdict import Judge
from sidecar.engine import merge
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.requests.messages import Speculation
from sidecar.settings import Settings

_NO_OWN: Final = OwnReport()


def _drops(is_dropped: bool | None) -> float:  # noqa: FBT001 - as the plug-in says it
    """The share of hits whose last block an engine computes again: half where nobody knows."""
    if is_dropped is None:
        return 0.5
    return 1.0 if is_dropped else 0.0


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
        self._models: dict[str, ModelState] = {}

        # How each model's engines speculate, as the plug-in that counts said last, and the models
        # of which they have not yet done so since vLLM restarted.
        self._speculation: dict[str, Speculation] = {}
        self._unconfirmed: set[str] = set()
        self._overflow = {"position": 0, "group": 0}

        self._judge = Judge(settings.thresholds, settings.latency_window)
        self._values: tuple[ModelValues, ...] = ()  # as of the last good poll
        # What they were read from: a poll that fails half-way may have dropped some of it since.
        self._read_models: Mapping[str, ModelState] = {}
        self._read_engines: Mapping[EngineKey, EngineState] = {}
        self._reports: dict[Age, tuple[ModelReport, ...]] = {}  # on these, once made
        self._alerts: tuple[PodAlert, ...] | None = None  # that follow from them, once made
        self._drops = DropWatch()

        self.plugin = Lives(listening_since, settings.thresholds.coverage)
        self.health = HealthWatch(settings.engine_health)
        self.probes = Probes(settings.probe)

    @property
    def is_polled(self) -> bool:
        """Whether at least one poll has ended, successfully or not."""
        return self._scrape.began is not None

    @property
    def restarts(self) -> int:
        """How often vLLM has restarted."""
        return self._engines.restarts

    def apply(self, settings: Settings) -> None:
        """Judges by these settings' thresholds from the next poll on."""
        self._settings = settings
        self._judge.apply(settings.thresholds)
        self.plugin.lowest_coverage = settings.thresholds.coverage
        self.health.apply(settings.engine_health)

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        """Takes in one poll's page; see ``ScrapeSink``.

        One that is of another server, or may be, counts as a failed poll.
        """
        page = page.drafting(self.plugin.view.speculating)
        try:
            restarts = self._engines.observe(at, page)
        except ScrapeError as error:
            self.failed(at, error)
            return

        if restarts.is_foreign:
            for model in self._models.values():
                model.forget_past()

        before = self._scrape.last_scrape
        self._scrape = self._scrape.scraped(at, duration, interval, page.malformed)
        self._note_positions(page)
        lives = self.plugin.polled(at, page, has_restarted=restarts.vllm, reset=restarts.engines)

        self._note_restarts(has_restarted=restarts.vllm, reset=restarts.engines)
        self._forget_other_speculation(at, lives)
        self._keep_models(has_restarted=restarts.vllm)
        self._take_lives(at, lives)
        if before is not None and before < at:
            self._take_steps(before, at, lives)

        self._take_finished(at, lives)
        for model in self._models.values():
            present = [one for one in self._engines.of(model.name) if one.seen_at == at]
            for state in present:
                model.past.grow(state.counted)
            model.mark(at, sum(state.running for state in present if state.speculates))

        self._judge_models(at, lives)
        self._watch_health(at, interval, lives, has_restarted=restarts.vllm)

    def failed(self, at: float, error: ScrapeError) -> None:
        """Takes in a failed poll; see ``ScrapeSink``."""
        self._scrape = self._scrape.failed(at, error)
        self.plugin.missed()
        self.probes.missed()

    @property
    def last_error(self) -> ScrapeError | None:
        """Why the last poll gave no usable page; None if it did."""
        return self._scrape.last_error

    def report(self, now: float, own: OwnReport = _NO_OWN, problem: str = "") -> Report:
        """The report at ``now``, Unix seconds; ``problem`` is as in ``Lives.report``."""
        scrape = self._scrape.at(now, self._engines.restarts)
        age = self._scrape.age(now)
        models: tuple[ModelReport, ...] = ()
        alerts: tuple[PodAlert, ...] = ()
        # Counters of a process that may have ended would fall later, and be too high until then.
        if not self._engines.is_in_doubt:
            models = self._model_reports(age)
            alerts = self._alerts_on_models() if age is not Age.OLD else ()

        return Report(
            at=now,
            scrape=scrape,
            plugin=self.plugin.report(problem, as_of_poll=True),
            models=models,
            own=replace(own, label_overflow={"engine": self._engines.overflowed, **self._overflow}),
            health=self.health.report(is_fresh=age is Age.FRESH),
            probe=self.probes.report,
            alerts=(*self._alerts_on_vllm(now, scrape, models), *alerts),
        )

    def _alerts_on_vllm(
        self, now: float, scrape: ScrapeReport, models: Sequence[ModelReport]
    ) -> tuple[PodAlert, ...]:
        alert = vllm_alert(
            scrape,
            now,
            model_name=models[0].model_name if models else "",
            was_stalled=self.health.is_stalled,
            startup_time=self._settings.thresholds.startup_time,
            pace=self._settings.alerting.pace,
        )
        return () if alert is None else (alert,)

    def _alerts_on_models(self) -> tuple[PodAlert, ...]:
        """As of the last good poll."""
        if self._alerts is None:
            thresholds = self._settings.thresholds
            self._alerts = tuple(
                alert
                for model in self._model_reports(Age.FRESH)
                for alert in model_alerts(
                    model,
                    thresholds,
                    has_dropped=self._drops.has_dropped(
                        model.model_name, self._judgement(model.model_name)
                    ),
                )
            )
        return self._alerts

    def _model_reports(self, age: Age) -> tuple[ModelReport, ...]:
        """All models, made once for each poll, and once more each time that it has aged."""
        if age not in self._reports:
            self._reports[age] = tuple(
                model_report(
                    values if age is Age.FRESH else values.aged(),
                    ModelJudgement() if age is Age.OLD else self._judgement(values.name),
                    self._read_models[values.name],
                    self._read_engines,
                    self._settings.thresholds,
                )
                for values in self._values
            )
        return self._reports[age]

    def _judgement(self, model_name: str) -> ModelJudgement:
        """The last one on a model."""
        return self._judge.judged.get(model_name, ModelJudgement())

    def _note_positions(self, page: PageSnapshot) -> None:
        most = shown_positions(self._settings, len(self._engines.states))
        for engine in page.engines:
            past = len(engine.accepted_per_position) - most
            self._overflow["position"] = max(self._overflow["position"], past)

    def _judge_models(self, at: float, lives: LivesView) -> None:
        thresholds = self._settings.thresholds
        for model in self._models.values():
            model.endings.judge(thresholds.min_requests)
            self._note_moment(at, model)

        self._values = tuple(
            gather(model, self._engines, lives, at, thresholds) for model in self._models.values()
        )
        self._read_models = {**self._models}
        self._read_engines = {**self._engines.states}
        self._reports.clear()
        self._alerts = None
        self._judge.judge(self._values, at)
        self._drops.observe(at, self._judge.judged)

    def _note_moment(self, at: float, model: ModelState) -> None:
        """Keeps what the model's requests are like, to be compared once it speculates otherwise."""
        speculation = self._speculation.get(model.name)
        if speculation is None or not model.changes.is_due(at):
            return

        steps = model.speed.whole.steps if model.speed.whole is not None else None
        running = steps.running if steps is not None else None
        moment = model.moment(at, speculation, running)
        model.changes.note(moment, self._settings.thresholds.min_requests)

    def _watch_health(
        self, at: float, interval: float, lives: LivesView, *, has_restarted: bool
    ) -> None:
        collapsed = {
            name: model.whole.has_collapsed
            for name, model in self._judge.judged.items()
            if model.whole.judged is not None
        }

        present = [
            vitals(
                state,
                lives.engine(key).heartbeat,
                has_collapsed=collapsed.get(key.model_name),
            )
            for key, state in self._engines.states.items()
            if state.seen_at == at and key != merge.OTHER_ENGINES
        ]
        is_whole = merge.OTHER_ENGINES not in self._engines.states
        self.probes.polled(at, present, is_whole=is_whole, has_restarted=has_restarted)
        present = [
            replace(one, is_probed=True) if self.probes.awaits(one.key) else one for one in present
        ]
        self.health.polled(at, interval, present, has_restarted=has_restarted)

    def _note_restarts(self, *, has_restarted: bool, reset: Collection[EngineKey]) -> None:
        if has_restarted:
            self._unconfirmed.update(self._speculation)
        self._unconfirmed.update(key.model_name for key in reset)

    def _forget_other_speculation(self, at: float, lives: LivesView) -> None:
        """Forgets a model whose engines speculate in another way since a restart.

        From now on, the model is judged by what its engines do since then. Only a plug-in that
        counts says how they speculate, and without a restart nothing that it says makes the sidecar
        forget anything.
        """
        self._speculation = {
            name: known for name, known in self._speculation.items() if name in self._models
        }
        self._unconfirmed &= self._speculation.keys()

        for name in [*self._models]:
            engines = self._engines.of(name)
            confirmed = (lives.engine(state.key).speculation for state in engines)
            now = next(filter(None, confirmed), None)
            if now is None:
                continue

            before = self._speculation.get(name, now)
            self._speculation[name] = now
            if name in self._unconfirmed and now != before:
                self._models[name] = self._models[name].begin_again(at)
                self._judge.forget(name)
                for state in engines:
                    state.judge_from(at)
            self._unconfirmed.discard(name)

    def _keep_models(self, *, has_restarted: bool) -> None:
        """Keeps a state for each model with an engine.

        Drops it with the last engine, a while after that left the page.
        """
        known = self._models
        self._models = {}
        for key in self._engines.states:
            name = key.model_name
            model = known.get(name) or self._models.get(name)
            self._models[name] = model or ModelState(name, self._settings)

        for model in self._models.values():
            model.speed.forget_all_but(self._engines.states.keys())
            if has_restarted:  # it may speculate in another way
                model.speed.loads = LoadTotals()
                model.traffic = TrafficWindow()

    def _take_lives(self, at: float, lives: LivesView) -> None:
        for model in self._models.values():
            self._overflow["group"] += model.take_cuts(at, lives.lives_of(model.name))

    def _take_finished(self, at: float, lives: LivesView) -> None:
        for requests in lives.finished:
            model = self._models.get(requests.key.model_name)
            if model is None:  # past ``limits.models``
                self.plugin.leave_out(requests)
            else:
                model.take_finished(at, requests)
            if requests.key in self._engines.states:
                self._engines.states[requests.key].times.add(at, requests.recent)

        for state in self._engines.states.values():
            if state.seen_at == at:
                state.times.mark(at)

    def _take_steps(self, start: float, at: float, lives: LivesView) -> None:
        """Takes in what each engine decoded since the last poll, by its plug-in."""
        reported = _steps_by_engine(lives)
        speculating: dict[str, dict[EngineKey, Steps]] = {name: {} for name in self._models}
        for key, state in self._engines.states.items():
            if key == merge.OTHER_ENGINES or state.seen_at != at:
                continue

            plugin = lives.engine(key)
            state.drops_block = _drops(plugin.configuration.drops_cache_block)
            self._models[key.model_name].runs_on(plugin.configuration.accelerator)
            if plugin.said is None:
                state.await_steps()
            steps = state.reported(reported.get(key, NO_STEPS))
            if steps is None:
                continue

            state.loads.add(steps)
            if state.speculates:
                speculating[key.model_name][key] = steps

        for name, decoded in speculating.items():
            self._models[name].speed.polled(start, at, decoded)


def _steps_by_engine(lives: LivesView) -> dict[EngineKey, LifeSteps]:
    """The growth of the plug-ins' steps since the last poll."""
    steps: dict[EngineKey, LifeSteps] = {}
    for life in lives.lives:
        steps[life.key] = steps.get(life.key, NO_STEPS) + life.steps
    return steps

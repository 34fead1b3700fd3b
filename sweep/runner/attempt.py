"""One attempt at a trial: launch, wait, warm up, load, stop. Every way to fail ends here as a value."""

from __future__ import annotations

import dataclasses
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sweep.atomic_file import disk_is_full
from sweep.diagnosis import Diagnosis, Evidence, diagnose
from sweep.errors import HostNotReady, LoadFailed, ServerDied, SweepError, TeardownFailed
from sweep.gpu import DeviceInfo, DeviceMemory, Gpus, Telemetry, TelemetrySampler
from sweep.journal import Journal
from sweep.loadgen import KeptClient, LoadJob, can_be_kept
from sweep.metrics import engine_config_from_log, parse_engine_config
from sweep.records import EngineConfig, EngineSample
from sweep.runner.cpus import own_cpus, spelled
from sweep.runner.engine_watch import EngineWatch
from sweep.runner.evidence import DeviceBusy, free_gib, phase_of, readings, reason_of
from sweep.runner.reports import Hooks, Measured
from sweep.runner.rounds import RoundsRunner
from sweep.runner.setup import TrialSetup
from sweep.runner.telemetry import recorded_pids
from sweep.runner.warmup import warm_up
from sweep.server import Launch, VllmServer, child_environment, port_free, reserve_port
from sweep.trial import Phase, TrialSpec

# A configuration line of the start-up log stands early; more is not read.
_CONFIG_LINES = 5_000
_DEATH_SHOWS_S = 2.0


@dataclass(slots=True)
class AttemptOutcome:
    """What an attempt left. `load` is None exactly when `failure` is not.

    `abandoned`: somebody killed what holds the server to this process; see `process.StopReport`.
    """

    load: Measured | None = None
    failure: Diagnosis | None = None
    exit_code: int | None = None
    startup_s: float | None = None
    engine: tuple[EngineSample, ...] = ()
    engine_config: EngineConfig = field(default_factory=EngineConfig)
    telemetry: Telemetry | None = None
    dirty_devices: tuple[str, ...] = ()
    remarks: list[str] = field(default_factory=list)
    abandoned: bool = False


class Attempt:
    """Runs one attempt. `gpus` and `resting` (memory before the study) are those of this machine."""

    def __init__(
        self,
        spec: TrialSpec,
        setup: TrialSetup,
        journal: Journal,
        gpus: Gpus,
        resting: tuple[DeviceMemory, ...],
        api_key: str,
        hooks: Hooks,
    ) -> None:
        self._spec, self._setup, self._journal, self._hooks = spec, setup, journal, hooks
        self._gpus, self._resting, self._api_key = gpus, resting, api_key
        self._devices: tuple[DeviceInfo, ...] = (
            gpus.visible(os.environ.get("CUDA_VISIBLE_DEVICES")) if setup.uses_gpus else ()
        )
        folder = setup.log_folder(spec.number)
        self.server_log = folder / f"server-{journal.attempt}.log"
        self.client_log = folder / f"client-{journal.attempt}.log"
        self._memory_before_gib: float | None = None
        self._logged_by_stop: int | None = None  # bytes of a server's log that was running when it was told to stop
        self._outcome = AttemptOutcome()

    def run(self) -> AttemptOutcome:
        """The attempt from clean devices to clean devices. Never raises but for KeyboardInterrupt and its like."""
        try:
            self._launch_and_load()
        except SweepError as error:
            self._fail(error)
        except OSError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - the one place: a fault of ours must not end the night
            self._journal.note("internal error", traceback.format_exc())
            self._fail(error)
        return self._outcome

    def _launch_and_load(self) -> None:
        self._journal.enter(Phase.HOST)
        self._wait_for_clean_devices()
        setup = self._setup
        with reserve_port(setup.host) as reservation:
            api_key = self._api_key
            visible = setup.visible_devices()
            launch = Launch(
                argv=setup.server_argv(self._spec.flags, setup.host, reservation.port),
                env=child_environment(os.environ, visible_devices=visible, extra=setup.launch_env(), api_key=api_key),
                log_path=self.server_log,
                record_path=self._record("server"),
                host=setup.host,
                port=reservation.port,
                served_name=setup.served_name,
                api_key=api_key,
                startup_timeout_s=setup.startup_timeout_s,
                stop_timeout_s=setup.stop_timeout_s,
            )
            self._journal.enter(Phase.START)
            with self._cpus(), self._telemetry(), self._running(launch) as server, self._client(api_key) as kept:
                self._measure(server, api_key, kept)

    @contextmanager
    def _cpus(self) -> Iterator[None]:
        """Meanwhile the CPUs of this trial alone, for all that is started here, where the study asks for it."""
        if self._setup.cpu_shares is None:
            yield
            return
        if self._setup.uses_gpus and not self._devices:
            raise HostNotReady("resources.pin_cpus: NVML lists no device to share CPUs by; leave it out")
        with own_cpus(self._devices, self._gpus.devices, self._setup.cpu_shares) as cpus:
            self._journal.note("cpus", spelled(cpus))
            yield

    def _wait_for_clean_devices(self) -> None:
        """The gate before a launch. Raises HostNotReady that names what is in the way."""
        if not self._devices:
            return
        found = self._gpus.wait_until_clean(self._devices, self._resting, timeout_s=self._setup.clean_timeout_s)
        self._memory_before_gib = found.memory_before_gib
        for daemon in found.daemons:
            self._journal.note("device", f"{daemon}: an MPS server, let be")
        if not found.clean:
            busy = {(state.index, state.mig_index) for state in found.dirty}
            self._outcome.dirty_devices = tuple(
                name
                for name, device in zip(self._device_names(), self._devices, strict=False)
                if (device.index, device.mig_index) in busy
            )
            raise DeviceBusy(found.message or "a device is not free")

    def _device_names(self) -> tuple[str, ...]:
        """The trial's devices in the words of CUDA_VISIBLE_DEVICES, which are Ray's."""
        names = (self._setup.visible_devices() or "").split(",")
        return tuple(name.strip() for name in names if name.strip())

    def _measure(self, server: VllmServer, api_key: str, kept: KeptClient | None) -> None:
        setup, journal = self._setup, self._journal
        self._outcome.startup_s = server.wait_ready()
        journal.enter(Phase.READY)
        self._outcome.engine_config = self._read_engine_config(server)
        with EngineWatch(server.metrics_text, journal) as watch:

            def job(number: int, share_needed: float) -> LoadJob:
                return self._load_job(server, api_key, number, share_needed)

            rounds = RoundsRunner(
                self._spec, setup, journal, server, watch, job, self._hooks, kept, self._outcome.remarks
            )
            try:
                if (warmup := setup.plan_for(self._spec).warmup) is not None:
                    journal.enter(Phase.WARMUP)
                    warm_up(server, warmup.prompts, setup.request_timeout_s, max_concurrency=setup.max_concurrency)
                self._outcome.load = rounds.run()
            except LoadFailed as error:
                # Connections break a moment before a process is seen to be gone: first ask what is behind it.
                if not server.healthy() and (code := server.process.wait(_DEATH_SHOWS_S)) is not None:
                    raise ServerDied(code, ready=True) from error
                raise
            finally:
                self._outcome.engine = watch.samples

    def _load_job(self, server: VllmServer, api_key: str, number: int, share_needed: float) -> LoadJob:
        setup, spec = self._setup, self._spec
        return LoadJob(
            command=setup.client_command,
            help=setup.dialect.client,
            base_url=server.base_url,
            model=setup.model,
            served_name=setup.served_name,
            tokenizer=setup.tokenizer,
            number=number,
            plan=setup.plan_for(spec).rounds[number],
            file=setup.write_round(number, spec),
            env=self._client_env(api_key),
            folder=setup.log_folder(spec.number),
            name=f"round-{number}-{self._journal.attempt}",
            log_path=self.client_log,
            record_path=self._record("client"),
            max_concurrency=setup.max_concurrency,
            ignore_eos=setup.ignore_eos,
            percentiles=setup.percentiles,
            request_timeout_s=setup.request_timeout_s,
            startup_allowance_s=setup.client_startup_timeout_s,
            min_success_share=share_needed,
            flags=setup.client_flags,
        )

    def _client_env(self, api_key: str) -> dict[str, str]:
        return child_environment(os.environ, visible_devices="", extra=self._setup.client_env, api_key=api_key)

    @contextmanager
    def _client(self, api_key: str) -> Iterator[KeptClient | None]:
        """The load client of all rounds, which imports while the server starts; None where that cannot be done."""
        if not can_be_kept(self._setup.client_command):
            yield None
            return
        kept = KeptClient.start(
            self._setup.client_command,
            env=self._client_env(api_key),
            log_path=self.client_log,
            record_path=self._record("client"),
        )
        try:
            yield kept
        finally:
            kept.stop()

    def _read_engine_config(self, server: VllmServer) -> EngineConfig:
        """From `/metrics`; from the start-up log where older versions have only that."""
        text = server.metrics_text()
        found = parse_engine_config(text) if text is not None else EngineConfig()
        with self.server_log.open(encoding="utf-8", errors="replace") as log:
            lines = [line for line, _ in zip(log, range(_CONFIG_LINES), strict=False)]
        logged = engine_config_from_log(lines)
        names = EngineConfig.__dataclass_fields__
        merged = {n: a if (a := getattr(found, n)) is not None else getattr(logged, n) for n in names}
        return EngineConfig(**merged)

    @contextmanager
    def _running(self, launch: Launch) -> Iterator[VllmServer]:
        """A started server, ended with proof: no process and no listener left, whatever happened in between."""
        server = VllmServer.start(launch)
        try:
            yield server
        finally:
            ended = server.exit_code()
            self._outcome.exit_code = ended
            if ended is None and self.server_log.exists():
                self._logged_by_stop = self.server_log.stat().st_size
            self._journal.enter(Phase.STOP)
            report = server.stop()
            self._outcome.abandoned = report.abandoned
            detail = f"exit code {report.exit_code}, {report.took_s:.1f} s" + (", killed" if report.killed else "")
            self._journal.note("stopped", detail)
            self._prove_gone(report.left, launch)

    def _prove_gone(self, left: tuple[int, ...], launch: Launch) -> None:
        """A measurement that was finished stays; what is left behind is said."""
        problem = None
        if left:
            problem = f"processes {', '.join(map(str, left))} survived SIGKILL"
            self._outcome.dirty_devices = self._device_names()  # they hold them, whatever the driver says
        elif not _free_soon(launch.host, launch.port):
            problem = f"port {launch.port} is still taken after the server ended"
        if problem is not None:
            self._outcome.remarks.append(problem)
            self._journal.note("left behind", problem)
            if self._outcome.load is None and self._outcome.failure is None:
                raise TeardownFailed(problem, left=left)

    @contextmanager
    def _telemetry(self) -> Iterator[None]:
        sampler = TelemetrySampler(self._gpus, self._devices, client_pids=recorded_pids(self._record("client")))
        sampler.start()
        try:
            yield
        finally:
            told = sampler.stop()
            self._outcome.telemetry = told
            if told.cost_per_sample_s is not None:
                each_ms, longest_ms = told.cost_per_sample_s * 1000, told.cost_max_s * 1000
                said = (
                    f"{told.samples} looks at devices and host, {each_ms:.2g} ms each, the longest {longest_ms:.2g} ms"
                )
                self._journal.note("sampled", said)

    def _record(self, what: str) -> Path:
        return self._setup.folder / "processes" / f"{self._spec.number:04d}-{what}.json"

    def _fail(self, error: Exception) -> None:
        """Give the failure a class from all the evidence there is."""
        outcome = self._outcome
        outcome.load = None
        evidence = self._evidence(error, self.server_log)
        if isinstance(error, LoadFailed) and self._logged_by_stop is not None:
            # An engine that is told to stop may end before its server, which then calls it dead: no cause of anything.
            with self.server_log.open("rb") as log:
                text = log.read(self._logged_by_stop).decode(errors="replace")
            evidence = dataclasses.replace(evidence, log=text)
        diagnosis = diagnose(evidence)
        if isinstance(error, LoadFailed) and diagnosis.line is None and self.client_log.exists():
            by_client = diagnose(self._evidence(error, self.client_log, phase="client"))
            if by_client.line is not None:
                diagnosis = by_client
        if diagnosis.line is None:  # no log tells: our own words are the evidence
            told = str(error if self._no_room is None or disk_is_full(error) else self._no_room)
            diagnosis = dataclasses.replace(diagnosis, line=told.splitlines()[0] if told else None)
        outcome.failure = diagnosis
        self._journal.note(
            "failed",
            f"{error} ({readings(evidence)})",
            failure_class=str(diagnosis.failure_class),
            line=diagnosis.line,
            exit_code=outcome.exit_code,
            retryable=diagnosis.retryable,
            advice=diagnosis.advice,
        )

    @property
    def _no_room(self) -> OSError | None:
        """The full disk that the journal met: a quota and a limit on files are full while the disk has room."""
        trouble = self._journal.trouble
        return trouble if trouble is not None and disk_is_full(trouble) else None

    def _evidence(self, error: Exception, log: Path, phase: str | None = None) -> Evidence:
        exit_code = self._outcome.exit_code
        if isinstance(error, ServerDied) or (isinstance(error, LoadFailed) and error.reason == "client_exit"):
            exit_code = error.exit_code  # otherwise the server's, if it ended by itself
        return Evidence(
            phase=phase or phase_of(error),
            exit_code=exit_code,
            log=log if log.exists() else None,
            error=str(error),
            reason=reason_of(error),
            memory_before_gib=self._memory_before_gib,
            memory_total_gib=max((d.memory_total_gib or 0.0 for d in self._devices), default=None),
            disk_free_gib=free_gib(self._setup.folder) if self._no_room is None else 0.0,
            shm_free_gib=free_gib(Path("/dev/shm")),
        )


def _free_soon(host: str, port: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while not port_free(host, port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True

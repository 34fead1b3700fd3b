"""The view of a run: what its plan knows, for a terminal, a pipe or a script."""

from __future__ import annotations

from rich.console import Console

from sweep.console import JsonView, LiveView, PlainView, Sources, View, trial_json
from sweep.gpu import DeviceReading, Gpus
from sweep.plan import StudyPlan
from sweep.prepare import Prepared
from sweep.store import read_trials
from sweep.study_folder import StudyFolder
from sweep.trial import Finished


def view_of(prepared: Prepared, folder: StudyFolder, plan: StudyPlan, gpus: Gpus, *, as_json: bool) -> View:
    """Live on a terminal, otherwise plain lines, or objects with `as_json`."""
    if as_json:

        def describe(finished: Finished) -> dict[str, object]:
            stored = {trial.number: trial for trial in read_trials(folder.path)}
            trial = stored.get(finished.number)
            return trial_json(trial) if trial else {"trial": finished.number, "status": str(finished.status)}

        return JsonView(folder.log_folder, describe)
    console = Console(highlight=False, markup=False)
    word = None if prepared.stand_in is None else prepared.stand_in.word
    if not console.is_terminal:
        return PlainView(folder.log_folder, word)

    def devices() -> tuple[DeviceReading, ...]:
        return gpus.read() if prepared.setup.uses_gpus and gpus.available else ()

    sources = Sources(
        finished=lambda: list(plan.finished.values()),
        left_s=plan.expected_left_s,
        devices=devices,
        redact=prepared.redactor.text,
        startup_timeout_s=prepared.setup.startup_timeout_s,
        requests=prepared.setup.plan.num_prompts,
    )
    return LiveView(folder.log_folder, console, trials=prepared.config.study.trials, sources=sources, word=word)

"""What a recording holds: the launches of each recorded point, and the load that all of them got.

A recording is a study in the project's store, as its trials left it or packed (`sweep.store.pack`). Read are, of

- `trials`: `number`, `kind`, `status`, the flags with their names in the field's metadata and `flag_types`,
  `startup_s`, `load_s`, `total_s`, `command`, the columns of failure, the engine's configuration and summary;
- `rounds`: `trial`, `attempt`, `round`, `began_at_s`, `duration_s`, `took_s`, `request_rate_per_s`, the counts of
  requests and tokens, the engine's figures where there are any, `disturbed`;
- `requests`: `trial`, `round`, `index`, `prompt_id`, `scheduled_s`, `start_s`, the token counts, `ttft_ms`, `itl_ms`,
  `e2el_ms`, `error`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sweep.errors import HostError
from sweep.records import RequestRecord, RoundRecord
from sweep.search_space import Key, flags_key
from sweep.store import StoredLaunch, read_launches, read_metadata
from sweep.trial import Flags, TrialKind, TrialStatus

# Launches under the load of the search. A confirmation has prompts of its own, a soak a burst, a calibration a ladder.
_KINDS = (TrialKind.BASELINE, TrialKind.SEARCH, TrialKind.DRIFT)
# What was stopped early does not say how it would have ended, what failed for the machine's sake nothing of flags.
_STATUSES = (TrialStatus.COMPLETE, TrialStatus.INFEASIBLE)

Rate = float | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded launch, with the rounds that a replay takes of it.

    `total_s` is the whole launch as it was; `rounds` and `requests` go together and are empty for one that failed.
    """

    launch: StoredLaunch
    rounds: tuple[RoundRecord, ...]
    requests: tuple[tuple[RequestRecord, ...], ...]

    @property
    def flags(self) -> Flags:
        return self.launch.trial.flags

    @property
    def failed(self) -> bool:
        return self.launch.trial.failure is not None

    def took_s(self, rounds: int) -> float:
        """Seconds of the launch with its first `rounds` taken rounds alone: start, stop and checks as they were."""
        total_s = self.launch.trial.total_s
        left_out_s = sum(one.took_s for one in self.launch.rounds) - sum(one.took_s for one in self.rounds[:rounds])
        return max(0.0, total_s - left_out_s)


@dataclass(frozen=True, slots=True)
class Recording:
    """Launches by point, in the order they were recorded. `metadata`: of its files; `left_out`: why launches were."""

    folder: Path
    points: Mapping[Key, tuple[Recorded, ...]]
    rates: tuple[Rate, ...]
    metadata: Mapping[str, str]
    left_out: Mapping[str, int]

    @property
    def launches(self) -> int:
        return sum(map(len, self.points.values()))

    @property
    def all_flags(self) -> tuple[Flags, ...]:
        """The flags of every recorded point."""
        return tuple(launches[0].flags for launches in self.points.values())

    @property
    def digest(self) -> str:
        """Equal for equal recordings: 12 digits of a hash over what was launched, when, and how it ended."""
        known = sorted(
            f"{one.launch.trial.started_wall_s:.3f} {one.launch.trial.status} {one.launch.trial.total_s:.3f}"
            for launches in self.points.values()
            for one in launches
        )
        return hashlib.sha256("\n".join(known).encode()).hexdigest()[:12]

    def at(self, flags: Flags) -> tuple[Recorded, ...]:
        """The launches of a point; none where it was not recorded."""
        return self.points.get(flags_key(flags), ())

    def whole(self) -> Recorded:
        """A launch that ran to its end, whose rounds show the load. Raises HostError where there is none."""
        found = (one for launches in self.points.values() for one in launches if one.rounds)
        one = next(found, None)
        if one is None:
            raise HostError(f"{self.folder} holds no launch that was measured to its end")
        return one


def read_recording(folder: Path, rates: Iterable[Rate] = ()) -> Recording:
    """The recording in `folder`, with the rounds at `rates` alone; none given stands for all that were recorded.

    A launch that was stopped early, or failed for other reasons than its flags, is left out, and so is one under
    another load. Raises HostError for files that cannot be read, for a rate that was not recorded, and where nothing
    is left.
    """
    return _read(folder.absolute(), tuple(rates))


@functools.lru_cache(maxsize=4)
def _read(folder: Path, rates: tuple[Rate, ...]) -> Recording:
    points: dict[Key, list[Recorded]] = {}
    left_out: dict[str, int] = {}
    recorded_rates: list[Rate] = []
    for launch in read_launches(folder):
        trial = launch.trial
        if trial.kind not in _KINDS or trial.status not in _STATUSES:
            why = str(trial.status) if trial.kind in _KINDS else str(trial.kind)
            left_out[why] = left_out.get(why, 0) + 1
            continue
        recorded_rates += [one.request_rate_per_s for one in launch.rounds]
        points.setdefault(flags_key(trial.flags), []).append(_taken(launch, rates))
    known = tuple(dict.fromkeys(recorded_rates))
    if unknown := [rate for rate in rates if rate not in known]:
        raise HostError(
            f"{folder} was not recorded at a request rate of {', '.join(map(_rate, unknown))}; "
            f"its rates: {', '.join(map(_rate, known))}"
        )
    recording = Recording(
        folder,
        {key: tuple(launches) for key, launches in points.items()},
        tuple(rate for rate in known if not rates or rate in rates),
        read_metadata(folder),
        left_out,
    )
    recording.whole()
    return recording


def _taken(launch: StoredLaunch, rates: tuple[Rate, ...]) -> Recorded:
    rounds = tuple(one for one in launch.rounds if not rates or one.request_rate_per_s in rates)
    if launch.trial.failure is not None:
        return Recorded(launch, (), ())
    requests = tuple(tuple(one for one in launch.requests if one.round == part.round) for part in rounds)
    return Recorded(launch, rounds, requests)


def _rate(rate: Rate) -> str:
    return "inf" if rate is None else f"{rate:g}"

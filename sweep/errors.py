"""Every error this package raises on purpose, on one screen.

SweepError
  UserError            the user can mend it: one line, exit code 2, nothing launched
    ConfigError          a study file: carries file, line and key
      FlagError            a flag that the installed vLLM does not know, or that is not the user's to set
    DatasetError         a prompt file: carries path and row or position
    HostError            vLLM missing, folder not writable, study locked ...
  ClusterLost          Ray ended in mid-study: the study stops, exit code 1, what is stored stays
  TrialError           one trial went wrong: becomes a status, never a traceback
    ServerDied           the server process ended: carries the exit code
    ServerNotReady       alive, but not serving within its time
    HostNotReady         a device, port, disk or other host resource stood in the way of a launch
    LoadFailed           the load client failed or cannot be believed
    TeardownFailed       something of the server is left behind
"""

from __future__ import annotations

from pathlib import Path


class SweepError(Exception):
    """Base of all errors raised on purpose."""


class UserError(SweepError):
    """A mistake the user can mend. `str()` is the one line shown: what, where, how to mend."""


class ConfigError(UserError):
    """A study file that cannot be used."""

    def __init__(self, message: str, *, path: Path | None = None, line: int | None = None, key: str = "") -> None:
        self.message, self.path, self.line, self.key = message, path, line, key
        where = ":".join(str(part) for part in (path, line) if part is not None)
        super().__init__(": ".join(part for part in (where, key, message) if part))

    def at(self, path: Path, line: int | None, key: str) -> ConfigError:
        """The same mistake with the place where it was found."""
        return type(self)(self.message, path=path, line=line, key=key)


class DatasetError(UserError):
    """A prompt file that cannot be used. `row` counts from 0; `position` is a character offset."""

    def __init__(self, message: str, *, path: Path, row: int | None = None, position: int | None = None) -> None:
        self.message, self.path, self.row, self.position = message, path, row, position
        spot = f" row {row}" if row is not None else f" character {position}" if position is not None else ""
        super().__init__(f"{path}:{spot} {message}" if spot else f"{path}: {message}")


class FlagError(ConfigError):
    """A flag the installed vLLM does not accept, or that sweep sets itself."""


class HostError(UserError):
    """Something on this machine stands in the way: vLLM missing, a folder not writable, a locked study."""


class ClusterLost(SweepError):
    """Ray is gone in mid-study. `str()` is the one line shown."""


class TrialError(SweepError):
    """One trial went wrong. Carries facts; `diagnosis` gives them a class."""


class ServerDied(TrialError):
    """The server process ended on its own. `exit_code` is negative for a signal, None when unknown."""

    def __init__(self, exit_code: int | None, *, ready: bool) -> None:
        self.exit_code, self.ready = exit_code, ready
        when = "after it was ready" if ready else "before it was ready"
        super().__init__(f"server ended {when} with exit code {exit_code}")


class ServerNotReady(TrialError):
    """The server process lives but did not serve within `waited_s` seconds; `last` says what was last seen."""

    def __init__(self, waited_s: float, last: str) -> None:
        self.waited_s, self.last = waited_s, last
        super().__init__(f"server not ready after {waited_s:.0f} s: {last}")


class HostNotReady(TrialError):
    """The host, not the flags: a busy device, no free port, no disk. Never blamed on the configuration."""


class LoadFailed(TrialError):
    """The load client failed or its numbers cannot be believed.

    `reason` is a stable word (see `loadgen.REASONS`), `exit_code` the client's, None when it was cut.
    """

    def __init__(self, reason: str, message: str, *, exit_code: int | None = None) -> None:
        self.reason, self.exit_code = reason, exit_code
        super().__init__(message)


class TeardownFailed(TrialError):
    """Processes `left` (ids) survived SIGKILL, or the port stayed taken."""

    def __init__(self, message: str, *, left: tuple[int, ...] = ()) -> None:
        self.left = left
        super().__init__(message)

"""Parquet: the one record of a study. A table a folder under `results/STUDY/`, one file a trial and table.

`pack` makes one file a table of a study that is done; `read_launches` reads both.
"""

from __future__ import annotations

from sweep.atomic_file import DiskFull, WriteFailed
from sweep.store.check import set_aside_broken, set_aside_trial
from sweep.store.columns import read_request_columns
from sweep.store.packed import StoredLaunch, pack, read_launches, read_metadata
from sweep.store.passed import PassedStore, read_passed
from sweep.store.read import (
    StoredTrial,
    read_columns,
    read_engine,
    read_events,
    read_requests,
    read_rounds,
    read_telemetry,
    read_trials,
)
from sweep.store.remote import RemoteResults, copy_missing
from sweep.store.schema import PASSED_OVER, SCHEMA_VERSION, TABLES, Schema, TelemetryRow, flag_type
from sweep.store.write import Store, put_trial, trial_file

__all__ = [
    "PASSED_OVER",
    "SCHEMA_VERSION",
    "TABLES",
    "DiskFull",
    "PassedStore",
    "RemoteResults",
    "Schema",
    "Store",
    "StoredLaunch",
    "StoredTrial",
    "TelemetryRow",
    "WriteFailed",
    "copy_missing",
    "flag_type",
    "pack",
    "put_trial",
    "read_columns",
    "read_engine",
    "read_events",
    "read_launches",
    "read_metadata",
    "read_passed",
    "read_request_columns",
    "read_requests",
    "read_rounds",
    "read_telemetry",
    "read_trials",
    "set_aside_broken",
    "set_aside_trial",
    "trial_file",
]

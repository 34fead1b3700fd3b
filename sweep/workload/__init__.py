"""The load's prompts: a file checked once, a choice from it, and what is sent when, decided before any trial."""

from __future__ import annotations

from sweep.workload.arrivals import arrival_times
from sweep.workload.client_file import ClientFeatures, ClientFile, write_round
from sweep.workload.custom_file import check_custom
from sweep.workload.exchanges import Conversations, Exchange
from sweep.workload.load_plan import LoadPlan, Round, burst, confirmation_plans, ladder, plan_load, window_warning
from sweep.workload.selection import Prompt, Reason, Selection, SelectionRules, refuse_output_length, select
from sweep.workload.sharegpt_file import DEMO_FILE, check_sharegpt
from sweep.workload.split import Split
from sweep.workload.token_counter import token_counter

__all__ = [
    "DEMO_FILE",
    "ClientFeatures",
    "ClientFile",
    "Conversations",
    "Exchange",
    "LoadPlan",
    "Prompt",
    "Reason",
    "Round",
    "Selection",
    "SelectionRules",
    "Split",
    "arrival_times",
    "burst",
    "check_custom",
    "check_sharegpt",
    "confirmation_plans",
    "ladder",
    "plan_load",
    "refuse_output_length",
    "select",
    "token_counter",
    "window_warning",
    "write_round",
]

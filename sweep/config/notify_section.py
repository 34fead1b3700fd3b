"""Who hears of the end of a study: the section `notify` of its file."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from sweep.config.models import Section, Words


def _variable(name: str) -> str:
    # Whoever pastes the address itself, which lets everybody write there, is told so, and it is not shown again.
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("must be the name of an environment variable that holds it, since the value is a secret")
    return name


Variable = Annotated[str, AfterValidator(_variable)]


class NotifySection(Section):
    """What is run or called with the verdict, when the study ends and when it is stopped."""

    command: Words | None = Field(
        None,
        strict=False,
        min_length=1,
        description="Words of a program that is run when the study ends or is stopped. It reads the verdict of "
        "`--json` on standard input; `SWEEP_STUDY`, `SWEEP_EVENT` (`ended`, `failed`, `stopped`) and "
        "`SWEEP_SENTENCE` are set.",
    )
    webhook_env: Variable | None = Field(
        None,
        description="Environment variable that holds an address to which the same object is posted as JSON, with the "
        "sentence as `text` and `content` beside it, as chat services read it.",
    )
    token_env: Variable | None = Field(
        None, description="Environment variable that holds a bearer token for the webhook."
    )
    timeout_s: float = Field(10.0, gt=0, le=300, description="Longest that either may take; then it is given up.")

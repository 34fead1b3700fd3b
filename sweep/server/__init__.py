"""One vLLM server: its environment, its port, start, readiness, a look at it, stop."""

from __future__ import annotations

from sweep.server.environment import child_environment, new_api_key
from sweep.server.ports import PortReservation, port_free, reserve_port
from sweep.server.vllm_server import Launch, VllmServer

__all__ = [
    "Launch",
    "PortReservation",
    "VllmServer",
    "child_environment",
    "new_api_key",
    "port_free",
    "reserve_port",
]

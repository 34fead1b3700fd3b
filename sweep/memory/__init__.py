"""Device memory before a launch: does a server start with these flags, and how much KV cache will it have?

`read_model` and `read_launch` say what is launched, `parts_of` adds it up, `Belief` learns from servers that started
and turns it into a `Forecast`, `Ceiling` learns how full a device may be. Whatever is not understood is `Unknown`, with
the reason: a guess would cost more than a launch.
"""

from sweep.memory.belief import Belief, Observation
from sweep.memory.ceiling import Ceiling
from sweep.memory.launch import read_launch
from sweep.memory.model import model_of, read_model
from sweep.memory.node import node_memory_bytes
from sweep.memory.parts import parts_of
from sweep.memory.values import GIB, Device, Forecast, Launch, Model, Parts, Unknown
from sweep.memory.weights import read_bytes

__all__ = [
    "GIB",
    "Belief",
    "Ceiling",
    "Device",
    "Forecast",
    "Launch",
    "Model",
    "Observation",
    "Parts",
    "Unknown",
    "model_of",
    "node_memory_bytes",
    "parts_of",
    "read_bytes",
    "read_launch",
    "read_model",
]

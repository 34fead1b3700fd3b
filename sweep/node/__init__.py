"""What a machine has of that which a study needs: asked on the machine itself, judged by whoever wants to use it."""

from __future__ import annotations

from sweep.node.judge import Fault, comparable, faults_of
from sweep.node.look import look
from sweep.node.values import NodeFacts, Wanted

__all__ = ["Fault", "NodeFacts", "Wanted", "comparable", "faults_of", "look"]

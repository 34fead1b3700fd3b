"""What machines say of themselves, made up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sweep.cluster import ClusterNode, NodeLook
from sweep.fingerprint import Fingerprint
from sweep.node import NodeFacts, Wanted, faults_of

MODEL = "a" * 64

WANTED = Wanted(
    server_command=("vllm", "serve"),
    client_command=("vllm", "bench", "serve"),
    server_env={},
    flags=("max-num-seqs",),
    vllm="0.32.0",
    own_vllm=True,
    model="/models/m",
    model_sha256=MODEL,
    tokenizer="/models/m",
    tokenizer_sha256=MODEL,
    chat_template=None,
    chat_template_sha256=None,
    host="127.0.0.1",
    gpus=4,
    files=1000,
    folder=Path("/results/night"),
    holder="held",
)

FACTS = NodeFacts(
    hostname="n1",
    python="3.11.9",
    program="/usr/bin/vllm",
    vllm="0.32.0",
    torch="2.9",
    unknown_flags=(),
    model_sha256=MODEL,
    tokenizer_sha256=MODEL,
    chat_template_sha256=None,
    disk_free_gib=100.0,
    scratch_free_gib=50.0,
    shm_free_gib=8.0,
    port_problem=None,
    gpus=("NVIDIA RTX A6000",) * 4,
    driver="570.1",
    cuda="12.8",
    gpu_notice=None,
    files=65536,
    cpu_model="EPYC",
    cpu_cores=64,
    ram_gib=256,
    kernel="6.8",
    shared=True,
)


FINGERPRINT = Fingerprint(
    vllm="0.32.0",
    torch="2.9",
    python="3.11.9",
    cuda=None,
    driver=None,
    gpus=(),
    cpu_model="laptop",
    cpu_cores=8,
    ram_gib=16,
    kernel="6.1",
    hostname="driver",
    model="/models/m",
    model_sha256=MODEL,
    tokenizer="/models/m",
    tokenizer_sha256=MODEL,
    chat_template_sha256=None,
    dataset_sha256="c" * 64,
    server_command=("vllm", "serve"),
)


def facts(**changes: Any) -> NodeFacts:
    """Those of a machine on which all is well, with changes."""
    return dataclasses.replace(FACTS, **changes)


def seen(name: str, gpus: int = 4, **changes: Any) -> NodeLook:
    """A node as the preflight saw it."""
    found = facts(**{"gpus": ("NVIDIA RTX A6000",) * gpus, **changes})
    node = ClusterNode(f"id-{name}", name, {"CPU": 64.0, "GPU": float(len(found.gpus)), "memory": 2.0**38})
    return NodeLook(node, found, faults_of(name, found, WANTED, gpus=node.have["GPU"], skew_s=0.0), 0.0)

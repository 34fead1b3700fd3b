"""What a prepared study asks of a node: resources of Ray, and everything the preflight looks at."""

from __future__ import annotations

import dataclasses

from sweep.cluster import Needs
from sweep.config import StudyConfig
from sweep.fingerprint import Fingerprint
from sweep.node import Wanted
from sweep.prepare import Prepared
from sweep.trial import Flags

# Descriptors of a server, its engine and a load client at rest, and of each request that is under way: one at each end.
_FILES, _FILES_OF_REQUEST = 512, 2


def needs_of(config: StudyConfig, flags: Flags | None = None) -> Needs:
    """The resources of a trial with these flags; without any, those of the largest trial of the search space."""
    resources = config.resources
    gpus = config.most_gpus() if flags is None else config.gpus(flags)
    return Needs(gpus, resources.cpus, resources.memory_gib, resources.custom)


def wanted_of(prepared: Prepared, holder: str) -> Wanted:
    """The questions to a node. `holder`: the content of the study's lock, empty where nobody holds it."""
    config, setup, fingerprint = prepared.config, prepared.setup, prepared.fingerprint
    plans = [one for one in (setup.plan, *setup.confirmation, setup.soak, setup.calibration) if one is not None]
    requests = max(len(part.prompts) for plan in plans for part in plan.rounds)
    at_once = min(requests, setup.max_concurrency or requests)
    return Wanted(
        server_command=setup.server_command,
        client_command=setup.client_command,
        server_env=setup.server_env,
        flags=tuple(dict.fromkeys([*config.serve.flags, *config.search_space.parameters])),
        vllm=setup.dialect.version if fingerprint.vllm is None else fingerprint.vllm,
        any_vllm=config.resources.group_by is not None,
        own_vllm=config.serve.command is None,
        model=setup.model,
        model_sha256=fingerprint.model_sha256,
        tokenizer=setup.tokenizer,
        tokenizer_sha256=fingerprint.tokenizer_sha256,
        chat_template=setup.chat_template,
        chat_template_sha256=fingerprint.chat_template_sha256,
        host=setup.host,
        gpus=config.most_gpus(),
        files=_FILES + _FILES_OF_REQUEST * at_once,
        folder=setup.folder,
        holder=holder,
    )


def holds_for(fingerprint: Fingerprint) -> str:
    """The line below the verdict of one group of nodes: what it is of."""
    kinds = " and ".join(dict.fromkeys(fingerprint.gpus or ()))
    machine = f"{kinds}, driver {fingerprint.driver}" if kinds else fingerprint.cpu_model or "no GPU"
    cores = "" if kinds or fingerprint.cpu_cores is None else f", {fingerprint.cpu_cores} cores"
    return f"this verdict is of nodes with {machine}{cores}, vLLM {fingerprint.vllm or 'not known'}, and of no others"


def without_devices(fingerprint: Fingerprint, *, grouped: bool = False) -> Fingerprint:
    """The fingerprint of a study whose trials run elsewhere: of the driver's own machine it says nothing.

    `grouped`: nor of the driver's vLLM, since a group of nodes may have another.
    """
    return dataclasses.replace(
        fingerprint,
        vllm=None if grouped else fingerprint.vllm,
        torch=None,
        python=None,
        cuda=None,
        driver=None,
        gpus=None,
        cpu_model=None,
        cpu_cores=None,
        ram_gib=None,
        kernel=None,
        hostname=None,
    )

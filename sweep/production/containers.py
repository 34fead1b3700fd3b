"""Files for containers: docker compose, Kubernetes, and values of the Helm chart of vLLM's production stack.

All three take vLLM's own image of the version that was measured, and say so where the study itself ran something else.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

from sweep.production.host_files import yaml_text
from sweep.production.serving import PORT, Serving

# Where a container keeps what it downloads, if the study says nothing of it.
_HUB_CACHE = "/var/cache/huggingface"
_PROBE = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{PORT}/health', timeout=5)"
_EVERY_S = 10
_HUB_TOKEN = "HF_TOKEN"
CHART = "0.1.12"


def compose(serving: Serving) -> str:
    """A compose file; the port is open on this machine alone."""
    hub = serving.env.get("HF_HOME", _HUB_CACHE)
    service: dict[str, Any] = {
        "image": serving.image,
        "entrypoint": ["vllm", "serve"],
        "command": [_dollars(word) for word in (serving.model, *serving.words)],
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "environment": {
            **({"HF_HOME": hub} if serving.from_hub else {}),
            **{name: _dollars(value) for name, value in sorted(serving.env.items())},
            **{name: f"${{{name}:?is a secret, set it in the environment}}" for name in serving.secrets},
            **({_HUB_TOKEN: f"${{{_HUB_TOKEN}:-}}"} if _needs_token(serving) else {}),
        },
        "volumes": [
            *({"type": "bind", "source": p, "target": p, "read_only": True} for p in map(_path, serving.mounts)),
            *([{"type": "volume", "source": "hub", "target": _dollars(hub)}] if serving.from_hub else []),
        ],
        "ipc": "host",
        "restart": "unless-stopped",
        "stop_grace_period": f"{math.ceil(serving.stop_timeout_s)}s",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _PROBE],
            "interval": f"{_EVERY_S}s",
            "start_period": f"{math.ceil(serving.startup_timeout_s)}s",
        },
        "labels": {name: _dollars(text) for name, text in serving.provenance.annotations().items()},
    }
    if serving.gpus:
        devices = [{"driver": "nvidia", "count": serving.gpus, "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    document = {"name": serving.name, "services": {"vllm": {name: value for name, value in service.items() if value}}}
    if serving.from_hub:
        document["volumes"] = {"hub": {}}
    return serving.head(*_notes(serving), "docker compose -f compose.yaml up --detach") + yaml_text(document)


def kubernetes(serving: Serving) -> str:
    """A Deployment of one replica and its Service."""
    labels = {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": serving.name}
    annotations = serving.provenance.annotations()
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": _EVERY_S}
    gpus = {"nvidia.com/gpu": serving.gpus} if serving.gpus else {}
    container = {
        "name": "vllm",
        "image": serving.image,
        "command": ["vllm", "serve"],
        "args": [_dollars(word) for word in (serving.model, *serving.words, "--port", str(PORT))],
        "env": _env(serving),
        "ports": [{"name": "http", "containerPort": PORT}],
        "startupProbe": {**probe, "failureThreshold": _failures(serving)},
        "readinessProbe": probe,
        "livenessProbe": {**probe, "timeoutSeconds": 10, "failureThreshold": 6},
        "resources": {"limits": gpus},
        "volumeMounts": [*_mounts(serving), {"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "containers": [container],
        "terminationGracePeriodSeconds": math.ceil(serving.stop_timeout_s),
        "volumes": [*_volumes(serving), {"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": serving.name, "labels": labels, "annotations": annotations},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # the devices of two at once are rarely there
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": serving.name, "labels": labels, "annotations": annotations},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }
    return serving.head(*_notes(serving), *_secret_notes(serving)) + yaml_text(deployment, service)


def helm_values(serving: Serving) -> str:
    """Values of `vllm/vllm-stack`. Every flag stands in `extraArgs`, but for two that are the chart's own."""
    assert serving.image is not None  # the caller writes no file for containers otherwise
    repository, _, tag = serving.image.rpartition(":")
    sizes = [group[1] for group in serving.flags if group[0] == "--tensor-parallel-size" and len(group) == 2]
    # Without a word on it the chart turns prefix caching off, whatever vLLM does by default.
    config: dict[str, Any] = {"enablePrefixCaching": _prefix_caching(serving)}
    if sizes and sizes[0].isdigit():
        config["tensorParallelSize"] = int(sizes[0])  # brings the shared memory that the ranks talk through
    left = [word for group in serving.flags if group[0] not in _set_by_chart(config) for word in group]
    gpus = {"nvidia.com/gpu": serving.gpus} if serving.gpus else {}
    model: dict[str, Any] = {
        "name": serving.name,
        "annotations": serving.provenance.annotations(),
        "podAnnotations": serving.provenance.annotations(),
        "repository": repository,
        "tag": tag,
        "modelURL": serving.model,
        "replicaCount": 1,
        "resources": {"limits": gpus} if gpus else {"requests": {"cpu": "1"}},
        "vllmConfig": {**config, "extraArgs": [_dollars(word) for word in left]},
        "env": _env(serving),
        "extraVolumes": _volumes(serving),
        "extraVolumeMounts": _mounts(serving),
    }
    document = {
        "servingEngineSpec": {
            "startupProbe": {"periodSeconds": _EVERY_S, "failureThreshold": _failures(serving)},
            "modelSpec": [{name: value for name, value in model.items() if value or name == "vllmConfig"}],
        }
    }
    how = f"helm upgrade --install NAME vllm/vllm-stack -f helm-values.yaml (written for chart {CHART})"
    return serving.head(*_notes(serving), *_secret_notes(serving), how) + yaml_text(document)


def _set_by_chart(config: dict[str, Any]) -> set[str]:
    found = {"--enable-prefix-caching", "--no-enable-prefix-caching"}
    return found | ({"--tensor-parallel-size"} if "tensorParallelSize" in config else set())


def _prefix_caching(serving: Serving) -> bool:
    if ("--enable-prefix-caching",) in serving.flags:
        return True
    if ("--no-enable-prefix-caching",) in serving.flags:
        return False
    return serving.prefix_caching is not False


def _failures(serving: Serving) -> int:
    return math.ceil(serving.startup_timeout_s / _EVERY_S)


def _env(serving: Serving) -> list[dict[str, Any]]:
    """The variables of a container; secrets come from a Kubernetes Secret of the deployment's name."""
    found: list[dict[str, Any]] = [{"name": n, "value": _dollars(value)} for n, value in sorted(serving.env.items())]
    found += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": serving.name, "key": name}}} for name in serving.secrets
    ]
    if _needs_token(serving):
        key = {"name": serving.name, "key": _HUB_TOKEN, "optional": True}
        found.append({"name": _HUB_TOKEN, "valueFrom": {"secretKeyRef": key}})
    return found


def _needs_token(serving: Serving) -> bool:
    return serving.from_hub and _HUB_TOKEN not in serving.secrets and _HUB_TOKEN not in serving.env


def _volumes(serving: Serving) -> list[dict[str, Any]]:
    return [
        {"name": f"local-{number}", "hostPath": {"path": str(path), "type": _kind(path)}}
        for number, path in enumerate(serving.mounts)
    ]


def _mounts(serving: Serving) -> list[dict[str, Any]]:
    return [
        {"name": f"local-{number}", "mountPath": str(path), "readOnly": True}
        for number, path in enumerate(serving.mounts)
    ]


def _kind(path: Path) -> str:
    return "Directory" if path.is_dir() else "File"


def _notes(serving: Serving) -> list[str]:
    found = []
    if serving.own_command:
        found.append(f"Measured with the command {shlex.join(serving.command)}, not in this image: check it once.")
    else:
        found.append("Measured outside of a container, with the same version of vLLM: check it once in this image.")
    if serving.mounts:
        found.append(f"Of the machine that was measured: {', '.join(map(str, serving.mounts))}")
    return found


def _secret_notes(serving: Serving) -> list[str]:
    if not serving.secrets:
        return []
    return [f"Secrets come from the Secret {serving.name}, which must hold {', '.join(serving.secrets)}."]


def _path(path: Path) -> str:
    return _dollars(str(path))


def _dollars(text: str) -> str:
    """Compose interpolates `$NAME`, Kubernetes expands `$(NAME)`; both read `$$` as one dollar sign."""
    return text.replace("$", "$$")

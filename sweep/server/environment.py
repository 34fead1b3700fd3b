"""The environment of a server and its load client, made on purpose instead of inherited."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOOPBACK = "127.0.0.1,localhost,::1"


def new_api_key() -> str:
    """A random key for one trial. It reaches server and client by their environment alone."""
    return secrets.token_urlsafe(32)


def child_environment(
    base: Mapping[str, str], *, visible_devices: str | None, extra: Mapping[str, str], api_key: str
) -> dict[str, str]:
    """`base` (usually `os.environ`) without what Ray put there, with `extra` (the study's) on top.

    `visible_devices` becomes CUDA_VISIBLE_DEVICES ("" hides every device); None leaves that of `base`, which in a Ray
    worker is what Ray assigned. The key is set for the server (VLLM_API_KEY) and for the client (OPENAI_API_KEY).

    Ray gives its workers RAY_*, SPT_NOENV, PYTHONBREAKPOINT and OMP_NUM_THREADS=1 (as read from a 2.60 worker). With
    the first, vLLM would join the tuner's cluster; with the last, it would run on one thread. A value of
    OMP_NUM_THREADS that is meant belongs into `extra`: in a worker it cannot be told from Ray's own.
    """
    in_ray = any(name.startswith("RAY_") for name in base)
    env = {name: value for name, value in base.items() if not name.startswith("RAY_")}
    if in_ray:
        env.pop("OMP_NUM_THREADS", None)
    if env.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del env["PYTHONBREAKPOINT"]
    if visible_devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible_devices
    # Device numbers here are NVML's, which counts in the order of the bus; CUDA's own default order may differ.
    env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    env.setdefault("PYTHONUNBUFFERED", "1")  # a killed server must not take its last lines with it
    # Process titles of the engine must not overwrite the environment it is recognised by.
    env["SPT_NOENV"] = "1"
    env.update(extra)
    if any(env.get(spelling) for name in _PROXIES for spelling in (name, name.upper())):
        _spare_loopback(env)
    env["VLLM_API_KEY"] = env["OPENAI_API_KEY"] = api_key
    return env


def _spare_loopback(env: dict[str, str]) -> None:
    """Keep a proxy out of the way: the load client honours the variables even for 127.0.0.1."""
    for name in ("no_proxy", "NO_PROXY"):
        env[name] = ",".join(part for part in (env.get(name), _LOOPBACK) if part)

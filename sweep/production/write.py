"""Writing the files of production, and taking away those that no longer hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sweep.atomic_file import WriteFailed, write_atomically, write_error
from sweep.prepare import Prepared
from sweep.production.containers import compose, helm_values, kubernetes
from sweep.production.host_files import serve_sh, systemd_unit, vllm_yaml
from sweep.production.provenance import provenance
from sweep.production.serving import Serving, serving
from sweep.recommend import Recommendation, Verdict
from sweep.store import StoredTrial
from sweep.trial import Flags

RECOMMENDED, ROLLBACK = "recommended", "rollback"
_ON_HOST: Mapping[str, Callable[[Serving], str]] = {
    "serve.sh": serve_sh,
    "vllm.yaml": vllm_yaml,
    "vllm.service": systemd_unit,
}
_IN_CONTAINERS: Mapping[str, Callable[[Serving], str]] = {
    "compose.yaml": compose,
    "kubernetes.yaml": kubernetes,
    "helm-values.yaml": helm_values,
}


def write_production(prepared: Prepared, recommendation: Recommendation, trials: Sequence[StoredTrial]) -> Path | None:
    """Write `recommended/` and `rollback/` into the study's folder; returns the former.

    `recommended/` is there only for flags that were confirmed to be better, otherwise it is taken away and None comes
    back; `rollback/`, today's flags, is there as soon as they were measured. Raises WriteFailed.
    """
    folder = prepared.setup.folder
    better = recommendation.verdict is Verdict.BETTER and recommendation.confirmed
    baseline = next((one for one in trials if one.number == 0), None)
    if baseline is not None:
        what = "Today's flags, to go back to" if better else "Today's flags, which stay"
        if not better and not recommendation.confirmed:
            what = "Today's flags; nothing better is confirmed"
        _write(prepared, folder / ROLLBACK, what, recommendation, baseline.flags, trials)
    if not better or recommendation.flags is None:
        _take_away(folder / RECOMMENDED)
        return None
    _write(prepared, folder / RECOMMENDED, "Recommended flags", recommendation, recommendation.flags, trials)
    return folder / RECOMMENDED


def _write(
    prepared: Prepared,
    folder: Path,
    what: str,
    recommendation: Recommendation,
    flags: Flags,
    trials: Sequence[StoredTrial],
) -> None:
    setup = prepared.setup
    caching = [one.engine_config.enable_prefix_caching for one in trials if one.flags == flags]
    why = provenance(what, prepared.config.study.name, recommendation, prepared.fingerprint, setup.plan, trials)
    one = serving(prepared, flags, why, prefix_caching=next((c for c in caching if c is not None), None))
    files = {**_ON_HOST, **(_IN_CONTAINERS if one.image is not None else {})}
    try:
        folder.mkdir(exist_ok=True)
        for name in {*_ON_HOST, *_IN_CONTAINERS} - set(files):
            (folder / name).unlink(missing_ok=True)
        for name, make in files.items():
            path = folder / name
            write_atomically(path, prepared.redactor.text(make(one)).encode())
            if name.endswith(".sh"):
                mode = path.stat().st_mode
                path.chmod(mode | (mode & 0o444) >> 2)
    except OSError as error:
        raise write_error(folder, error) from error


def _take_away(folder: Path) -> None:
    """Remove the files of ours; whatever else somebody put there stays."""
    with contextlib.suppress(OSError):
        for name in (*_ON_HOST, *_IN_CONTAINERS):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


__all__ = ["RECOMMENDED", "ROLLBACK", "WriteFailed", "write_production"]

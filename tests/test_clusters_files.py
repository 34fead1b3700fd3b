"""The manifests in scripts/clusters/ are what their readers take."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import yaml

ROOT = Path(__file__).parents[1]


def manifest(name: str) -> Any:
    return yaml.safe_load((ROOT / "scripts" / "clusters" / name).read_text())


def test_ray_up_by_the_schema_of_the_installed_ray() -> None:
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(manifest("ray_up.yaml"), schema)


def test_workers_of_kuberay_have_shared_memory_and_the_devices_of_a_trial() -> None:
    spec = manifest("kuberay.yaml")["spec"]
    for group in spec["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        (container,) = pod["containers"]
        paths = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert paths["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == 4
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_script_for_slurm_can_be_read_by_bash() -> None:
    path = ROOT / "scripts" / "clusters" / "slurm.sh"
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, "-n", str(path)], check=True)
    assert "--time-budget" in path.read_text()

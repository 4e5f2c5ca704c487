"""examples/kuberay.yaml holds to KubeRay's schema, and to the settings that Faultline gives Ray.

rayjob-v1.json is the schema of RayJob in KubeRay 1.7.0 (Apache License 2.0), without descriptions and status, and of a
pod only with its usual fields.
"""

import json
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml

from faultline.base.paths import ROOT
from faultline.cli import app
from faultline.fleet.cluster import SETTINGS

SCHEMA = json.loads((Path(__file__).parent / "rayjob-v1.json").read_text())
MANIFEST = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
CLUSTER = MANIFEST["spec"]["rayClusterSpec"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]


def test_it_holds_to_the_schema():
    """Breaks when KubeRay would refuse the manifest, passes over a field of it, or the schema lets all pass."""
    jsonschema.validate(MANIFEST, SCHEMA)
    for change in ({"entryPoint": "x"}, {"backoffLimit": "2"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(MANIFEST | {"spec": MANIFEST["spec"] | change}, SCHEMA)


def test_every_node_has_the_settings_of_ray_and_shared_memory():
    """Breaks when a setting is new and nodes run without it, or Ray and NCCL have the 64 MiB of a container."""
    for group in GROUPS:
        [container] = group["template"]["spec"]["containers"]
        assert {each["name"]: each["value"] for each in container["env"]} == SETTINGS
        [name] = [each["name"] for each in container["volumeMounts"] if each["mountPath"] == "/dev/shm"]
        [volume] = [each for each in group["template"]["spec"]["volumes"] if each["name"] == name]
        assert volume["emptyDir"]["medium"] == "Memory"
    # It runs a command that there is, with the pinned Ray; without a token, who reaches the head can run anything.
    words = shlex.split(MANIFEST["spec"]["entrypoint"])
    assert CLUSTER["authOptions"] == {"mode": "token"}
    app.app().parse_args(words[1:], exit_on_error=False, print_error=False)
    assert f"ray=={CLUSTER['rayVersion']}\n" in (ROOT / "requirements-fleet.txt").read_text()

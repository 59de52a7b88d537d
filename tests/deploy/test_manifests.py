"""
What deploy/ holds names only settings that exist, and the chart and the manifests agree.

`python -m tests.deploy.test_manifests` writes the manifests from the chart.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gatepost.secrets.keyring import KeyRing, create
from tests.architecture.source import ROOT
from tests.support.commands import completed

DEPLOY_FOLDER = ROOT / "deploy"
CHART = DEPLOY_FOLDER / "helm/gatepost"
MANIFESTS = DEPLOY_FOLDER / "kubernetes/gatepost.yaml"
ACTION = re.compile(r"\{\{ \.(Values|Release)((?:\.\w+)+)( \| toJson)? \}\}")
FILE_HEADER = (
    "# The chart deploy/helm/gatepost with its default values; replace names and addresses.\n"
)


def rendered() -> str:
    """
    Return the chart's templates with its default values.

    Helm does not run here. The templates use three forms of its language only, which mean the same
    in this function: a value, a value as JSON, and the name of the release.
    """
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    tree = {"Values": values, "Release": {"Name": "gatepost"}}

    def value_of(action: re.Match[str]) -> str:
        value: Any = tree[action[1]]
        for name in action[2].split(".")[1:]:
            value = value[name]
        return json.dumps(value) if action[3] else str(value)

    parts = []
    for file in sorted((CHART / "templates").glob("*.yaml")):
        text = ACTION.sub(value_of, file.read_text(encoding="utf-8"))
        assert "{{" not in text, file
        parts.append(text)
    return FILE_HEADER + "---\n".join(parts)


def manifests_by_kind() -> dict[str, dict[str, Any]]:
    """Return the manifests by kind."""
    documents = [
        document
        for document in yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8"))
        if document
    ]
    assert len({document["kind"] for document in documents}) == len(documents)
    return {document["kind"]: document for document in documents}


def test_the_manifests_equal_the_rendered_chart() -> None:
    """A change of one of them needs the same change of the other."""
    assert MANIFESTS.read_text(encoding="utf-8") == rendered()


def manifest_config() -> str:
    return str(manifests_by_kind()["ConfigMap"]["data"]["gatepost.toml"])


def compose_config() -> str:
    return (DEPLOY_FOLDER / "compose/gatepost.toml").read_text(encoding="utf-8")


def systemd_config() -> str:
    return (DEPLOY_FOLDER / "systemd/gatepost.toml").read_text(encoding="utf-8")


CONFIGURATIONS = {
    "manifests": manifest_config,
    "compose": compose_config,
    "systemd": systemd_config,
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_gatepost_check_finds_no_error_in_the_configurations(tmp_path: Path, name: str) -> None:
    """Files and variables exist as in a deployment."""
    create(tmp_path / "keyring.json")
    (tmp_path / "keyring.json").chmod(0o440)
    (tmp_path / "database-url").write_text("postgresql://gatepost:pw@db/gatepost")
    (tmp_path / "shared-url").write_text("redis://:pw@valkey:6379/0")
    for secret in ("database-url", "shared-url"):
        (tmp_path / secret).chmod(0o440)
    text = CONFIGURATIONS[name]()
    for path in ("/etc/gatepost/secrets", "/run/credentials/gatepost.service"):
        text = text.replace(path, str(tmp_path))
    text = text.replace("/var/lib/gatepost", str(tmp_path))
    text = text.replace('ca_bundle = "/etc/gatepost/ca.crt"\n', "")
    (tmp_path / "gatepost.toml").write_text(text)
    environment = {
        "KEY_RING": (tmp_path / "keyring.json").read_text(),
        "DATABASE_URL": "postgresql://gatepost:pw@db/gatepost",
        "SHARED_URL": "redis://:pw@valkey:6379/0",
        "ISSUER_SECRET": "0123456789abcdef",
    }

    code, _, complaints = completed("check", env=environment, cwd=tmp_path)

    assert code == 0, complaints
    assert "config.E" not in complaints


def test_probes_ports_and_grace_periods_fit_the_configuration() -> None:
    """What the manifests say beside the configuration is what the configuration says."""
    config = tomllib.loads(manifest_config())
    pod = manifests_by_kind()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listen = config["listen"]
    probe = container["readinessProbe"]

    assert ports["http"] == listen.get("port", 8000)
    assert listen["metrics"].endswith(f":{ports['metrics']}")
    assert pod["terminationGracePeriodSeconds"] >= listen["leave_s"] + 30 + 15
    assert listen["leave_s"] > probe["periodSeconds"] * probe["failureThreshold"]
    assert container["args" if "args" in container else "image"]
    metric = manifests_by_kind()["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"][
        "name"
    ]
    (rule,) = yaml.safe_load(
        (DEPLOY_FOLDER / "kubernetes/prometheus-adapter-rule.yaml").read_text()
    )
    assert rule["name"]["as"] == metric
    series = rule["seriesQuery"].partition("{")[0].removesuffix("_sum")
    assert f"`{series}`" in (ROOT / "docs/telemetry.md").read_text(encoding="utf-8")


def test_every_pod_runs_without_root_and_extra_capabilities() -> None:
    """The image is read-only, and no cluster token is mounted."""
    for kind in ("Deployment", "Job"):
        pod = manifests_by_kind()[kind]["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["fsGroup"] == 65532
        secret = next(volume["secret"] for volume in pod["volumes"] if volume["name"] == "secrets")
        assert secret["defaultMode"] == 0o440
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_compose_sets_every_variable_that_the_configuration_uses(tmp_path: Path) -> None:
    """The prepared key ring loads, and the certificates verify."""
    services = yaml.safe_load((DEPLOY_FOLDER / "compose/compose.yaml").read_text())["services"]
    names = set(re.findall(r'"env:(\w+)"', compose_config()))
    for replica in ("gatepost-1", "gatepost-2", "migrate"):
        assert names <= services[replica]["environment"].keys()
        assert services[replica]["read_only"] is True
    proxy = services["proxy"]["networks"]["internal"]
    assert f"{proxy['ipv4_address']}/32" in compose_config()

    script = tmp_path / "prepare.sh"
    script.write_text((DEPLOY_FOLDER / "compose/prepare.sh").read_text())
    subprocess.run(["sh", str(script)], check=True, timeout=60, capture_output=True)
    variables = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RING", variables["KEY_RING"].strip("'"))
        assert KeyRing.load("env:RING").current.id
    verified = ["openssl", "verify", "-CAfile", "tls/ca.crt", "tls/tls.crt"]
    subprocess.run(verified, check=True, timeout=60, capture_output=True, cwd=tmp_path)
    again = subprocess.run(["sh", str(script)], timeout=60, capture_output=True, check=False)
    assert again.returncode == 1


def test_dockerignore_admits_exactly_the_files_that_the_dockerfile_copies() -> None:
    """The image does not run as root, and packages are installed by hashes."""
    text = (DEPLOY_FOLDER / "Dockerfile").read_text(encoding="utf-8")
    copied = [
        source
        for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE)
        for source in line.split()
    ]
    visible = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")
    }

    assert set(copied) == visible
    assert "USER 65532:65532" in text
    assert text.count("--require-hashes") == 2


if __name__ == "__main__":
    MANIFESTS.write_text(rendered(), encoding="utf-8")
    sys.exit(0)

"""`deploy/helm` over the official chart of Airflow, and `deploy/openshift`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import container_images as images
import pytest
import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VENDOR = ROOT / "tests" / "support" / "vendor"
VALUES = (DEPLOY / "helm" / "values.yaml", DEPLOY / "openshift" / "values.yaml")
MANIFESTS = sorted({*DEPLOY.glob("helm/*.yaml"), *DEPLOY.glob("openshift/*.yaml")} - {*VALUES})


def read(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text())


def wrong(schema: str, value: dict[str, Any]) -> list[str]:
    check = Draft202012Validator(read(VENDOR / schema))
    return [f"{each.json_path}: {each.message}" for each in check.iter_errors(value)]


@pytest.fixture
def values() -> dict[str, Any]:
    return read(VALUES[0])


def environment(values: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in values["env"]}


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.parent.name)
def test_values_have_the_names_and_types_of_the_chart(file: Path):
    assert wrong("airflow-chart.yaml", read(file)) == []
    assert wrong("airflow-chart.yaml", {"webserver": {}, "uid": "1000"})


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_manifests_have_the_fields_of_their_kinds(file: Path):
    told = read(file)
    items = told["items"] if told["kind"] == "List" else [told]
    assert [mistake for each in items for mistake in wrong("openshift.yaml", each)] == []
    assert wrong("openshift.yaml", {**items[0], "kind": "Deployment"})


def test_the_chart_starts_what_compose_starts(values: dict[str, Any]):
    compose = read(DEPLOY / "compose" / "compose.yaml")["services"]
    settings = compose["scheduler"]["environment"]
    same = {"scheduler": "scheduler", "dagProcessor": "dag-processor", "triggerer": "triggerer"}
    for name, service in same.items():
        probe = values[name]["livenessProbe"]["command"]
        assert ["CMD", *probe] == compose[service]["healthcheck"]["test"]
    bundle = settings["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"]
    assert yaml.safe_load(bundle) == values["dagProcessor"]["dagBundleConfigList"]
    assert values["executor"] == settings["AIRFLOW__CORE__EXECUTOR"]
    assert values["airflowHome"] == settings["AIRFLOW_HOME"]
    most = "max_active_runs_per_dag"
    assert values["config"]["core"][most] == settings[f"AIRFLOW__CORE__{most.upper()}"]
    pinned = re.findall(r"(?m)^apache-airflow==(\S+)", (ROOT / "constraints.txt").read_text())
    assert [values["airflowVersion"]] == pinned


def test_pods_keep_what_lasts_on_the_claim_and_take_secrets_from_one(values: dict[str, Any]):
    claim = read(DEPLOY / "helm" / "storage.yaml")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (shared,) = (each for each in values["volumes"] if "persistentVolumeClaim" in each)
    claimed = shared["persistentVolumeClaim"]["claimName"]
    assert {claimed, values["logs"]["persistence"]["existingClaim"]} == {claim["metadata"]["name"]}
    folder = {each["name"]: each["mountPath"] for each in values["volumeMounts"]}[shared["name"]]
    # a folder below: that of the volume itself may be written by its whole group
    assert Path(environment(values)["HEADRACE_HOME"]).parent == Path(folder)
    assert values["config"]["core"]["simple_auth_manager_passwords_file"].startswith(folder)
    names = {name for key, name in values.items() if key.endswith("SecretName")}
    assert names | {each["secretName"] for each in values["secret"]} == {"headrace"}


def test_openshift_chooses_the_user_and_builds_each_image_on_the_one_below(values: dict[str, Any]):
    pod = values["securityContexts"]["pod"]
    given = read(VALUES[1])["securityContexts"]["pod"]
    assert {**pod, **given} == {**dict.fromkeys(pod), "runAsNonRoot": True}
    builds = [each["spec"] for each in read(DEPLOY / "openshift" / "images.yaml")["items"]
              if each["kind"] == "BuildConfig"]  # fmt: skip
    assert len(builds) == len(images.chain("control"))
    for name, build in zip(images.chain("control"), builds, strict=True):
        docker = build["strategy"]["dockerStrategy"]
        assert (ROOT / docker["dockerfilePath"]).name == f"{name}.Containerfile"
        below = images.description()["images"][name].get("made_on")
        wanted = f"headrace-{below}:latest" if below else None
        assert docker.get("from", {}).get("name") == wanted
        assert build["output"]["to"]["name"] == f"headrace-{name}:latest"

"""Inputs and outputs of a step, for OpenLineage; imported only if its provider requests them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import RunFacet
from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
from openlineage.client.generated.input_statistics_input_dataset import (
    InputStatisticsInputDatasetFacet,
)
from openlineage.client.generated.output_statistics_output_dataset import (
    OutputStatisticsOutputDatasetFacet,
)
from openlineage.client.generated.schema_dataset import (
    SchemaDatasetFacet,
    SchemaDatasetFacetFields,
)

from headrace.errors import without_secrets
from headrace.files.manifest import FieldInfo, Manifest
from headrace.objects.store import read_manifest_at
from headrace.runs.runs import Run, outputs_of

_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
_OF_MODEL = ("checkpoint", "best_checkpoint")


@attrs.define
class HeadraceRunFacet(RunFacet):
    """The run of headrace that a task worked on, and its result."""

    runId: str  # noqa: N815
    recipe: str
    site: str
    step: str
    metrics: dict[str, float]

    @staticmethod
    def _get_schema() -> str:
        return _SCHEMA


def lineage_of(run: Run, step: str) -> OperatorLineage:
    """Return inputs and outputs of a successful step: samples, packed dataset, model, report."""
    outputs = outputs_of(run.run_id)
    own = outputs.get(step, {})
    packed = outputs.get("pack", {}).get("dataset")
    manifest = read_manifest_at(packed, run.site.s3) if packed else None
    metrics = own.get("metrics", {})
    facet = HeadraceRunFacet(
        runId=run.run_id,
        recipe=run.recipe.name,
        site=run.site.name,
        step=step,
        metrics={name: each for name, each in metrics.items() if isinstance(each, int | float)},
    )
    lineage = OperatorLineage(run_facets={"headrace": facet})
    if packed and manifest is not None and step == "pack":
        source = run.recipe.named_dataset.source
        lineage.inputs = [InputDataset(*_name(source))] if source else []
        lineage.outputs = [_packed(packed, manifest)]
    else:
        read = [_read(packed, manifest)] if packed and manifest is not None else []
        lineage.inputs = [*read, *_models(outputs, step)]
        given = [own.get(name) for name in (*_OF_MODEL, "report")]
        lineage.outputs = [OutputDataset(*_name(path)) for path in dict.fromkeys(given) if path]
    return lineage


def _models(outputs: Mapping[str, Mapping[str, Any]], step: str) -> list[InputDataset]:
    trained = outputs.get("train", {}) if step == "evaluate" else {}
    return [InputDataset(*_name(trained[name])) for name in _OF_MODEL if trained.get(name)]


def _packed(location: str, manifest: Manifest) -> OutputDataset:
    written = OutputStatisticsOutputDatasetFacet(
        rowCount=manifest.num_samples, size=manifest.num_bytes, fileCount=len(manifest.shards)
    )
    return OutputDataset(
        *_name(location), facets=_content(manifest), outputFacets={"outputStatistics": written}
    )


def _read(location: str, manifest: Manifest) -> InputDataset:
    read = InputStatisticsInputDatasetFacet(
        rowCount=manifest.num_samples, size=manifest.num_bytes, fileCount=len(manifest.shards)
    )
    return InputDataset(
        *_name(location), facets=_content(manifest), inputFacets={"inputStatistics": read}
    )


def _content(manifest: Manifest) -> dict[str, Any]:
    """Return the fields of a packed dataset, and its fingerprint as its version."""
    fields = [
        SchemaDatasetFacetFields(name=each.name, type=_type(each)) for each in manifest.fields
    ]
    return {
        "schema": SchemaDatasetFacet(fields=fields),
        "version": DatasetVersionDatasetFacet(datasetVersion=manifest.fingerprint),
    }


def _type(field: FieldInfo) -> str:
    """Return a type such as `float32[8, 8]`; for ragged fields the format of their bytes, `png`."""
    if field.layout == "ragged":
        return field.encoding if field.encoding != "raw" else f"{field.dtype}[]"
    return f"{field.dtype}{list(field.shape) or ''}"


def _name(location: str) -> tuple[str, str]:
    """Return namespace and name. Source: https://openlineage.io/docs/spec/naming."""
    url = urlsplit(without_secrets(location))
    if not url.scheme or not url.netloc:
        return "file", url.path
    return f"{url.scheme}://{url.netloc}", url.path.strip("/") or "/"

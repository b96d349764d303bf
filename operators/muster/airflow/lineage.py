"""What a task read and wrote, as Airflow's OpenLineage provider emits it.

The provider asks an operator at its start, its end and its failure, in a process of its own; without the provider no
function of this module is called. A volume is a dataset: its namespace is the store, its name the volume's.

https://airflow.apache.org/docs/apache-airflow-providers-openlineage/stable/guides/developer.html and
https://openlineage.io/docs/spec/facets/
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.core.address import SCHEME, Address, Select
from muster.core.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import DatasetFacet, RunFacet

    from muster.core.job import JobSpec
    from muster.volumes.base import Version
    from muster.volumes.protocols import LocalStore

    TaskLineage = OperatorLineage[Any, Any]

DEPLOYMENT = "deployment://"
PARQUET = ".parquet"
LARGEST_BYTES = 16 << 20
"""The largest file that is read: the provider gives all of it ten seconds."""


class Lineage:
    """The events of tasks of one store.

    :param namespace: what the store's volumes have in common.
    """

    def __init__(self, store: LocalStore, namespace: str) -> None:
        self._store, self._namespace = store, namespace

    def of_names(self, read: Iterable[str], written: Iterable[str]) -> TaskLineage:
        """Describe a task by what its keywords name: versions only where they are exact.

        :param read: addresses. `written`: URIs of assets, of volumes and deployments.
        """
        names = [
            f"deployment/{uri.removeprefix(DEPLOYMENT)}"
            if uri.startswith(DEPLOYMENT)
            else uri.removeprefix(SCHEME)
            for uri in written
        ]
        versions = (address for address in read if not address.startswith(DEPLOYMENT))
        return _lineage(
            inputs=[self._input(volume, number) for volume, number in dict.fromkeys(map(_exact, versions))],
            outputs=[self._output(name) for name in dict.fromkeys(names)],
        )

    def of_job(self, job_id: str, *, run_id: str) -> TaskLineage:
        """Describe a task by its job: its pinned inputs, the versions that it committed, its code, image and params.

        :param run_id: the task's; a job of another run made what this one keeps.
        :raises NotFound: gc deleted the job's ledger entry.
        """
        ledger = self._store.ledger
        spec, made = ledger.spec(job_id), ledger.status(job_id).addresses
        pinned = [version.address for given in spec.inputs.values() for version in given.versions]
        return _lineage(
            inputs=[self._version_read(address) for address in dict.fromkeys(pinned)],
            outputs=self._written(made) or [self._output(each.volume) for each in spec.outputs.values()],
            run_facets=_run_facets(job_id, spec, kept=spec.origin.run_id != run_id),
        )

    def of_kept(self, addresses: Sequence[str]) -> TaskLineage:
        """Describe a task by the versions that it kept, from their records alone."""
        records = self._store.records(addresses)
        pinned = (version.address for each in records for given in each.inputs.values() for version in given)
        return self.of_read(dict.fromkeys(pinned), written=addresses)

    def of_read(self, addresses: Iterable[str], *, written: Iterable[str] = ()) -> TaskLineage:
        """Describe a task by the exact versions that it read and wrote."""
        return _lineage(
            inputs=[self._version_read(address) for address in addresses], outputs=self._written(written)
        )

    def of_release(self, address: str, deployment: str) -> TaskLineage:
        """Describe the release of a version under a deployment's name."""
        output = self._output(f"deployment/{deployment}", facets=_version_facet(Address.parse(address).value))
        return _lineage(inputs=[self._version_read(address)], outputs=[output])

    def of_validation(self, job_id: str, *, run_id: str) -> TaskLineage:
        """Describe a validation as :meth:`of_job` does, each input with its schema and what each expectation found.

        :raises NotFound: gc deleted the job's ledger entry.
        """
        from attrs import evolve

        lineage, result = self.of_job(job_id, run_id=run_id), self._store.ledger.status(job_id).result
        if result is None:
            return lineage
        written = self._store.path(f"{result.outputs['result'][0]}/result.json")
        if written.stat().st_size > LARGEST_BYTES:
            return lineage
        document = json.loads(written.read_bytes())
        found = _quality(document, rows=result.metrics.get("rows"))
        pinned = dict.fromkeys(
            version.address
            for given in self._store.ledger.spec(job_id).inputs.values()
            for version in given.versions
        )
        inputs = [
            evolve(each, facets={**(each.facets or {}), **self._schema(address)}, inputFacets=found)
            for address, each in zip(pinned, lineage.inputs, strict=True)
        ]
        return evolve(lineage, inputs=inputs)

    def _input(self, volume: str, number: str) -> InputDataset:
        from openlineage.client.event_v2 import InputDataset

        facets = _version_facet(number) if number else {}
        return InputDataset(namespace=self._namespace, name=volume, facets=facets)

    def _version_read(self, text: str) -> InputDataset:
        dataset = self._input(*_exact(text))
        try:
            (version,) = self._store.resolve(text)
        except NotFound:  # gc deleted it: its number is still true
            return dataset
        dataset.facets = {**_version_facet(str(version.number)), **_tags(version)}
        return dataset

    def _written(self, addresses: Iterable[str]) -> list[OutputDataset]:
        from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

        outputs = []
        for version in (version for address in addresses for version in self._store.resolve(address)):
            output = self._output(
                version.volume,
                facets={
                    **_version_facet(str(version.number)),
                    **_tags(version),
                    **self._schema(version.address),
                },
            )
            output.outputFacets = {
                "outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(
                    size=version.size_bytes, fileCount=version.files
                )
            }
            outputs.append(output)
        return outputs

    def _output(self, name: str, facets: Mapping[str, DatasetFacet] | None = None) -> OutputDataset:
        from openlineage.client.event_v2 import OutputDataset

        return OutputDataset(namespace=self._namespace, name=name, facets=dict(facets or {}))

    def _schema(self, address: str) -> dict[str, DatasetFacet]:
        """The schema of a version's smallest Parquet file; nothing where it has none of a size to be fetched."""
        from openlineage.client.facet_v2 import schema_dataset

        from muster.volumes.parquet import read_schema

        tables = (
            (entry.size_bytes, entry.path)
            for entry in self._store.manifest(address).values()
            if entry.path.endswith(PARQUET) and entry.size_bytes <= LARGEST_BYTES
        )
        _, smallest = min(tables, default=(0, ""))
        if not smallest:
            return {}
        try:
            columns = read_schema(self._store.path(f"{address}/{smallest}")).columns
        except (Corrupt, NotFound):  # no Parquet file whatever its name, or its data is gone
            return {}
        fields = [schema_dataset.SchemaDatasetFacetFields(name=each.name, type=each.type) for each in columns]
        return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)}


def _lineage(inputs: list[InputDataset], outputs: list[OutputDataset], **facets: Any) -> TaskLineage:
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(inputs=inputs, outputs=outputs, **facets)


def _exact(text: str) -> tuple[str, str]:
    """Return an address's volume and its version's number; an empty number where only the store knows it."""
    address = Address.parse(text)
    return address.volume, address.value if address.select is Select.NUMBER else ""


def _version_facet(number: str) -> dict[str, DatasetFacet]:
    from openlineage.client.facet_v2 import dataset_version_dataset

    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=number)}


def _tags(version: Version) -> dict[str, DatasetFacet]:
    from openlineage.client.facet_v2 import tags_dataset

    told = {"digest": version.digest, **({"partition": version.partition} if version.partition else {})}
    tags = [
        tags_dataset.TagsDatasetFacetFields(key=key, value=value, source="muster")
        for key, value in told.items()
    ]
    return {"tags": tags_dataset.TagsDatasetFacet(tags=tags)}


def _run_facets(job_id: str, spec: JobSpec, *, kept: bool) -> dict[str, RunFacet]:
    from openlineage.client.facet_v2 import execution_parameters_run as execution, tags_run

    told = {"job": job_id, "image": spec.image, "image_digest": spec.image_digest}
    told |= {"code": spec.code} if spec.code else {}
    told |= {"interpreter": str(spec.interpreter)} if spec.interpreter else {}
    told |= {"kept": f"{spec.origin.dag_id} {spec.origin.run_id} {spec.origin.task_id}"} if kept else {}
    facets: dict[str, RunFacet] = {
        "tags": tags_run.TagsRunFacet(
            tags=[
                tags_run.TagsRunFacetFields(key=f"muster.{key}", value=value, source="muster")
                for key, value in told.items()
            ]
        )
    }
    if spec.params:
        facets["executionParameters"] = execution.ExecutionParametersRunFacet(
            parameters=[
                execution.ExecutionParameter(key=name, name=name, value=json.dumps(value))
                for name, value in spec.params.items()
            ]
        )
    return facets


def _quality(document: Mapping[str, Any], *, rows: float | None) -> dict[str, Any]:
    """A result of Great Expectations as assertions, and the rows and columns that were looked at."""
    from openlineage.client.facet_v2 import (
        data_quality_assertions_dataset as assertions,
        data_quality_metrics_input_dataset as metrics,
    )

    facets: dict[str, Any] = {
        "dataQualityAssertions": assertions.DataQualityAssertionsDatasetFacet(
            assertions=[_assertion(each) for each in document.get("results", ())]
        )
    }
    if rows is not None:
        columns = {name: metrics.ColumnMetrics() for name in document.get("columns", ())}
        facets["dataQualityMetrics"] = metrics.DataQualityMetricsInputDatasetFacet(
            rowCount=int(rows), columnMetrics=columns
        )
    return facets


def _assertion(entry: Mapping[str, Any]) -> Any:
    from openlineage.client.facet_v2 import data_quality_assertions_dataset as assertions

    config = entry["expectation_config"]
    kwargs = {name: value for name, value in config.get("kwargs", {}).items() if name != "batch_id"}
    column, found = kwargs.pop("column", None), (entry.get("result") or {}).get("observed_value")
    return assertions.Assertion(
        assertion=config["type"],
        success=bool(entry["success"]),
        column=column if isinstance(column, str) else None,
        expected=json.dumps(kwargs),
        actual=None if found is None else json.dumps(found),
    )

"""Every name of Airflow that muster uses and that is not Airflow's public interface: the one file to read before a new release.

Public is what Airflow's page *Public Interface* names: ``airflow.sdk.__all__``, exceptions, states, triggers, plugins and listeners.
Each name is imported when it is first asked for, as if it were imported from Airflow there. A test fails if another module
imports such a name, or if one is missing in the installed Airflow. CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow import settings
    from airflow.__main__ import main
    from airflow._shared.logging import configure_logging
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import (
        AccessView,
        DagAccessEntity,
        DagDetails,
    )
    from airflow.api_fastapi.common.dagbag import create_dag_bag
    from airflow.api_fastapi.common.exceptions import init_error_handlers
    from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset, requires_access_view
    from airflow.api_fastapi.execution_api import app, versions
    from airflow.api_fastapi.execution_api.routes import execution_api_router
    from airflow.callbacks.callback_requests import DagCallbackRequest
    from airflow.configuration import AIRFLOW_HOME, conf
    from airflow.dag_processing.bundles.local import LocalDagBundle
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.executors import local_executor
    from airflow.jobs.job import Job, JobState
    from airflow.models.asset import AssetDagRunQueue, AssetEvent
    from airflow.models.dag import DagModel
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.models.hitl import HITLDetail
    from airflow.models.log import Log
    from airflow.models.pool import Pool
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import TaskInstance, clear_task_instances
    from airflow.models.taskinstancehistory import TaskInstanceHistory
    from airflow.models.trigger import handle_event_submit
    from airflow.models.xcom import XComModel
    from airflow.observability.metrics.stats_utils import get_stats_factory
    from airflow.observability.stats import initialize
    from airflow.plugins_manager import get_fastapi_plugins
    from airflow.sdk import timezone
    from airflow.sdk._shared.secrets_masker import redact
    from airflow.sdk.api.datamodels._generated import TIRunContext
    from airflow.sdk.bases.decorator import DecoratedMappedOperator, _TaskDecorator, get_unique_task_id
    from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, BaseOperatorMeta, get_merged_defaults, partial
    from airflow.sdk.definitions._internal.contextmanager import DagContext, TaskGroupContext
    from airflow.sdk.definitions._internal.expandinput import (
        DictOfListsExpandInput,
        ExpandInput,
        ListOfDictsExpandInput,
    )
    from airflow.sdk.definitions._internal.mixins import ResolveMixin
    from airflow.sdk.definitions.dag import _run_task
    from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial, prevent_duplicates
    from airflow.sdk.definitions.xcom_arg import PlainXComArg
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.context import NEVER_EXPIRE, MacrosAccessor
    from airflow.sdk.execution_time.supervisor import in_process_api_server
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

_NAMES = {
    # Without these, no Dag file with a task of muster is parsed.
    "airflow.sdk.bases.decorator": "DecoratedMappedOperator _TaskDecorator get_unique_task_id",  # @job, @gang
    # Keywords are checked where the Dag's defaults are merged into them; partial() and a deferral begin as Airflow's do.
    "airflow.sdk.bases.operator": "BaseOperatorMeta TRIGGER_FAIL_REPR get_merged_defaults partial",
    "airflow.sdk.definitions._internal.contextmanager": "DagContext TaskGroupContext",  # whose defaults these are
    # What expand() was given: each instance of a mapped task is checked, and has .versions and .passed.
    "airflow.sdk.definitions._internal.expandinput": "DictOfListsExpandInput ExpandInput ListOfDictsExpandInput",
    "airflow.sdk.definitions.mappedoperator": "MappedOperator OperatorPartial prevent_duplicates",
    "airflow.sdk.definitions._internal.mixins": "ResolveMixin",  # .versions["model"] is rendered as an XComArg
    "airflow.sdk.definitions.xcom_arg": "PlainXComArg",
    # Without these, no task of muster runs.
    "airflow.sdk._shared.secrets_masker": "redact",  # in the lines of a job's log, and in its rendered keywords
    "airflow.sdk.execution_time.task_runner": "RuntimeTaskInstance",  # the state of another task, and of its run
    # What a task remembers of its job is kept as long as its run; Airflow's stubs lack it in airflow.sdk. A plan's macros.
    "airflow.sdk.execution_time.context": "NEVER_EXPIRE MacrosAccessor",
    # Without these, jobs that no task wants are not ended, `muster run` does not begin or resume a run, and the page lists none.
    "airflow.models.dag": "DagModel",
    "airflow.models.dagrun": "DagRun",
    "airflow.models.task_state_store": "TaskStateStoreModel",
    "airflow.models.taskinstance": "TaskInstance clear_task_instances",
    "airflow.models.taskinstancehistory": "TaskInstanceHistory",  # until Airflow 3.3: tries that are over
    "airflow.utils.session": "create_session",
    # `muster run`: a Dag is parsed, entered and deserialized as by Airflow's Dag processor and scheduler.
    "airflow.dag_processing.bundles.manager": "DagBundlesManager",
    "airflow.dag_processing.dagbag": "BundleDagBag sync_bag_to_db",
    "airflow.serialization.definitions.dag": "SerializedDAG",
    "airflow.serialization.encoders": "coerce_to_core_timetable",
    "airflow.serialization.serialized_objects": "DagSerialization",
    # `muster run`: a run is made and scheduled in its own process, and a task runs as in dag.test().
    "airflow.models.dag_version": "DagVersion",
    "airflow.models.pool": "Pool",
    "airflow.models.xcom": "XComModel",
    "airflow.sdk": "timezone",
    "airflow.sdk.definitions.dag": "_run_task",
    "airflow.sdk.execution_time.supervisor": "in_process_api_server",
    "airflow.utils.types": "DagRunTriggeredByType DagRunType",
    "airflow.callbacks.callback_requests": "DagCallbackRequest",  # on_success_callback of a Dag, and its context
    "airflow.sdk.api.datamodels._generated": "TIRunContext",
    "airflow.models.hitl": "HITLDetail",  # a question to a person is asked in the terminal, and its task goes on
    "airflow.models.trigger": "handle_event_submit",
    # `muster run`: logs go to a file; database, configuration and metrics are set up as in a process of Airflow's.
    "airflow": "settings",
    "airflow._shared.logging": "configure_logging",
    "airflow.configuration": "AIRFLOW_HOME conf",
    "airflow.observability.metrics.stats_utils": "get_stats_factory",
    "airflow.observability.stats": "initialize",
    "airflow.utils.db": "initdb",
    "airflow.__main__": "main",  # old runs are deleted by `airflow db clean`, but for what a later run needs
    "airflow.models.asset": "AssetDagRunQueue AssetEvent",
    # Patches of this folder. MUSTER_PATCHES=off does without them.
    "airflow.api_fastapi.common.dagbag": "create_dag_bag",
    "airflow.api_fastapi.common.exceptions": "init_error_handlers",
    "airflow.api_fastapi.execution_api": "app versions",
    "airflow.api_fastapi.execution_api.routes": "execution_api_router",
    "airflow.sdk.execution_time": "task_runner",
    # The page: who may see and do what, by the dependencies of Airflow's own pages, and the audit log. Without these, no page.
    "airflow.api_fastapi.app": "get_auth_manager",
    "airflow.api_fastapi.auth.managers.models.resource_details": "AccessView DagAccessEntity DagDetails",
    "airflow.api_fastapi.core_api.security": "GetUserDep requires_access_asset requires_access_view",
    "airflow.models.log": "Log",
    "airflow.dag_processing.bundles.local": "LocalDagBundle",  # of other bundles the page plans no Dag
    # `muster up`: workers are woken, rows of killed components ended, others' apps built before Airflow's.
    "airflow.executors": "local_executor",
    "airflow.jobs.job": "Job JobState",
    "airflow.plugins_manager": "get_fastapi_plugins",
}
MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The module of each name in Airflow; above it stands why it is used, and what does not work without it."""
GONE_IN = {"TaskInstanceHistory": "3.4"}
"""The release of Airflow that has a name no more; muster asks for it with earlier ones alone."""


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(__import__(MODULES[name], fromlist=[name]), name)
    except (AttributeError, ImportError) as error:
        raise ImportError(
            f"this Airflow has no {name} in {MODULES[name]}, which muster uses ({__name__} says what for): "
            "install a release of Airflow that docs/howto/support.md names"
        ) from error

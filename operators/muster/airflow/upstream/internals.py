"""Every name of Airflow that muster uses and that is not Airflow's public interface: the one file to read before a new release.

Public is what Airflow's page *Public Interface* names: ``airflow.sdk.__all__``, exceptions, states, triggers, plugins and listeners.
Each name is imported when it is first asked for, as if it were imported from Airflow there. A test fails if another module
imports such a name, or if one is missing in the installed Airflow. CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # `as` hands a name on to type checkers, which take what `__getattr__` returns for it otherwise.
    from airflow import settings as settings
    from airflow.__main__ import main as main
    from airflow._shared.logging import configure_logging as configure_logging
    from airflow.api_fastapi.app import get_auth_manager as get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import (
        AccessView as AccessView,
        DagAccessEntity as DagAccessEntity,
        DagDetails as DagDetails,
    )
    from airflow.api_fastapi.common.dagbag import create_dag_bag as create_dag_bag
    from airflow.api_fastapi.common.exceptions import init_error_handlers as init_error_handlers
    from airflow.api_fastapi.core_api.security import (
        GetUserDep as GetUserDep,
        requires_access_asset as requires_access_asset,
        requires_access_view as requires_access_view,
    )
    from airflow.api_fastapi.execution_api import app as app, versions as versions
    from airflow.api_fastapi.execution_api.routes import execution_api_router as execution_api_router
    from airflow.callbacks.callback_requests import DagCallbackRequest as DagCallbackRequest
    from airflow.configuration import AIRFLOW_HOME as AIRFLOW_HOME, conf as conf
    from airflow.dag_processing.bundles.local import LocalDagBundle as LocalDagBundle
    from airflow.dag_processing.bundles.manager import DagBundlesManager as DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag as BundleDagBag, sync_bag_to_db as sync_bag_to_db
    from airflow.executors import local_executor as local_executor
    from airflow.jobs.job import Job as Job, JobState as JobState
    from airflow.models.asset import AssetDagRunQueue as AssetDagRunQueue, AssetEvent as AssetEvent
    from airflow.models.dag import DagModel as DagModel
    from airflow.models.dag_version import DagVersion as DagVersion
    from airflow.models.dagrun import DagRun as DagRun
    from airflow.models.hitl import HITLDetail as HITLDetail
    from airflow.models.log import Log as Log
    from airflow.models.pool import Pool as Pool
    from airflow.models.task_state_store import TaskStateStoreModel as TaskStateStoreModel
    from airflow.models.taskinstance import (
        TaskInstance as TaskInstance,
        clear_task_instances as clear_task_instances,
    )
    from airflow.models.taskinstancehistory import TaskInstanceHistory as TaskInstanceHistory
    from airflow.models.trigger import handle_event_submit as handle_event_submit
    from airflow.models.xcom import XComModel as XComModel
    from airflow.observability.metrics.stats_utils import get_stats_factory as get_stats_factory
    from airflow.observability.stats import initialize as initialize
    from airflow.plugins_manager import get_fastapi_plugins as get_fastapi_plugins
    from airflow.sdk import timezone as timezone
    from airflow.sdk._shared.secrets_masker import redact as redact
    from airflow.sdk.api.datamodels._generated import TIRunContext as TIRunContext
    from airflow.sdk.bases.decorator import (
        DecoratedMappedOperator as DecoratedMappedOperator,
        _TaskDecorator as _TaskDecorator,
        get_unique_task_id as get_unique_task_id,
    )
    from airflow.sdk.bases.operator import (
        TRIGGER_FAIL_REPR as TRIGGER_FAIL_REPR,
        BaseOperatorMeta as BaseOperatorMeta,
        get_merged_defaults as get_merged_defaults,
        partial as partial,
    )
    from airflow.sdk.definitions._internal.contextmanager import (
        DagContext as DagContext,
        TaskGroupContext as TaskGroupContext,
    )
    from airflow.sdk.definitions._internal.expandinput import (
        DictOfListsExpandInput as DictOfListsExpandInput,
        ExpandInput as ExpandInput,
        ListOfDictsExpandInput as ListOfDictsExpandInput,
    )
    from airflow.sdk.definitions._internal.mixins import ResolveMixin as ResolveMixin
    from airflow.sdk.definitions.dag import _run_task as _run_task
    from airflow.sdk.definitions.mappedoperator import (
        MappedOperator as MappedOperator,
        OperatorPartial as OperatorPartial,
        prevent_duplicates as prevent_duplicates,
    )
    from airflow.sdk.definitions.xcom_arg import PlainXComArg as PlainXComArg
    from airflow.sdk.execution_time import task_runner as task_runner
    from airflow.sdk.execution_time.context import (
        NEVER_EXPIRE as NEVER_EXPIRE,
        MacrosAccessor as MacrosAccessor,
    )
    from airflow.sdk.execution_time.supervisor import in_process_api_server as in_process_api_server
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance as RuntimeTaskInstance
    from airflow.serialization.definitions.dag import SerializedDAG as SerializedDAG
    from airflow.serialization.encoders import coerce_to_core_timetable as coerce_to_core_timetable
    from airflow.serialization.serialized_objects import DagSerialization as DagSerialization
    from airflow.utils.db import initdb as initdb
    from airflow.utils.session import create_session as create_session
    from airflow.utils.types import DagRunTriggeredByType as DagRunTriggeredByType, DagRunType as DagRunType

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

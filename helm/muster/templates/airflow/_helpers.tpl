{{/* What Airflow's pods share. A workload is said once: `muster.airflow.pod` makes the pod of each from its values. */}}

{{/* (list . "scheduler") makes muster-airflow-scheduler. */}}
{{- define "muster.airflow.name" -}}
{{- include "muster.name" (list (index . 0) (printf "airflow-%s" (index . 1))) -}}
{{- end }}

{{/* The Secret with Airflow's keys and the first user's password. Jobs may name no Secret muster-…. */}}
{{- define "muster.airflow.secret" -}}
{{- $own := include "muster.name" (list . "airflow") -}}
{{- .Values.airflow.secret | default (hasPrefix "muster-" $own | ternary $own (printf "muster-%s" $own)) -}}
{{- end }}

{{/* The image of Airflow, muster in it. */}}
{{- define "muster.airflow.image" -}}
image: {{ .Values.airflow.image | default .Values.image }}
{{- with .Values.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* The folder of Dags as the pods see it. */}}
{{- define "muster.airflow.dags" -}}
{{- $dags := .Values.airflow.dags -}}
{{- if or $dags.image $dags.claim.name }}/dags{{ else }}{{ $dags.path }}{{ end -}}
{{- end }}

{{/* One variable from Airflow's Secret: (list . NAME KEY). */}}
{{- define "muster.airflow.kept" -}}
- {name: {{ index . 1 }}, valueFrom: {secretKeyRef: {name: {{ include "muster.airflow.secret" (index . 0) | quote }}, key: {{ index . 2 }}}}}
{{- end }}

{{/* A regular expression, quoted for CEL, of the names of Secrets that a team of the document has; empty where none has. */}}
{{- define "muster.airflow.teamsSecrets" -}}
{{- $names := list }}
{{- range .Values.teams.teams }}
{{- range .secrets }}
{{- if regexMatch "^(kubernetes|\\*):" . }}
{{- $name := regexReplaceAll "^[^:]*:([^/]*).*$" . "${1}" }}
{{- $names = append $names ($name | replace "." "[.]" | replace "*" ".*" | replace "?" "." | replace "[!" "[^") }}
{{- end }}
{{- end }}
{{- end }}
{{- with $names }}{{ printf "^(%s)$" (join "|" .) | squote }}{{ end }}
{{- end }}

{{/* The connection `muster`: where jobs go, and with which token. */}}
{{- define "muster.airflow.connection" -}}
{{- $muster := merge (dict "token_file" "/token/token") (include "muster.site" . | fromJson) -}}
{{- dict "conn_type" "kubernetes" "extra" (dict "in_cluster" true "namespace" .Release.Namespace "muster" (omit $muster "namespace")) | toJson -}}
{{- end }}

{{/* A line of a script, which waits until Airflow's database answers: without Airflow, whose import takes seconds of a core. */}}
{{- define "muster.airflow.answers" -}}
until said=$(python -c 'import os; from muster.ext.up.postgres import check_answer; check_answer(os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])' 2>&1); do echo "$said" | tail -n 1; sleep 2; done
{{- end }}

{{/* The variables of all of Airflow's containers: Airflow's settings, and muster's. */}}
{{- define "muster.airflow.env" -}}
{{- $airflow := .Values.airflow -}}
- {name: HOME, value: /tmp}
- {name: MUSTER_HOME, value: /tmp/muster}
- {name: MUSTER_CACHE, value: /tmp/muster-cache}
- {name: PYTHONDONTWRITEBYTECODE, value: "1"}
- {name: PYTHONUNBUFFERED, value: "1"}
- {name: SPT_NOENV, value: "1"}
- {name: AIRFLOW_HOME, value: /airflow}
- {name: AIRFLOW__CORE__EXECUTOR, value: {{ $airflow.executor }}}
- {name: AIRFLOW__CORE__PARALLELISM, value: {{ int $airflow.scheduler.parallelism | quote }}}
- {name: AIRFLOW__CORE__LOAD_EXAMPLES, value: "False"}
- {name: AIRFLOW__CORE__DAGS_FOLDER, value: {{ include "muster.airflow.dags" . | quote }}}
- {name: AIRFLOW__CORE__EXECUTION_API_SERVER_URL, value: "http://{{ include "muster.airflow.name" (list . "api-server") }}:8080/execution/"}
- {name: AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS, value: {{ printf "%s:admin" $airflow.user | quote }}}
- {name: AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE, value: /airflow/passwords.json}
{{ include "muster.airflow.kept" (list . "AIRFLOW__CORE__FERNET_KEY" "fernet-key") }}
- {name: AIRFLOW__API__BASE_URL, value: {{ $airflow.url | default (printf "http://%s:8080" (include "muster.airflow.name" (list . "api-server"))) | quote }}}
{{- if $airflow.database.small.enabled }}
{{ include "muster.airflow.kept" (list . "DATABASE_PASSWORD" "database-password") }}
- {name: AIRFLOW__DATABASE__SQL_ALCHEMY_CONN, value: "postgresql+psycopg2://airflow:$(DATABASE_PASSWORD)@{{ include "muster.airflow.name" (list . "database") }}:5432/postgres"}
{{- else }}
- {name: AIRFLOW__DATABASE__SQL_ALCHEMY_CONN, valueFrom: {secretKeyRef: {name: {{ quote $airflow.database.secret }}, key: connection}}}
{{- end }}
- {name: AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS, value: muster.ext.up.postgres.PATIENCE}
- {name: AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS_ASYNC, value: muster.ext.up.postgres.PATIENCE_ASYNC}
{{- if or $airflow.dags.git.url $airflow.dags.volume }}
- {name: AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST, value: {{ include "muster.airflow.bundles" . | quote }}}
{{- with $airflow.dags.git.secret }}
- {name: AIRFLOW_CONN_GIT, valueFrom: {secretKeyRef: {name: {{ quote . }}, key: connection}}}
{{- end }}
{{- end }}
- {name: AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH, value: /airflow/bundles}
- {name: AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL, value: {{ int $airflow.dags.refreshSeconds | quote }}}
- {name: AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY, value: /parsed}
- {name: AIRFLOW__LOGGING__COLORED_CONSOLE_LOG, value: "False"}
- {name: AIRFLOW__LOGGING__SECRET_MASK_ADAPTER, value: muster.core.masking.forms}
- {name: AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK, value: "True"}
{{- $grace := int $airflow.scheduler.terminationGracePeriodSeconds }}
# A scheduler that ends waits for its tasks, and says no more that it lives: the other one takes them over after that alone, and
# runs them again. Later still a task that says nothing has failed; it waits two minutes for an API server that is started again.
- {name: AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD, value: {{ add $grace 30 | quote }}}
- {name: AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT, value: {{ max 180 (add $grace 120) | quote }}}
- {name: AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL, value: "30"}
- {name: AIRFLOW__WORKERS__EXECUTION_API_RETRIES, value: "40"}  # while an API server is started again
- {name: AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX, value: "3"}
{{- if eq $airflow.executor "CeleryExecutor" }}
- {name: AIRFLOW__CELERY__BROKER_URL, valueFrom: {secretKeyRef: {name: {{ quote $airflow.celery.brokerSecret }}, key: connection}}}
- {name: AIRFLOW__CELERY__WORKER_CONCURRENCY, value: {{ int $airflow.worker.concurrency | quote }}}
{{- else if eq $airflow.executor "KubernetesExecutor" }}
- {name: AIRFLOW__KUBERNETES_EXECUTOR__NAMESPACE, value: {{ quote .Release.Namespace }}}
- {name: AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE, value: /worker/pod.yaml}
- {name: AIRFLOW__KUBERNETES_EXECUTOR__WORKER_PODS_CREATION_BATCH_SIZE, value: "8"}
{{- end }}
- {name: AIRFLOW__MUSTER__CONNECTION, value: muster}
- {name: AIRFLOW__MUSTER__INSTANCE, value: {{ printf "%s-%s" .Release.Namespace (include "muster.fullname" .) | trunc 63 | quote }}}
{{- if .Values.teams.teams }}
- {name: AIRFLOW__MUSTER__TEAMS, value: /teams/teams.toml}
{{- end }}
- {name: AIRFLOW_CONN_MUSTER, value: {{ include "muster.airflow.connection" . | quote }}}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- with $airflow.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The keys that sign sessions and tasks' tokens: (list . PART). What parses Dags, makes tables, or only runs tasks signs nothing. */}}
{{- define "muster.airflow.signing" -}}
{{- if not (has (index . 1) (list "dag-processor" "migrate" "worker")) -}}
{{ include "muster.airflow.kept" (list (index . 0) "AIRFLOW__API__SECRET_KEY" "api-secret-key") }}
{{ include "muster.airflow.kept" (list (index . 0) "AIRFLOW__API_AUTH__JWT_SECRET" "jwt-secret") }}
{{- end }}
{{- end }}

{{/* Airflow's setting that names the git repository, or the volume, of the Dags. */}}
{{- define "muster.airflow.bundles" -}}
{{- $git := .Values.airflow.dags.git -}}
{{- $words := dict "repo_url" $git.url "tracking_ref" $git.branch "subdir" $git.subdir -}}
{{- if $git.secret }}{{ $words = merge (dict "git_conn_id" "git") $words }}{{ end -}}
{{- $bundle := dict "name" "dags" "classpath" "airflow.providers.git.bundles.git.GitDagBundle" "kwargs" $words -}}
{{- with .Values.airflow.dags.volume }}{{ $bundle = dict "name" "dags" "classpath" "muster.ext.dags.bundle.VolumeDagBundle" "kwargs" (dict "volume" .) }}{{ end -}}
{{- list $bundle | toJson -}}
{{- end }}

{{/* The mounts of a container: (list . VALUES LOGS DAGS). */}}
{{- define "muster.airflow.mounts" -}}
{{- $root := index . 0 -}}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /airflow}
{{- if and $root.Values.teams.teams (index . 3) }}
- {name: teams, mountPath: /teams, readOnly: true}
{{- end }}
{{- if index . 2 }}
- {name: claim, mountPath: /logs, subPath: {{ $root.Values.airflow.logs.folder }}}
{{- end }}
{{- if not (index . 3) }}
{{- else if $root.Values.airflow.dags.image }}
- {name: dags, mountPath: /dags, readOnly: true}
{{- else if $root.Values.airflow.dags.claim.name }}
- {name: dags, mountPath: /dags, readOnly: true{{ with $root.Values.airflow.dags.claim.subPath }}, subPath: {{ quote . }}{{ end }}}
{{- end }}
{{- range concat $root.Values.extraVolumeMounts $root.Values.airflow.extraVolumeMounts ((index . 1).extraVolumeMounts | default list) }}
- {{ toJson . }}
{{- end }}
{{- end }}

{{/*
The template of one workload's pod: a dict of
  root       the chart's own `.`
  part       such as scheduler
  values     the part's values
  token      the kind of the store's token that it has: operator, page, or none
  account    the service account that it has, where its token does not say it
  once       whether it runs one task and ends; another pod makes it
  container  its command, ports and probes, as YAML
  logs       whether it writes and reads task logs
  setup      a command of its own before it starts
  ready      for how many seconds it has to run until it counts as ready, where no probe says so
  waits      whether it is a part of Airflow that is always there
  bare       whether it is no part of Airflow: it has none of its settings
  mounts, volumes  more of them
*/}}
{{- define "muster.airflow.pod" -}}
{{- $root := .root -}}{{- $values := .values -}}{{- $airflow := .root.Values.airflow -}}
{{- $app := include "muster.airflow.name" (list $root .part) -}}
metadata: {{- include "muster.podMetadata" (list $root $app) | nindent 2 }}
spec:
  {{- $account := .account | default (empty .token | ternary "airflow" "operator") }}
  serviceAccountName: {{ include "muster.name" (list $root $account) }}
  automountServiceAccountToken: {{ ne $account "airflow" }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .grace | default 30 }}
  {{- with .restart }}
  restartPolicy: {{ . }}
  {{- end }}
  {{- with concat $root.Values.imagePullSecrets ($values.imagePullSecrets | default list) | uniq }}
  imagePullSecrets:
  {{- range . }}
  - {name: {{ quote . }}}
  {{- end }}
  {{- end }}
  {{- with include "muster.placed" (omit $values "tolerations") }}{{ . | nindent 2 }}{{ end }}
  {{- $tolerations := $values.tolerations | default list }}
  {{- if not .restart }}{{/* a Deployment: as of the reaper's, another pod takes its place soon after its node is lost */}}
  {{- range $taint := list "unreachable" "not-ready" }}
  {{- $tolerations = prepend $tolerations (dict "key" (printf "node.kubernetes.io/%s" $taint) "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 30) }}
  {{- end }}
  {{- end }}
  {{- with $tolerations }}
  tolerations: {{ toJson . }}
  {{- end }}
  {{- if hasKey $values "topologySpreadConstraints" }}
  {{- include "muster.spread" (list $root $values $app) | nindent 2 }}
  {{- end }}
  securityContext:
    {{- include "muster.identity" $root | nindent 4 }}
    {{- with $root.Values.user }}
    fsGroup: {{ int . }}
    fsGroupChangePolicy: OnRootMismatch
    {{- end }}
  {{- if .waits }}
  initContainers:
  {{- if .token }}
  - name: token  # made at the start and each hour after it, and counts for six; what runs Dags sees no key
    {{- include "muster.image" $root | nindent 4 }}
    restartPolicy: Always
    command:
    - sh
    - -c
    - |
      umask 077
      trap 'kill $!; exit' TERM
      until python -m muster.volumes.service --key /keys/keys --print-token 0.25 --kind {{ .token }} > /token/new && mv /token/new /token/token; do sleep 1; done
      while sleep 3600 & wait $!; do python -m muster.volumes.service --key /keys/keys --print-token 0.25 --kind {{ .token }} > /token/new && mv /token/new /token/token; done
    env:
    - {name: HOME, value: /tmp}
    - {name: MUSTER_HOME, value: /tmp/home}
    - {name: PYTHONDONTWRITEBYTECODE, value: "1"}
    {{- with $root.Values.extraEnv }}{{ toYaml . | nindent 4 }}{{ end }}
    startupProbe: {exec: {command: [test, -s, /token/token]}, periodSeconds: 1, failureThreshold: 120}
    resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 256Mi}}
    securityContext: {{- include "muster.confined" $root | nindent 6 }}
    volumeMounts:
    - {name: keys, mountPath: /keys, readOnly: true}
    - {name: token, mountPath: /token}
    - {name: own, mountPath: /tmp}  # its home: Python runs what lies there, so no other container mounts it
    {{- with $root.Values.extraVolumeMounts }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- end }}
  {{- if $airflow.dags.image }}
  - name: dags
    image: {{ $airflow.dags.image }}
    command: [cp, -R, {{ printf "%s/." $airflow.dags.path | quote }}, /dags/]
    resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 256Mi}}
    securityContext: {{- include "muster.confined" $root | nindent 6 }}
    volumeMounts: [{name: dags, mountPath: /dags}]
  {{- end }}
  {{- if not .once }}
  - name: tables  # until the database has those of this release
    {{- include "muster.airflow.image" $root | nindent 4 }}
    command:
    - sh
    - -ec
    - |
      {{- with .setup }}
      {{ . }}
      {{- end }}
      {{ include "muster.airflow.answers" . }}
      exec python -m airflow db check-migrations --migration-wait-timeout 600
    env:
    - {name: AIRFLOW__LOGGING__BASE_LOG_FOLDER, value: /airflow/logs}
    {{- with include "muster.airflow.signing" (list $root .part) }}{{ . | nindent 4 }}{{ end }}
    {{- include "muster.airflow.env" $root | nindent 4 }}
    {{- with .setup }}
    {{- include "muster.airflow.kept" (list $root "AIRFLOW_PASSWORD" "password") | nindent 4 }}
    {{- end }}
    {{- with $values.extraEnv }}{{ toYaml . | nindent 4 }}{{ end }}
    resources: {{- toYaml $values.resources | nindent 6 }}
    securityContext: {{- include "muster.confined" $root | nindent 6 }}
    volumeMounts: {{- include "muster.airflow.mounts" (list $root $values false true) | nindent 4 }}
  {{- end }}
  {{- end }}
  containers:
  - name: {{ empty .once | ternary .part "base" }}
    {{- include "muster.airflow.image" $root | nindent 4 }}
    {{- .container | nindent 4 }}
    env:
    {{- if .bare }}
    - {name: HOME, value: /tmp}
    - {name: PYTHONDONTWRITEBYTECODE, value: "1"}
    {{- with $root.Values.extraEnv }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- else }}
    - {name: AIRFLOW__LOGGING__BASE_LOG_FOLDER, value: {{ if .logs }}/logs{{ else }}/airflow/logs{{ end }}}
    {{- with include "muster.airflow.signing" (list $root .part) }}{{ . | nindent 4 }}{{ end }}
    {{- include "muster.airflow.env" $root | nindent 4 }}
    {{- end }}
    {{- with $values.extraEnv }}{{ toYaml . | nindent 4 }}{{ end }}
    resources: {{- toYaml $values.resources | nindent 6 }}
    securityContext: {{- include "muster.confined" $root | nindent 6 }}
    volumeMounts:
    {{- include "muster.airflow.mounts" (list $root $values .logs .waits) | nindent 4 }}
    {{- if .token }}
    - {name: token, mountPath: /token, readOnly: true}
    {{- end }}
    {{- with .mounts }}{{ . | nindent 4 }}{{ end }}
  volumes:
  - {name: tmp, emptyDir: {}}
  - {name: home, emptyDir: {}}
  {{- range .volumes }}
  - {{ toJson . }}
  {{- end }}
  {{- if or .logs .claim }}
  - {name: claim, persistentVolumeClaim: {claimName: {{ include "muster.claim" $root | quote }}}}
  {{- end }}
  {{- if .token }}
  - {name: keys, secret: {secretName: {{ include "muster.keys" $root | quote }}, defaultMode: 0440}}
  - {name: token, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: own, emptyDir: {sizeLimit: 16Mi}}
  {{- end }}
  {{- if and .waits $root.Values.teams.teams }}
  - {name: teams, configMap: {name: {{ include "muster.name" (list $root "teams") }}}}
  {{- end }}
  {{- if not .waits }}
  {{- else if $airflow.dags.image }}
  - {name: dags, emptyDir: {}}
  {{- else if $airflow.dags.claim.name }}
  - {name: dags, persistentVolumeClaim: {claimName: {{ quote $airflow.dags.claim.name }}, readOnly: true}}
  {{- end }}
  {{- range concat $root.Values.extraVolumes $airflow.extraVolumes ($values.extraVolumes | default list) }}
  - {{ toJson . }}
  {{- end }}
{{- end }}

{{/* One part of Airflow that is always there: the dict of `muster.airflow.pod`. Where there are more of it, a drain takes so many at a time. */}}
{{- define "muster.airflow.deployment" -}}
{{- $root := .root -}}
{{- $name := printf "airflow-%s" .part -}}
{{- $app := include "muster.name" (list $root $name) -}}
apiVersion: apps/v1
kind: Deployment
metadata: {{- include "muster.metadata" (list $root $name) | nindent 2 }}
spec:
  replicas: {{ .values.replicas }}
  {{- with .ready }}
  minReadySeconds: {{ . }}  # it answers nobody who could say that it has begun
  {{- end }}
  selector: {matchLabels: {app: {{ $app }}}}
  template: {{- include "muster.airflow.pod" (merge (dict "waits" true) .) | nindent 4 }}
{{- if gt (int .values.replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "muster.metadata" (list $root $name) | nindent 2 }}
spec:
  maxUnavailable: {{ .values.maxUnavailable }}
  selector: {matchLabels: {app: {{ $app }}}}
{{- end }}
{{- end }}

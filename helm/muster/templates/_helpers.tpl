{{/* The prefix of all names of a release: the release `muster` has muster-store, muster-operator, … */}}
{{- define "muster.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end }}

{{- define "muster.labels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
app.kubernetes.io/part-of: muster
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The metadata of a namespaced object. (list . "store") makes muster-store. */}}
{{- define "muster.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "muster.name" . }}
namespace: {{ $root.Release.Namespace | quote }}
labels: {{- include "muster.labels" $root | nindent 2 }}
{{- end }}

{{/* The metadata of a cluster-wide object. */}}
{{- define "muster.clusterMetadata" -}}
name: {{ include "muster.name" . }}
labels: {{- include "muster.labels" (index . 0) | nindent 2 }}
{{- end }}

{{- define "muster.name" -}}
{{- printf "%s-%s" (include "muster.fullname" (index . 0)) (index . 1) -}}
{{- end }}

{{- define "muster.claim" -}}
{{- .Values.claim.name | default (include "muster.name" (list . "store")) -}}
{{- end }}

{{/* The Secret with the store's keys. Pods of jobs may name no Secret muster-…, whatever the release's name. */}}
{{- define "muster.keys" -}}
{{- $own := include "muster.name" (list . "store") -}}
{{- .Values.store.existingSecret | default (hasPrefix "muster-" $own | ternary $own (printf "muster-%s" $own)) -}}
{{- end }}

{{/* The address of the store service for pods of the cluster. */}}
{{- define "muster.storeUrl" -}}
http://{{ include "muster.name" (list . "store") }}.{{ .Release.Namespace }}
{{- end }}

{{/* The security context of muster's own pods, as Pod Security's `restricted` requires. */}}
{{- define "muster.identity" -}}
runAsNonRoot: true
{{- with .Values.user }}
runAsUser: {{ int . }}
runAsGroup: {{ int . }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "muster.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "muster.image" -}}
image: {{ .Values.image }}
{{- with .Values.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "muster.pull" -}}
{{- with .Values.imagePullSecrets -}}
imagePullSecrets:
{{- range . }}
- {name: {{ quote . }}}
{{- end }}
{{- end }}
{{- end }}

{{/* The cluster file of pods that use the command, as text: (list . TOKEN-FILE [MORE-LINES]). */}}
{{- define "muster.clusterFile" -}}
{{- $root := index . 0 -}}
namespace = {{ $root.Release.Namespace | quote }}
claim = {{ include "muster.claim" $root | quote }}
folder = {{ $root.Values.store.folder | quote }}
store_url = {{ include "muster.storeUrl" $root | quote }}
token_file = {{ index . 1 | quote }}
{{- if gt (len .) 2 }}
{{ index . 2 }}
{{- end }}
{{- end }}

{{/* The metadata of one of muster's own pods: (list . APP [CONFIG]). A changed CONFIG, which the pod mounts, makes a new pod. */}}
{{- define "muster.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $notes := $root.Values.podAnnotations | default dict -}}
{{- if gt (len .) 2 }}{{ $notes = merge (dict "checksum/config" (index . 2 | sha256sum)) $notes }}{{ end -}}
labels:
  app: {{ index . 1 }}
  {{- with $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $notes }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Spread the pods of one app over nodes where possible, unless the values say how: (list . VALUES APP). */}}
{{- define "muster.spread" -}}
{{- $values := index . 1 -}}
topologySpreadConstraints:
{{- range $values.topologySpreadConstraints }}
- {{ toJson . }}
{{- else }}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector: {matchLabels: {app: {{ index . 2 }}}}
{{- end }}
{{- end }}

{{/* nodeSelector, tolerations and affinity of a pod, from the values. */}}
{{- define "muster.placed" -}}
{{- $lines := list }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with index $ $field }}{{ $lines = append $lines (printf "%s: %s" $field (toJson .)) }}{{ end }}
{{- end }}
{{- join "\n" $lines }}
{{- end }}

{{/* What a cluster file, or a connection of Airflow's, says of this release where pods use it, as JSON. Who reads it adds a token. */}}
{{- define "muster.site" -}}
{{- $site := dict "namespace" .Release.Namespace "claim" (include "muster.claim" .) "store_url" (include "muster.storeUrl" .) "service_account" (include "muster.name" (list . "job")) -}}
{{- $_ := set $site "image_prefix" (contains "/" (.Values.image | toString) | ternary (regexReplaceAll "/[^/]*$" (.Values.image | toString) "") "REGISTRY") -}}
{{- if ne .Values.store.folder "store" }}{{ $_ = set $site "folder" .Values.store.folder }}{{ end -}}
{{- with .Values.imagePullSecrets }}{{ $_ = set $site "image_pull_secrets" . }}{{ end -}}
{{- if not .Values.user }}{{ $_ = set $site "user" "any" }}{{ else if ne (int .Values.user) 10001 }}{{ $_ = set $site "user" (int .Values.user) }}{{ end -}}
{{- if ne .Values.gpuResource "nvidia.com/gpu" }}{{ $_ = set $site "gpu_resource" .Values.gpuResource }}{{ end -}}
{{- if .Values.queues.enabled }}{{ with include "muster.unowned" . | fromJsonArray }}{{ $_ = set $site "queue" (first .) }}{{ end }}{{ end -}}
{{- if .Values.serving.enabled }}
{{- $_ = set $site "serving" .Values.serving.platform -}}
{{- if .Values.serving.gateway }}
{{- $_ = set $site "gateway" .Values.serving.gateway -}}
{{- $_ = set $site "serving_url" (.Values.serving.url | default "https://{name}.models.example") -}}
{{- end -}}
{{- end -}}
{{- toJson $site -}}
{{- end }}

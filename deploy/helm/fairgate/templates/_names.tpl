{{/* Names, labels, and what more than one template needs. */}}
{{- define "fairgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "fairgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "fairgate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "fairgate.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "fairgate.engines" -}}
{{ include "fairgate.fullname" . }}-engines
{{- end }}

{{- define "fairgate.selector" -}}
app.kubernetes.io/name: {{ include "fairgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fairgate.labels" -}}
{{ include "fairgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* REPOSITORY:TAG or REPOSITORY@DIGEST of a dict of both and a default tag. */}}
{{- define "fairgate.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .tag .image.tag }}
{{- end -}}
{{- end }}

{{- define "fairgate.clustered" -}}
{{- if or .Values.redis.url .Values.redis.inSecret }}yes{{ end -}}
{{- end }}

{{/* What every container gets: nothing that it could use against the node. */}}
{{- define "fairgate.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* fairgate.yaml: what the chart knows, and over it what the values say. */}}
{{- define "fairgate.config" -}}
{{- $made := dict "listen" (dict "host" "0.0.0.0" "port" 8080) -}}
{{- if .Values.redis.url -}}
{{- $_ := set $made "redis" (dict "url" .Values.redis.url) -}}
{{- $_ := set $made "store" (dict "url" .Values.redis.url) -}}
{{- else if not .Values.redis.inSecret -}}
{{- $_ := set $made "store" (dict "url" "sqlite:////var/lib/fairgate/fairgate.db") -}}
{{- end -}}
{{- with .Values.engines -}}
{{- if .enabled -}}
{{- $replica := dict "dns" (printf "%s:8000" (include "fairgate.engines" $)) "engine" "vllm" "max_num_seqs" (int .maxNumSeqs) -}}
{{- if eq .kind "vllm" -}}
{{- $_ := set $replica "api_key_env" "VLLM_API_KEY" -}}
{{- end -}}
{{- $model := dict "name" .model "aliases" .aliases "replicas" (list $replica) -}}
{{- $_ := set $made "models" (list $model) -}}
{{- if ne .autoscaling.kind "none" -}}
{{- $_ := set $made "scaling" (dict "min" (int .autoscaling.min) "max" (int .autoscaling.max)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml (mergeOverwrite $made (deepCopy .Values.config)) -}}
{{- end }}

{{/* What cannot work is refused before it is applied. */}}
{{- define "fairgate.refusals" -}}
{{- $several := or (gt (int .Values.gateway.replicas) 1) .Values.gateway.autoscaling.enabled -}}
{{- if and $several (not (include "fairgate.clustered" .)) -}}
{{- fail "gateway.replicas above 1 needs redis.url or redis.inSecret: without Redis each gateway would have a queue, gates and limits of its own" -}}
{{- end -}}
{{- if and .Values.redis.url .Values.redis.inSecret -}}
{{- fail "redis.url and redis.inSecret: one of the two" -}}
{{- end -}}
{{- if and $several .Values.gateway.persistence.enabled -}}
{{- fail "gateway.persistence is for one gateway: several keep their store in Redis" -}}
{{- end -}}
{{- with .Values.engines.autoscaling -}}
{{- if gt (int .min) (int .max) -}}
{{- fail "engines.autoscaling.min is above max" -}}
{{- end -}}
{{- if and (eq .kind "hpa") (eq (int .min) 0) -}}
{{- fail "engines.autoscaling.min: 0 needs kind: keda, an HPA does not start from none" -}}
{{- end -}}
{{- end -}}
{{- if and (ne .Values.engines.autoscaling.kind "none") (not .Values.engines.enabled) -}}
{{- fail "engines.autoscaling scales the engines of this chart: set engines.enabled" -}}
{{- end -}}
{{- end }}

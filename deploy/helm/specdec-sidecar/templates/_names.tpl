{{- define "specdec-sidecar.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* vLLM's own objects have this name; 40 characters leave room for what the others add. */}}
{{- define "specdec-sidecar.fullname" -}}
{{ .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* The name of a monitoring object: the release's, and the chart's unless that has it. */}}
{{- define "specdec-sidecar.monitoringName" -}}
{{- $full := include "specdec-sidecar.fullname" . -}}
{{- $name := include "specdec-sidecar.name" . -}}
{{ ternary $full (printf "%s-%s" $full $name) (contains $name $full) | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "specdec-sidecar.settingsName" -}}
{{ include "specdec-sidecar.fullname" . }}-specdec-settings
{{- end }}

{{- define "specdec-sidecar.metricsName" -}}
{{ include "specdec-sidecar.fullname" . }}-metrics
{{- end }}

{{/* Where the sidecar listens. The Pod's variable overrides the setting, as in the sidecar. */}}
{{- define "specdec-sidecar.listen" -}}
{{- $listen := .Values.settings.listen | default "0.0.0.0:9911" -}}
{{- range .Values.env -}}
{{- if eq .name "SPECDEC_LISTEN" -}}
{{- if .valueFrom -}}
{{- fail "SPECDEC_LISTEN with valueFrom: the ports of the Pod follow it, so give its value" -}}
{{- end -}}
{{- $listen = .value | default $listen -}}
{{- end -}}
{{- end -}}
{{- if regexMatch "^(localhost|127\\.[0-9.]+|\\[::1\\]):" $listen -}}
{{- fail (printf "listen %s: the kubelet and Prometheus could not reach the sidecar there" $listen) -}}
{{- end -}}
{{ $listen }}
{{- end }}

{{/* The port of it, by its number: a Service before Kubernetes 1.32 and the NetworkPolicies of Calico, Linkerd and Istio do not
find the name of a port that only a native sidecar has. */}}
{{- define "specdec-sidecar.port" -}}
{{- $listen := include "specdec-sidecar.listen" . -}}
{{- $port := regexFind "[0-9]+$" $listen | int -}}
{{- if or (lt $port 1) (gt $port 65535) -}}
{{- fail (printf "listen %s: the sidecar needs a port from 1 to 65535" $listen) -}}
{{- end -}}
{{ $port }}
{{- end }}

{{/* The plug-in's socket by a container's variables; an empty one is as none. Takes (variables, the socket without one). */}}
{{- define "specdec-sidecar.socket" -}}
{{- $socket := index . 1 -}}
{{- range index . 0 -}}
{{- if eq .name "SPECDEC_PLUGIN__SOCKET" -}}
{{- if .valueFrom -}}
{{- fail "SPECDEC_PLUGIN__SOCKET with valueFrom: vLLM and the sidecar need the same socket, so give its value or leave it out" -}}
{{- end -}}
{{- $socket = .value | default (index $ 1) -}}
{{- end -}}
{{- end -}}
{{ $socket }}
{{- end }}

{{/* The directory of that socket, the only one that both containers have a volume for. */}}
{{- define "specdec-sidecar.socketDirectory" -}}
{{- $default := "/run/specdec/plugin.sock" -}}
{{- $sidecars := include "specdec-sidecar.socket" (list .Values.env ((.Values.settings.plugin).socket | default $default)) -}}
{{- $vllms := include "specdec-sidecar.socket" (list .Values.vllm.env $default) -}}
{{- if or (ne $sidecars $vllms) (not (regexMatch "^/run/specdec/[^/]+$" $sidecars)) -}}
{{- fail (printf "the sidecar listens at %s (plugin.socket), and the plug-in in vLLM connects to %s (SPECDEC_PLUGIN__SOCKET in vllm.env): both need the same socket in /run/specdec, where they share a volume; leave both out" $sidecars $vllms) -}}
{{- end -}}
/run/specdec
{{- end }}

{{- define "specdec-sidecar.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (ternary (include "specdec-sidecar.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* What selects the Pods; the labels that are on them. */}}
{{- define "specdec-sidecar.selectorLabels" -}}
app.kubernetes.io/name: {{ include "specdec-sidecar.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: vllm
{{- end }}

{{/* An object's metadata but for its name. Takes (context, component, labels, annotations). */}}
{{- define "specdec-sidecar.metadata" -}}
{{- $ := index . 0 -}}
namespace: {{ $.Release.Namespace }}
labels:
  app.kubernetes.io/name: {{ include "specdec-sidecar.name" $ }}
  app.kubernetes.io/instance: {{ $.Release.Name }}
  app.kubernetes.io/component: {{ index . 1 }}
  app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ $.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
  {{- with mergeOverwrite (dict) $.Values.commonLabels (index . 2) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with mergeOverwrite (dict) $.Values.commonAnnotations (index . 3) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The kind of monitor, "auto" resolved by what the cluster has. */}}
{{- define "specdec-sidecar.scrapeKind" -}}
{{- $has := .Capabilities.APIVersions -}}
{{- if ne .Values.scrape.kind "auto" -}}
{{ .Values.scrape.kind }}
{{- else if or ($has.Has "monitoring.coreos.com/v1/PodMonitor") ($has.Has "azmonitoring.coreos.com/v1/PodMonitor") -}}
PodMonitor
{{- else if $has.Has "operator.victoriametrics.com/v1beta1/VMPodScrape" -}}
VMPodScrape
{{- else if $has.Has "monitoring.googleapis.com/v1/PodMonitoring" -}}
PodMonitoring
{{- else -}}
none
{{- end -}}
{{- end }}

{{/* The API of a PodMonitor or ServiceMonitor; Azure Monitor has its own. */}}
{{- define "specdec-sidecar.monitorApi" -}}
{{- $has := .Capabilities.APIVersions -}}
{{- $operator := "monitoring.coreos.com/v1" -}}
{{- $azure := "azmonitoring.coreos.com/v1" -}}
{{- $kind := include "specdec-sidecar.scrapeKind" . -}}
{{- $onlyAzure := and ($has.Has (printf "%s/%s" $azure $kind)) (not ($has.Has (printf "%s/%s" $operator $kind))) -}}
{{ .Values.scrape.apiVersion | default (ternary $azure $operator $onlyAzure) }}
{{- end }}

{{/* "true" if PrometheusRules are installed. */}}
{{- define "specdec-sidecar.rules" -}}
{{- if eq (toString .Values.rules.enabled) "auto" -}}
{{ .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PrometheusRule" }}
{{- else -}}
{{ .Values.rules.enabled }}
{{- end -}}
{{- end }}

{{- define "specdec-sidecar.podSelector" -}}
{{- if .Values.vllm.enabled }}
matchLabels:
  {{- include "specdec-sidecar.selectorLabels" . | nindent 2 }}
{{- else if .Values.scrape.podLabels }}
matchLabels:
  {{- toYaml .Values.scrape.podLabels | nindent 2 }}
{{- else }}
matchLabels: {}
{{- end }}
{{- end }}

{{/*
What a Pod with vLLM needs of the sidecar. Each takes this chart's own context, so another chart that depends on this one
includes them with (index .Subcharts "specdec-sidecar").
*/}}

{{- define "specdec-sidecar.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "specdec-sidecar.settingsName" -}}
{{ .Release.Name }}-specdec-settings
{{- end }}

{{- define "specdec-sidecar.securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "specdec-sidecar.initContainers" -}}
{{- if eq .Values.source "middleware" }}
- name: specdec-middleware
  image: {{ include "specdec-sidecar.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [middleware, --write, /specdec/specdec_middleware.py]
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    {{- include "specdec-sidecar.securityContext" . | nindent 4 }}
  volumeMounts:
    - name: specdec-middleware
      mountPath: /specdec
{{- end }}
- name: specdec-sidecar
  image: {{ include "specdec-sidecar.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  {{- if .Values.settings }}
  args: [run, --config, /etc/specdec/settings.yaml]
  {{- end }}
  env:
    - name: SPECDEC_VLLM_URL
      value: http://127.0.0.1:{{ .Values.vllm.port }}
    - name: SPECDEC_LOG__FORMAT
      value: json
    {{- if ne .Values.source "none" }}
    - name: SPECDEC_REQUESTS__SOURCE
      value: {{ .Values.source }}
    {{- end }}
    {{- if eq .Values.source "middleware" }}
    - name: SPECDEC_MIDDLEWARE__SOCKET
      value: /run/specdec/events.sock
    {{- else if eq .Values.source "proxy" }}
    - name: SPECDEC_PROXY__LISTEN
      value: 0.0.0.0:8080
    - name: SPECDEC_PROXY__DRAIN_TIMEOUT
      value: 30s
    {{- else if eq .Values.source "traces" }}
    - name: SPECDEC_TRACES__LISTEN
      value: 127.0.0.1:4318
    {{- end }}
    {{- with .Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: specdec-metrics
      containerPort: 9911
    {{- if eq .Values.source "proxy" }}
    - name: proxy
      containerPort: 8080
    {{- end }}
  livenessProbe:
    httpGet:
      path: /-/healthy
      port: specdec-metrics
    initialDelaySeconds: 15
    periodSeconds: 15
    timeoutSeconds: 5
  {{- if eq .Values.source "proxy" }}
  startupProbe:
    httpGet:
      path: /-/healthy
      port: specdec-metrics
    periodSeconds: 1
    failureThreshold: 60
  readinessProbe:
    httpGet:
      path: /health
      port: proxy
    periodSeconds: 5
    timeoutSeconds: 5
  {{- end }}
  resources:
    {{- toYaml (ternary .Values.proxyResources .Values.resources (eq .Values.source "proxy")) | nindent 4 }}
  securityContext:
    {{- include "specdec-sidecar.securityContext" . | nindent 4 }}
  {{- if or .Values.settings (eq .Values.source "middleware") }}
  volumeMounts:
    {{- if .Values.settings }}
    # The whole folder, not a subPath: Kubernetes updates only the former, and the sidecar then reloads its thresholds.
    - name: specdec-settings
      mountPath: /etc/specdec
      readOnly: true
    {{- end }}
    {{- if eq .Values.source "middleware" }}
    - name: specdec-socket
      mountPath: /run/specdec
    {{- end }}
  {{- end }}
{{- end }}

{{- define "specdec-sidecar.volumes" -}}
{{- if .Values.settings }}
- name: specdec-settings
  configMap:
    name: {{ include "specdec-sidecar.settingsName" . }}
{{- end }}
{{- if eq .Values.source "middleware" }}
- name: specdec-middleware
  emptyDir:
    sizeLimit: 1Mi
- name: specdec-socket
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- end }}
{{- end }}

{{/* For vLLM's own container: */}}

{{- define "specdec-sidecar.vllmArgs" -}}
{{- if eq .Values.source "middleware" }}
- --middleware=specdec_middleware.ObserveRequests
{{- else if eq .Values.source "traces" }}
- --otlp-traces-endpoint=http://127.0.0.1:4318/v1/traces
{{- end }}
{{- if and .Values.vllm.perRequestMetrics (has .Values.source (list "middleware" "proxy")) }}
- --per-request-spec-decode-metrics=summary
{{- end }}
{{- end }}

{{- define "specdec-sidecar.vllmEnv" -}}
{{- if eq .Values.source "middleware" }}
- name: PYTHONPATH
  value: /specdec
- name: SPECDEC_MIDDLEWARE__SOCKET
  value: /run/specdec/events.sock
{{- else if eq .Values.source "traces" }}
- name: OTEL_EXPORTER_OTLP_TRACES_PROTOCOL
  value: http/protobuf
- name: OTEL_SERVICE_NAME
  value: vllm
{{- end }}
{{- end }}

{{- define "specdec-sidecar.vllmVolumeMounts" -}}
{{- if eq .Values.source "middleware" }}
- name: specdec-middleware
  mountPath: /specdec
  readOnly: true
- name: specdec-socket
  mountPath: /run/specdec
  readOnly: true
{{- end }}
{{- end }}

{{/* The port to which the Service and the NetworkPolicy lead clients; they never bypass a proxy. */}}
{{- define "specdec-sidecar.clientPort" -}}
{{ ternary "proxy" "http" (eq .Values.source "proxy") }}
{{- end }}

{{- define "specdec-sidecar.labels" -}}
app.kubernetes.io/name: vllm
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

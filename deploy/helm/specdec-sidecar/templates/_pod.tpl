{{/*
What a Pod with vLLM needs of the sidecar. Each takes this chart's own context, so another chart that depends on this one
includes them with (index .Subcharts "specdec-sidecar").
*/}}

{{- define "specdec-sidecar.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "specdec-sidecar.initContainers" -}}
{{- if .Values.plugin.enabled }}
# Writes the plug-in of the sidecar's own version. The running sidecar does not mount the directory, so it cannot put code into
# vLLM.
- name: specdec-plugin
  image: {{ include "specdec-sidecar.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [plugin, /plugin]
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    - name: specdec-plugin
      mountPath: /plugin
{{- end }}
{{- if .Values.nativeSidecar }}
{{ include "specdec-sidecar.container" . }}
{{- end }}
{{- end }}

{{/* For the Pod's own containers: the sidecar, unless it is a native one. */}}
{{- define "specdec-sidecar.containers" -}}
{{- if not .Values.nativeSidecar -}}
{{ include "specdec-sidecar.container" . }}
{{- end }}
{{- end }}

{{- define "specdec-sidecar.container" -}}
- name: specdec-sidecar
  image: {{ include "specdec-sidecar.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if .Values.nativeSidecar }}
  restartPolicy: Always
  {{- end }}
  # vLLM waits for the sidecar to start, so a setting that it cannot use must not stop it.
  args: [run, --ignore-invalid-settings]
  env:
    {{- /* Its own variables take the place of these: Helm 4 installs no container with two variables of one name. */}}
    {{- $set := list }}
    {{- range .Values.env }}{{ $set = append $set .name }}{{ end }}
    {{- if and .Values.settings (not (has "SPECDEC_CONFIG" $set)) }}
    # For `run`, and for `report` and `check` in this container.
    - name: SPECDEC_CONFIG
      value: /etc/specdec/settings.yaml
    {{- end }}
    {{- if not (or .Values.settings.vllm_url (has "SPECDEC_VLLM_URL" $set)) }}
    - name: SPECDEC_VLLM_URL
      value: http://127.0.0.1:{{ .Values.vllm.port }}
    {{- end }}
    {{- if not (or (.Values.settings.log).format (has "SPECDEC_LOG__FORMAT" $set)) }}
    - name: SPECDEC_LOG__FORMAT
      value: json
    {{- end }}
    {{- with .Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: specdec-metrics
      containerPort: {{ include "specdec-sidecar.port" . }}
  # No startup probe, because vLLM would wait for it, and no readiness probe, because it could take the Pod out of service.
  livenessProbe:
    httpGet:
      path: /-/healthy
      port: specdec-metrics
      {{- if ne .Values.scheme "HTTP" }}
      scheme: {{ .Values.scheme }}
      {{- end }}
    initialDelaySeconds: 15
    periodSeconds: 15
    timeoutSeconds: 5
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  {{- if or .Values.settings .Values.plugin.enabled .Values.volumeMounts }}
  volumeMounts:
    {{- if .Values.settings }}
    # The whole directory, not a subPath: Kubernetes updates only the former, and the sidecar then reloads its thresholds.
    - name: specdec-settings
      mountPath: /etc/specdec
      readOnly: true
    {{- end }}
    {{- if .Values.plugin.enabled }}
    - name: specdec-socket
      mountPath: {{ include "specdec-sidecar.socketDirectory" . }}
    {{- end }}
    {{- with .Values.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end }}

{{- define "specdec-sidecar.volumes" -}}
{{- if .Values.settings }}
- name: specdec-settings
  configMap:
    name: {{ include "specdec-sidecar.settingsName" . }}
{{- end }}
{{- if .Values.plugin.enabled }}
- name: specdec-plugin
  emptyDir:
    sizeLimit: 1Mi
- name: specdec-socket
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- end }}
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The Pod's annotations, for scrape.kind "annotations". */}}
{{- define "specdec-sidecar.podAnnotations" -}}
{{- if eq (include "specdec-sidecar.scrapeKind" .) "annotations" }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ include "specdec-sidecar.port" . | quote }}
prometheus.io/scheme: {{ lower .Values.scheme }}
{{- end }}
{{- end }}

{{/* For vLLM's own container. Its own variables come last and win, so they must let vLLM find the plug-in. A PYTHONPATH among
them is part of this one: Helm 4 installs no container with two variables of one name. */}}
{{- define "specdec-sidecar.vllmEnv" -}}
{{- if .Values.plugin.enabled }}
{{- $path := join ":" (compact (list "/plugin" .Values.plugin.pythonPath)) }}
{{- range .Values.vllm.env }}
{{- if eq .name "PYTHONPATH" }}
{{- $path = .value | default "" | replace "$(PYTHONPATH)" $path }}
{{- if not (regexMatch "(^|:)/plugin/*(:|$)" $path) }}
{{- fail "vllm.env has PYTHONPATH, without which vLLM does not find the plug-in: set plugin.pythonPath instead" }}
{{- end }}
{{- end }}
{{- if and (eq .name "VLLM_PLUGINS") (not .valueFrom) (not (has "specdec" (splitList "," (.value | default "")))) }}
{{- fail "vllm.env has VLLM_PLUGINS without specdec: add it, or set plugin.enabled to false" }}
{{- end }}
{{- end }}
- name: PYTHONPATH
  value: {{ $path | quote }}
{{- end }}
{{- end }}

{{- define "specdec-sidecar.vllmVolumeMounts" -}}
{{- if .Values.plugin.enabled }}
- name: specdec-plugin
  mountPath: /plugin
  readOnly: true
# A socket accepts connections on a read-only mount too, and vLLM cannot replace it.
- name: specdec-socket
  mountPath: {{ include "specdec-sidecar.socketDirectory" . }}
  readOnly: true
{{- end }}
{{- end }}

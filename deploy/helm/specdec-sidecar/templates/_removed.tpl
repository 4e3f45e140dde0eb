{{/*
Values and settings that are gone are refused by name before anything is rolled out: an unknown value would otherwise read
as a typing error, and an unknown setting would stop the sidecar only once it runs.
*/}}
{{- define "specdec-sidecar.refuseRemoved" -}}
{{- $found := list }}
{{- range list "source" "proxyResources" "podMonitor" }}
{{- if hasKey $.Values . }}{{ $found = append $found . }}{{ end }}
{{- end }}
{{- if hasKey .Values.vllm "perRequestMetrics" }}{{ $found = append $found "vllm.perRequestMetrics" }}{{ end }}
{{- range list "requests" "proxy" "middleware" "traces" "targets" "default_temperature" }}
{{- if hasKey $.Values.settings . }}{{ $found = append $found (printf "settings.%s" .) }}{{ end }}
{{- end }}
{{- range .Values.env }}
{{- if regexMatch "^SPECDEC_((REQUESTS|PROXY|MIDDLEWARE|TRACES)__.*|TARGETS|DEFAULT_TEMPERATURE)$" .name }}{{ $found = append $found (printf "env %s" .name) }}{{ end }}
{{- end }}
{{- if $found }}
{{- fail (printf "%s: removed. The plug-in in vLLM now reports each request's acceptance, and the sidecar forwards no requests: point clients at vLLM's own port first, then delete these values. plugin.enabled replaces source, and scrape.kind replaces podMonitor (see CHANGELOG)." (join ", " $found)) }}
{{- end }}
{{- end }}

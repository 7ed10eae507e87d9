{{/* The release's name, unless it has the chart's in it already. */}}
{{- define "sluice.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluice.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels by which the broker's pods are found. */}}
{{- define "sluice.selector" -}}
{{- if .Values.broker.create -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: broker
{{- else -}}
{{- if not .Values.existing.selector }}{{ fail "existing.selector: give the labels of the broker's pods" }}{{ end -}}
{{ toYaml .Values.existing.selector }}
{{- end -}}
{{- end -}}

{{- define "sluice.tokenSecret" -}}
{{ default (printf "%s-tokens" (include "sluice.fullname" .)) .Values.tokens.existingSecret }}
{{- end -}}

{{- define "sluice.podAddress" -}}
{{ ternary "[${POD_IP}]" "${POD_IP}" .Values.ipv6 }}
{{- end -}}

{{/* sluice.toml: first what Kubernetes needs of it, then what the values say. */}}
{{- define "sluice.configuration" -}}
# Made by Helm; `config` and `listeners` of the values are what to change.
limiting = {{ .Values.limiting }}
reload_on_change = true
grace_s = {{ .Values.graceSeconds }}
state_dir = "/var/lib/sluice/state"

[admin]
listen = "{{ ternary "[::]" "0.0.0.0" .Values.ipv6 }}:{{ .Values.admin.port }}"
token_file = "/etc/sluice-tokens/tokens"
public_metrics = {{ .Values.admin.publicMetrics }}
{{- $service := printf "%s-admin" (include "sluice.fullname" .) }}
{{- $own := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) }}
allowed_hosts = {{ concat $own .Values.admin.allowedHosts | toJson }}
{{- if .Values.admin.tlsSecret }}
tls_certificate_file = "/etc/sluice-tls/tls.crt"
tls_key_file = "/etc/sluice-tls/tls.key"
{{- end }}
{{- if not (regexMatch "(?m)^\\s*\\[spool\\]" .Values.config) }}

[spool]
max_disk_bytes = {{ int64 .Values.state.spoolBytes }}
{{- end }}
{{- range .Values.listeners }}

[[listeners]]
name = {{ .name | toJson }}
listen = "{{ include "sluice.podAddress" $ }}:{{ .port }}"
broker = "127.0.0.1:{{ .port }}"
{{- if .tlsSecret }}
{{- if not (regexMatch "(?m)^\\s*tls\\s*=" (default "" .settings)) }}
tls = "require"
{{- end }}
tls_certificate_file = "/etc/sluice-tls-{{ .name }}/tls.crt"
tls_key_file = "/etc/sluice-tls-{{ .name }}/tls.key"
{{- end }}
{{- with .settings }}
{{ . | trim }}
{{- end }}
{{- end }}

{{ .Values.config }}
{{- end -}}

{{/* The native sidecar, one item of initContainers. */}}
{{- define "sluice.container" -}}
- name: sluice
  image: "{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}"
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args: [run, --config, /etc/sluice/sluice.toml]
  env:
    - name: POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    - name: SLUICE_REJECTION_LOG_INSTANCE
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    {{- with .Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    {{- range .Values.listeners }}
    - {name: {{ printf "sluice-%s" .name | trunc 15 | trimSuffix "-" }}, containerPort: {{ .port }}}
    {{- end }}
    - {name: sluice-admin, containerPort: {{ .Values.admin.port }}}
  {{- range $probe := list "startupProbe" "livenessProbe" "readinessProbe" }}
  {{- $given := deepCopy (index $.Values $probe) }}
  {{- if and $.Values.admin.tlsSecret $given.httpGet }}
  {{- $_ := set $given.httpGet "scheme" "HTTPS" }}
  {{- end }}
  {{ $probe }}:
    {{- toYaml $given | nindent 4 }}
  {{- end }}
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  # No subPath anywhere: what is mounted by one is never changed.
  volumeMounts:
    - {name: sluice-config, mountPath: /etc/sluice, readOnly: true}
    - {name: sluice-tokens, mountPath: /etc/sluice-tokens, readOnly: true}
    {{- if .Values.admin.tlsSecret }}
    - {name: sluice-tls, mountPath: /etc/sluice-tls, readOnly: true}
    {{- end }}
    {{- range .Values.listeners }}
    {{- if .tlsSecret }}
    - {name: sluice-tls-{{ .name }}, mountPath: /etc/sluice-tls-{{ .name }}, readOnly: true}
    {{- end }}
    {{- end }}
    - {name: sluice-state, mountPath: /var/lib/sluice}
{{- end -}}

{{/* Its volumes, but for that of the state. */}}
{{- define "sluice.volumes" -}}
- name: sluice-config
  configMap: {name: {{ include "sluice.fullname" . }}}
- name: sluice-tokens
  secret:
    secretName: {{ include "sluice.tokenSecret" . }}
    items: [{key: {{ .Values.tokens.key | quote }}, path: tokens}]
{{- with .Values.admin.tlsSecret }}
- name: sluice-tls
  secret: {secretName: {{ . }}}
{{- end }}
{{- range .Values.listeners }}
{{- if .tlsSecret }}
- name: sluice-tls-{{ .name }}
  secret: {secretName: {{ .tlsSecret }}}
{{- end }}
{{- end }}
{{- end -}}

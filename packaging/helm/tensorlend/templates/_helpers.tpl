{{/* The name of an object: release and part. */}}
{{- define "tensorlend.name" -}}
{{ printf "%s-%s" .root.Release.Name .part | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tensorlend.labels" -}}
app.kubernetes.io/name: tensorlend
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "tensorlend.metadata" -}}
name: {{ include "tensorlend.name" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "tensorlend.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* The image of a program. Dashboard and backups use the daemon's. */}}
{{- define "tensorlend.image" -}}
{{- $image := .root.Values.image -}}
{{- $digest := index $image.digests .program -}}
{{- $name := get (dict "daemon" "tensorlendd" "gateway" "tensorlend-gateway" "runner" "tensorlend-runner") .program -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $name }}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Requests that equal limits. */}}
{{- define "tensorlend.resources" -}}
resources:
  requests: {{ toJson . }}
  limits: {{ toJson . }}
{{- end }}

{{- define "tensorlend.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
{{- end }}

{{/* What the pods of all parts have. */}}
{{- define "tensorlend.pod" -}}
automountServiceAccountToken: false
# The kernel reports the uids of clients as the daemon's user namespace has them: it must be the node's.
hostUsers: true
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .uid }}
  runAsGroup: {{ .uid }}
  {{- if .fsGroup }}
  # Makes the token, or the volume of backups, accessible for this group.
  fsGroup: {{ .uid }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}

{{/* The folder of the socket, for clients. */}}
{{- define "tensorlend.socketMount" -}}
# The folder, not the socket in it: a daemon that starts again creates another socket.
- name: socket
  mountPath: /run/tensorlend
  readOnly: true
{{- end }}

{{- define "tensorlend.socketVolume" -}}
- name: socket
  hostPath:
    path: {{ .Values.socketFolder }}
    type: DirectoryOrCreate
{{- end }}

{{- define "tensorlend.environment" -}}
env:
  - name: TENSORLEND_SOCKET
    value: /run/tensorlend/tensorlend.sock
  - name: TENSORLEND_LOG_FORMAT
    value: json
{{- end }}

{{/* Keys and values of a map as lines of TOML: JSON's texts, numbers and lists of texts are TOML's. */}}
{{- define "tensorlend.toml" -}}
{{- range $key, $value := . }}
{{- printf "%s = %s\n" $key (toJson $value) }}
{{- end }}
{{- end }}

{{- define "dlog.labels" -}}
app.kubernetes.io/name: dlog
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "dlog.selector" -}}
app.kubernetes.io/name: dlog
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dlog.image" -}}
{{- if .Values.image.digest }}
image: "{{ .Values.image.repository }}@{{ .Values.image.digest }}"
{{- else }}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
{{- end }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "dlog.uri" -}}
{{- required "uri is needed: zk://host:2181,host:2181/root" .Values.uri -}}
{{- if .Values.authSecret }}?auth-file=/etc/dlog/auth/auth{{ end -}}
{{- end }}

{{- define "dlog.env" -}}
- name: DLOG_URI
  value: {{ include "dlog.uri" . | quote }}
{{- if .Values.tls.enabled }}
- {name: DLOG_TLS, value: required}
- {name: DLOG_TLS_CA, value: /etc/dlog/tls/ca.crt}
- {name: DLOG_TLS_CERT, value: /etc/dlog/tls/tls.crt}
- {name: DLOG_TLS_KEY, value: /etc/dlog/tls/tls.key}
{{- end }}
{{- end }}

{{- define "dlog.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.authSecret }}
- {name: auth, mountPath: /etc/dlog/auth, readOnly: true}
{{- end }}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/dlog/tls, readOnly: true}
{{- end }}
{{- end }}

{{- /* Of (list . "bookie"): the Secret with the certificate of a component. */}}
{{- define "dlog.secret" -}}
{{- $root := index . 0 }}{{- $part := index . 1 }}
{{- index $root.Values.tls.secrets $part | default (printf "%s-%s-tls" $root.Release.Name $part) -}}
{{- end }}

{{- /* Of (list . "bookie"): what a component mounts; no other one's certificate. */}}
{{- define "dlog.volumes" -}}
{{- $root := index . 0 }}
- name: tmp
  emptyDir: {}
{{- if $root.Values.authSecret }}
- name: auth
  secret: {secretName: {{ $root.Values.authSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- if $root.Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ include "dlog.secret" . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "dlog.podSecurity" -}}
automountServiceAccountToken: false
# Else the environment names every service of the namespace, as DLOG_..., too.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "dlog.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

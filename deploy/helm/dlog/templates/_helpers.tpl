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
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "dlog.uri" -}}
{{- required "uri is needed: zk://host:2181,host:2181/root" .Values.uri -}}
{{- if .Values.authSecret }}?auth-file=/etc/dlog/auth/auth{{ end -}}
{{- end }}

{{- define "dlog.env" -}}
- name: DLOG_URI
  value: {{ include "dlog.uri" . | quote }}
{{- if .Values.tls.secretName }}
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
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/dlog/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "dlog.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.authSecret }}
- name: auth
  secret: {secretName: {{ .Values.authSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- if .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ .Values.tls.secretName | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "dlog.podSecurity" -}}
automountServiceAccountToken: false
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

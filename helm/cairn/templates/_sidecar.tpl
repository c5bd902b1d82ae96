{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* The sidecar form, for the pods of another chart that has this one as a dependency:

  metadata:
    labels:
      {{- include "cairn.sidecar.label" .Subcharts.cairn | nindent 6 }}
  spec:
    initContainers:
      {{- include "cairn.sidecar.container" .Subcharts.cairn | nindent 6 }}
    containers:
      - name: engine
        env:
          {{- include "cairn.sidecar.env" .Subcharts.cairn | nindent 10 }}
        volumeMounts:
          {{- include "cairn.sidecar.volumeMounts" .Subcharts.cairn | nindent 10 }}
    volumes:
      {{- include "cairn.sidecar.volumes" .Subcharts.cairn | nindent 6 }}

  helm/examples/vllm is a whole one. The engine enters the sockets as root, or with sockets.group among its groups; then the pod wants
  that group as fsGroup too. */ -}}

{{- /* A native sidecar (restartPolicy Always): the engine starts once the startup probe passes, beside recovery. It has no readiness probe,
  for its readiness would count as the engine's, and no preStop hook, for that would run before the engine ends. */ -}}
{{- define "cairn.sidecar.container" -}}
{{- include "cairn.check" . -}}
{{- if ne .Values.form "sidecar" -}}
{{- fail (printf "cairn.sidecar.container is for form sidecar, and cairn.form is %s" .Values.form) -}}
{{- end -}}
- {{- include "cairn.container" . | nindent 2 }}
  restartPolicy: Always
{{- end -}}

{{- define "cairn.sidecar.env" -}}
- name: CAIRN_CONTROL
  value: {{ include "cairn.control" . }}
{{- end -}}

{{- define "cairn.sidecar.volumeMounts" -}}
- name: cairn-sockets
  mountPath: /run/cairn
  readOnly: true # sockets can be entered, and none put in their place
{{- end -}}

{{- define "cairn.sidecar.volumes" -}}
{{- range list "cairn-sockets" "cairn-admin" }}
- name: {{ . }}
  emptyDir:
    sizeLimit: 1Mi
{{- end }}
{{- with include "cairn.tlsVolumes" . | trim }}
{{ . }}
{{- end }}
{{- range .Values.ssd.devices }}
- name: cairn-ssd-{{ .name }}
  {{- include "cairn.ephemeral" . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* POD_IP in an address: in brackets where it is of IPv6. */ -}}
{{- define "cairn.podIp" -}}
{{- ternary "[$(POD_IP)]" "$(POD_IP)" (eq .Values.ipFamily "IPv6") -}}
{{- end -}}

{{- define "cairn.control" -}}
{{- if eq .Values.form "statefulset" -}}
{{- printf "%s:%d" (include "cairn.podIp" .) (.Values.ports.control | int) -}}
{{- else -}}
unix:/run/cairn/control.sock
{{- end -}}
{{- end -}}

{{- /* Not empty: the control port speaks TLS. */ -}}
{{- define "cairn.tls" -}}
{{- if or .Values.tls.secretName .Values.tls.csi -}}tls{{- end -}}
{{- end -}}

{{- /* For cairnctl in the daemon's own container, which has no client's certificate. */ -}}
{{- define "cairn.ownControl" -}}
{{- if include "cairn.tls" . -}}unix:/run/cairn-admin/admin.sock{{- else -}}{{ include "cairn.control" . }}{{- end -}}
{{- end -}}

{{- define "cairn.plaintext" -}}
{{- .Values.plaintext | default "anywhere" -}}
{{- end -}}

{{- define "cairn.tlsVolumes" -}}
{{- if include "cairn.tls" . }}
- name: cairn-tls
  {{- if .Values.tls.secretName }}
  secret:
    secretName: {{ .Values.tls.secretName }}
    defaultMode: 0440
  {{- else }}
  csi:
    {{- toYaml .Values.tls.csi | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .Values.policy.configMapName }}
- name: cairn-policy
  configMap:
    name: {{ . }}
{{- end }}
{{- end -}}

{{- define "cairn.args" -}}
{{- $sizes := include "cairn.sizes" . | fromYaml -}}
- --control={{ include "cairn.control" . }}
- --admin=unix:/run/cairn-admin/admin.sock
- --socket=/run/cairn/cairnd.sock
{{- if include "cairn.tls" . }}
- --tls-cert=/run/cairn-tls/{{ .Values.tls.certificate }}
- --tls-key=/run/cairn-tls/{{ .Values.tls.key }}
- --tls-ca=/run/cairn-tls/{{ .Values.tls.ca }}
{{- with .Values.tls.crl }}
- --tls-crl=/run/cairn-tls/{{ . }}
{{- end }}
{{- if and .Values.cluster.enabled (eq .Values.cluster.source "etcd") (not (include "cairn.etcdTls" .)) }}
- --plaintext={{ .Values.plaintext }}
{{- end }}
{{- else if or (eq .Values.form "statefulset") .Values.cluster.enabled }}
- --plaintext={{ include "cairn.plaintext" . }}
{{- end }}
{{- if .Values.policy.configMapName }}
- --policy=/run/cairn-policy/policy.yaml
{{- end }}
{{- range .Values.doors.names }}
- --door=/run/cairn-doors/{{ . }}
{{- end }}
- --map={{ ternary "auto" "off" (eq .Values.form "sidecar") }}
- --http={{ include "cairn.podIp" . }}:{{ .Values.ports.http }}
- --host-bytes={{ $sizes.host | int64 }}MiB
- --staging-bytes={{ $sizes.staging | int64 }}MiB
{{- if .Values.memory.hugepages }}
- --huge-pages=required
{{- end }}
- --index-bytes={{ if .Values.memory.index }}{{ $sizes.index | int64 }}MiB{{ else }}auto{{ end }}
{{- range .Values.ssd.devices }}
- --ssd=/var/lib/cairn/{{ .name }}/tier={{ include "cairn.mi" .size }}MiB
{{- end }}
{{- if .Values.ssd.devices }}
- --ssd-io={{ .Values.ssd.io }}
- --ssd-write-budget={{ .Values.ssd.writeBudget }}{{ if hasSuffix "i" .Values.ssd.writeBudget }}B{{ end }}
- --ssd-scrub-rate={{ .Values.ssd.scrubRate }}{{ if hasSuffix "i" .Values.ssd.scrubRate }}B{{ end }}
{{- end }}
{{- with .Values.gpu.size }}
- --gpu={{ $.Values.gpu.device }}={{ include "cairn.mi" . }}MiB
{{- end }}
{{- if include "cairn.tls" . }}
- --stream={{ include "cairn.podIp" . }}:{{ .Values.ports.stream }}
{{- end }}
{{- if .Values.ucx.enabled }}
- --data={{ include "cairn.podIp" . }}:{{ .Values.ucx.port }}
- --data-port-range={{ .Values.ucx.portFirst }}-{{ .Values.ucx.portLast }}
{{- end }}
{{- if .Values.cluster.enabled }}
{{ include "cairn.clusterArgs" . }}
{{- end }}
- --lanes={{ .Values.threads.lanes }}
- --path-threads={{ .Values.threads.path }}
- --connections={{ .Values.connections }}
- --region-bytes={{ include "cairn.mi" .Values.region }}MiB
- --regions-bytes={{ include "cairn.mi" .Values.regions }}MiB
- --recipe={{ .Values.recipe }}
- --event-tokens={{ .Values.eventTokens }}
- --drain-ms={{ mul 1000 (.Values.drainSeconds | int) }}
- --log-level={{ .Values.logLevel }}
- --log-format={{ .Values.logFormat }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- /* Whoever is not the daemon itself needs no more than this. */ -}}
{{- define "cairn.containerSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.securityContext.runAsUser }}
runAsGroup: {{ .Values.sockets.group }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  {{- toYaml .Values.securityContext.seccompProfile | nindent 2 }}
{{- with .Values.securityContext.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "cairn.probe" -}}
httpGet:
  path: {{ .path }}
  port: http-metrics
timeoutSeconds: 5
{{- end -}}

{{- /* The daemon's container, without what only one form has. /healthz answers from the first moment on, while the daemon
  recovers too, so that neither the startup probe nor the liveness probe ends a long recovery. */ -}}
{{- define "cairn.container" -}}
name: cairnd
image: {{ include "cairn.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [cairnd]
args:
  {{- include "cairn.args" . | nindent 2 }}
env:
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  {{- if .Values.cluster.enabled }}
  {{- include "cairn.memberNameEnv" . | nindent 2 }}
  {{- end }}
  - name: CAIRN_CONTROL # for cairnctl in this container
    value: {{ include "cairn.ownControl" . | quote }}
  {{- if .Values.gpu.size }}
  - name: NVIDIA_DRIVER_CAPABILITIES # for the container runtime: the driver's libraries, and no more
    value: compute
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - name: http-metrics
    containerPort: {{ .Values.ports.http }}
  {{- if eq .Values.form "statefulset" }}
  - name: grpc
    containerPort: {{ .Values.ports.control }}
  {{- end }}
  {{- if include "cairn.tls" . }}
  - name: stream
    containerPort: {{ .Values.ports.stream }}
  {{- end }}
  {{- if .Values.ucx.enabled }}
  - name: ucx
    containerPort: {{ .Values.ucx.port }}
  {{- end }}
  {{- if .Values.cluster.enabled }}
  - name: peer
    containerPort: {{ .Values.cluster.peerPort }}
  {{- end }}
startupProbe:
  {{- include "cairn.probe" (dict "path" "/healthz") | nindent 2 }}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  {{- include "cairn.probe" (dict "path" "/healthz") | nindent 2 }}
  periodSeconds: 10
  failureThreshold: 6
resources:
  {{- include "cairn.resources" . | nindent 2 }}
securityContext:
  {{- include "cairn.containerSecurity" . | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - name: cairn-sockets
    mountPath: /run/cairn
  - name: cairn-admin # of this container alone: an engine that runs as root enters every socket that it sees
    mountPath: /run/cairn-admin
  {{- if .Values.doors.names }}
  - name: cairn-doors
    mountPath: /run/cairn-doors
  {{- end }}
  {{- if include "cairn.tls" . }}
  - name: cairn-tls
    mountPath: /run/cairn-tls
    readOnly: true
  {{- end }}
  {{- if .Values.policy.configMapName }}
  - name: cairn-policy
    mountPath: /run/cairn-policy
    readOnly: true
  {{- end }}
  {{- if include "cairn.hasMemberFile" . }}
  - name: cairn-members
    mountPath: /run/cairn-members
    readOnly: true
  {{- end }}
  {{- if include "cairn.hasEtcdFiles" . }}
  - name: cairn-etcd
    mountPath: /run/cairn-etcd
    readOnly: true
  {{- end }}
  {{- range .Values.ssd.devices }}
  - name: cairn-ssd-{{ .name }}
    mountPath: /var/lib/cairn/{{ .name }}
  {{- end }}
{{- end -}}

{{- /* A generic ephemeral volume: it dies with the pod. */ -}}
{{- define "cairn.ephemeral" -}}
ephemeral:
  volumeClaimTemplate:
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .storageClassName }}
      storageClassName: {{ . | quote }}
      {{- end }}
      resources:
        requests:
          storage: {{ include "cairn.claim" .size }}
{{- end -}}

{{- /* The pod of a daemonset and of a statefulset. */ -}}
{{- define "cairn.pod" -}}
metadata:
  labels:
    # Not the chart's version: a new chart alone restarts no daemon.
    {{- include "cairn.selector" . | nindent 4 }}
    app.kubernetes.io/part-of: cairn
    {{- with .Values.pod.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: cairnd
    {{- with .Values.pod.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- with include "cairn.serviceAccount" . }}
  serviceAccountName: {{ . }}
  {{- end }}
  automountServiceAccountToken: {{ ne (include "cairn.asksKubernetes" .) "" }}
  enableServiceLinks: false # a Service named cairn would inject CAIRN_PORT
  # The drain, 5 s for the end of what a device holds, and 5 s for the preStop hook.
  terminationGracePeriodSeconds: {{ add (.Values.drainSeconds | int) 10 }}
  securityContext:
    fsGroup: {{ .Values.sockets.group }}
    fsGroupChangePolicy: OnRootMismatch
  {{- if .Values.pod.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- range $key := list "priorityClassName" "runtimeClassName" }}
  {{- with index $.Values.pod $key }}
  {{ $key }}: {{ . }}
  {{- end }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
  {{- with index $.Values.pod $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and .Values.prepareNode.enabled (eq .Values.form "daemonset") }}
  initContainers:
    - name: prepare-node
      image: {{ .Values.prepareNode.image | quote }}
      command: [/bin/sh, -ec]
      args:
        - |
          prepare() { chown {{ .Values.securityContext.runAsUser }}:{{ .Values.sockets.group }} "$2" && chmod "$1" "$2"; }
          # The group enters the sockets, and cannot put others in their place.
          prepare 2750 /run/cairn
          {{- range .Values.ssd.devices }}
          {{- if .hostPath }}
          prepare 0700 /var/lib/cairn/{{ .name }}
          {{- end }}
          {{- end }}
      resources:
        requests: {cpu: 10m, memory: 16Mi}
        limits: {memory: 16Mi}
      securityContext:
        runAsUser: 0
        runAsNonRoot: false
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
          add: [CHOWN, FOWNER] # the kubelet makes hostPath folders as root's
        seccompProfile:
          type: RuntimeDefault
      volumeMounts:
        - name: cairn-sockets
          mountPath: /run/cairn
        {{- range .Values.ssd.devices }}
        {{- if .hostPath }}
        - name: cairn-ssd-{{ .name }}
          mountPath: /var/lib/cairn/{{ .name }}
        {{- end }}
        {{- end }}
  {{- end }}
  containers:
    - {{- include "cairn.container" . | nindent 6 }}
      readinessProbe:
        {{- include "cairn.probe" (dict "path" "/readyz") | nindent 8 }}
        periodSeconds: 5
      lifecycle:
        preStop:
          exec:
            command: [cairnctl, drain, --timeout, "4"]
  volumes:
    - name: cairn-sockets
      {{- if eq .Values.form "daemonset" }}
      hostPath:
        path: {{ .Values.sockets.hostPath }}
        type: {{ ternary "DirectoryOrCreate" "Directory" .Values.prepareNode.enabled }}
      {{- else }}
      emptyDir:
        sizeLimit: 1Mi
      {{- end }}
    - name: cairn-admin
      emptyDir:
        sizeLimit: 1Mi
    {{- with include "cairn.tlsVolumes" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- if include "cairn.hasMemberFile" . }}
    - name: cairn-members
      configMap:
        name: {{ include "cairn.membersName" . }}
    {{- end }}
    {{- with include "cairn.hasEtcdFiles" . }}
    - name: cairn-etcd
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- if eq .Values.form "daemonset" }}
    {{- if .Values.doors.names }}
    - name: cairn-doors
      hostPath:
        path: {{ .Values.doors.hostPath }}
        type: Directory
    {{- end }}
    {{- range .Values.ssd.devices }}
    - name: cairn-ssd-{{ .name }}
      {{- if .hostPath }}
      hostPath:
        path: {{ .hostPath }}
        type: {{ ternary "DirectoryOrCreate" "Directory" $.Values.prepareNode.enabled }}
      {{- else }}
      {{- include "cairn.ephemeral" . | nindent 6 }}
      {{- end }}
    {{- end }}
    {{- end }}
{{- end -}}

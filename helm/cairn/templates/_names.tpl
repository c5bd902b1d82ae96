{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "cairn.name" -}}
{{- default "cairn" .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "cairn.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "cairn.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "cairn.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* What finds the pods. It never changes in an upgrade. */ -}}
{{- define "cairn.selector" -}}
app.kubernetes.io/name: {{ include "cairn.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ ternary "store" "node" (eq .Values.form "statefulset") }}
{{- end -}}

{{- /* The sidecar form finds the pods of other charts by this label of theirs. */ -}}
{{- define "cairn.sidecar.label" -}}
cairn.io/sidecar: {{ .Release.Name }}
{{- end -}}

{{- define "cairn.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "cairn.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: cairn
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "cairn.image" -}}
{{- $repository := required "image.repository: name the image of Cairn that your cluster pulls; none is published, docs/install/cluster.md says how one is made" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* What the values cannot say together. */ -}}
{{- define "cairn.check" -}}
{{- if .Values.cluster.enabled -}}
{{- include "cairn.checkCluster" . -}}
{{- end -}}
{{- if gt (.Values.replicas | int) 1 -}}
{{- if ne .Values.form "statefulset" -}}
{{- fail "replicas is for form statefulset: a daemonset has a daemon on each node, and a sidecar one in each pod" -}}
{{- end -}}
{{- if not .Values.cluster.enabled -}}
{{- fail (printf "replicas is %d: set cluster.enabled, so that the stores share their blocks" (.Values.replicas | int)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tls.secretName .Values.tls.csi -}}
{{- fail "tls: secretName and csi are both set: the files come from one of them" -}}
{{- end -}}
{{- if and .Values.tls.testSecretName (not (include "cairn.tls" .)) -}}
{{- fail "tls.testSecretName is set, and neither secretName nor csi: the daemon would not speak TLS" -}}
{{- end -}}
{{- if and (include "cairn.tls" .) (ne .Values.form "statefulset") (not .Values.cluster.enabled) -}}
{{- fail "tls is for form statefulset, and for cluster.enabled: the others listen on unix sockets alone" -}}
{{- end -}}
{{- if and (eq .Values.form "statefulset") (not (include "cairn.tls" .)) (ne (include "cairn.plaintext" .) "anywhere") -}}
{{- fail (printf "plaintext is %s: form statefulset then needs tls.secretName or tls.csi" .Values.plaintext) -}}
{{- end -}}
{{- if and (eq .Values.form "statefulset") (not .Values.ucx.enabled) (not (include "cairn.tls" .)) -}}
{{- fail "form statefulset needs ucx.enabled or tls: workers of other pods reach the store over UCX or over TLS" -}}
{{- end -}}
{{- if and .Values.ucx.enabled (eq .Values.form "sidecar") -}}
{{- fail "form sidecar takes no ucx: the worker is in the same pod" -}}
{{- end -}}
{{- $hasOnlyMembers := and .Values.cluster.enabled (eq .Values.form "daemonset") -}}
{{- if and .Values.ucx.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.clientsFrom) (not $hasOnlyMembers) -}}
{{- fail "networkPolicy.clientsFrom: name the peers that may reach UCX; whoever reaches its ports can crash the daemon or write its memory" -}}
{{- end -}}
{{- if and .Values.ucx.enabled (lt (.Values.ucx.portLast | int) (.Values.ucx.portFirst | int)) -}}
{{- fail "ucx.portLast is less than ucx.portFirst" -}}
{{- end -}}
{{- if and (eq .Values.ssd.io "uring") (ne .Values.securityContext.seccompProfile.type "Localhost") -}}
{{- fail "ssd.io uring needs securityContext.seccompProfile of type Localhost: RuntimeDefault refuses io_uring" -}}
{{- end -}}
{{- if and .Values.prepareNode.enabled (not .Values.prepareNode.image) -}}
{{- fail "prepareNode.image: name an image that has /bin/sh, mkdir and chown" -}}
{{- end -}}
{{- if .Values.doors.names -}}
{{- if ne .Values.form "daemonset" -}}
{{- fail "doors.names: for form daemonset" -}}
{{- end -}}
{{- if not .Values.policy.configMapName -}}
{{- fail "doors.names: set policy.configMapName, which says whose the folders are" -}}
{{- end -}}
{{- if .Values.prepareNode.enabled -}}
{{- fail "doors.names: the node must make the folders; prepareNode cannot" -}}
{{- end -}}
{{- end -}}
{{- with .Values.gpu.size -}}
{{- $size := include "cairn.mi" . | int64 -}}
{{- if or (lt $size 64) (gt $size 1048576) -}}
{{- fail (printf "gpu.size is %s, expected 64Mi to 1Ti" .) -}}
{{- end -}}
{{- end -}}
{{- range .Values.ssd.devices -}}
{{- if and .hostPath (ne $.Values.form "daemonset") -}}
{{- fail (printf "ssd.devices %s: hostPath is for form daemonset; here it is storageClassName" .name) -}}
{{- end -}}
{{- if and (eq $.Values.form "daemonset") (not .hostPath) (not (hasKey . "storageClassName")) -}}
{{- fail (printf "ssd.devices %s: form daemonset wants hostPath or storageClassName" .name) -}}
{{- end -}}
{{- if and .hostPath (hasKey . "storageClassName") -}}
{{- fail (printf "ssd.devices %s: either hostPath or storageClassName" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* The flags of a member, docs/install/members.md. */ -}}
{{- define "cairn.clusterArgs" -}}
{{- $cluster := .Values.cluster -}}
- --members={{ include "cairn.members" . }}
{{- with $cluster.etcd.secretName }}
{{- with $cluster.etcd.ca }}
- --etcd-ca=/run/cairn-etcd/{{ . }}
{{- end }}
{{- with $cluster.etcd.certificate }}
- --etcd-cert=/run/cairn-etcd/{{ . }}
- --etcd-key=/run/cairn-etcd/{{ $cluster.etcd.key }}
{{- end }}
{{- with $cluster.etcd.user }}
- --etcd-user={{ . }}
- --etcd-password-file=/run/cairn-etcd/{{ $cluster.etcd.password }}
{{- end }}
{{- end }}
- --cluster={{ $cluster.name | default (include "cairn.fullname" .) }}
- --member-name=$(MEMBER_NAME)
- --peer={{ include "cairn.podIp" . }}:{{ $cluster.peerPort }}
- --member-grace={{ $cluster.memberGraceSeconds }}
- --peer-match-ms={{ $cluster.matchMs }}
{{- end -}}

{{- define "cairn.membersName" -}}
{{ include "cairn.fullname" . }}-members
{{- end -}}

{{- define "cairn.members" -}}
{{- $cluster := .Values.cluster -}}
{{- if eq $cluster.source "etcd" -}}
etcd:{{ join "," $cluster.etcd.endpoints }}
{{- else if eq $cluster.source "kubernetes" -}}
{{- printf "kubernetes:%s/%s" .Release.Namespace (include "cairn.membersName" .) -}}
{{- else if eq $cluster.source "file" -}}
file:/run/cairn-members/members
{{- else -}}
{{- printf "dns:%s.%s.svc:%d" (include "cairn.membersName" .) .Release.Namespace ($cluster.peerPort | int) -}}
{{- end -}}
{{- end -}}

{{- /* The lines of the file, NAME=HOST:PORT and the zone. */ -}}
{{- define "cairn.memberLines" -}}
{{- range .Values.cluster.file.members }}
{{ .name }}={{ ternary (printf "[%s]" .host) .host (contains ":" .host) }}:{{ $.Values.cluster.peerPort }}{{ with .zone }} {{ . }}{{ end }}
{{- end }}
{{- end -}}

{{- /* A name that is the same after a restart: the node's, or the pod's where it is a statefulset's. */ -}}
{{- define "cairn.memberNameEnv" -}}
- name: MEMBER_NAME
  valueFrom:
    fieldRef:
      fieldPath: {{ ternary "metadata.name" "spec.nodeName" (eq .Values.form "statefulset") }}
{{- end -}}

{{- /* Not empty: the pods have the file of the members. */ -}}
{{- define "cairn.hasMemberFile" -}}
{{- if and .Values.cluster.enabled (eq .Values.cluster.source "file") -}}file{{- end -}}
{{- end -}}

{{- /* Not empty: the pods have the files for etcd. */ -}}
{{- define "cairn.hasEtcdFiles" -}}
{{- if and .Values.cluster.enabled (eq .Values.cluster.source "etcd") -}}{{ .Values.cluster.etcd.secretName }}{{- end -}}
{{- end -}}

{{- /* Not empty: the daemons speak TLS to etcd. */ -}}
{{- define "cairn.etcdTls" -}}
{{- if include "cairn.hasEtcdFiles" . -}}{{ .Values.cluster.etcd.ca }}{{- end -}}
{{- end -}}

{{- /* Not empty: the pods ask the API server for the members. */ -}}
{{- define "cairn.asksKubernetes" -}}
{{- if and .Values.cluster.enabled (eq .Values.cluster.source "kubernetes") -}}kubernetes{{- end -}}
{{- end -}}

{{- define "cairn.serviceAccount" -}}
{{- .Values.pod.serviceAccountName | default (ternary (include "cairn.membersName" .) "" (ne (include "cairn.asksKubernetes" .) "")) -}}
{{- end -}}

{{- define "cairn.checkCluster" -}}
{{- $cluster := .Values.cluster -}}
{{- if eq .Values.form "sidecar" -}}
{{- fail "cluster.enabled is for the forms daemonset and statefulset: sidecars come and go with their engines" -}}
{{- end -}}
{{- if include "cairn.tls" . -}}
{{- if not .Values.policy.configMapName -}}
{{- fail "cluster.enabled with tls: set policy.configMapName, whose policy names the members with peer: true" -}}
{{- end -}}
{{- else -}}
{{- if or (ne .Values.plaintext "anywhere") (not .Values.ucx.enabled) -}}
{{- fail "cluster.enabled: set tls.secretName or tls.csi. Without them, whoever reaches the ports of the members can read and change every block and crash the daemons. If your network is trusted, set plaintext=anywhere and ucx.enabled=true" -}}
{{- end -}}
{{- if .Values.policy.configMapName -}}
{{- fail "cluster.enabled with policy.configMapName needs tls: without it, a member cannot prove that it is one" -}}
{{- end -}}
{{- end -}}
{{- if eq $cluster.source "etcd" -}}
{{- if not $cluster.etcd.endpoints -}}
{{- fail "cluster.source is etcd: set cluster.etcd.endpoints, every one" -}}
{{- end -}}
{{- if not $cluster.name -}}
{{- fail "cluster.source is etcd: set cluster.name, which no other cluster of this etcd has" -}}
{{- end -}}
{{- if and (ne .Values.plaintext "anywhere") (not (include "cairn.etcdTls" .)) -}}
{{- fail "cluster.source is etcd, and the daemon speaks to it without TLS: set plaintext=anywhere if the network up to etcd is trusted, or cluster.etcd.secretName and cluster.etcd.ca, or use the source dns" -}}
{{- end -}}
{{- if and $cluster.etcd.certificate (not $cluster.etcd.ca) -}}
{{- fail "cluster.etcd.certificate is set, and cluster.etcd.ca is not" -}}
{{- end -}}
{{- if and $cluster.etcd.user (not $cluster.etcd.secretName) -}}
{{- fail "cluster.etcd.user is set: set cluster.etcd.secretName, which has the password" -}}
{{- end -}}
{{- else if $cluster.etcd.secretName -}}
{{- fail (printf "cluster.etcd.secretName is for the source etcd, and cluster.source is %s" $cluster.source) -}}
{{- else if $cluster.etcd.endpoints -}}
{{- fail (printf "cluster.etcd.endpoints is for the source etcd, and cluster.source is %s" $cluster.source) -}}
{{- end -}}
{{- if and (eq $cluster.source "file") (not $cluster.file.members) -}}
{{- fail "cluster.source is file: set cluster.file.members" -}}
{{- end -}}
{{- $port := $cluster.peerPort | int -}}
{{- range list .Values.ports.control .Values.ports.stream .Values.ports.http .Values.ucx.port -}}
{{- if eq $port (. | int) -}}
{{- fail (printf "cluster.peerPort is %d, which is another port of the daemon" $port) -}}
{{- end -}}
{{- end -}}
{{- if and (ge $port (.Values.ucx.portFirst | int)) (le $port (.Values.ucx.portLast | int)) -}}
{{- fail (printf "cluster.peerPort is %d, which is one of the ports of UCX" $port) -}}
{{- end -}}
{{- end -}}

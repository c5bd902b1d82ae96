{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Mebibytes of a size such as 8Gi. */ -}}
{{- define "cairn.mi" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- mul $number (get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) (regexFind "[MGT]i$" .)) -}}
{{- end -}}

{{- /* What the daemon may take, in Mi, from docs/guides/memory.md:
  arena  host and staging, the part that huge pages serve
  index  2 KiB, a block with four images, for each 16 KiB of host and of the GPU tier (1,024 to 4 Mi of them), and 128 bytes for each
         image that an SSD has room for: one per 512 KiB, or per 32 KiB up to 2^19. Without an SSD there is no GPU tier; with one it
         has what coding on the GPU leaves, which takes an eighth, 32 to 2,048
  gpu    with a GPU 1,024 for what the driver takes of the host. An estimate: no device was at hand
  ssd    of each device two write buffers of at most 48 MiB, and 32 MiB of transfers in flight
  members  in a cluster, 64 for which member has which blocks (--location-bytes), and 64 for tables of blocks that are leased, deleted, announced and offered
  fixed  side objects 256, sums of squared queries 64, control calls 192, side objects on their way 64, the rest 64, and 64 for what comes in a quarter of a second
*/ -}}
{{- define "cairn.sizes" -}}
{{- $host := include "cairn.mi" .Values.memory.host | int64 -}}
{{- $staging := min 1024 (max 192 (div $host 8)) -}}
{{- with .Values.memory.staging }}{{ $staging = include "cairn.mi" . | int64 }}{{ end -}}
{{- $awake := $host -}}
{{- $gpu := 0 -}}
{{- with .Values.gpu.size -}}
{{- $gpu = 1024 -}}
{{- $size := include "cairn.mi" . | int64 -}}
{{- if $.Values.ssd.devices }}{{ $awake = add $host (sub $size (min 2048 (max 32 (div $size 8)))) }}{{ end -}}
{{- end -}}
{{- $index := mul 2048 (min 4194304 (max 1024 (mul $awake 64))) -}}
{{- range .Values.ssd.devices -}}
{{- $size := include "cairn.mi" .size | int64 -}}
{{- $index = add $index (mul 128 (max (mul $size 2) (min 524288 (mul $size 32)))) -}}
{{- end -}}
{{- $index = max 16 (div (add $index 1048575) 1048576) -}}
{{- with .Values.memory.index }}{{ $index = include "cairn.mi" . | int64 }}{{ end -}}
{{- $arena := mul (div (add $host $staging 1) 2) 2 -}}
{{- $ssd := mul 128 (len .Values.ssd.devices) -}}
{{- $members := ternary 128 0 .Values.cluster.enabled -}}
{{- $rest := add $index $ssd $gpu $members 704 -}}
{{- $sum := ternary $rest (add $arena $rest) .Values.memory.hugepages -}}
{{- $limit := $sum -}}
{{- with .Values.memory.limit }}{{ $limit = include "cairn.mi" . | int64 }}{{ end -}}
{{- if lt $limit $sum -}}
{{- $of := ternary "" (printf "host %dMi + staging %dMi + " $host $staging) .Values.memory.hugepages -}}
{{- fail (printf "memory.limit is %dMi, and the daemon may take %dMi: %sindex %dMi + ssd %dMi + gpu %dMi + members %dMi + fixed 704Mi" $limit $sum $of $index $ssd $gpu $members) -}}
{{- end -}}
host: {{ $host }}
staging: {{ $staging }}
index: {{ $index }}
arena: {{ $arena }}
limit: {{ $limit }}
{{- end -}}

{{- define "cairn.gpuResources" -}}
{{- if and .Values.gpu.size .Values.gpu.resources }}{{ toYaml .Values.gpu.resources }}{{ end -}}
{{- end -}}

{{- define "cairn.resources" -}}
{{- $sizes := include "cairn.sizes" . | fromYaml -}}
{{- $memory := printf "%dMi" ($sizes.limit | int64) -}}
{{- $pages := printf "%dMi" ($sizes.arena | int64) -}}
requests:
  cpu: {{ .Values.cpu.request | quote }}
  memory: {{ $memory }}
  {{- if .Values.memory.hugepages }}
  hugepages-2Mi: {{ $pages }}
  {{- end }}
  {{- with .Values.ucx.resources }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with include "cairn.gpuResources" . }}
  {{- . | nindent 2 }}
  {{- end }}
limits:
  {{- with .Values.cpu.limit }}
  cpu: {{ . | quote }}
  {{- end }}
  memory: {{ $memory }}
  {{- if .Values.memory.hugepages }}
  hugepages-2Mi: {{ $pages }}
  {{- end }}
  {{- with .Values.ucx.resources }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with include "cairn.gpuResources" . }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* A claim's request: the size and a tenth for the file system's own use, in Mi. */ -}}
{{- define "cairn.claim" -}}
{{- $size := include "cairn.mi" . | int64 -}}
{{- printf "%dMi" (add $size (div (add $size 9) 10)) -}}
{{- end -}}

{{/* Name of the objects: that of the release, with the chart's name in it. */}}
{{- define "komainu.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "komainu.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "komainu.labels" -}}
{{ include "komainu.selector" . }}
app.kubernetes.io/version: {{ .Chart.Version | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "komainu.account" -}}
{{- .Values.serviceAccount.name | default (include "komainu.name" .) -}}
{{- end -}}

{{/* Directives of the server itself. */}}
{{- define "komainu.config" -}}
{{- with .Values.config }}
{{ . | trim }}
{{- end }}
{{- if .Values.control.tlsSecret }}

[control]
tls = { certificate = "/etc/komainu/control/tls.crt", key = "/etc/komainu/control/tls.key" }
{{- end }}
{{- with .Values.cluster }}
{{- if .store }}

[cluster]
store = {{ .store | toJson }}
{{- with .sentinel }}
sentinel = {{ . | toJson }}
{{- end }}
{{- if and .secret .hasPassword }}
password_file = "/etc/komainu/cluster/password"
{{- end }}
{{- if and .secret .hasKey }}
key = "/etc/komainu/cluster/key"
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Rights on objects of namespaces. */}}
{{- define "komainu.namespacedRules" -}}
- apiGroups: [gateway.networking.k8s.io]
  resources:
    - gateways
    - listenersets
    - httproutes
    - grpcroutes
    - tlsroutes
    - tcproutes
    - udproutes
    - backendtlspolicies
    - referencegrants
  verbs: [list, watch]
- apiGroups: [gateway.networking.k8s.io]
  resources:
    - gateways/status
    - listenersets/status
    - httproutes/status
    - grpcroutes/status
    - tlsroutes/status
    - tcproutes/status
    - udproutes/status
    - backendtlspolicies/status
  verbs: [patch]
- apiGroups: [komainu.dev]
  resources: [komainupolicies]
  verbs: [list, watch]
- apiGroups: [komainu.dev]
  resources: [komainupolicies/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [services, secrets, configmaps]
  verbs: [list, watch]
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [list, watch]
- apiGroups: [networking.k8s.io]
  resources: [ingresses/status]
  verbs: [patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- if .Values.gatewayServices.type }}
{{- if and .Values.watchNamespace (ne .Values.watchNamespace .Release.Namespace) }}
{{- fail "gatewayServices.type needs the endpoints of the release's own Service: install the release in watchNamespace" }}
{{- end }}
- apiGroups: [""]
  resources: [services]
  verbs: [create, patch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [create, patch]
{{- end }}
{{- end -}}

{{/* Rights on objects of the cluster. */}}
{{- define "komainu.clusterRules" -}}
- apiGroups: [gateway.networking.k8s.io]
  resources: [gatewayclasses]
  verbs: [list, watch]
- apiGroups: [gateway.networking.k8s.io]
  resources: [gatewayclasses/status]
  verbs: [patch]
- apiGroups: [networking.k8s.io]
  resources: [ingressclasses]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end -}}

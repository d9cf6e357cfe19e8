#!/bin/sh
# Writes .env for docker-compose.yml: fresh keys, and the hashes that the gateway is given.
#   sh deploy/compose/make-env.sh [FILE]      default: .env beside docker-compose.yml
set -eu

file=${1:-$(dirname "$0")/../../.env}

random() {
    LC_ALL=C tr -dc 'A-Za-z0-9' < /dev/urandom | head -c 43
}

sha256() {
    if command -v sha256sum > /dev/null; then
        printf %s "$1" | sha256sum
    else
        printf %s "$1" | shasum -a 256
    fi | cut -d ' ' -f 1
}

if [ -e "$file" ]; then
    echo "$file exists and is left as it is; delete it to get new keys" >&2
    exit 1
fi

api_key=fg-$(random)
admin_key=fgadm-$(random)
prometheus_key=fgadm-$(random)
umask 077
cat > "$file" <<END
# Who may call: hand this key to a client.
GATEWAY_API_KEY=$api_key
# For operators: the console, /admin/v1, /metrics and /docs.
GATEWAY_ADMIN_KEY=$admin_key

# What the gateway is given: one entry a key, by its hash. "fairgate keys create" makes further ones.
GATEWAY_KEYS='[{tenant: default, user: first, tier: standard, max_tier: high, key_sha256: "$(sha256 "$api_key")"}]'
GATEWAY_ADMIN_KEY_SHA256=$(sha256 "$admin_key")

# Between gateway and vLLM.
VLLM_API_KEY=$(random)

# For the profile observability: what Prometheus shows the gateway, and who may enter Grafana (as admin).
PROMETHEUS_KEY=$prometheus_key
PROMETHEUS_KEY_SHA256=$(sha256 "$prometheus_key")
GRAFANA_ADMIN_PASSWORD=$(random)
# ALERT_WEBHOOK_URL=
# FAIRGATE_LOG__TRACES=http://collector:4318

# COMPOSE_PROFILES=gpu
# COMPOSE_PROFILES=cluster,observability
# PROMETHEUS_CONFIG=./deploy/compose/prometheus.cluster.yml
# CLUSTER_CONFIG=./deploy/compose/fairgate.yaml
# GATEWAY_BIND=0.0.0.0
# GATEWAY_PORT=8080
# MODEL=Qwen/Qwen2.5-7B-Instruct
# HF_TOKEN=
END
echo "wrote $file" >&2

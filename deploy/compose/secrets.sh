#!/usr/bin/env bash
# Writes .env beside compose.yaml with secrets of random bytes; leaves one that is there alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if [[ -e .env ]]; then
  printf '.env is there already: remove it first, and the databases that it opens\n' >&2
  exit 1
fi

random() { head -c 48 /dev/urandom | base64 -w 0 | tr '+/' '-_'; }

umask 077
{
  printf 'POSTGRES_PASSWORD=%s\n' "$(random)"
  printf 'AIRFLOW_FERNET_KEY=%s\n' "$(head -c 32 /dev/urandom | base64 -w 0 | tr '+/' '-_')"
  printf 'AIRFLOW_SECRET_KEY=%s\n' "$(random)"
  printf 'AIRFLOW_JWT_SECRET=%s%s\n' "$(random)" "$(random)"
} >.env.new
mv .env.new .env

#!/bin/bash
# A Dask cluster on this machine: a scheduler, two workers and one `prepare`; at the end all are stopped.
#   bash examples/cluster/dask.sh
set -euo pipefail
PORT=${PORT:-8786}
ADDRESS=tcp://127.0.0.1:$PORT

dask scheduler --host 127.0.0.1 --port "$PORT" --no-dashboard &
SCHEDULER=$!
dask worker "$ADDRESS" --nworkers 2 --nthreads 1 --memory-limit 0 --no-dashboard &
WORKERS=$!
trap 'kill "$WORKERS" "$SCHEDULER" || true' EXIT

hidisc prepare cohort.csv --out store --scheduler "$ADDRESS"

#!/bin/bash
# One machine with four GPUs, by torchrun. `hidisc train store --out run` alone does the same with all GPUs it finds.
#   bash examples/cluster/gpus.sh
set -euo pipefail

torchrun --standalone --nproc-per-node 4 \
    -m hidisc train store --recipe hidisc-patient --out run --devices 4

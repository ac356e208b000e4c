#!/bin/bash
# Two machines with four GPUs each, by torchrun. Start it on both, in the same shared folder:
#   NODE=0 HEAD=gpu01 bash examples/cluster/two-nodes.sh      # on gpu01
#   NODE=1 HEAD=gpu01 bash examples/cluster/two-nodes.sh      # on gpu02
set -euo pipefail
: "${NODE:?0 on the first machine, 1 on the second}"
: "${HEAD:?name or address of the first machine, as seen from the second one}"

torchrun --nnodes 2 --node-rank "$NODE" --nproc-per-node 4 --master-addr "$HEAD" --master-port 29500 \
    -m hidisc train store --recipe hidisc-patient --out run --devices 4 --nodes 2

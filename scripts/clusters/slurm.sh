#!/usr/bin/env bash
# A Ray cluster for one night on Slurm, and the study on it: sbatch scripts/clusters/slurm.sh night.yaml
# The first node is the head and runs trials as well; the environment and the study's paths are on a shared file system.
#SBATCH --job-name=sweep
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=4
#SBATCH --time=12:00:00
set -euo pipefail

study=${1:?usage: sbatch scripts/clusters/slurm.sh STUDY.yaml}
python=${SWEEP_PYTHON:-python3}
ulimit -n 65536 || true
export RAY_worker_niceness=0  # servers at the priority they have in production
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
port=$((20000 + SLURM_JOB_ID % 10000))

srun --nodes=1 --ntasks=1 --nodelist="$head" \
  "$python" -m ray.scripts.scripts start --head --node-name="$head" --port="$port" --block &
sleep 15
for node in "${nodes[@]:1}"; do
  srun --nodes=1 --ntasks=1 --nodelist="$node" \
    "$python" -m ray.scripts.scripts start --address="$head:$port" --node-name="$node" --block &
done
sleep 30

# With --signal=B:TERM@600 Slurm gives it time to store what runs; typed again, the study goes on.
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
  "$python" -m sweep.tune "$study" --ray-address "$head:$port" --time-budget 11h

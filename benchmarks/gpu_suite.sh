#!/usr/bin/env bash
# Runs every GPU measurement shown in the guides:
#
#   bash benchmarks/gpu_suite.sh OUT [PART ...]      # PARTS are the functions below; all but `blind` by default
#   device=cpu robots=16 minutes=0.2 bash benchmarks/gpu_suite.sh OUT blind    # tries `blind` without a GPU
#
# Needs the packages of the extra `warp` and rsl-rl-lib. Each part writes its files to OUT when it finishes, and
# OUT/progress.log records the times, so that an interrupted suite keeps what was measured. Parts run one after the
# other: on an H200 with 16 cores, two trainings and the tests together were five times slower each. Timed runs have
# the card to themselves. The policies of `rough`, `amp` and `walk` are evaluated on a CPU afterwards:
# `benchmarks/rough.py evaluate`, `benchmarks/humanoid.py evaluate` and `benchmarks/walk.py everywhere_gpu --stages evaluate`.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
parts=${*:-warm walk update rough amp tests rollouts}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1 MUJOCO_GL=disable PYTHONUNBUFFERED=1
started=$(date +%s)

log() { echo "$(($(date +%s) - started)) s: $*" >> "$out/progress.log"; }
run() { # NAME COMMAND...: writes the output to OUT/NAME.log
  local name=$1
  shift
  "$@" > "$out/$name.log" 2>&1
  log "$name exited with $?"
}
start_mps() { # lets processes run kernels on the card at the same time
  export CUDA_MPS_PIPE_DIRECTORY=$out/mps CUDA_MPS_LOG_DIRECTORY=$out/mps
  mkdir -p "$out/mps"
  nvidia-cuda-mps-control -d || { log "MPS is not available: processes are time-sliced"; unset CUDA_MPS_PIPE_DIRECTORY; }
}
stop_mps() {
  echo quit | timeout 10 nvidia-cuda-mps-control
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

warm() { # fills the compiler caches before the timed parts
  run warm_walk python3 benchmarks/walk.py everywhere_gpu --stages train --seeds 0 --folder "$out/warm" &
  run warm_mlp python3 benchmarks/ppo_gpu.py --no-peer --mlp-only --seconds 0.1 --output "$out/warm_mlp.json" &
  run warm_lstm python3 benchmarks/ppo_gpu.py --no-peer --only LSTM --seconds 0.1 --output "$out/warm_lstm.json" &
  wait
}
walk() { # alone on the card; policies are evaluated on a CPU
  run walk python3 benchmarks/walk.py everywhere_gpu --stages train --folder "$out/walk"
}
update() {
  run update python3 benchmarks/ppo_gpu.py --seconds 2 --output "$out/ppo_gpu.json"
  run algorithms python3 benchmarks/algorithm_updates.py --device cuda --output "$out/algorithm_updates_cuda.json"
}
rollouts() {
  run four_substeps python3 benchmarks/walk_gpu.py --limits --timestep 0.005 --substeps 4 --output "$out/four_gpu.json"
  run two_substeps python3 benchmarks/walk_gpu.py --limits --output "$out/two_gpu.json"
  run many python3 benchmarks/walk_gpu.py --robots 16384 --no-parts --iterations 92 --output "$out/many_gpu.json"
}
rough() { # three teachers in parallel, each followed by its blind student
  start_mps
  for seed in 1 2 3; do
    run "rough_$seed" python3 benchmarks/rough.py train --device cuda --seeds $seed --policies rough student flat \
      --minutes 3.5 --runs "$out/rough" &
  done
  wait
  stop_mps
}
blind() { # a deployable teacher, its blind student, and PPO from the student: about 9 minutes alone on the card
  local size="--device ${device:-cuda} --seeds 1 --runs $out/blind --engine auto --courses-only"
  run blind_teacher python3 benchmarks/rough.py train $size --policies rough --minutes "${minutes:-2}" \
    --iterations 3000 ${robots:+--robots $robots} -- --env.deployable
  run blind_student python3 benchmarks/rough.py train $size --policies student --minutes "${minutes:-2.5}" \
    --student-iterations 3000 ${robots:+--robots $robots}
  run blind_tuned python3 benchmarks/rough.py train $size --policies tuned --minutes "${minutes:-2.5}" \
    --tuned-iterations 3000 ${robots:+--robots $robots}
  tar --create --gzip --file "$out/blind.tgz" --directory "$out" blind
}
amp() {
  start_mps
  for seed in 1 2 3; do
    run "amp_$seed" python3 benchmarks/humanoid.py train --task humanoid-amp --device cuda --seeds $seed --robots 2048 \
      --iterations 550 --engine graph --runs "$out/amp" &
  done
  wait
  stop_mps
}
tests() { # without MPS, where a fault of one client kills all of them
  run tests python3 -m pytest -m gpu -v -v -p no:cacheprovider -n 6 --dist worksteal tests/engine tests
}

for part in $parts; do
  log "$part starts"
  "$part"
done
log "done"

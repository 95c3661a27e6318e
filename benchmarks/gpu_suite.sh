#!/usr/bin/env bash
# All that the guides show of a GPU, in the order that suits a machine that is lent by the minute:
#
#   bash benchmarks/gpu_lease.sh OUT [PART ...]      # PARTS below; all of them by default
#
# The packages must be there, those of pyproject's extra `warp` and rsl-rl-lib included. Each part leaves its files in OUT
# as it goes, so that a machine that is taken away leaves what was done; OUT/progress.log says when. What several
# processes may do at once, they do; what is measured has the card to itself. Seen on an H200 with 16 cores: trainings of
# two robots and the tests at once are five times slower each, so parts follow each other. `rough` and `amp` leave
# policies that `benchmarks/rough.py judge` and `benchmarks/humanoid.py judge` need nothing but a CPU for, and `walk` those
# of `benchmarks/walk.py everywhere_gpu --stages judge`.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
parts=${*:-warm walk update rough amp tests rollouts}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1 MUJOCO_GL=disable PYTHONUNBUFFERED=1
began=$(date +%s)

say() { echo "$(($(date +%s) - began)) s: $*" >> "$out/progress.log"; }
run() { # NAME COMMAND...: its output goes to OUT/NAME.log
  local name=$1
  shift
  "$@" > "$out/$name.log" 2>&1
  say "$name ended with $?"
}
share_card() { # lets processes use the card at the same time
  export CUDA_MPS_PIPE_DIRECTORY=$out/mps CUDA_MPS_LOG_DIRECTORY=$out/mps
  mkdir -p "$out/mps"
  nvidia-cuda-mps-control -d || { say "no MPS: processes take turns"; unset CUDA_MPS_PIPE_DIRECTORY; }
}
unshare_card() {
  echo quit | timeout 10 nvidia-cuda-mps-control
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

warm() { # the compilers' caches, for what is measured
  run warm_walk python3 benchmarks/walk.py everywhere_gpu --stages train --seeds 0 --folder "$out/warm" &
  run warm_mlp python3 benchmarks/ppo_gpu.py --no-peer --mlp-only --seconds 0.1 --output "$out/warm_mlp.json" &
  run warm_lstm python3 benchmarks/ppo_gpu.py --no-peer --only LSTM --seconds 0.1 --output "$out/warm_lstm.json" &
  wait
}
walk() { # alone on the card, as all that is measured; policies are judged elsewhere
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
rough() { # three teachers at once, each followed by its blind student
  share_card
  for seed in 1 2 3; do
    run "rough_$seed" python3 benchmarks/rough.py train --device cuda --seeds $seed --policies rough student flat \
      --minutes 3.5 --runs "$out/rough" &
  done
  wait
  unshare_card
}
amp() {
  share_card
  for seed in 1 2 3; do
    run "amp_$seed" python3 benchmarks/humanoid.py train --task humanoid-amp --device cuda --seeds $seed --robots 2048 \
      --iterations 550 --engine graph --runs "$out/amp" &
  done
  wait
  unshare_card
}
tests() { # not through MPS, where a fault of one client ends all of them
  run tests python3 -m pytest -m gpu -v -v -p no:cacheprovider -n 6 --dist worksteal tests/engine tests
}

for part in $parts; do
  say "$part begins"
  "$part"
done
say "done"

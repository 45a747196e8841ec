#!/bin/sh
# Everything that needs an NVIDIA GPU, in stages of at most 10 minutes on a Hopper GPU with 16 cores:
#   scripts/gpu.sh setup       packages into build/gpu, and a quick set of kernels
#   scripts/gpu.sh test        pytest tests/gpu
#   scripts/gpu.sh bench       the benchmarks
#   scripts/gpu.sh campaign    a campaign over the quick set
# Stages keep their builds and findings in build/gpu, and can be repeated. Without a network, WHEELS names a folder of
# wheels to install from; torch is taken as it is installed. PYTHON, if set, is an interpreter that has all packages.
set -eu
cd "$(dirname "$0")/.."
HOME_OF_ALL=$PWD/build/gpu
export ATTNFUZZ_CACHE="$HOME_OF_ALL/kernels" FLASHINFER_WORKSPACE_BASE="$HOME_OF_ALL/flashinfer"
SEED=${SEED:-1}
MINUTES=${MINUTES:-8}
# Those that compile within minutes: fmha_v2, and with it hopper:trtllm_mha, takes an hour of one core. With
# QUICK="$(attnfuzz backends --device cuda --runnable)" it is all that runs here.
QUICK=${QUICK:-"cuda_fixup xqa batch_decode fa2_paged mla_fa2 cascade_merge sdpa_flash"}

if [ -n "${PYTHON:-}" ]; then
  export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
else
  PYTHON=$HOME_OF_ALL/env/bin/python
fi

attnfuzz() { "$PYTHON" -m attnfuzz.harness.cli.main "$@"; }

repeated() { # repeated --backend a b: --backend a --backend b
  option=$1; shift
  for each; do printf '%s %s ' "$option" "$each"; done
}

setup() {
  if [ ! -x "$PYTHON" ] && ! command -v "$PYTHON" >/dev/null; then
    python3 -m venv --system-site-packages "$HOME_OF_ALL/env"
    if [ -n "${WHEELS:-}" ]; then
      "$PYTHON" -m pip install --quiet --no-index --find-links "$WHEELS" --no-build-isolation --editable '.[dev,gpu]'
    else
      "$PYTHON" -m pip install --quiet --editable '.[dev,gpu]'
    fi
  fi
  attnfuzz build $(repeated --backend $QUICK)
  attnfuzz backends --device cuda
}

run_tests() {
  "$PYTHON" -m pytest -m gpu tests/gpu -n "${JOBS:-4}"
}

measure() { # measure SECONDS BENCHMARK OPTION...: its rows come as they are measured, and a stop keeps them
  limit=$1 benchmark=$2; shift 2
  timeout "$limit" "$PYTHON" "benchmarks/$benchmark.py" "$@" || echo "$benchmark: exit code $?"
}

bench() {
  set -- --json "$HOME_OF_ALL/benchmarks.ndjson"
  measure 40 gpu_fixup "$@"
  measure 110 gpu_strays "$@"
  measure 30 gpu_routes "$@"
  measure 50 deaths --deaths 8 --calm 400 --starts 1 --cases 15 --deadly benchmarks/gpu_deadly.py:DEADLY --healthy cuda_fixup
  measure 100 gpu_guarding "$@" --cases 60 --backend cuda_fixup --backend xqa_as_served
  measure 30 gpu_operations "$@" $(repeated --backend cuda_fixup sdpa_flash xqa fa2_paged)
  measure 95 gpu_rates "$@" --seconds 6 --large --jobs 14 --backend xqa --backend fa2_paged
  measure 145 gpu_rates "$@" --seconds 4 --jobs 1 --jobs 14 $(repeated --backend $QUICK)
}

campaign() {
  attnfuzz fuzz $(repeated --backend $QUICK) \
    --time "${MINUTES}m" --jobs "${JOBS:-12}" --seed "$SEED" --home "$HOME_OF_ALL/campaign"
}

case ${1:-} in
  setup) setup ;;
  test) run_tests ;;
  bench) bench ;;
  campaign) campaign ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

#!/bin/sh
# The tests of `make quick` with other versions than those of constraints.txt, each set in a virtual environment of its
# own in build/versions, which is removed afterwards:
#   scripts/versions.sh lowest [PYTHON]       the lowest version of everything that pyproject.toml names
#   scripts/versions.sh newest [PYTHON...]    the newest, for each of these (or python3.11 to 3.14) and each of SETS: a
#                                             release of torch and, after a comma, one of FlashInfer
#   scripts/versions.sh newer                 releases newer than constraints.txt, and their functions that no backend calls
# uv resolves and installs; it takes indexes from the environment. UV_TORCH_BACKEND=cpu installs torch's CPU builds.
set -euf
cd "$(dirname "$0")/.."
HOME_OF_ALL=$PWD/build/versions
SETS=${SETS-"2.14.*,0.7.2.post1 2.15.*,0.7.4"}
QUICK="not slow and not cluster and not long and not serve and not sglang and not vllm and not draws"

tried() { # tried PYTHON RESOLUTION [TORCH [FLASHINFER]]: one line of the table, and the log beside it
  python=$1 resolution=$2 torch=${3:-} flashinfer=${4:-} versions=
  # By its version: several interpreters may all be called python.
  name=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null || basename "$python")
  name=$name-$resolution${torch:+-torch-$torch}${flashinfer:+-flashinfer-$flashinfer}
  env=$HOME_OF_ALL/env log=$HOME_OF_ALL/$name.log
  rm -rf "$env"
  result="can't be installed"
  if "$UV" venv --quiet --python "$python" "$env" >"$log" 2>&1 &&
    "$UV" pip install --quiet --python "$env/bin/python" --resolution "$resolution" ${torch:+"torch==$torch"} \
      ${flashinfer:+"flashinfer-python==$flashinfer"} --editable '.[dev]' >>"$log" 2>&1; then
    result="fails"
    "$env/bin/python" -m pytest -q -n "${JOBS:-1}" -m "$QUICK" >>"$log" 2>&1 && result="passes"
    versions=$("$env/bin/python" -c 'import platform, torch; print(f"Python {platform.python_version()}, torch {torch.__version__}: ")')
  fi
  echo "$name: $result (${versions:-}$(tail -n 1 "$log")), $log"
  rm -rf "$env"
  [ "$result" = passes ] || failed=1
}

if [ "${1:-}" = newer ]; then
  exec "${PYTHON:-.venv/bin/python}" scripts/newer_releases.py
fi
UV=${UV:-$(command -v uv || true)}
mkdir -p "$HOME_OF_ALL"
if [ -z "$UV" ]; then
  python3 -m venv "$HOME_OF_ALL/uv"
  "$HOME_OF_ALL/uv/bin/pip" install --quiet uv
  UV=$HOME_OF_ALL/uv/bin/uv
fi
failed=0
stage=${1:-}
[ $# -eq 0 ] || shift
case $stage in
  lowest) tried "${1:-python3.11}" lowest-direct "${TORCH:-}" ;;
  newest)
    [ $# -gt 0 ] || set -- $(for minor in 11 12 13 14; do "python3.$minor" -c 'import sys; print(sys.executable)' 2>/dev/null || true; done)
    for python; do
      for set in $SETS; do
        torch=${set%%,*} flashinfer=${set#"${set%%,*}"}
        tried "$python" highest "$torch" "${flashinfer#,}"
      done
    done
    ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
exit $failed

#!/bin/sh
# Runs a command with all C++ of this project built with AddressSanitizer and UBSan (GCC's):
#   scripts/sanitized.sh COMMAND [ARGUMENT...]
# Fails if the command fails, or if any process of it, workers included, has a report: it is printed.
set -euf
[ $# -gt 0 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT

runtime() { realpath "$(g++ -print-file-name="$1")"; }

# build.py compiles with $CXX, and hashes it, so sanitized libraries have names of their own in the cache.
export CXX="g++ -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
# Python leaks. Signals are left to our fault recorder: a fault at a guard page is no error of the program.
signals=handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0
export ASAN_OPTIONS="detect_leaks=0:$signals:quarantine_size_mb=32:log_path=$reports/report"
export UBSAN_OPTIONS=print_stacktrace=1
# Python's own allocator would hide writes past its objects.
export PYTHONMALLOC=malloc
# Python is not sanitized, so the runtimes must be loaded before everything else. libstdc++: ASan looks for
# __cxa_throw when it starts.
status=0
env LD_PRELOAD="$(runtime libasan.so) $(runtime libubsan.so) $(runtime libstdc++.so)" "$@" || status=$?

set +f
for report in "$reports"/report.*; do
  [ -e "$report" ] || continue
  cat "$report" >&2
  status=1
done
exit $status

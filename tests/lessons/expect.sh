#!/usr/bin/env bash
# A lesson's exit code, and its last line.
#   expect.sh pass PROGRAM [SECONDS]   0 and PASS, within so many seconds (the best of three tries: others may be busy)
#   expect.sh fail PROGRAM             1 and "FAIL: what"
# 2, when the program says that it cannot run here.
set -uo pipefail
expected=$1 program=$2 seconds=${3:-}

for try in 1 2 3; do
  begun=${EPOCHREALTIME/[.,]/}
  output=$("$program" 2>&1)
  code=$?
  microseconds=$((${EPOCHREALTIME/[.,]/} - begun))
  [ "$try" = 1 ] && printf '%s\n' "$output"
  case "$expected $code ${output##*$'\n'}" in
    *' 2 '*) exit 2 ;;
    'pass 0 PASS') ;;
    'fail 1 FAIL: '?*) exit 0 ;;
    *)
      echo "exit code $code, which is not what was expected: $expected"
      exit 1
      ;;
  esac
  [ -n "$seconds" ] && [ "$microseconds" -gt $((seconds * 1000000)) ] || exit 0
  echo "it took $microseconds microseconds"
done
exit 1

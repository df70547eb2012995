#!/usr/bin/env bash
# bench/run and tests/run: arguments that are refused, and --no-install, which only lists.
set -uo pipefail
cd "$1" || exit 1
failures=0

expect() { # expected exit code, words that the output must have, command...
  local code=$1 words=$2 output got
  shift 2
  output=$("$@" 2>&1)
  got=$?
  if [ "$got" != "$code" ] || [[ "$output" != *"$words"* ]]; then
    printf '%s: exit code %s (expected %s), output: %s\n' "$*" "$got" "$code" "$output"
    failures=$((failures + 1))
  fi
}

expect 0 "" bench/run --no-install
expect 0 "" bench/run 01 --no-install
expect 0 "" bench/run 00 01 --quick --no-install
expect 0 "" bench/run --batch 32 01 --no-install
expect 64 "no chapter '99'" bench/run 99
expect 64 "--json" bench/run --json x
expect 64 "--trace" bench/run 00 --trace x
expect 64 "needs a folder" bench/run --tensorboard
expect 64 "--plan" bench/run 00 --tensorboard build/scalars --plan
expect 64 "is no folder" bench/run 00 --tensorboard README.md
expect 64 "--help" bench/tensorboard
expect 0 "bench/run 01" bench/run --help
expect 0 "" tests/run --no-install
expect 0 "build/web/fit.html" bench/web --help
expect 64 "--offline" bench/web --online
expect 0 "build/site/html" bench/site --help
expect 64 "--online" bench/site --online
expect 64 "takes a URL" bench/site --address here
expect 64 "nothing beside --card" bench/site --card --offline
expect 0 "tests/run host" tests/run --help
expect 0 "tests/run bench" tests/run --help
expect 0 "falls short" tests/run bench --help
expect 0 "13_optimizer_memory_bench" tests/run bench --list
expect 0 "fit --model" tests/run bench --list -R '^fit'
expect 0 "" tests/run bench --no-install
expect 64 "--nosuch" tests/run bench --nosuch
expect 64 "one preset" tests/run bench host-asan
expect 64 "one preset" tests/run all bench
expect 64 "matches no command" tests/run bench --list -R nothing
expect 64 "not a regular expression" tests/run bench --list -R '('
expect 64 "benc" tests/run benc
[ "$failures" -eq 0 ]

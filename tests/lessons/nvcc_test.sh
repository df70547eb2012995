#!/usr/bin/env bash
# Builds a lesson by the command in its first line, in a folder that has nothing but the lesson; nvcc may not say a word.
# 2: no nvcc here, or no NCCL for a lesson that needs it.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. bench/setup.sh
have_nvcc || exit 2
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cp "$1" "$folder/lesson.cu"
cd "$folder" || exit 1
read -r slashes command <lesson.cu
if [ "$slashes" != "//" ] || [[ "$command" != nvcc\ * ]]; then die "the first line is no nvcc command: $slashes $command"; fi
output=$($command 2>&1)
code=$?
if [ "$code" != 0 ] && grep -q 'nccl\.h: No such file\|cannot find -lnccl' <<<"$output"; then exit 2; fi
printf '%s\n%s\n' "$command" "$output"
[ "$code" = 0 ] && [ -z "$output" ] && [ -x lesson ]

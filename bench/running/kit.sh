#!/bin/sh
# A kit's ./run: kit.py, where there is a Python to run it.
command -v python3 >/dev/null || {
  echo "run: python3 is missing; it is what runs this kit's programs" >&2
  exit 2
}
exec python3 "$(dirname "$(readlink -f "$0")")/kit.py" "$@"

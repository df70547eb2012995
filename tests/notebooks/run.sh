#!/bin/sh
# run.sh SCRIPT ...: with the Python that has nbclient, the one in use, or the system's, for which tests/run installs it.
here=$(dirname "$0")
for python in python3 /usr/bin/python3; do
  if "$python" -c "import importlib.util as u; assert all(map(u.find_spec, ('nbclient', 'matplotlib', 'ipykernel')))" 2>/dev/null; then
    script=$1
    shift
    exec "$python" "$here/$script" "$@"
  fi
done
echo "no Python here has nbclient, ipykernel and matplotlib"
exit 1

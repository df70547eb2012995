#!/bin/sh
# With the Python that has nbclient: the one in use, or the system's, for which tests/run installs it.
here=$(dirname "$0")
for python in python3 /usr/bin/python3; do
  if "$python" -c "import nbclient, matplotlib, ipykernel" 2>/dev/null; then
    exec "$python" "$here/run_notebook.py" "$@"
  fi
done
echo "no Python here has nbclient, ipykernel and matplotlib"
exit 1

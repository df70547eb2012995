"""Checks what a chapter wrote: check_files.py ROOT FOLDER RESULT...

The results against the schema; FOLDER's trace.json and snapshot.pickle by their own readers, and that both show the peak of the first
result's first variant."""
import json
import pathlib
import sys

import jsonschema

root, folder = map(pathlib.Path, sys.argv[1:3])
sys.path.insert(0, str(root / "tests/memory"))
import check_snapshot  # noqa: E402
import check_trace  # noqa: E402

schema = json.loads((root / "common/harness/result.schema.json").read_text())
jsonschema.Draft7Validator.check_schema(schema)
results = {name: json.loads((folder / name).read_text()) for name in sys.argv[3:]}
errors = [f"{name}: {'/'.join(map(str, error.absolute_path))} {error.message}" for name, result in results.items()
          for error in sorted(jsonschema.Draft7Validator(schema).iter_errors(result), key=str)]

peak = next(iter(results.values()))["variants"][0]["peak_allocated_bytes"]
for name, reader, written in (("trace.json", check_trace, (folder / "trace.json").read_text(encoding="utf-8")),
                              ("snapshot.pickle", check_snapshot, (folder / "snapshot.pickle").read_bytes())):
    try:
        if (shown := reader.check(written)[0]["peak"]) != peak:
            errors.append(f"{name}: its peak is {shown}, the result's {peak}")
    except reader.Refused as why:
        errors.append(f"{name}: {why}")
print("\n".join(errors))
sys.exit(1 if errors else 0)
